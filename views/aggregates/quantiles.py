"""Quantiles: counts in buckets that grow geometrically; any split of the events gives the identical answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil, exp, log
from typing import Any, cast

from views.aggregates import items
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind
from views.aggregates.distinct import accumulated, blob
from views.aggregates.items import Items, Room
from views.errors import ExpressionError, StateError
from views.typed_expression import TypedExpression
from views.types import DOUBLE

SMALLEST, LARGEST = 1e-9, 1e15
"""Sizes below the first count as 0, those above the second as the second."""


@dataclass(frozen=True)
class Quantiles(Aggregate):
    """The values that a share `at` of all does not exceed: {"p50": 12.1, "p99": 804.0}; one number if `at` is one.

    Each is within the relative `error` of a value that has that rank.
    """

    at: tuple[float, ...] | float = (0.5, 0.95, 0.99)
    error: float = 0.01

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        check_kind("Quantiles", measure, "bigint", "double")
        shares = self.at if isinstance(self.at, tuple | list) else (self.at,)
        if not shares or not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares):
            raise ExpressionError(f"at is {self.at!r}; it should be one or more shares from 0 to 1, like (0.5, 0.99).")
        if len({name_of(share) for share in shares}) < len(shares):
            raise ExpressionError(f"at is {self.at!r}; each share should appear once.")
        if type(self.error) is not float or not 0.001 <= self.error <= 0.1:
            raise ExpressionError(f"error is {self.error!r}; it should be from 0.001 to 0.1.")
        return QuantilesAlgebra(tuple(shares), self.error, is_one=not isinstance(self.at, tuple | list))

    def meaning(self) -> dict[str, Any]:
        at = [float(share) for share in self.at] if isinstance(self.at, tuple | list) else float(self.at)
        return {"at": at, "error": self.error}


class QuantilesAlgebra(Algebra):
    """The bucket of a value is the power of `growth` that it does not exceed; -x has the negative of x's bucket."""

    kinds = "b"

    def __init__(self, shares: tuple[float, ...], error: float, *, is_one: bool) -> None:
        self.shares, self.is_one = shares, is_one
        self.type = DOUBLE if is_one else None
        self.error = f"within {error:.1%}"
        self.names = [name_of(share) for share in shares]
        self.growth = (1 + error) / (1 - error)
        self.per_log = 1 / log(self.growth)
        self.shift = 1 - ceil(log(SMALLEST) * self.per_log)
        self.largest = ceil(log(LARGEST) * self.per_log) + self.shift
        self.room = Room(2 * self.largest + 1)

    def zero(self) -> Items:
        return Items({})

    def add(self, state: Items, value: float, at: Position) -> Items:
        bucket = self.bucket(float(value))
        state.counts[bucket] = state.counts.get(bucket, 0) + 1
        return state

    def add_all(self, state: Items, values: Sequence[float], at: Sequence[Position]) -> Items:
        counts, per_log, shift = state.counts, self.per_log, self.shift
        for value in values:
            # Written out for the sizes that there are: a call for each value takes longer than the logarithm.
            found = ceil(log(value) * per_log) + shift if SMALLEST <= value <= LARGEST else self.bucket(float(value))
            counts[found] = counts.get(found, 0) + 1
        return state

    def bucket(self, value: float) -> int:
        """`100.0` -> 1268 (with an error of 1 %)."""
        size = abs(value)
        if size < SMALLEST:
            return 0
        found = min(ceil(log(size) * self.per_log) + self.shift, self.largest)
        return found if value > 0 else -found

    def value(self, bucket: int) -> float:
        """The middle of a bucket: at most `error` from everything in it."""
        if bucket == 0:
            return 0.0
        size = exp((abs(bucket) - self.shift) / self.per_log) * 2 / (1 + self.growth)
        return size if bucket > 0 else -size

    def merge(self, left: Items, right: Items) -> Items:
        return items.merge(left, right, self.room)

    def merge_all(self, states: Sequence[Items]) -> Items:
        return items.merge_all(states, self.room)

    def merge_parts(self, columns: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
        images = [image for image in columns[0] if isinstance(image, bytes)]
        merged = items.merge_numbers(images, self.room) if images else None
        return super().merge_parts(columns) if merged is None else (merged,)

    def present(self, state: Items) -> Any:
        found = self.present_at(state, self.shares)
        return found[0] if self.is_one else dict(zip(self.names, found, strict=True))

    def present_at(self, state: Items, shares: Sequence[float]) -> list[float | None]:
        """The quantiles at any shares."""
        counts = cast("Mapping[int, int]", state.counts)
        buckets = sorted(counts)
        seen = list(accumulate(map(counts.__getitem__, buckets)))
        if not seen:
            return [None] * len(shares)
        return [self.value(buckets[bisect_left(seen, rank_of(share, seen[-1]))]) for share in shares]

    def present_by_share(self, state: Items, shares: Sequence[float]) -> dict[str, float | None]:
        """The same by the text of each share: {"0.5": 12.1, "0.999": 804.0}."""
        return dict(zip(map(text_of, shares), self.present_at(state, shares), strict=True))

    def to_parts(self, state: Items) -> tuple[Part, ...]:
        return (items.to_bytes(state, self.room) if state.counts else None,)

    def to_short_parts(self, state: Items) -> tuple[Part, ...]:
        return (items.to_short_bytes(state, self.room) if state.counts else None,)

    def from_parts(self, parts: Sequence[Part]) -> Items:
        found = items.from_bytes(blob(parts[0]), is_text=False)
        buckets = cast("Mapping[int, int]", found.counts)
        if buckets and not -self.largest <= min(buckets) <= max(buckets) <= self.largest:
            raise StateError(f"Quantiles have buckets beyond {self.largest}.")
        if buckets and min(buckets.values()) < 1:
            raise StateError("Quantiles have a bucket without values.")
        return found

    def aggregate(self, measure: str, only: str) -> list[str]:
        value = f"cast({measure} AS double)"  # abs() of the smallest whole number would fail
        size = f"least(ceil(ln(abs({value})) * {self.per_log!r}D) + {self.shift}L, {self.largest}L)"
        bucket = (
            f"CASE WHEN abs({value}) < {SMALLEST!r}D THEN 0 WHEN {value} > 0 THEN cast({size} AS int) "
            f"WHEN {value} < 0 THEN cast(-{size} AS int) END"
        )
        return [accumulated(bucket, only, self.room)]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [f"{columns[0]}.sketch"]


def rank_of(share: float, total: int) -> int:
    """The nearest rank, from 1: `0.07` of 100 is the 7th, though 0.07 * 100 is a little more than 7."""
    part, whole = _as_written(share)
    return max(-(-part * total // whole), 1)


@lru_cache(1_000)
def _as_written(share: float) -> tuple[int, int]:
    return Fraction(repr(share)).as_integer_ratio()


def name_of(share: float) -> str:
    """`0.95` -> `p95`, `0.999` -> `p99.9`."""
    return f"p{share * 100:.10g}"


def text_of(share: float) -> str:
    """`0.95` -> `0.95`, `1.0` -> `1`: as one writes it in a question."""
    return repr(float(share)).removesuffix(".0")
