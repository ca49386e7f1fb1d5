"""FirstK, LastK, Smallest and Largest: the values at one end, in order of their events or of the values themselves."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from views.aggregates import numbers, value_lists
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind, not_null
from views.aggregates.extremes import ORDERED, Placed
from views.errors import ExpressionError
from views.field_types import FieldType
from views.short_texts import beginning, shortened
from views.typed_expression import TypedExpression

MAX_K = 100
SORTABLE = tuple(kind for kind in ORDERED if kind != "boolean")


@dataclass(frozen=True)
class _SomeValues(Aggregate):
    """The `k` values at one end."""

    k: int = 10

    def meaning(self) -> dict[str, Any]:
        return {"k": self.k}

    def _checked(self, measure: TypedExpression | None, kinds: Sequence[str]) -> FieldType:
        found = check_kind(type(self).__name__, measure, *kinds)
        if type(self.k) is not int or not 1 <= self.k <= MAX_K:
            raise ExpressionError(f"k is {self.k!r}; it should be 1 to {MAX_K}.")
        return found.type


@dataclass(frozen=True)
class FirstK(_SomeValues):
    """The values of the `k` earliest events that have one, the earliest first."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return EarliestValues(self._checked(measure, ORDERED), "min", self.k)


@dataclass(frozen=True)
class LastK(_SomeValues):
    """The values of the `k` latest events that have one, the latest first."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return EarliestValues(self._checked(measure, ORDERED), "max", self.k)


@dataclass(frozen=True)
class Smallest(_SomeValues):
    """The `k` smallest values, the smallest first; a value that occurs twice is there twice."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return ExtremeValues(self._checked(measure, SORTABLE), "min", self.k)


@dataclass(frozen=True)
class Largest(_SomeValues):
    """The `k` largest values, the largest first; a value that occurs twice is there twice."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return ExtremeValues(self._checked(measure, SORTABLE), "max", self.k)


class BoundedList(Algebra):
    """The state: at most `k` elements in ascending order, the first ones (`min`) or the last ones (`max`)."""

    def __init__(self, kind: FieldType, function: str, k: int, key: Callable[[Any], Any] | None = None) -> None:
        self.element, self.function, self.k, self.key = kind, function, k, key

    def zero(self) -> list[Any]:
        return []

    def insert(self, state: list[Any], element: Any) -> list[Any]:
        """The state with one more element; it is changed."""
        insort(state, element, key=self.key)
        if len(state) > self.k:
            state.pop(-1 if self.function == "min" else 0)
        return state

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        return self.merge_all((left, right))

    def merge_all(self, states: Sequence[list[Any]]) -> list[Any]:
        found = sorted(chain.from_iterable(states), key=self.key)
        return found[: self.k] if self.function == "min" else found[-self.k :]

    def values(self, state: list[Any]) -> list[Any]:
        """The values of its elements."""
        return state

    def present(self, state: list[Any]) -> list[Any]:
        found = [numbers.present(value) for value in self.values(state)]
        return found if self.function == "min" else found[::-1]


class ExtremeValues(BoundedList):
    """Values in the order of values."""

    @property
    def kinds(self) -> str:  # type: ignore[override]  # it depends on the type
        return numbers.part_kind(self.element)

    def stored(self, measure: TypedExpression) -> TypedExpression:
        return beginning(measure)

    def add(self, state: list[Any], value: Any, at: Position) -> list[Any]:
        return self.insert(state, value + 0.0 if isinstance(value, float) else value)

    def to_parts(self, state: list[Any]) -> tuple[Part, ...]:
        return (value_lists.to_part(state),)

    def from_parts(self, parts: Sequence[Part]) -> list[Any]:
        return value_lists.from_part(parts[0], self.element)

    def aggregate(self, measure: str, only: str) -> list[str]:
        also = not_null(measure, only)
        return [f"{self.function}_by({measure}, {measure}, {self.k}){also}"]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [value_lists.part_sql(f"array_sort({columns[0]})", self.element)]


class EarliestValues(BoundedList):
    """Values in the order of their events: by event time, then partition and offset."""

    by_position = by_location = True

    def __init__(self, kind: FieldType, function: str, k: int) -> None:
        super().__init__(kind, function, k, key=_position_of)

    @property
    def kinds(self) -> str:  # type: ignore[override]
        return "t" + numbers.part_kind(self.element)

    def stored(self, measure: TypedExpression) -> TypedExpression:
        return shortened(measure)

    def add(self, state: list[Placed], value: Any, at: Position) -> list[Placed]:
        return self.insert(state, Placed(at, value + 0.0 if isinstance(value, float) else value))

    def values(self, state: list[Placed]) -> list[Any]:
        return [placed.value for placed in state]

    def to_parts(self, state: list[Placed]) -> tuple[Part, ...]:
        positions = ",".join("/".join(map(str, placed.at)) for placed in state)
        return positions or None, value_lists.to_part(self.values(state))

    def from_parts(self, parts: Sequence[Part]) -> list[Placed]:
        values = value_lists.from_part(parts[1], self.element)
        texts = [] if parts[0] is None else str(parts[0]).split(",")
        return [Placed(_position(text), value) for text, value in zip(texts, values, strict=True)]

    def aggregate(self, measure: str, only: str) -> list[str]:
        also = not_null(measure, only)
        position = "unix_micros(event_time) AS t, partition AS p, offset AS o"
        return [f"{self.function}_by(struct({position}, {measure} AS v), struct({position}), {self.k}){also}"]

    def parts(self, columns: Sequence[str]) -> list[str]:
        # A struct is compared by its first field first. No two events have one position: values are never compared.
        ordered = f"array_sort({columns[0]})"
        position = "concat_ws('/', cast(each.t AS string), cast(each.p AS string), cast(each.o AS string))"
        positions = f"array_join(transform({ordered}, each -> {position}), ',')"
        return [
            f"CASE WHEN size({columns[0]}) > 0 THEN {positions} END",
            value_lists.part_sql(f"{ordered}.v", self.element),
        ]


def _position(text: str) -> Position:
    micros, partition, offset = map(int, text.split("/"))
    return Position(micros, partition, offset)


def _position_of(placed: Placed) -> Position:
    return placed.at
