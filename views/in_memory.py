"""The reference interpreter: a view and a list of events -> answers, in plain Python.

Everything else (Spark, the merge, the running system) is compared with it, so it is short and plain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from views import states as packed_states
from views.aggregates import Position
from views.source import Source
from views.types import EPOCH, MICROSECOND
from views.view import View

Key = tuple[Any, ...]
Group = tuple[int, Key]
"""The beginning of the bucket, in microseconds since 1970, and the values of the keys in the order declared."""


@dataclass(frozen=True)
class Event:
    """A valid event: its location, its id and time, and its fields by name."""

    partition: int
    offset: int
    event_id: str
    event_time: datetime
    fields: dict[str, Any]

    @property
    def position(self) -> Position:
        """Its position, by which First and Last order values."""
        return Position((self.event_time - EPOCH) // MICROSECOND, self.partition, self.offset)


def counted(events: Iterable[Event], removed: Collection[str] = ()) -> list[Event]:
    """Of several events with one id, the one with the lowest partition and offset; the others are duplicates.

    `removed` are the ids of events that counted and that retention removed since: these count for ever.
    """
    first: dict[str, Event] = {}
    for event in events:
        if event.event_id in removed:
            continue
        known = first.get(event.event_id)
        if known is None or (event.partition, event.offset) < (known.partition, known.offset):
            first[event.event_id] = event
    return list(first.values())


def fold(view: View, events: Iterable[Event]) -> dict[Group, dict[str, Any]]:
    """The states of each group. A group is there as soon as one event of it passes the view's `where`."""
    groups: dict[Group, dict[str, Any]] = {}
    for event in events:
        row = _row(view.source, event)
        if view.condition is not None and not view.condition.evaluate(row):
            continue
        key = tuple(expression.evaluate(row) for expression in view.key_expressions.values())
        group = (view.bucket.bucket(event.position.micros), key)
        if group not in groups:
            groups[group] = {name: algebra.zero() for name, algebra in view.algebras.items()}
        state = groups[group]
        for name, measure in view.measures.items():
            value = True if measure.of is None else measure.of.evaluate(row)
            if value is not None and (measure.where is None or measure.where.evaluate(row)):
                state[name] = measure.algebra.add(state[name], value, event.position)
    return groups


def merge(view: View, left: dict[Group, dict[str, Any]], right: dict[Group, dict[str, Any]]) -> dict[Group, Any]:
    """The merged states of all groups."""
    merged = dict(left)
    for group, state in right.items():
        merged[group] = packed_states.merge(view.algebras, merged[group], state) if group in merged else state
    return merged


def present(view: View, groups: dict[Group, dict[str, Any]]) -> dict[Group, dict[str, Any]]:
    """The answers of each group."""
    return {group: view.present(state) for group, state in groups.items()}


@dataclass(frozen=True)
class Foundation:
    """What stands for the events that retention removed: the states of those that counted, and their ids."""

    groups: dict[Group, dict[str, Any]] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()

    def extended(self, view: View, events: Iterable[Event], below: Mapping[int, int]) -> Foundation:
        """The foundation for the events below a retention cut too, as they counted among `events`.

        `events` are those that were left of all events of a run, whose cut is not below the retention cut.
        """
        removed = [e for e in counted(events, self.ids) if e.offset < below.get(e.partition, 0)]
        groups = merge(view, self.groups, fold(view, removed))
        return Foundation(groups, self.ids | {event.event_id for event in removed})


def answers(view: View, events: Iterable[Event], before: Foundation | None = None) -> dict[Group, dict[str, Any]]:
    """What the platform must answer over these events, and over those that were removed before them."""
    foundation = before or Foundation()
    rest = fold(view, counted(events, foundation.ids))
    return present(view, merge(view, foundation.groups, rest))


def _row(source: Source, event: Event) -> dict[str, Any]:
    return {**event.fields, source.id_field: event.event_id, source.time_field: event.event_time}
