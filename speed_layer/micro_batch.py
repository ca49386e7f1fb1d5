"""One micro-batch: which of its events count, and what they add to the states.

A small one is collected as evaluated columns and folded here; of a large one Spark makes the states. Both give the same
(tests/spark/test_micro_batches.py): a small job on Spark costs more than the folding, a large one less.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from speed_layer.marks import Hashes, Marks
from speed_layer.speed_views import Group
from views import states
from views.columns import ID, KAFKA, OFFSET, PARTITION, VALID, Columns, fold
from views.keys import pack_key
from views.on_spark.columns import states_of, without_rows
from views.view import View

SMALL = 3_000
"""Up to so many records a micro-batch is folded here."""


class Delta(NamedTuple):
    """What the events of a micro-batch add, by definition hash: (bucket, key) -> states, as values or as bytes."""

    by_view: Mapping[str, Mapping[tuple[int, bytes], Any]]
    hashes: Hashes
    """Of the ids of the events that count."""
    oldest_ms: int
    newest_ms: int
    """Kafka's timestamps of the records; 0 where there are none."""
    copies: int


@dataclass(frozen=True)
class _Counted:
    keep: NDArray[np.bool_]
    hashes: Hashes
    oldest_ms: int
    newest_ms: int

    @property
    def copies(self) -> int:
        return int(len(self.keep) - self.keep.sum())


def delta_of(rows: DataFrame, columns: Columns, marks: Marks | None, size: int) -> Delta:
    """Evaluated rows of about `size` records, copies among them -> what they add. Without marks copies count too."""
    return _folded(rows, columns, marks) if size <= SMALL else _aggregated(rows, columns, marks)


def _folded(rows: DataFrame, columns: Columns, marks: Marks | None) -> Delta:
    found = rows.coalesce(1).toArrow()
    found = found.filter(found.column(VALID))
    counted = _count(found, marks)
    table = {name: found.column(name).to_pylist() for name in found.column_names if name not in (VALID, ID, KAFKA)}
    wanted = np.flatnonzero(counted.keep).tolist()
    by_view = {view.hash: fold(view, columns, table, wanted) for view in columns.views}
    return _delta(by_view, counted)


def _aggregated(rows: DataFrame, columns: Columns, marks: Marks | None) -> Delta:
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        valid = kept.where(VALID)
        found = valid.select(ID, PARTITION, OFFSET, KAFKA).toArrow()
        counted = _count(found, marks)
        dropped = np.flatnonzero(~counted.keep)
        places = zip(_numbers(found, PARTITION)[dropped], _numbers(found, OFFSET)[dropped], strict=True)
        positions = [(int(partition), int(offset)) for partition, offset in places]
        events = without_rows(valid, positions)
        by_view: dict[str, Mapping[tuple[int, bytes], Any]] = {}
        for view in columns.views:
            by_view[view.hash] = _packed(states_of(events, columns, view).toArrow())
    finally:
        kept.unpersist()
    return _delta(by_view, counted)


def _packed(found: pa.Table) -> dict[tuple[int, bytes], bytes]:
    keys = [found.column(name).to_pylist() for name in found.column_names if name.startswith("_key_")]
    buckets = found.column("bucket").to_pylist()
    packed = found.column("state").to_pylist()
    return {(buckets[row], pack_key([key[row] for key in keys])): state for row, state in enumerate(packed)}


def _count(found: pa.Table, marks: Marks | None) -> _Counted:
    """Of the copies in one micro-batch the one with the lowest partition and offset counts, if its id has no mark."""
    hashes, times = _numbers(found, ID), _numbers(found, KAFKA)
    if marks is None:
        keep = np.ones(len(hashes), dtype=bool)
        counted: Hashes = np.empty(0, dtype=np.int64)
    else:
        order = np.lexsort((_numbers(found, OFFSET), _numbers(found, PARTITION)))
        _, first = np.unique(hashes[order], return_index=True)
        keep = np.zeros(len(hashes), dtype=bool)
        keep[order[first]] = True
        keep &= ~marks.known(hashes)
        counted = hashes[keep]
    if not len(hashes):
        return _Counted(keep, counted, 0, 0)
    # A time in the future would keep its marks for as long.
    return _Counted(keep, counted, int(times.min()), min(int(times.max()), int(time.time() * 1000)))


def _numbers(found: pa.Table, name: str) -> Hashes:
    numbers: Hashes = found.column(name).to_numpy().astype(np.int64, copy=False)
    return numbers


def _delta(by_view: Mapping[str, Mapping[tuple[int, bytes], Any]], counted: _Counted) -> Delta:
    return Delta(by_view, counted.hashes, counted.oldest_ms, counted.newest_ms, counted.copies)


def groups_of(delta: Delta) -> list[Group]:
    """The states that it touches."""
    return [Group(view, bucket, key) for view, groups in delta.by_view.items() for bucket, key in groups]


def added(
    delta: Delta, views: Mapping[str, View], groups: list[Group], known: list[bytes | None]
) -> dict[Group, bytes]:
    """The states as they are after it: what is known of each group now, with what the micro-batch adds."""
    after = {}
    for group, before in zip(groups, known, strict=True):
        algebras = views[group.view].algebras
        more = delta.by_view[group.view][group.bucket, group.key]
        if before is None:
            after[group] = more if isinstance(more, bytes) else states.pack(algebras, more)
        else:
            values = states.unpack(algebras, more) if isinstance(more, bytes) else more
            after[group] = states.pack(algebras, states.merge(algebras, states.unpack(algebras, before), values))
    return after
