"""The order of rows. Pages continue after a position in it, never after a number of rows.

The position of a row is its value for each name of the order, as JSON can hold it. The order ends with the bucket and
all keys, so no two rows share a position. Null sorts first, and last in a descending order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import total_ordering
from typing import Any

from serving_layer.query.model import Order, Position, Query
from serving_layer.query.result import ResultRow
from views.view import View

BUCKET = "bucket"
DECIMAL = re.compile(r"-?[0-9]{1,80}(\.[0-9]{1,80})?")
READ: dict[str, Callable[[Any], Any]] = {"decimal": Decimal, "timestamp": datetime.fromisoformat}
"""What is presented as a string but not sorted as one."""


def complete(given: Sequence[Order], by: Sequence[str]) -> tuple[Order, ...]:
    """The given order, then bucket and keys: no two rows are equal."""
    named = {each.name for each in given}
    return (*given, *(Order(name, False) for name in (BUCKET, *by) if name not in named))


def positions(query: Query) -> Callable[[ResultRow], Position]:
    """The function that gives the position of a row."""
    readers = [_reader(each.name, query) for each in query.order]
    return lambda row: tuple([read(row) for read in readers])


def _reader(name: str, query: Query) -> Callable[[ResultRow], Any]:
    if name == BUCKET:
        return lambda row: row.period.start
    if name not in query.by:
        return lambda row: row.answers[name]
    at = query.by.index(name)
    if kind_of(name, query.view) == "date":
        return lambda row: None if row.key[at] is None else row.key[at].isoformat()
    return lambda row: row.key[at]


def sort_key(query: Query) -> Callable[[Position], Any]:
    """The function that gives the sort key of a position."""
    ways = [_way(kind_of(each.name, query.view), each.descending) for each in query.order]
    return lambda at: tuple([way(value) for way, value in zip(ways, at, strict=True)])


def kind_of(name: str, view: View) -> str | None:
    """The type of a name that rows are sorted by; None where it is not a single value."""
    if name == BUCKET:
        return "bigint"
    if name in view.key_expressions:
        return view.key_expressions[name].type.kind
    kind = view.answer_types[name]
    return None if kind is None else kind.kind


def _way(kind: str | None, descending: bool) -> Callable[[Any], Any]:
    read = READ.get(kind or "", _as_it_is)
    if not descending:
        return lambda value: (False,) if value is None else (True, read(value))
    if kind in ("bigint", "double"):
        return lambda value: (True,) if value is None else (False, -value)
    return lambda value: (True,) if value is None else (False, _Descending(read(value)))


def _as_it_is(value: Any) -> Any:
    return value


@total_ordering
class _Descending:
    """A value that sorts in the opposite direction."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    __hash__ = None  # type: ignore[assignment]


def is_position(at: Sequence[Any], query: Query) -> bool:
    """Whether these values, which a client sent, can be the position of a row of this query."""
    return len(at) == len(query.order) and all(
        _fits(value, kind_of(each.name, query.view)) or (value is None and each.name != BUCKET)
        for value, each in zip(at, query.order, strict=True)
    )


def _fits(value: Any, kind: str | None) -> bool:
    match kind:
        case "bigint":
            return type(value) is int
        case "double":
            return type(value) is int or (type(value) is float and math.isfinite(value))
        case "boolean":
            return isinstance(value, bool)
    if not isinstance(value, str):
        return False
    try:
        match kind:
            case "decimal":
                return bool(DECIMAL.fullmatch(value))
            case "date":
                date.fromisoformat(value)
            case "timestamp":
                return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False
    return True
