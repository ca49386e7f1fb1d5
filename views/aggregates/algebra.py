"""What every aggregate is: a state with zero, add, merge and present, in Python and in Spark, and one byte form.

A state is written as *parts*: texts (numbers, written out) and blobs. `views/states.py` packs the parts of all answers
of a view into one value; Spark writes the same bytes with built-in functions (`aggregate`, then `parts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, NamedTuple

from views.errors import ExpressionError
from views.field_types import FieldType
from views.typed_expression import TypedExpression
from views.types import BIGINT

Part = str | bytes | None
"""A text without spaces, a blob, or nothing (no value yet)."""


class Position(NamedTuple):
    """The position of an event, by which First and Last order values."""

    micros: int  # of the event time, since 1970
    partition: int
    offset: int


NOWHERE = Position(0, 0, 0)
"""For aggregates that ignore the position."""


@dataclass(frozen=True)
class Aggregate(ABC):
    """What a user declares: `Sum("ms", where="status = 200")`."""

    of: str
    where: str | None = None

    def expression(self) -> str | None:
        """The expression whose values are aggregated; None: the events themselves."""
        return self.of

    @abstractmethod
    def algebra(self, measure: TypedExpression | None) -> Algebra:
        """How its states are made and merged. ExpressionError if it cannot take the type of the measure."""

    def meaning(self) -> dict[str, Any]:
        """The parameters that decide the answer, beside the expressions; part of the definition hash."""
        return {}

    def check_grain(self, seconds: int) -> None:  # noqa: B027  # most can be in any view
        """ExpressionError if a view of that grain cannot have it."""


class Algebra(ABC):
    """The algebra of one aggregate over one type. States are plain Python values."""

    kinds: ClassVar[str]
    """'t' for each text and 'b' for each blob among the parts, in order."""
    error: str | None = None
    """How far the answer may be off, in words; None: it is exact."""
    by_position = False
    """Whether the position of an event matters, be it the time alone."""
    by_location = False
    """Whether partition and offset matter too."""
    type: FieldType | None = None
    """The type of the answer, where it is one value; None: a list or an object. Decimals and times become texts."""

    @property
    def is_number(self) -> bool:
        """Whether the answer is one number, so that derived answers can compute with it."""
        return self.type is not None and self.type.kind in ("bigint", "double", "decimal")

    @property
    def is_whole(self) -> bool:
        """Whether that number is a whole one."""
        return self.type == BIGINT

    def stored(self, measure: TypedExpression) -> TypedExpression:
        """What of the measure goes into states: of a long text a bounded form, where states hold the values."""
        return measure

    @abstractmethod
    def zero(self) -> Any:
        """The state of no events."""

    @abstractmethod
    def add(self, state: Any, value: Any, at: Position) -> Any:
        """The state with one more value, which is not null. May change and return `state`."""

    def add_all(self, state: Any, values: Sequence[Any], at: Sequence[Position]) -> Any:
        """Add many values, in order. `at` is empty unless `by_position`."""
        if self.by_position:
            for value, position in zip(values, at, strict=True):
                state = self.add(state, value, position)
        else:
            for value in values:
                state = self.add(state, value, NOWHERE)
        return state

    @abstractmethod
    def merge(self, left: Any, right: Any) -> Any:
        """The state of all events of both states. Pure, associative, commutative."""

    def merge_all(self, states: Sequence[Any]) -> Any:
        """Merge one or more states."""
        return reduce(self.merge, states)

    def merge_parts(self, columns: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
        """Merge states that are given as parts: for each of the `kinds` a column with that part of every state."""
        return self.to_parts(self.merge_all([self.from_parts(parts) for parts in zip(*columns, strict=True)]))

    @abstractmethod
    def present(self, state: Any) -> Any:
        """The answer: a number, text, list or object that JSON can hold; None where there were no values."""

    @abstractmethod
    def to_parts(self, state: Any) -> tuple[Part, ...]:
        """The state as parts."""

    def to_short_parts(self, state: Any) -> tuple[Part, ...]:
        """The same in fewer bytes, for Redis; Spark cannot read it."""
        return self.to_parts(state)

    @abstractmethod
    def from_parts(self, parts: Sequence[Part]) -> Any:
        """Parts as a state: the inverse of `to_parts` and of `to_short_parts`."""

    @abstractmethod
    def aggregate(self, measure: str, only: str) -> list[str]:
        """Spark: the aggregate functions, over the measure's SQL; `only` is '' or ' FILTER (WHERE …)'."""

    @abstractmethod
    def parts(self, columns: Sequence[str]) -> list[str]:
        """Spark: the parts (strings and binaries) from the columns that `aggregate` gave."""

    def column(self, columns: Sequence[str]) -> str | None:
        """Spark: the answer as a plain column for other engines, or None where only the state can say it."""
        return None

    def column_value(self, state: Any) -> Any:
        """The value of that column, computed in Python."""
        return self.present(state)


def check_kind(name: str, measure: TypedExpression | None, *kinds: str) -> TypedExpression:
    """The measure, if the aggregate takes its type."""
    if measure is None:
        raise ExpressionError(f"{name} needs an expression.")
    if measure.type.kind not in kinds:
        hint = " Cast it, for example cast(… as decimal(18,2))." if measure.type.kind == "double" else ""
        raise ExpressionError(f"{name} takes {', '.join(kinds)}, not {measure.type.ddl()}.{hint}")
    return measure


def not_null(measure: str, only: str) -> str:
    """Spark: `only` and that the measure is not null, for functions that would take nulls for values."""
    return f"{only[:-1]} AND {measure} IS NOT NULL)" if only else f" FILTER (WHERE {measure} IS NOT NULL)"
