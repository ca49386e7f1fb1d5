"""Make tiles: the rows of a day, and the days of a month, sorted by key and merged. Spark's Python workers run this.

What is in memory at a time does not grow with the day: rows are sorted, and totals quarantined, in chunks on the disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_layer.index import scratch
from batch_layer.index.layout import (
    NUMBER,
    Level,
    begin_name,
    daily_level,
    section_name,
)
from batch_layer.index.reader import open_index
from batch_layer.index.sort import DayFiles, sorted_groups
from views.aggregates.algebra import Algebra, Part
from views.aggregates.counting import adds_up
from views.states import join, kinds_of, merge_parts, split
from views.types import fit

if TYPE_CHECKING:
    from views.view import View

TOTALS_BYTES = 2**23
"""States whose totals are kept in memory, as Python objects that take several times as much."""
MERGED_AT_ONCE = 64

Parts = list[Part]
ROW = {"name": pa.binary(), "state": pa.binary(), "begin": pa.uint32()}
KEY = {"name": pa.binary(), "key": pa.binary(), "state": pa.binary(), "rows": pa.uint32()}
MONTH = {"name": pa.binary(), "state": pa.binary()}


@dataclass(frozen=True)
class Shape:
    """What the index of a view depends on. States stay in parts, which are merged without unpacking most of them."""

    keys: tuple[str, ...]
    grain_s: int
    algebras: dict[str, Algebra]
    kinds: str
    answers: dict[str, int]
    """Those that add up as whole numbers, each with its place among the parts."""

    @classmethod
    def of(cls, view: View) -> Shape:
        """That of a view."""
        answers, place = {}, 0
        for name, algebra in sorted(view.algebras.items()):
            if adds_up(algebra):
                answers[name] = place
            place += len(algebra.kinds)
        return cls(tuple(view.keys), view.bucket.seconds, view.algebras, kinds_of(view.algebras), answers)

    @property
    def daily(self) -> Level:
        """The level whose tiles are days."""
        return daily_level(self.grain_s)

    def split(self, states: pa.Array) -> list[Parts]:
        """States in their parts."""
        return [split(self.kinds, state) for state in states.to_pylist()]

    def merged(self, states: list[Parts]) -> Parts:
        """The states of all their events."""
        return merge_parts(self.algebras, states) if len(states) > 1 else states[0]

    def numbers_of(self, state: Parts) -> tuple[int | None, ...]:
        """Of the answers that add up; None is a number beyond 64 bits."""
        return tuple([_number(state[place]) for place in self.answers.values()])

    def numbers(self, states: list[Parts]) -> list[list[int | None]]:
        """The same of many states, answer by answer."""
        return [[_number(state[place]) for state in states] for place in self.answers.values()]

    def schema(self, columns: Mapping[str, pa.DataType]) -> pa.Schema:
        """Rows of a scratch file: these columns, then the numbers."""
        return pa.schema({**columns, **{f"n{place}": pa.int64() for place in range(len(self.answers))}})


def _number(part: Part) -> int | None:
    return fit(int(part or 0))


# ---- a day -----------------------------------------------------------------------


class DayTask(NamedTuple):
    """The Parquet files of a day, and the folder for what is made of them."""

    shape: Shape
    files: DayFiles
    folder: Path

    @property
    def day(self) -> int:
        """Where it begins."""
        return self.files.day

    def place(self, what: str) -> Path:
        """Where `rows` and `totals`, entries of the index, and `keys`, with a tile of the day for each, are written."""
        return self.folder / f"{self.day}.{what}"


class DayMade(NamedTuple):
    """What was made of a day: how many groups it has; the state of all keys together, where there are keys."""

    task: DayTask
    groups: int
    total: bytes | None


def make_day(task: DayTask) -> DayMade:
    """Sort the groups of a day by key, and merge them into a tile for each key and into totals."""
    shape, groups = task.shape, 0
    keys, totals = _Keys(task), _Totals(task) if shape.keys else None
    with scratch.Writer(task.place("rows"), shape.schema(ROW)) as rows:
        for batch in sorted_groups(task.files, task.folder):
            groups += batch.num_rows
            states = shape.split(batch["state"])
            if shape.daily is Level.DAY:
                rows.write([_names(task, batch), batch["state"], batch["begin"], *shape.numbers(states)])
            if totals is not None:
                totals.add(batch, states)
            keys.add(batch, states)
    keys.close()
    return DayMade(task, groups, totals.write() if totals is not None else None)


def _names(task: DayTask, batch: pa.RecordBatch) -> pa.Array:
    """The names of a batch's groups in the index."""
    begins = pa.py_buffer(batch["begin"].to_numpy().astype(">u4").tobytes())
    ends = pa.Array.from_buffers(pa.binary(NUMBER.size), batch.num_rows, [None, begins]).cast(pa.binary())
    return pc.binary_join_element_wise(pa.scalar(section_name(task.day)), batch["name"], ends, b"")


class _Keys:
    """Merges the states of each key; they come key by key."""

    def __init__(self, task: DayTask) -> None:
        self._shape = task.shape
        self._writer = scratch.Writer(task.place("keys"), task.shape.schema(KEY))
        self._name: bytes | None = None
        self._key, self._packed, self._rows = b"", b"", 0
        self._states: list[Parts] = []

    def add(self, batch: pa.RecordBatch, states: list[Parts]) -> None:
        """Some more groups."""
        names = batch["name"]
        starts = np.flatnonzero(pc.not_equal(names.slice(1), names.slice(0, len(names) - 1)).to_numpy(False)) + 1
        for start, end in pairwise([0, *starts.tolist(), len(names)]):
            name = names[start].as_py()
            if name != self._name:
                self._finish()
                self._name, self._key = name, batch["key"][start].as_py()
                self._packed = batch["state"][start].as_py()
            self._rows += end - start
            self._states += states[start:end]
            if len(self._states) > MERGED_AT_ONCE:
                self._states = [self._shape.merged(self._states)]

    def _finish(self) -> None:
        if self._name is not None:
            merged = self._shape.merged(self._states)
            tile = self._packed if self._rows == 1 else join(merged)
            self._writer.add((self._name, self._key, tile, self._rows, *self._shape.numbers_of(merged)), len(tile))
        self._states, self._rows = [], 0

    def close(self) -> None:
        """Write the last key."""
        self._finish()
        self._writer.close()


class _Totals:
    """Merges the states of all keys, bucket by bucket."""

    def __init__(self, task: DayTask) -> None:
        self._task, self._size = task, 0
        self._states: dict[int, list[Parts]] = {}
        self._parts: list[Path] = []

    def add(self, batch: pa.RecordBatch, states: list[Parts]) -> None:
        """Some more groups."""
        known = self._states
        for begin, state in zip(batch["begin"].to_pylist(), states, strict=True):
            if begin not in known:
                known[begin] = [state]
                continue
            of_bucket = known[begin]
            of_bucket.append(state)
            if len(of_bucket) == MERGED_AT_ONCE:
                known[begin] = [self._task.shape.merged(of_bucket)]
        self._size += batch["state"].nbytes
        if self._size > TOTALS_BYTES:
            self._spill()

    def _spill(self) -> None:
        """Write what was merged so far to the disk."""
        self._parts.append(self._task.place(f"totals{len(self._parts)}"))
        with scratch.Writer(self._parts[-1], pa.schema({"begin": pa.uint32(), "state": pa.binary()})) as writer:
            for begin, state in self._merged():
                packed = join(state)
                writer.add((begin, packed), len(packed))
        self._states, self._size = {}, 0

    def _merged(self) -> Iterator[tuple[int, Parts]]:
        return ((begin, self._task.shape.merged(self._states[begin])) for begin in sorted(self._states))

    def _all(self) -> Iterator[tuple[int, Parts]]:
        if not self._parts:
            yield from self._merged()
            return
        self._spill()
        shape, by_begin = self._task.shape, itemgetter(0)
        for begin, same in groupby(heapq.merge(*map(scratch.rows, self._parts), key=by_begin), key=by_begin):
            yield begin, shape.merged([split(shape.kinds, state) for _, state in same])

    def write(self) -> bytes:
        """Write the total of each bucket as an entry of the index. Returns that of the day."""
        shape, section, days = self._task.shape, section_name(self._task.day), []
        with scratch.Writer(self._task.place("totals"), scratch.ENTRY) as writer:
            for begin, state in self._all():
                packed = join(state)
                writer.add((section + NUMBER.pack(begin), packed), len(packed))
                days.append(state)
                if len(days) == MERGED_AT_ONCE:
                    days = [shape.merged(days)]
        return join(shape.merged(days))


# ---- a month ---------------------------------------------------------------------


class MonthTask(NamedTuple):
    """The new days of a month, and the files that have the others; of the keys those with low <= name < high."""

    shape: Shape
    month: int
    made: tuple[DayMade, ...]
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
    shape, section = task.shape, section_name(task.month)
    index = open_index(task.before)
    new_days = {made.task.day for made in task.made}
    streams = [_tiles_of(task, made) for made in task.made]
    streams.append(
        (name[NUMBER.size :], state, task.with_old_days)
        for name, state in index.entries(shape.daily, task.month, new_days, task.low, task.high)
    )
    with (
        scratch.Writer(task.place("days"), scratch.ENTRY) as days,
        scratch.Writer(task.place("keys"), shape.schema(MONTH)) as keys,
    ):
        for name, same in groupby(heapq.merge(*streams), key=_name):
            states = []
            for full, state, is_written in same:
                states.append(split(shape.kinds, state))
                if is_written:
                    days.add((section + full, state), len(state))
            merged = shape.merged(states)
            tile = join(merged) if len(states) > 1 else state
            keys.add((name, tile, *shape.numbers_of(merged)), len(tile))
    index.close()
    return task


def _name(tile: tuple[bytes, bytes, bool]) -> bytes:
    return tile[0][: -NUMBER.size]


def _tiles_of(task: MonthTask, made: DayMade) -> Iterator[tuple[bytes, bytes, bool]]:
    """The tiles of a new day that are asked for."""
    begin = begin_name(made.task.day, task.month)
    if made.total is not None and not task.low:
        yield begin, made.total, True
    for batch in scratch.batches(made.task.place("keys")):
        names = batch["name"].to_pylist()
        if names[-1] < task.low or (task.high is not None and names[0] >= task.high):
            continue
        for name, state in zip(names, batch["state"].to_pylist(), strict=True):
            if name >= task.low and (task.high is None or name < task.high):
                yield name + begin, state, True
