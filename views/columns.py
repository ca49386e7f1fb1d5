"""What views look at in each event, as columns, and the folding of such columns into states.

Where a few events come at a time, an aggregation on Spark costs more than it does: Spark evaluates the expressions, and
the states are made here with the aggregates' own `add`, which is also the oracle's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from views.aggregates import Position
from views.keys import pack_key
from views.typed import Typed
from views.view import View

VALID, ID, PARTITION, OFFSET, KAFKA, AT = "_valid", "_id", "partition", "offset", "_kafka", "_at"
"""Whether a record is valid, the hash of its event's id, where it stands, Kafka's time (ms) and its own (µs)."""


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

    def of(self, expression: Typed) -> str:
        """The column of an expression."""
        return self.names[expression.sql]


def fold(view: View, columns: Columns, table: Mapping[str, Sequence[Any]], rows: Iterable[int]) -> dict[Any, Any]:
    """(bucket in seconds, bytes of the key) -> states by answer, over these rows of the evaluated columns."""
    at, partitions, offsets = table[AT], table[PARTITION], table[OFFSET]
    condition = table[columns.of(view.condition)] if view.condition is not None else None
    keys = [table[columns.of(key)] for key in view.key_expressions.values()]
    measures = [
        (
            name,
            measure.algebra.add,
            table[columns.of(measure.of)] if measure.of is not None else None,
            table[columns.of(measure.where)] if measure.where is not None else None,
        )
        for name, measure in view.measures.items()
    ]
    micros = view.bucket.micros
    groups: dict[Any, dict[str, Any]] = {}
    for row in rows:
        if condition is not None and not condition[row]:
            continue
        time = at[row]
        group = ((time - time % micros) // 1_000_000, *[key[row] for key in keys])
        state = groups.get(group)
        if state is None:
            state = groups[group] = {name: algebra.zero() for name, algebra in view.algebras.items()}
        position = Position(time, partitions[row], offsets[row])
        for name, add, values, where in measures:
            value = True if values is None else values[row]
            if value is not None and (where is None or where[row]):
                state[name] = add(state[name], value, position)
    return {(group[0], pack_key(group[1:])): state for group, state in groups.items()}


def _expressions(view: View) -> Iterable[Typed]:
    if view.condition is not None:
        yield view.condition
    yield from view.key_expressions.values()
    for measure in view.measures.values():
        if measure.of is not None:
            yield measure.of
        if measure.where is not None:
            yield measure.where
