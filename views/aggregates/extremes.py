"""Min, Max, First and Last: the state is one value; First and Last also store its position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from views.aggregates import numbers
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind, not_null
from views.field_types import FieldType
from views.short_texts import beginning, cut_value, shorten_value, shortened
from views.typed_expression import TypedExpression

ORDERED = ("bigint", "double", "decimal", "string", "date", "timestamp", "boolean")


@dataclass(frozen=True)
class Min(Aggregate):
    """The smallest value; null of no values. Texts are ordered by their bytes, and cut if they are long."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return ExtremeAlgebra(check_kind("Min", measure, *ORDERED).type, "min")


@dataclass(frozen=True)
class Max(Aggregate):
    """The largest value; null of no values."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return ExtremeAlgebra(check_kind("Max", measure, *ORDERED).type, "max")


@dataclass(frozen=True)
class First(Aggregate):
    """The value of the earliest event that has one: by event time, then partition and offset."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return EarliestAlgebra(check_kind("First", measure, *ORDERED).type, "min")


@dataclass(frozen=True)
class Last(Aggregate):
    """The value of the latest event that has one."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return EarliestAlgebra(check_kind("Last", measure, *ORDERED).type, "max")


class ExtremeAlgebra(Algebra):
    type: FieldType

    def __init__(self, kind: FieldType, function: str) -> None:
        self.type, self.function = kind, function
        self.choose = min if function == "min" else max

    @property
    def kinds(self) -> str:  # type: ignore[override]  # it depends on the type
        return numbers.part_kind(self.type)

    def stored(self, measure: TypedExpression) -> TypedExpression:
        return beginning(measure)

    def zero(self) -> Any:
        return None

    def add(self, state: Any, value: Any, at: Position) -> Any:
        return self.merge(state, value + 0.0 if isinstance(value, float) else value)

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return self.choose(left, right)

    def present(self, state: Any) -> Any:
        return numbers.present(state)

    def to_parts(self, state: Any) -> tuple[Part, ...]:
        return (numbers.to_part(state),)

    def from_parts(self, parts: Sequence[Part]) -> Any:
        # A state of an older version may have a long text. Cut, it is what its events give now.
        return cut_value(numbers.from_part(parts[0], self.type))

    def aggregate(self, measure: str, only: str) -> list[str]:
        return [f"{self.function}({measure}){only}"]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [numbers.part_sql(columns[0], self.type)]

    def column(self, columns: Sequence[str]) -> str:
        return columns[0]

    def column_value(self, state: Any) -> Any:
        return state


class Placed(NamedTuple):
    """A value and its position."""

    at: Position
    value: Any


class EarliestAlgebra(Algebra):
    """The earliest (`min`) or latest (`max`) value."""

    by_position = by_location = True
    type: FieldType

    def __init__(self, kind: FieldType, function: str) -> None:
        self.type, self.function = kind, function
        self.choose = min if function == "min" else max

    @property
    def kinds(self) -> str:  # type: ignore[override]
        return "ttt" + numbers.part_kind(self.type)

    def stored(self, measure: TypedExpression) -> TypedExpression:
        return shortened(measure)

    def zero(self) -> Placed | None:
        return None

    def add(self, state: Placed | None, value: Any, at: Position) -> Placed | None:
        return self.merge(state, Placed(at, value + 0.0 if isinstance(value, float) else value))

    def merge(self, left: Placed | None, right: Placed | None) -> Placed | None:
        if left is None or right is None:
            return right if left is None else left
        return self.choose(left, right, key=lambda placed: placed.at)

    def present(self, state: Placed | None) -> Any:
        return None if state is None else numbers.present(state.value)

    def to_parts(self, state: Placed | None) -> tuple[Part, ...]:
        if state is None:
            return None, None, None, None
        return *map(str, state.at), numbers.to_part(state.value)

    def from_parts(self, parts: Sequence[Part]) -> Placed | None:
        if parts[0] is None:
            return None
        micros, partition, offset = (int(part or 0) for part in parts[:3])
        # A state of an older version may have a long text.
        value = shorten_value(numbers.from_part(parts[3], self.type))
        return Placed(Position(micros, partition, offset), value)

    def aggregate(self, measure: str, only: str) -> list[str]:
        also = not_null(measure, only)
        return [
            f"{self.function}(struct(unix_micros(event_time) AS t, partition AS p, offset AS o, {measure} AS v)){also}"
        ]

    def parts(self, columns: Sequence[str]) -> list[str]:
        places = [f"cast({columns[0]}.{name} AS string)" for name in ("t", "p", "o")]
        return [*places, numbers.part_sql(f"{columns[0]}.v", self.type)]

    def column(self, columns: Sequence[str]) -> str:
        return f"{columns[0]}.v"

    def column_value(self, state: Placed | None) -> Any:
        return None if state is None else state.value
