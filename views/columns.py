"""The values that views need from each event, as columns, and the folding of columns into states.

For a few events, a Spark aggregation costs more than it saves. Spark evaluates the expressions, and this module folds
their values with the aggregates' own `add`, which the oracle uses too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from views.aggregates import Position
from views.keys import pack_key
from views.typed_expression import TypedExpression
from views.view import View

VALID, ID, PARTITION, OFFSET, KAFKA, AT, SIZE = "_valid", "_id", "partition", "offset", "_kafka", "_at", "_size"
"""Whether a record is valid, the hash of its event's id, where it is, Kafka's time (ms), its own (µs), its bytes."""


@dataclass(frozen=True)
class Columns:
    """The expressions of some views of one source, each once however many views have it."""

    views: tuple[View, ...]

    @cached_property
    def names(self) -> dict[str, str]:
        """SQL -> the column that holds its value."""
        wanted: dict[str, None] = {}
        for view in self.views:
            wanted |= dict.fromkeys(expression.sql for expression in _expressions(view))
        return {sql: f"_c{number}" for number, sql in enumerate(wanted)}

    def of(self, expression: TypedExpression) -> str:
        """The column of an expression."""
        return self.names[expression.sql]


Table = Mapping[str, Sequence[Any]]
"""The evaluated columns by name, each with one value for each event."""
Place = tuple[int, bytes]
"""A group: the beginning of its bucket in seconds since 1970, and the bytes of its key."""


def groups_of(view: View, columns: Columns, table: Table, rows: Iterable[int]) -> dict[Place, list[int]]:
    """Which of these rows belong to which group; those that the view does not look at to none."""
    micros, seconds = view.bucket.micros, view.bucket.seconds
    if view.condition is not None:
        condition = table[columns.of(view.condition)]
        rows = [row for row in rows if condition[row]]
    rows = list(rows)
    buckets = [at // micros for at in map(table[AT].__getitem__, rows)]
    keys = (map(table[columns.of(key)].__getitem__, rows) for key in view.key_expressions.values())
    found: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, group in zip(rows, zip(buckets, *keys, strict=True), strict=True):
        found[group].append(row)
    return {(group[0] * seconds, pack_key(group[1:])): each for group, each in found.items()}


def add_rows(view: View, columns: Columns, table: Table, states: dict[str, Any], rows: Sequence[int]) -> None:
    """Add rows to the states of their group, which are changed."""
    for name, measure in view.measures.items():
        wanted = rows
        if measure.where is not None:
            where = table[columns.of(measure.where)]
            wanted = [row for row in wanted if where[row]]
        if measure.of is None:
            values: Sequence[Any] = [True] * len(wanted)  # as the reference interpreter adds events
        else:
            column = table[columns.of(measure.of)]
            values = list(map(column.__getitem__, wanted))
            if None in values:
                wanted = [row for row in wanted if column[row] is not None]
                values = [value for value in values if value is not None]
        positions = _positions(table, wanted) if measure.algebra.by_position else ()
        states[name] = measure.algebra.add_all(states[name], values, positions)


def zero(view: View) -> dict[str, Any]:
    """The states of no events."""
    return {name: algebra.zero() for name, algebra in view.algebras.items()}


def fold(view: View, columns: Columns, table: Table, rows: Iterable[int]) -> dict[Place, dict[str, Any]]:
    """The states of each group, over these rows."""
    found = {}
    for place, each in groups_of(view, columns, table, rows).items():
        found[place] = zero(view)
        add_rows(view, columns, table, found[place], each)
    return found


def _positions(table: Table, rows: Iterable[int]) -> list[Position]:
    at, partitions, offsets = table[AT], table[PARTITION], table[OFFSET]
    return [Position(at[row], partitions[row], offsets[row]) for row in rows]


def _expressions(view: View) -> Iterable[TypedExpression]:
    if view.condition is not None:
        yield view.condition
    yield from view.key_expressions.values()
    for measure in view.measures.values():
        if measure.of is not None:
            yield measure.of
        if measure.where is not None:
            yield measure.where
