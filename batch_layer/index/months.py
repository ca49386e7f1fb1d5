"""Make tiles of months: those of their days brought into the order of the index, and merged. Spark's workers run this.

The tiles of each day come sorted by key, in batches. In memory is a batch of each day at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_layer.index import scratch
from batch_layer.index.layout import NUMBER, section_name
from batch_layer.index.reader import open_index
from batch_layer.index.shape import Shape
from batch_layer.index.sort import ranks_of
from batch_layer.index.tiles import DaysMade, KeyMerger, big_endian

TILE = pa.schema({"name": pa.binary(), "begin": pa.uint32(), "state": pa.binary(), "is_written": pa.bool_()})
"""Of a day. `is_written`: it belongs into the new file; others are there to be merged."""


class MonthTask(NamedTuple):
    """The new days of a month, and the files that have the others; of the keys those with low <= name < high."""

    shape: Shape
    month: int
    made: tuple[DaysMade, ...]
    before: tuple[Path, ...]
    with_old_days: bool
    folder: Path
    part: int
    low: bytes
    high: bytes | None

    def place(self, what: str) -> Path:
        """Where `days`, entries of the index, and `keys`, with a tile of the month for each, are written."""
        return self.folder / f"{self.month}-{self.part}.{what}"


def make_month(task: MonthTask) -> MonthTask:
    """Bring the tiles of a month's days into the order of the index, and merge them into a tile for each key."""
    shape, section = task.shape, pa.scalar(section_name(task.month))
    streams = [_totals_of(task), *(_tiles_of(task, made) for made in task.made), _old_tiles(task)]
    with (
        scratch.Writer(task.place("days"), scratch.ENTRY) as days,
        KeyMerger(shape, task.place("keys")) as keys,
    ):
        for batch in _in_order(streams):
            written = batch.filter(batch["is_written"])
            names = pc.binary_join_element_wise(section, written["name"], big_endian(written["begin"].to_numpy()), b"")
            days.write([names, written["state"]])
            no_key = pa.nulls(len(batch), pa.binary())
            columns = shape.split(batch["state"])
            keys.add(batch["name"], no_key, np.zeros(len(batch), np.uint32), batch["state"], columns)
    return task


def _in_order(streams: list[Iterator[pa.Table]]) -> Iterator[pa.RecordBatch]:
    """The tiles of streams that are sorted by name each, sorted by name and begin."""
    for window in _windows(streams):
        order = np.lexsort((window["begin"].to_numpy(), ranks_of(window["name"])))
        yield from scratch.batches_of(window.take(pa.array(order)).combine_chunks())


def _windows(streams: list[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Whatever the streams have of a range of names. A name is in one batch of a stream, with all its tiles."""
    heads = [(head, stream) for stream in streams if (head := next(stream, None)) is not None]
    while heads:
        bound = min(head["name"][-1].as_py() for head, _ in heads)
        found, left = [], []
        for head, stream in heads:
            end = pc.sum(pc.less_equal(head["name"], pa.scalar(bound))).as_py()
            found.append(head.slice(0, end))
            rest = head.slice(end) if end < len(head) else next(stream, None)
            if rest is not None:
                left.append((rest, stream))
        heads = left
        yield pa.concat_tables(found).combine_chunks()


def _totals_of(task: MonthTask) -> Iterator[pa.Table]:
    """The totals of new days: their name is empty."""
    found = [each for made in task.made for each in made.days if each.total is not None]
    if found and not task.low:
        begins = pa.array([each.day - task.month for each in found], pa.uint32())
        names, states = [b""] * len(found), [each.total for each in found]
        yield _table(pa.array(names, pa.binary()), begins, pa.array(states, pa.binary()), is_written=True)


def _tiles_of(task: MonthTask, made: DaysMade) -> Iterator[pa.Table]:
    """The tiles of new days that are asked for."""
    several = list[pa.Table]()
    for batch in scratch.batches(made.task.place("keys")):
        found = batch.filter(_is_within(task, batch["name"]))
        if found.num_rows:
            begins = pc.add(found["begin"], pa.scalar(made.task.first - task.month, pa.uint32()))
            several.append(_table(found["name"], begins, found["state"], is_written=True))
            if len(made.days) == 1:
                yield several.pop()
    if several:  # sorted day by day, and few
        table = pa.concat_tables(several).combine_chunks()
        yield table.take(pa.array(np.argsort(ranks_of(table["name"]), kind="stable"))).combine_chunks()


def _is_within(task: MonthTask, names: pa.Array) -> pa.Array:
    found = pc.greater_equal(names, pa.scalar(task.low))
    return found if task.high is None else pc.and_(found, pc.less(names, pa.scalar(task.high)))


def _old_tiles(task: MonthTask) -> Iterator[pa.Table]:
    """The tiles of days that are not new."""
    index = open_index(task.before)
    new_days = {each.day for made in task.made for each in made.days}
    entries = index.entries(task.shape.daily, task.month, new_days, task.low, task.high)
    named = ((name[NUMBER.size : -NUMBER.size], name[-NUMBER.size :], state) for name, state in entries)
    rows = list[tuple[bytes, int, bytes]]()
    size = 0
    for name, same in groupby(named, key=itemgetter(0)):
        for _, begin, state in same:
            rows.append((name, NUMBER.unpack(begin)[0], state))
            size += len(state)
        if len(rows) >= scratch.BATCH_ROWS or size >= scratch.BATCH_BYTES:
            yield _rows(rows, is_written=task.with_old_days)
            rows, size = [], 0
    if rows:
        yield _rows(rows, is_written=task.with_old_days)
    index.close()


def _rows(rows: list[tuple[bytes, int, bytes]], *, is_written: bool) -> pa.Table:
    names, begins, states = zip(*rows, strict=True)
    return _table(
        pa.array(names, pa.binary()), pa.array(begins, pa.uint32()), pa.array(states, pa.binary()),
        is_written=is_written,
    )  # fmt: skip


def _table(names: pa.Array, begins: pa.Array, states: pa.Array, *, is_written: bool) -> pa.Table:
    flags = pa.array(np.full(len(names), is_written))
    return pa.Table.from_arrays([names, begins, states, flags], schema=TILE)
