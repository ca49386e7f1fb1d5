"""One micro-batch: which of its events count, and what they add to the states.

Up to `speed_fold_events` it is collected as evaluated columns and folded here; of a larger one Spark makes the states,
which pays on many cores. Both give the same (tests/spark/test_micro_batches.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from hand_off.bucket_totals import by_name, totals
from hand_off.speed_views import ALL_KEYS, Group, totals_of
from speed_layer.seen_ids import Hashes, SeenIds
from views import states
from views.columns import ID, KAFKA, OFFSET, PARTITION, SIZE, VALID, Columns, add_rows, groups_of, zero
from views.keys import pack_key
from views.on_spark.columns import states_of, without_rows
from views.view import View

UNKNOWN_FRAME = "_unknown_frame"
"""A column of framed records only: the schema that wrote a record, where it is not known."""
NONE: frozenset[bytes] = frozenset()
AHEAD_MS = 3_600_000
"""How far a record's timestamp may be ahead of our clock: by default Kafka refuses records further ahead of its own."""

Adding = Callable[[Group, dict[str, Any] | None], dict[str, Any]]


class Delta(NamedTuple):
    """What the events of a micro-batch add."""

    groups: list[Group]
    """The states that they change."""
    add: Adding
    """The states of such a group (None: there are none yet) -> those with these events; may change what it is given."""
    hashes: Hashes
    """Of the ids of the events that count; none where duplicates count too."""
    oldest_ms: int
    newest_ms: int
    """Kafka's timestamps of the records; 0 where there are none."""
    events: int
    """How many count."""
    duplicates: int
    size: int = 0
    """Bytes of all records, and of what was collected of them."""
    unknown_frames: frozenset[bytes] = frozenset()
    """The schemas that records name and that are not among those known when the stream began."""


@dataclass(frozen=True)
class _Counted:
    keep: NDArray[np.bool_]
    hashes: Hashes
    oldest_ms: int
    newest_ms: int

    @property
    def events(self) -> int:
        return int(self.keep.sum())


def delta_of(rows: DataFrame, columns: Columns, seen_ids: SeenIds | None, *, is_small: bool) -> Delta:
    """Evaluated rows, also duplicates and invalid ones -> what they add. Without seen ids duplicates count too."""
    return _folded(rows, columns, seen_ids) if is_small else _aggregated(rows, columns, seen_ids)


def _folded(rows: DataFrame, columns: Columns, seen_ids: SeenIds | None) -> Delta:
    found = rows.toArrow()
    size = int(pc.sum(found.column(SIZE)).as_py() or 0) + found.nbytes
    frames = _frames(found)
    found = found.filter(found.column(VALID))
    counted = _count(found, seen_ids)
    used = (VALID, ID, KAFKA, SIZE, UNKNOWN_FRAME)
    table = {name: _listed(found.column(name)) for name in found.column_names if name not in used}
    wanted = np.flatnonzero(counted.keep).tolist()
    views = by_name(columns.views)
    rows_of: dict[Group, list[int]] = {}
    for view in columns.views:
        groups = groups_of(view, columns, table, wanted)
        rows_of |= {Group(view.hash, *group): numbers for group, numbers in groups.items()}
        if view.keys:
            for (bucket, _), numbers in groups.items():
                rows_of.setdefault(Group(totals_of(view.hash), bucket, ALL_KEYS), []).extend(numbers)

    def add(group: Group, known: dict[str, Any] | None) -> dict[str, Any]:
        view = views[group.view]
        states_ = zero(view) if known is None else known
        add_rows(view, columns, table, states_, rows_of[group])
        return states_

    return _delta(list(rows_of), add, counted, size, frames)


def _aggregated(rows: DataFrame, columns: Columns, seen_ids: SeenIds | None) -> Delta:
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        valid = kept.where(VALID)
        frames = _frames(kept.select(UNKNOWN_FRAME).distinct().toArrow()) if UNKNOWN_FRAME in kept.columns else NONE
        found = valid.select(ID, PARTITION, OFFSET, KAFKA, SIZE).toArrow()
        size = int(pc.sum(found.column(SIZE)).as_py() or 0) + found.nbytes
        counted = _count(found, seen_ids)
        dropped = np.flatnonzero(~counted.keep)
        locations = zip(_numbers(found, PARTITION)[dropped], _numbers(found, OFFSET)[dropped], strict=True)
        events = without_rows(valid, [(int(partition), int(offset)) for partition, offset in locations])
        views = by_name(columns.views)
        packed: dict[Group, bytes] = {}
        for view in columns.views:
            of_view = _packed(view, states_of(events, columns, view).toArrow())
            packed |= of_view | totals(view, of_view)
    finally:
        kept.unpersist()

    def add(group: Group, known: dict[str, Any] | None) -> dict[str, Any]:
        algebras = views[group.view].algebras
        more = states.unpack(algebras, packed[group])
        return more if known is None else states.merge(algebras, known, more)

    return _delta(list(packed), add, counted, size, frames)


def _packed(view: View, found: pa.Table) -> dict[Group, bytes]:
    keys = [found.column(name).to_pylist() for name in found.column_names if name.startswith("_key_")]
    buckets = found.column("bucket").to_pylist()
    return {
        Group(view.hash, buckets[row], pack_key([key[row] for key in keys])): state
        for row, state in enumerate(found.column("state").to_pylist())
    }


def _count(found: pa.Table, seen_ids: SeenIds | None) -> _Counted:
    """Of duplicates in one micro-batch the one with the lowest partition and offset counts, if its id was not seen."""
    hashes, times = _numbers(found, ID), _numbers(found, KAFKA)
    if seen_ids is None:
        keep = np.ones(len(hashes), dtype=bool)
        counted: Hashes = np.empty(0, dtype=np.int64)
    else:
        order = np.lexsort((_numbers(found, OFFSET), _numbers(found, PARTITION)))
        _, first = np.unique(hashes[order], return_index=True)
        keep = np.zeros(len(hashes), dtype=bool)
        keep[order[first]] = True
        keep &= ~seen_ids.known(hashes)
        counted = hashes[keep]
    if not len(hashes):
        return _Counted(keep, counted, 0, 0)
    # A time in the future would keep its seen ids for as long, and make all others look old. But where all records are
    # ahead of our clock, that clock is slow, and ids dated by it would be forgotten early once it is corrected.
    now_ms, oldest_ms, newest_ms = int(time.time() * 1000), int(times.min()), int(times.max())
    until_ms = min(newest_ms, max(now_ms, min(oldest_ms, now_ms + AHEAD_MS)))
    return _Counted(keep, counted, min(oldest_ms, now_ms), until_ms)


def _listed(column: pa.ChunkedArray) -> list[Any]:
    """A column's values as Python has them. By way of numpy a tenth of the time, where that can say the same."""
    kind = column.type
    is_plain = pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_float64(kind)
    if is_plain and not column.null_count:
        values: list[Any] = column.to_numpy().tolist()
        return values
    return list(column.to_pylist())


def _numbers(found: pa.Table, name: str) -> Hashes:
    numbers: Hashes = found.column(name).to_numpy().astype(np.int64, copy=False)
    return numbers


def _frames(found: pa.Table) -> frozenset[bytes]:
    if UNKNOWN_FRAME not in found.column_names:
        return NONE
    return frozenset(pc.unique(found.column(UNKNOWN_FRAME).drop_null()).to_pylist())


def _delta(groups: list[Group], add: Adding, counted: _Counted, size: int, unknown_frames: frozenset[bytes]) -> Delta:
    duplicates = len(counted.keep) - counted.events
    of_events = counted.hashes, counted.oldest_ms, counted.newest_ms, counted.events, duplicates
    return Delta(groups, add, *of_events, size, unknown_frames)
