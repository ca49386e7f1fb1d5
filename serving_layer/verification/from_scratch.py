"""From scratch: a query computed from every event of the master dataset below a cut, by the reference interpreter.

Slow, and independent of what it verifies: no Spark, no Redis, no index, no merge of two views.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from master_dataset.cut import Cut
from master_dataset.reading.read import RecordFilter
from master_dataset.reading.read_again import read_valid_events
from serving_layer.query.model import Filter, Query
from serving_layer.readers.selection import Period
from views import in_memory, states
from views.equality import is_near
from views.in_memory import Event, Group, Key
from views.laws import is_rounded
from views.source import Source
from views.view import View

OFF = "off_by_at_most"
Recomputed = dict[tuple[Period, Key], dict[str, Any]]
"""(Period, values of `by`) -> answers."""
Cells = dict[tuple[Period, Key], dict[str, Any]]
"""The same -> states."""
Groups = Mapping[Group, dict[str, Any]]


def recompute(query: Query, events: Iterable[Event]) -> Recomputed:
    """All rows of a query over these events, regardless of order, page and `having`, and without those of `fill`."""
    found = cells(query, in_memory.fold(query.view, in_memory.counted(events)), {})
    return {place: _selected(query, query.view.present(state)) for place, state in found.items()}


def cells(query: Query, groups: Groups, found: Cells) -> Cells:
    """Merge the states of some groups into the rows that they are part of. So events can come in parts."""
    view = query.view
    for (micros, key), state in groups.items():
        named = dict(zip(view.keys, key, strict=True))
        if not all(_passes(each, named[each.key]) for each in query.filters):
            continue
        part = tuple(named[name] for name in query.by)
        for period, window in zip(query.periods, query.windows, strict=True):
            if window.start <= micros // 1_000_000 < window.end:
                known = found.get((period, part))
                found[period, part] = state if known is None else states.merge(view.algebras, known, state)
    return found


def are_same(view: View, ours: dict[str, Any], true: dict[str, Any]) -> bool:
    """Whether the answers of a group are equal. Those that no sum of doubles is in must be identical."""
    rounded = {name for name in true if any(is_rounded(view.algebras[each]) for each in view.stored_for((name,)))}
    return ours.keys() == true.keys() and all(
        is_same(ours[name], true[name], identical=name not in rounded) for name in true
    )


def is_same(left: Any, right: Any, *, identical: bool = False) -> bool:
    """Whether two answers are equal: floats up to their last digits, rankings up to their stated error."""
    if isinstance(right, dict):
        return (
            isinstance(left, dict)
            and left.keys() == right.keys()
            and all(is_same(left[each], right[each], identical=identical) for each in right)
        )
    if isinstance(right, list | tuple):
        if any(isinstance(each, dict) and OFF in each for each in (*right, *(left if isinstance(left, list) else ()))):
            return isinstance(left, list) and _is_ranking(left, right) and _is_ranking(right, left)
        return (
            isinstance(left, list | tuple)
            and len(left) == len(right)
            and all(is_same(each, other, identical=identical) for each, other in zip(left, right, strict=True))
        )
    if isinstance(right, float) and isinstance(left, int | float) and not identical:
        return is_near(left, right)
    return bool(left == right)


def _is_ranking(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> bool:
    """Whether each count is as close to the other's as both state; one that is absent there is not above the last.

    A count is too high by at most what its entry states. Where the other has fewer values, there are no more.
    """
    other = {each["value"]: each["count"] for each in theirs}
    most = max((each.get(OFF, 0) for each in theirs), default=0)
    last = min(other.values()) if len(theirs) >= len(ours) and other else 0
    return all(each["count"] <= other.get(each["value"], max(last, most)) + each.get(OFF, 0) + most for each in ours)


def events_below(table: Path, source: Source, cut: Cut, start: Cut | None = None) -> Iterator[Event]:
    """The valid events of a master table below a cut, and at or above `start`, duplicates included."""
    if not any(cut.values()):
        return
    for row in read_valid_events(table, source, RecordFilter(start=start or {}, end=cut)):
        yield Event(row["partition"], row["offset"], row["event_id"], row["event_time"], row["event"])


def _passes(wanted: Filter, value: Any) -> bool:
    match wanted.kind:
        case "is":
            return value in wanted.values
        case "not":
            return value not in wanted.values
    return isinstance(value, str) and value.startswith(wanted.values)


def _selected(query: Query, answers: dict[str, Any]) -> dict[str, Any]:
    return {name: answers[name] for name in query.answers or answers}
