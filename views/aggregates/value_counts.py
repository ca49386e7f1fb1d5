"""ValueCounts and UniqueValues: every value of a group, up to a declared bound, and nothing where there are more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from views.aggregates import numbers, value_lists
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind
from views.aggregates.distinct import accumulated
from views.aggregates.items import HEAD, Room
from views.errors import ExpressionError
from views.field_types import FieldType
from views.short_texts import shortened
from views.typed_expression import TypedExpression

LISTABLE = ("string", "bigint", "decimal", "date", "timestamp", "boolean")
MAX_VALUES = 1_000
OVER = "more"
"""Instead of counts: there are more values than the bound."""
OFFSET_BYTES = 8
"""At the end of a table's head: what its items had to give way for others, 0 where none had to."""
Counts = dict[Any, int] | None
"""By value; None: more values than the bound, and so it stays."""


@dataclass(frozen=True)
class ValueCounts(Aggregate):
    """How often each value occurs: [{"value": 200, "count": 12}, …], equal counts in the order of their values.

    The answer of a group with more than `at_most` different values is null.
    """

    at_most: int = 100

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return BoundedCounts(_checked(self, self.at_most, measure), self.at_most, is_counted=True)

    def meaning(self) -> dict[str, Any]:
        return {"at_most": self.at_most}


@dataclass(frozen=True)
class UniqueValues(Aggregate):
    """The different values, in order: ["DE", "IN", …]. The answer of a group with more than `at_most` is null."""

    at_most: int = 100

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return BoundedCounts(_checked(self, self.at_most, measure), self.at_most, is_counted=False)

    def meaning(self) -> dict[str, Any]:
        return {"at_most": self.at_most}


def _checked(declared: Aggregate, at_most: int, measure: TypedExpression | None) -> FieldType:
    found = check_kind(type(declared).__name__, measure, *LISTABLE)
    if type(at_most) is not int or not 1 <= at_most <= MAX_VALUES:
        raise ExpressionError(f"at_most is {at_most!r}; it should be 1 to {MAX_VALUES}.")
    return found.type


class BoundedCounts(Algebra):
    """Counts by value; those of unique values are all 1."""

    def __init__(self, kind: FieldType, at_most: int, *, is_counted: bool) -> None:
        self.element, self.at_most, self.is_counted = kind, at_most, is_counted
        self.room = Room(at_most + 1)

    @property
    def kinds(self) -> str:  # type: ignore[override]  # it depends on the type
        return "t" + numbers.part_kind(self.element)

    def stored(self, measure: TypedExpression) -> TypedExpression:
        return shortened(measure)

    def zero(self) -> Counts:
        return {}

    def add(self, state: Counts, value: Any, at: Position) -> Counts:
        if state is None:
            return None
        state[value] = state.get(value, 0) + 1 if self.is_counted else 1
        return self._bounded(state)

    def merge(self, left: Counts, right: Counts) -> Counts:
        return self.merge_all((left, right))

    def merge_all(self, states: Sequence[Counts]) -> Counts:
        merged: dict[Any, int] = {}
        for state in states:
            if state is None or len(merged) > self.at_most:
                return None
            for value, count in state.items():
                merged[value] = merged.get(value, 0) + count if self.is_counted else 1
        return self._bounded(merged)

    def present(self, state: Counts) -> list[Any] | None:
        if state is None:
            return None
        if not self.is_counted:
            return [numbers.present(value) for value in sorted(state)]
        ordered = sorted(state.items(), key=lambda each: (-each[1], each[0]))
        return [{"value": numbers.present(value), "count": count} for value, count in ordered]

    def to_parts(self, state: Counts) -> tuple[Part, ...]:
        if not state:
            return OVER if state is None else None, None
        values = sorted(state)
        return ",".join(str(state[value]) for value in values), value_lists.to_part(values)

    def from_parts(self, parts: Sequence[Part]) -> Counts:
        if parts[0] == OVER:
            return None
        values = value_lists.from_part(parts[1], self.element)
        counts = [] if parts[0] is None else list(map(int, str(parts[0]).split(",")))
        return self._bounded(dict(zip(values, counts, strict=True)))

    def aggregate(self, measure: str, only: str) -> list[str]:
        # A table whose items never gave way has all of them; the estimate is the `at_most + 1` most frequent ones.
        table = accumulated(measure, only, self.room)
        offset = f"substring({table}.sketch, {HEAD.size - OFFSET_BYTES + 1}, {OFFSET_BYTES})"
        return [f"array_sort(approx_top_k_estimate({table}, {self.room.items}))", offset, f"count({measure}){only}"]

    def parts(self, columns: Sequence[str]) -> list[str]:
        table, offset, count = columns
        # A table whose items all gave way says so no longer: it accounts for fewer values than there were.
        counted = f"aggregate({table}, 0L, (total, each) -> total + each.count)"
        zero = f"X'{bytes(OFFSET_BYTES).hex()}'"
        is_over = f"size({table}) > {self.at_most} OR {offset} NOT IN (X'', {zero}) OR {counted} <> {count}"
        counts = "cast(each.count AS string)" if self.is_counted else "'1'"
        texts = f"array_join(transform({table}, each -> {counts}), ',')"
        values = value_lists.part_sql(f"{table}.item", self.element)
        return [
            f"CASE WHEN {is_over} THEN '{OVER}' WHEN size({table}) > 0 THEN {texts} END",
            f"CASE WHEN NOT ({is_over}) THEN {values} END",
        ]

    def _bounded(self, counts: dict[Any, int]) -> Counts:
        return counts if len(counts) <= self.at_most else None
