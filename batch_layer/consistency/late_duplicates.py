"""Duplicates that the speed view may have counted and a batch run has not: the legal differences between the two.

The speed layer knows an id until its horizon; a duplicate that comes later counts once more, until the next run. Of
duplicates in different partitions, another one may be the first at another cut. Only groups of such duplicates are
excused, and only as far as these duplicates reach. Where they are equal, only what depends on their location is excused
(First, Last).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hand_off.batch_folder import BatchFolder
from hand_off.removed_events import removed_ids
from infra.settings import Settings
from master_dataset.cut import Cut, count_between
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.reading.read_again import read_valid_events
from master_dataset.table.readings import is_of_first_reading
from views import in_memory
from views.aggregates import Algebra
from views.aggregates.counting import AverageAlgebra, CountAlgebra, ExactVariance, RoundedVariance, SumAlgebra
from views.aggregates.histogram import HistogramAlgebra
from views.aggregates.moments import ExactMoments, RoundedMoments
from views.aggregates.trend import ExactTrend, RoundedTrend
from views.equality import DOUBLES, FLOOR
from views.in_memory import Event
from views.keys import pack_key
from views.source import Source
from views.types import EPOCH, MICROSECOND
from views.view import View

MICROS = 1_000_000
COLUMNS = ["partition", "offset", "timestamp", "event_id", "event_time", "event"]
POSITIONS = COLUMNS[:5]
At = tuple[int, bytes | None]
"""The bucket and key of a group; key None: the total of the bucket."""
Numbers = tuple[Any, ...]


class StoredRecord(NamedTuple):
    """One of several with the same id. `event` is None of those in no bucket that was looked at."""

    partition: int
    offset: int
    event_id: str
    at: datetime
    time: datetime
    event: Event | None

    @property
    def place(self) -> tuple[int, int]:
        """Its partition and offset."""
        return self[:2]


Found = dict[str, dict[tuple[int, int], StoredRecord]]
"""By id, and by partition and offset."""


class Off(NamedTuple):
    """By how much a number of the speed view is larger than the true one; doubles: give or take `slack`."""

    by: Any
    slack: float = 0


class Reach(NamedTuple):
    """How far duplicates can take a number down and up; `size`: of doubles, how much is added on the way."""

    down: Any
    up: Any
    size: float

    def has(self, off: Off) -> bool:
        """Whether they can take it so far."""
        slack = off.slack + DOUBLES * self.size if isinstance(off.by, float) else 0
        return bool(self.down - slack <= off.by <= self.up + slack)


class DuplicateSet(NamedTuple):
    """The events with one id since a cut, in the order of their positions, and the one that counted before."""

    since: tuple[Event | None, ...]
    before: Event | None
    has_before: bool
    is_first_before: bool
    """Whether the one before is the lowest of all: then it counts still."""


@dataclass(frozen=True)
class LateDuplicates:
    """The duplicates among the events since a cut that the speed view may have counted."""

    view: View
    late: tuple[DuplicateSet, ...] = ()
    elsewhere: tuple[DuplicateSet, ...] = ()
    """Of duplicates in several partitions that say the same: at which position they are counted may differ."""
    unread: frozenset[int] = frozenset()
    """Buckets with too many events to look at, or whose records have to be read again: nothing is known of duplicates
    there."""

    @classmethod
    def read(
        cls, settings: Settings, view: View, table: Path, start: Cut, end: Cut, buckets: Collection[int]
    ) -> LateDuplicates:
        """From the master dataset: the duplicates since `start` of events in `buckets`, where the differences are.

        Where more than `consistency_events` came since, the buckets with the fewest events are looked at, as many as
        hold no more than that.
        """
        if not any(end.values()):
            return cls(view)
        if not is_of_first_reading(table, view.source):  # the parsed columns say other things than the view's events
            return cls(view, unread=frozenset(buckets))
        is_part = count_between(start, end) > settings.consistency_events
        read = _smallest(table, end, view, buckets, settings.consistency_events) if is_part else frozenset(buckets)
        wanted = _rows_in(table, end, view, read) if is_part else _rows(table, RecordFilter(start=start, end=end))
        found: Found = {}
        for record in map(_record, wanted):
            found.setdefault(record.event_id, {})[record.place] = record
        _add_others(found, table, end if is_part else start)
        _add_removed(found, BatchFolder.of(settings, view.source.name), table)
        horizon = timedelta(seconds=settings.speed_dedup_horizon_s)
        found = {name: each for name, each in found.items() if _may_differ(each.values(), start, horizon)}
        if not is_part:  # else they were read already
            _add_events(found, table, start, view, read)
        late, equal = list[DuplicateSet](), list[DuplicateSet]()
        for each in found.values():
            (late if _is_late(each.values(), horizon) else equal).append(_duplicates_of(each.values(), start))
        return cls(view, tuple(late), tuple(equal), frozenset(buckets) - read)

    def excuses(self, bucket: int, key: bytes | None, off: Mapping[str, tuple[Off, ...]]) -> bool:
        """Whether a group may differ in some answers, by so much; key None: the total of the bucket.

        Counts, sums, averages and histograms may be off as far as some counting of the duplicates can take them. Other
        answers have no known bound: they are excused wherever a late duplicate is.
        """
        at = (bucket, key)
        if at in self._reach:
            reach = self._reach[at]
            return all(each.has(by) for name in off for each, by in zip(reach[name], off[name], strict=True))
        is_by_location = bool(off) and all(self.view.algebras[name].by_location for name in off)
        return is_by_location and at in self._places

    @cached_property
    def _places(self) -> set[At]:
        """The groups of equal duplicates in several partitions."""
        events = [event for each in self.elsewhere for event in (*each.since, each.before) if event is not None]
        return {at for event in events for at in _numbers_of(self.view, event)}

    @cached_property
    def _reach(self) -> dict[At, dict[str, list[Reach]]]:
        """How far all late duplicates together can take each number of each group."""
        found: dict[At, dict[str, list[Reach]]] = {}
        for duplicates in self.late:
            for at, more in _reach_of(self.view, duplicates).items():
                known = found.get(at)
                found[at] = more if known is None else {name: _sum(known[name], more[name]) for name in more}
        return found


def apart(algebra: Algebra, said: Any, true: Any, pieces: Sequence[Any] = ()) -> tuple[Off, ...]:
    """How far two states of an answer are apart, number by number; nothing where duplicates have no known bound."""
    columns = zip(*(_numbers(algebra, state) for state in (said, true, *pieces)), strict=True)
    return tuple(Off(column[0] - column[1], _slack(column)) for column in columns)


def ids_below(folder: BatchFolder, table: Path, source: Source, cut: Cut, ids: Collection[str]) -> Iterator[str]:
    """Those of some ids that events below a cut have, or had before they were removed."""
    yield from removed_ids(folder, table, ids)
    if not any(cut.values()):
        return
    if is_of_first_reading(table, source):
        yield from (row["event_id"] for row in _rows(table, RecordFilter(end=cut), POSITIONS, ids))
        return
    wanted = frozenset(ids)
    found = (row["event_id"] for row in read_valid_events(table, source, RecordFilter(end=cut)))
    yield from (each for each in found if each in wanted)


# ---- how far duplicates can take an answer -----------------------------------------


def _numbers(algebra: Algebra, state: Any) -> Numbers:
    """The numbers of a state that merge by addition; nothing of a state that has none."""
    match algebra:
        case CountAlgebra() | SumAlgebra():
            found: Numbers = (state,)
        case AverageAlgebra() | ExactVariance() | HistogramAlgebra() | ExactMoments() | ExactTrend():
            found = state
        case RoundedVariance() | RoundedMoments() | RoundedTrend():
            found = state[:1]
        case _:
            found = ()
    return tuple(Fraction(number) if isinstance(number, Decimal) else number for number in found)


def _slack(numbers: Numbers) -> float:
    return max(FLOOR, DOUBLES * max(map(abs, numbers))) if isinstance(numbers[0], float) else 0


def _numbers_of(view: View, event: Event | None) -> dict[At, dict[str, Numbers]]:
    """What one event adds to the numbers of its group and to those of the total."""
    found: dict[At, dict[str, Numbers]] = {}
    for (micros, key), state in in_memory.fold(view, [event] if event is not None else []).items():
        numbers = {name: _numbers(algebra, state[name]) for name, algebra in view.algebras.items()}
        found[micros // MICROS, pack_key(key)] = found[micros // MICROS, None] = numbers
    return found


def _reach_of(view: View, duplicates: DuplicateSet) -> dict[At, dict[str, list[Reach]]]:
    """How far the duplicates of one event can take the numbers of their groups."""
    nothing = {name: _numbers(algebra, algebra.zero()) for name, algebra in view.algebras.items()}
    inside: dict[At, dict[int, dict[str, Numbers]]] = {}
    for number, event in enumerate((duplicates.before, *duplicates.since)):
        for at, numbers in _numbers_of(view, event).items():
            inside.setdefault(at, {})[number] = numbers
    found = {}
    for at, numbers_of in inside.items():
        since = [numbers for number, numbers in numbers_of.items() if number]
        if len(since) < len(duplicates.since):  # those that are elsewhere add nothing here
            since.append(nothing)
        parts = [numbers_of.get(0, nothing), numbers_of.get(1, nothing), *since]
        found[at] = {
            name: [_reach(duplicates, *column) for column in zip(*(part[name] for part in parts), strict=True)]
            for name in nothing
        }
    return found


def _reach(duplicates: DuplicateSet, before: Any, first: Any, *since: Any) -> Reach:
    """The speed view counts any of those since, at least one where there was none before; the true one is taken off."""
    down, up = sum(min(each, 0) for each in since), sum(max(each, 0) for each in since)
    size = float(abs(before) + sum(map(abs, since)))
    if not duplicates.has_before:
        return Reach((down or min(since)) - first, (up or max(since)) - first, size)
    # One that is lower than the one before counts instead of it in a run; `verify` leaves both out.
    moved = 0 if duplicates.is_first_before else before - first
    return Reach(down + min(moved, 0), up + max(moved, 0), size)


def _sum(left: list[Reach], right: list[Reach]) -> list[Reach]:
    return [Reach(a.down + b.down, a.up + b.up, a.size + b.size) for a, b in zip(left, right, strict=True)]


# ---- which duplicates there are ----------------------------------------------------


def _may_differ(records: Collection[StoredRecord], start: Cut, horizon: timedelta) -> bool:
    """Whether both sides may have counted different ones: some came since, late or in another partition."""
    is_since = any(_is_since(record, start) for record in records)
    is_elsewhere = len({record.partition for record in records}) > 1
    return is_since and len(records) > 1 and (is_elsewhere or _is_wide(records, horizon))


def _is_late(records: Collection[StoredRecord], horizon: timedelta) -> bool:
    """Whether any of them came after the horizon of another, or lies in another partition and says something else."""
    if _is_wide(records, horizon):
        return True
    payloads = [(record.event.event_time, record.event.fields) if record.event else None for record in records]
    return any(each is None or each != payloads[0] for each in payloads)


def _is_wide(records: Collection[StoredRecord], horizon: timedelta) -> bool:
    times = [record.at for record in records]
    return not horizon or max(times) - min(times) > horizon


def _is_since(record: StoredRecord, start: Cut) -> bool:
    return record.offset >= start.get(record.partition, 0)


def _duplicates_of(records: Collection[StoredRecord], start: Cut) -> DuplicateSet:
    """Of those before the cut the lowest counted."""
    ordered = sorted(records, key=lambda record: record.place)
    since = tuple(record.event for record in ordered if _is_since(record, start))
    before = next((record for record in ordered if not _is_since(record, start)), None)
    return DuplicateSet(since, before.event if before else None, before is not None, before is ordered[0])


# ---- reading -------------------------------------------------------------------


def _add_others(found: Found, table: Path, end: Cut) -> None:
    """The other records below a cut with the ids that were found, without their events."""
    for row in _rows(table, RecordFilter(end=end), POSITIONS, found) if found and any(end.values()) else ():
        record = _record(row)
        found[record.event_id].setdefault(record.place, record)


def _add_removed(found: Found, folder: BatchFolder, table: Path) -> None:
    """The records that counted and were removed from the master dataset: older than all others, and not known further.

    They count for ever, wherever they were, so each is put before the first record of any partition.
    """
    for event_id in removed_ids(folder, table, found):
        found[event_id][-1, -1] = StoredRecord(-1, -1, event_id, EPOCH, EPOCH, None)


def _add_events(found: Found, table: Path, end: Cut, view: View, buckets: Collection[int]) -> None:
    """The events of the records below a cut that are in some buckets."""
    lacking = [record for records in found.values() for record in records.values() if record.event is None]
    wanted = {_bucket(view, record.time) for record in lacking} & set(buckets)
    for record in map(_record, _rows_in(table, end, view, wanted, found)):
        found[record.event_id][record.place] = record


def _record(row: dict[str, Any]) -> StoredRecord:
    place = row["partition"], row["offset"]
    event = Event(*place, row["event_id"], row["event_time"], row["event"]) if "event" in row else None
    return StoredRecord(*place, row["event_id"], row["timestamp"], row["event_time"], event)


def _bucket(view: View, time: datetime) -> int:
    return view.bucket.bucket((time - EPOCH) // MICROSECOND) // MICROS


def _smallest(table: Path, end: Cut, view: View, buckets: Collection[int], most: int) -> frozenset[int]:
    """The buckets with the fewest events below a cut: as many as have no more than `most` together."""
    counts: Counter[int] = Counter(dict.fromkeys(buckets, 0))
    for batch in _batches_in(table, end, view, buckets, ["event_time"]):
        found, times = np.unique(_buckets_of(batch, view), return_counts=True)
        counts.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
    read, left = set(), most
    for bucket, count in sorted(counts.items(), key=lambda each: (each[1], each[0])):
        left -= count
        if left < 0:
            break
        read.add(bucket)
    return frozenset(read)


def _rows_in(
    table: Path, end: Cut, view: View, buckets: Collection[int], only: Iterable[str] | None = None
) -> Iterator[dict[str, Any]]:
    """The events below a cut whose times are in some buckets of a view."""
    yield from _of_ids(_batches_in(table, end, view, buckets, COLUMNS), only)


def _batches_in(
    table: Path, end: Cut, view: View, buckets: Collection[int], columns: list[str]
) -> Iterator[pa.RecordBatch]:
    if not buckets or not any(end.values()):
        return
    since, until = (datetime.fromtimestamp(each, UTC) for each in (min(buckets), max(buckets) + view.bucket.seconds))
    wanted = np.array(sorted(buckets), dtype=np.int64)
    for batch in read_records(table, RecordFilter(since, until, end=end), columns):
        yield batch.filter(pa.array(np.isin(_buckets_of(batch, view), wanted)))


def _buckets_of(batch: pa.RecordBatch, view: View) -> Any:
    """Of each event, as seconds since 1970."""
    micros = batch.column("event_time").cast(pa.int64()).to_numpy()
    return micros // view.bucket.micros * view.bucket.seconds


def _rows(
    table: Path, wanted: RecordFilter, columns: list[str] = COLUMNS, only: Iterable[str] | None = None
) -> Iterator[dict[str, Any]]:
    yield from _of_ids(read_records(table, wanted, columns), only)


def _of_ids(batches: Iterable[pa.RecordBatch], only: Iterable[str] | None) -> Iterator[dict[str, Any]]:
    """The rows with some ids; None: all."""
    ids = None if only is None else pa.array(list(only), pa.string())
    for batch in batches:
        rows = batch if ids is None else batch.filter(pc.is_in(batch.column("event_id"), value_set=ids))
        yield from rows.to_pylist(maps_as_pydicts="strict")
