"""Copies that the speed side may have counted, and a batch run has not: the differences between both that are legal.

The speed side knows an id for as long as its horizon; a copy that comes later counts once more, until the next run. And
of copies in different partitions another one may be the first at another cut. Only groups of such copies are excused;
where they say the same, only in what depends on their position (First, Last).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from infra.settings import Settings
from master_dataset.cut import Cut, count_between
from master_dataset.facts import Wanted, read_facts
from views import in_memory
from views.in_memory import Event
from views.keys import pack_key
from views.view import View

MICROS = 1_000_000
COLUMNS = ["partition", "offset", "timestamp", "event_id", "event_time", "event"]
POSITIONS = COLUMNS[:4]
Which = Literal["events", "elsewhere", "alone"]


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
    elsewhere: tuple[Event, ...] = ()
    """Of copies in several partitions that say the same: at which position they are counted may differ."""
    alone: tuple[Event, ...] = ()
    """Events without a copy: the speed side holds their groups, or has lost them."""
    has_moved: bool = False
    """Whether a copy of an older event came in another partition: then groups may change that got no event."""
    is_known: bool = True
    """False: there were too many events to look at, and nothing is known of copies."""
    _groups: dict[tuple[str, Which], set[tuple[int, bytes | None]]] = field(default_factory=dict)

    @classmethod
    def read(
        cls, settings: Settings, view: View, table: Path, start: Cut, end: Cut, buckets: Collection[int]
    ) -> LateCopies:
        """From the master dataset: every event in [start, end), and the ids of all before.

        Where these are more than `consistency_events`, those of `buckets`, where the differences are; it is not known
        which copies there are where these are still more.
        """
        if not any(end.values()):
            return cls()
        most, horizon = settings.consistency_events, timedelta(seconds=settings.speed_dedup_horizon_s)
        is_part = count_between(start, end) > most
        copies: dict[str, list[Copy]] = {}
        rows = _rows_in(table, start, end, view, buckets) if is_part else _rows(table, Wanted(start=start, end=end))
        for number, row in enumerate(rows):
            if number >= most:
                return cls(is_known=False)
            event = Event(row["partition"], row["offset"], row["event_id"], row["event_time"], row["event"])
            found = Copy(event.partition, event.offset, row["timestamp"], event)
            copies.setdefault(event.event_id, []).append(found)
        before = end if is_part else start
        for row in _rows(table, Wanted(end=before), POSITIONS, copies.keys()) if any(before.values()) else ():
            found = Copy(row["partition"], row["offset"], row["timestamp"], None)
            if found[:2] not in [copy[:2] for copy in copies[row["event_id"]]]:
                copies[row["event_id"]].append(found)
        several = [each for each in copies.values() if len(each) > 1]
        late = [each for each in several if _is_late(each, horizon)]
        equal = [each for each in several if not _is_late(each, horizon) and len(_partitions(each)) > 1]
        moved = any(copy.event is None and copy.partition != each[0].partition for each in several for copy in each)
        alone = [each for each in copies.values() if len(each) == 1]
        return cls(_events(late), _events(equal), _events(alone), moved or is_part)

    def excuses(
        self, view: View, bucket: int, key: bytes | None, *, is_held: bool = True, is_by_position: bool = False
    ) -> bool:
        """Whether a group may differ; key None: the total of the bucket.

        `is_by_position`: it differs only in answers that tell apart what is first and last.
        """
        place = (bucket, key)
        if not is_held and place in self._groups_of(view, "alone"):
            return False  # it is lost: no copy has anything to do with that
        return (
            place in self._groups_of(view, "events")
            or (is_by_position and place in self._groups_of(view, "elsewhere"))
            or (self.has_moved and not is_held)
        )

    def _groups_of(self, view: View, which: Which) -> set[tuple[int, bytes | None]]:
        asked = view.hash, which
        if asked not in self._groups:
            events: tuple[Event, ...] = getattr(self, which)
            groups = [(micros // MICROS, pack_key(values)) for micros, values in in_memory.fold(view, events)]
            self._groups[asked] = {*groups, *((bucket, None) for bucket, _ in groups)}
        return self._groups[asked]


def ids_below(table: Path, cut: Cut, ids: Iterable[str]) -> Iterator[str]:
    """Those of some ids that events below a cut have."""
    if any(cut.values()):
        yield from (row["event_id"] for row in _rows(table, Wanted(end=cut), POSITIONS, ids))


def _is_late(copies: list[Copy], horizon: timedelta) -> bool:
    """Whether any of them came after the horizon of another, or lies in another partition and says something else."""
    times = [copy.at for copy in copies]
    if max(times) - min(times) > horizon or not horizon:
        return True
    if len(_partitions(copies)) == 1:
        return False
    told = [(copy.event.event_time, copy.event.fields) if copy.event else None for copy in copies]
    return any(each != told[0] for each in told[1:])


def _partitions(copies: list[Copy]) -> set[int]:
    return {copy.partition for copy in copies}


def _events(found: list[list[Copy]]) -> tuple[Event, ...]:
    return tuple(copy.event for copies in found for copy in copies if copy.event is not None)


def _rows_in(table: Path, start: Cut, end: Cut, view: View, buckets: Collection[int]) -> Iterator[dict[str, Any]]:
    """The events in [start, end) whose times are in some buckets of a view."""
    length = view.bucket.seconds
    since, until = (datetime.fromtimestamp(each, UTC) for each in (min(buckets), max(buckets) + length))
    wanted = pa.array([bucket // length for bucket in buckets], pa.int64())
    for batch in read_facts(table, Wanted(since, until, start, end), COLUMNS):
        numbers = pc.divide(batch.column("event_time").cast(pa.int64()), view.bucket.micros)
        yield from batch.filter(pc.is_in(numbers, value_set=wanted)).to_pylist(maps_as_pydicts="strict")


def _rows(
    table: Path, wanted: Wanted, columns: list[str] = COLUMNS, only: Iterable[str] | None = None
) -> Iterator[dict[str, Any]]:
    ids = None if only is None else pa.array(list(only), pa.string())
    for batch in read_facts(table, wanted, columns):
        rows = batch if ids is None else batch.filter(pc.is_in(batch.column("event_id"), value_set=ids))
        yield from rows.to_pylist(maps_as_pydicts="strict")
