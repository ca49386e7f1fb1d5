"""DecayedRate: how many events a second, or how much of them, where an event counts half after each half-life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log
from typing import Any

from views.aggregates import numbers
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind
from views.aggregates.counting import ROUNDED, is_summable, summable
from views.errors import DeclarationError, ExpressionError
from views.grain import parse_length
from views.typed_expression import TypedExpression
from views.types import BIGINT, DOUBLE

POWER_OF_2 = (1073741715, 744268966, 257850314, 59979580, 9609550, 2033403)
"""2 ** f as a polynomial of f, times 2^30; off by at most 1.5 * 10^-7 of it.

In whole numbers Python and Spark cannot differ.
"""
FRACTION_BITS = 24
BLOCK = 32
"""Half-lives, over which whole numbers of 64 bits hold the weights."""
KEPT_BLOCKS, SLOTS = 2, 3
"""That of the last event and the one before. Spark keeps one more: a group is not longer than two blocks."""
MAX_GRAIN = KEPT_BLOCKS * BLOCK
MAX_HALF_LIFE_S = 365 * 86_400
MILLIS = 1_000
WEIGHTS = "within 0.00003%"
"""Of two weights, each of which is off by 1.5 * 10^-7 at most."""
State = tuple[int | None, Any, Any]
"""The last event's time in milliseconds, the weighted sum of its block, and that of the block before."""


@dataclass(frozen=True)
class DecayedRate(Aggregate):
    """Events a second, or the sum of an expression a second, as at the last event; null of no values.

    An event counts half after each `half_life`, so that the rate is that of the last few half-lives, as far as they
    are in the period.
    """

    of: str = ""
    half_life: str = "10m"

    def expression(self) -> str | None:
        return self.of or None

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        is_exact = measure is None or check_kind("DecayedRate", measure, "bigint", "double").is_small
        return DecayedRateAlgebra(self.half_life_s * MILLIS, is_exact=is_exact)

    def check_grain(self, seconds: int) -> None:
        if seconds > MAX_GRAIN * self.half_life_s:
            raise ExpressionError(
                f"half_life is {self.half_life!r}; it should be at least 1/{MAX_GRAIN} of the grain, "
                f"{-(-seconds // MAX_GRAIN)}s."
            )

    @property
    def half_life_s(self) -> int:
        """How long a half-life is. ExpressionError where it cannot be one."""
        try:
            seconds = parse_length(self.half_life)
        except DeclarationError as error:
            raise ExpressionError(f"half_life: {error}") from None
        if seconds > MAX_HALF_LIFE_S:
            raise ExpressionError(f"half_life is {self.half_life!r}; it should be at most 365d.")
        return seconds

    def meaning(self) -> dict[str, Any]:
        return {"half_life_s": self.half_life_s}


class DecayedRateAlgebra(Algebra):
    """The weight of an event is 2 ** (its time in half-lives), as of the beginning of a block of 32 half-lives.

    The state has the sums of two blocks alone, so weights never overflow. An older event weighs less than 2^-32 of the
    last one. Whichever states are merged first, the sums that are left out are the same.
    """

    kinds = "ttt"
    type = DOUBLE
    by_position = True

    def __init__(self, half_life_ms: int, *, is_exact: bool) -> None:
        self.half_life_ms, self.is_exact = half_life_ms, is_exact
        self.block_ms = BLOCK * half_life_ms
        self.error = WEIGHTS if is_exact else f"{WEIGHTS}; {ROUNDED}"
        self._nothing: Any = 0 if is_exact else 0.0

    def weight(self, millis: int) -> int:
        """2 ** (the time since its block began, in half-lives), times 2^30."""
        halves, rest = divmod(millis, self.half_life_ms)
        fraction = (rest << FRACTION_BITS) // self.half_life_ms
        found = 0
        for coefficient in reversed(POWER_OF_2):
            found = (found * fraction >> FRACTION_BITS) + coefficient
        return found << halves % BLOCK

    def zero(self) -> State:
        return None, self._nothing, self._nothing

    def add(self, state: State, value: Any, at: Position) -> State:
        millis = at.micros // MILLIS
        if self.is_exact:
            return self.merge(state, (millis, int(value) * self.weight(millis), 0))
        if not is_summable(float(value)):
            return state
        return self.merge(state, (millis, float(value) * float(self.weight(millis)), 0.0))

    def merge(self, left: State, right: State) -> State:
        if left[0] is None or right[0] is None:
            return right if left[0] is None else left
        last = max(left[0], right[0])
        (new, old), (new_too, old_too) = self.as_of(last, left), self.as_of(last, right)
        return last, new + new_too, old + old_too

    def as_of(self, last: int, state: State) -> tuple[Any, Any]:
        """Its sums as those of the block of `last` and of the one before."""
        millis, new, old = state
        blocks = last // self.block_ms - (millis or 0) // self.block_ms
        return ((new, old), (self._nothing, new))[blocks] if blocks < KEPT_BLOCKS else (self._nothing, self._nothing)

    def present(self, state: State) -> float | None:
        last, new, old = state
        if last is None:
            return None
        per_second = log(2) / (self.half_life_ms / MILLIS)
        if self.is_exact:
            return float(Fraction((new << BLOCK) + old, self.weight(last) << BLOCK)) * per_second
        return float((new + old / 2**BLOCK) / self.weight(last) * per_second)

    def to_parts(self, state: State) -> tuple[Part, ...]:
        last, *sums = state
        return None if last is None else str(last), *map(numbers.to_part, sums)

    def from_parts(self, parts: Sequence[Part]) -> State:
        if parts[0] is None:
            return self.zero()
        new, old = (numbers.from_part(part or "0", BIGINT if self.is_exact else DOUBLE) for part in parts[1:])
        return int(parts[0]), new, old

    def aggregate(self, measure: str, only: str) -> list[str]:
        time = "unix_millis(event_time)"
        fraction = f"(shiftleft({time} % {self.half_life_ms}L, {FRACTION_BITS}) div {self.half_life_ms}L)"
        found = f"{POWER_OF_2[-1]}L"
        for coefficient in POWER_OF_2[-2::-1]:
            found = f"(shiftright({found} * {fraction}, {FRACTION_BITS}) + {coefficient}L)"
        weight = f"shiftleft({found}, cast({time} div {self.half_life_ms}L % {BLOCK}L AS int))"
        if self.is_exact:
            value = measure
            product = f"cast({measure} AS decimal(10,0)) * cast({weight} AS decimal(19,0))"
        else:
            value = summable(f"cast({measure} AS double)", DOUBLE)
            product = f"{value} * cast({weight} AS double)"
        slot = f"pmod({time} div {self.block_ms}L, {SLOTS}L)"
        sums = [f"sum(CASE WHEN {slot} = {each}L THEN {product} END){only}" for each in range(SLOTS)]
        return [f"max(CASE WHEN {value} IS NOT NULL THEN {time} END){only}", *sums]

    def parts(self, columns: Sequence[str]) -> list[str]:
        last, *sums = columns
        return [f"cast({last} AS string)", self._slot_sql(last, 0, sums), self._slot_sql(last, 1, sums)]

    def _slot_sql(self, last: str, before: int, sums: Sequence[str]) -> str:
        """The sum of the last block, or of one before."""
        cases = " ".join(f"WHEN {each}L THEN {column}" for each, column in enumerate(sums))
        found = f"CASE pmod({last} div {self.block_ms}L - {before}L, {SLOTS}L) {cases} END"
        if self.is_exact:
            return f"cast(coalesce({found}, 0) AS string)"
        return numbers.part_sql(f"coalesce({found}, 0D)", DOUBLE)
