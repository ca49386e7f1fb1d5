"""Distinct: how many different values, by a HyperLogLog sketch, or exactly up to a declared bound.

Null and the empty text are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasketches import hll_sketch, hll_union, tgt_hll_type

from views.aggregates import items
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind, not_null
from views.aggregates.items import Items, Room
from views.errors import ExpressionError
from views.field_types import FieldType
from views.short_texts import shortened
from views.typed_expression import TypedExpression
from views.types import BIGINT, EPOCH, MICROSECOND

COUNTABLE = ("string", "bigint", "timestamp", "boolean")
MAX_EXACT = 100_000


@dataclass(frozen=True)
class Distinct(Aggregate):
    """How many different values.

    A sketch of 2 ** `precision` registers: 12 gives a standard error of 1.6 % in at most 4 KB. `exact=True` keeps the
    values themselves, up to `at_most`; the answer of a group with more is null.
    """

    precision: int = 12
    exact: bool = False
    at_most: int = 1_000

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        found = check_kind("Distinct", measure, *COUNTABLE)
        exact: object = self.exact
        if not isinstance(exact, bool):
            raise ExpressionError(f"exact is {exact!r}; it should be True or False.")
        if self.exact:
            if type(self.at_most) is not int or not 1 <= self.at_most <= MAX_EXACT:
                raise ExpressionError(f"at_most is {self.at_most!r}; it should be 1 to {MAX_EXACT}.")
            return ExactDistinct(found.type, self.at_most)
        if type(self.precision) is not int or not 4 <= self.precision <= 21:
            raise ExpressionError(f"precision is {self.precision!r}; it should be a whole number, 4 to 21.")
        return SketchedDistinct(found.type, self.precision)

    def meaning(self) -> dict[str, Any]:
        return {"at_most": self.at_most} if self.exact else {"precision": self.precision}


def _plain(value: Any) -> str | int:
    """A time as its microseconds, a boolean as 0 or 1: what the sketch hashes."""
    if hasattr(value, "tzinfo"):
        return int((value - EPOCH) // MICROSECOND)
    return int(value) if isinstance(value, bool) else value


def _plain_sql(measure: str, kind: FieldType) -> str:
    match kind.kind:
        case "timestamp":
            return f"unix_micros({measure})"
        case "boolean":
            return f"cast({measure} AS bigint)"
    return measure


class SketchedDistinct(Algebra):
    kinds = "b"
    type = BIGINT

    def __init__(self, kind: FieldType, precision: int) -> None:
        self.kind, self.precision = kind, precision
        self.error = f"usually within {1.04 / 2 ** (precision / 2):.1%}"

    def zero(self) -> Any:
        return hll_sketch(self.precision, tgt_hll_type.HLL_8)

    def add(self, state: Any, value: Any, at: Position) -> Any:
        if value != "":
            state.update(_plain(value))
        return state

    def add_all(self, state: Any, values: Sequence[Any], at: Sequence[Position]) -> Any:
        plain = values if self.kind.kind in ("string", "bigint") else map(_plain, values)
        for value in plain:
            if value != "":
                state.update(value)
        return state

    def merge(self, left: Any, right: Any) -> Any:
        both = hll_union(self.precision)
        both.update(left)
        both.update(right)
        return both.get_result(tgt_hll_type.HLL_8)

    def merge_all(self, states: Sequence[Any]) -> Any:
        # One union for all: a union for each two would build the registers again and again.
        if len(states) == 1:
            return states[0]
        union = hll_union(self.precision)
        for state in states:
            union.update(state)
        return union.get_result(tgt_hll_type.HLL_8)

    def present(self, state: Any) -> int:
        # The estimate of a sketch depends on how it was made; that of its union with itself on its registers alone.
        # One that still lists its values (it is shorter than its registers would be) has one, however it was made.
        estimate: float
        if state.get_compact_serialization_bytes() < 2**self.precision:
            estimate = state.get_estimate()
        else:
            union = hll_union(self.precision)
            union.update(state)
            union.update(state)
            estimate = union.get_estimate()
        return round(estimate)

    def to_parts(self, state: Any) -> tuple[Part, ...]:
        return (None if state.is_empty() else state.serialize_compact(),)

    def from_parts(self, parts: Sequence[Part]) -> Any:
        return self.zero() if parts[0] is None else hll_sketch.deserialize(parts[0])

    def aggregate(self, measure: str, only: str) -> list[str]:
        return [f"hll_sketch_agg({_plain_sql(measure, self.kind)}, {self.precision}){only}"]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [columns[0]]

    def column(self, columns: Sequence[str]) -> str:
        # As `present`: most groups are small, and a union costs more than the rest of such a row.
        sketch = columns[0]
        return (
            f"coalesce(hll_sketch_estimate(CASE WHEN length({sketch}) < {2**self.precision} THEN {sketch} "
            f"ELSE hll_union({sketch}, {sketch}) END), 0L)"
        )


class ExactDistinct(Algebra):
    """The values as texts; None as a state is 'more than the bound', and stays so.

    Beside the table stands how many values went into it: where the table accounts for fewer, some had to give way.
    """

    kinds = "tb"
    type = BIGINT

    def __init__(self, kind: FieldType, at_most: int) -> None:
        self.kind, self.at_most = kind, at_most
        self.room = Room(at_most)

    def stored(self, measure: TypedExpression) -> TypedExpression:
        return shortened(measure)

    def zero(self) -> frozenset[str] | None:
        return frozenset()

    def add(self, state: frozenset[str] | None, value: Any, at: Position) -> frozenset[str] | None:
        return state if value == "" else self.merge(state, frozenset([str(_plain(value))]))

    def merge(self, left: frozenset[str] | None, right: frozenset[str] | None) -> frozenset[str] | None:
        if left is None or right is None:
            return None
        return self._bounded(left | right)

    def present(self, state: frozenset[str] | None) -> int | None:
        return None if state is None else len(state)

    def to_parts(self, state: frozenset[str] | None) -> tuple[Part, ...]:
        if not state:
            return "1" if state is None else "0", None
        return str(len(state)), items.to_bytes(Items(dict.fromkeys(sorted(state), 1)), self.room)

    def from_parts(self, parts: Sequence[Part]) -> frozenset[str] | None:
        found = items.from_bytes(blob(parts[1]), is_text=True)
        if items.total(found.counts) != int(parts[0] or 0):
            return None
        return self._bounded(frozenset(map(str, found.counts)))

    def aggregate(self, measure: str, only: str) -> list[str]:
        value = f"nullif(cast({_plain_sql(measure, self.kind)} AS string), '')"
        return [f"count({value}){only}", accumulated(value, only, self.room)]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [f"cast({columns[0]} AS string)", f"{columns[1]}.sketch"]

    def _bounded(self, values: frozenset[str]) -> frozenset[str] | None:
        return values if len(values) <= self.at_most else None


def accumulated(value: str, only: str, room: Room) -> str:
    """Spark: the table of the items that `value` takes; null is no item."""
    also = not_null(value, only)
    return f"approx_top_k_accumulate({value}, {room.items}){also}"


def blob(part: Part) -> bytes | None:
    """The part as bytes."""
    return part if isinstance(part, bytes) else None
