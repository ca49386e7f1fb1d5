"""Copies that the speed side may have counted, and a batch run has not: the differences between both that are legal.

The speed side knows an id for as long as its horizon; a copy that comes later counts once more, until the next run. And
of copies in different partitions another one may be the first at another cut. Only groups of such copies are excused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from infra.settings import Settings
from master_dataset.cut import Cut, count_between
from master_dataset.facts import Wanted, read_facts
from views import in_memory
from views.in_memory import Event
from views.keys import pack_key
from views.source import Source
from views.view import View

MICROS = 1_000_000
COLUMNS = ["partition", "offset", "timestamp", "event_id", "event_time", "event"]
POSITIONS = COLUMNS[:4]


class Copy(NamedTuple):
    """One of several records with the same id. `event` is known of those that came since."""

    partition: int
    offset: int
    at: Any
    event: Event | None


@dataclass(frozen=True)
class LateCopies:
    """The copies among the events since a cut that the speed side may have counted."""

    events: tuple[Event, ...] = ()
    has_moved: bool = False
    """Whether a copy of an older event came in another partition: then groups may change that got no event."""
    _groups: dict[str, set[tuple[int, bytes | None]]] = field(default_factory=dict)

    @classmethod
    def read(cls, settings: Settings, source: Source, table: Path, start: Cut, end: Cut) -> LateCopies:
        """From the master dataset: every event in [start, end), and the ids of all before.

        None where these are more than `consistency_events`: then nothing is excused.
        """
        if not any(end.values()) or count_between(start, end) > settings.consistency_events:
            return cls()
        horizon = timedelta(seconds=settings.speed_dedup_horizon_s)
        copies: dict[str, list[Copy]] = {}
        for row in _rows(table, Wanted(start=start, end=end), COLUMNS):
            event = Event(row["partition"], row["offset"], row["event_id"], row["event_time"], row["event"])
            found = Copy(event.partition, event.offset, row["timestamp"], event)
            copies.setdefault(event.event_id, []).append(found)
        for row in _rows(table, Wanted(end=start), POSITIONS, only=copies.keys()) if any(start.values()) else ():
            copies[row["event_id"]].append(Copy(row["partition"], row["offset"], row["timestamp"], None))
        several = [each for each in copies.values() if len(each) > 1]
        late = [copy for each in several if _is_late(each, horizon) for copy in each]
        moved = any(copy.event is None and copy.partition != each[0].partition for each in several for copy in each)
        return cls(tuple(copy.event for copy in late if copy.event is not None), moved)

    def excuses(self, view: View, bucket: int, key: bytes | None, *, is_held: bool = True) -> bool:
        """Whether a group may differ; key None: the total of the bucket."""
        if view.hash not in self._groups:
            groups = [(micros // MICROS, pack_key(values)) for micros, values in in_memory.fold(view, self.events)]
            self._groups[view.hash] = {*groups, *((bucket, None) for bucket, _ in groups)}
        return (bucket, key) in self._groups[view.hash] or (self.has_moved and not is_held)


def ids_below(table: Path, cut: Cut, ids: Iterable[str]) -> Iterator[str]:
    """Those of some ids that events below a cut have."""
    if any(cut.values()):
        yield from (row["event_id"] for row in _rows(table, Wanted(end=cut), POSITIONS, only=ids))


def _is_late(copies: list[Copy], horizon: timedelta) -> bool:
    """Whether any of them came after the horizon of another, or lies in another partition and says something else."""
    times = [copy.at for copy in copies]
    if max(times) - min(times) > horizon or not horizon:
        return True
    if len({copy.partition for copy in copies}) == 1:
        return False
    told = [(copy.event.event_time, copy.event.fields) if copy.event else None for copy in copies]
    return any(each != told[0] for each in told[1:])


def _rows(
    table: Path, wanted: Wanted, columns: list[str], only: Iterable[str] | None = None
) -> Iterator[dict[str, Any]]:
    ids = None if only is None else pa.array(list(only), pa.string())
    for batch in read_facts(table, wanted, columns):
        rows = batch if ids is None else batch.filter(pc.is_in(batch.column("event_id"), value_set=ids))
        yield from rows.to_pylist(maps_as_pydicts="strict")
