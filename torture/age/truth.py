"""The truth about an ageing source: its events, and what the reference interpreter makes of them, kept up to date.

States are folded event by event, so that a comparison costs the same after two years as on the first night. It is exact
because the duplicates of an event come later in the same partition: the first of them is the one that counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from serving_layer.query.model import Query
from serving_layer.verification.from_scratch import Recomputed, cells, recompute
from views import in_memory
from views.in_memory import Event, Group
from views.view import View

Groups = dict[Group, dict[str, Any]]
RECENT = 100
"""So many of the newest events have the newest offset of each partition among them."""


class Truth:
    """All events of a source in the order of their arrival."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._counted: dict[str, Event] = {}
        self._by_day: defaultdict[date, list[Event]] = defaultdict(list)
        self._folded: dict[str, tuple[int, Groups]] = {}
        """Hash of a view -> how many of the events are folded, and their states."""

    def add(self, event: Event) -> None:
        """The next event. A duplicate must be in the partition of the event that counts."""
        first = self._counted.setdefault(event.event_id, event)
        if (first.partition, first.event_time) != (event.partition, event.event_time):
            raise ValueError(f"Event {event.event_id!r} came in partition {first.partition}, then {event.partition}.")
        self.events.append(event)
        self._by_day[event.event_time.date()].append(event)

    def expected(self, query: Query, cut: Mapping[int, int], *, whole: bool) -> Recomputed:
        """The rows of a query at a cut. `whole`: it is over all time, so all states are merged."""
        if not self._holds_all(cut):  # an answer from before the newest events: rare, and recomputed from all events
            return recompute(query, (event for event in self.events if event.offset < cut.get(event.partition, 0)))
        if not whole:
            return recompute(query, self._between(query))
        found = cells(query, self._groups(query.view), {})
        wanted = query.answers
        presented = ((place, query.view.present(state)) for place, state in found.items())
        return {place: {name: row[name] for name in wanted or row} for place, row in presented}

    def _holds_all(self, cut: Mapping[int, int]) -> bool:
        newest = {event.partition: event.offset for event in self.events[-RECENT:]}
        return all(offset < cut.get(partition, 0) for partition, offset in newest.items())

    def _between(self, query: Query) -> Iterable[Event]:
        """The events of the days that a query asks for, and of the days beside them."""
        begin = min(window.start for window in query.windows)
        end = max(window.end for window in query.windows)
        day = datetime.fromtimestamp(begin, UTC).date() - timedelta(days=1)
        last = datetime.fromtimestamp(end, UTC).date() + timedelta(days=1)
        while day <= last:
            yield from self._by_day.get(day, ())
            day += timedelta(days=1)

    def _groups(self, view: View) -> Groups:
        done, groups = self._folded.get(view.hash, (0, {}))
        new = [event for event in self.events[done:] if self._counted[event.event_id] is event]
        groups = in_memory.merge(view, groups, in_memory.fold(view, new))
        self._folded = {known: each for known, each in self._folded.items() if known != view.hash}
        self._folded[view.hash] = (len(self.events), groups)
        while len(self._folded) > 2:  # views that were changed since
            self._folded.pop(next(iter(self._folded)))
        return groups
