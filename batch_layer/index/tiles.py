"""Make tiles of days: their groups sorted by key, and merged. Spark's Python workers run this.

What is in memory at a time does not grow with a day: rows are sorted, and totals kept, in chunks on the disk. Days with
few groups are made together: each of them would cost more than its groups do.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_layer.index import scratch
from batch_layer.index.layout import BIAS, DAY_S, NUMBER, Level, section_name
from batch_layer.index.shape import Columns, Parts, Shape
from batch_layer.index.sort import DayFiles, sorted_groups
from views.states import join, split

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOTALS_BYTES = 2**23
"""States whose totals are kept in memory, as Python objects that take several times as much."""
MERGED_AT_ONCE = 64

ROW = {"name": pa.binary(), "state": pa.binary(), "begin": pa.uint32()}
KEY = {"name": pa.binary(), "key": pa.binary(), "begin": pa.uint32(), "state": pa.binary(), "rows": pa.uint32()}


class DayTask(NamedTuple):
    """The Parquet files of some days, in order, and the folder for what is made of them."""

    shape: Shape
    files: tuple[DayFiles, ...]
    folder: Path

    @property
    def first(self) -> int:
        """Where the first day begins; all begins are counted from there."""
        return self.files[0].day

    def place(self, what: str) -> Path:
        """Where `rows` and `totals`, entries of the index, and `keys`, with a tile of a day for each, are written."""
        return self.folder / f"{self.first}.{what}"


class DayMade(NamedTuple):
    """What was made of a day: how many groups, keys and buckets it has; the total of all keys, where there are keys."""

    day: int
    groups: int
    keys: int
    buckets: int
    total: bytes | None


class DaysMade(NamedTuple):
    """What was made of the days of a task, which follow each other in its files."""

    task: DayTask
    days: tuple[DayMade, ...]

    @property
    def largest(self) -> DayMade:
        """The day with the most groups."""
        return max(self.days, key=lambda made: made.groups)


def make_days(task: DayTask) -> DaysMade:
    """Sort the groups of each day by key, and merge them into a tile for each key and into totals."""
    shape = task.shape
    groups = dict.fromkeys((each.day for each in task.files), 0)
    totals = Totals(task) if shape.keys else None
    with (
        scratch.Writer(task.place("rows"), shape.schema(ROW)) as rows,
        KeyMerger(shape, task.place("keys")) as keys,
    ):
        for batch in sorted_groups(task.files, task.folder):
            columns = shape.split(batch["state"])
            begins = batch["begin"].to_numpy()
            days = begins // DAY_S
            for day, count in zip(*np.unique(days, return_counts=True), strict=True):
                groups[task.first + int(day) * DAY_S] += int(count)
            if shape.daily is Level.DAY:
                in_day = begins - days * DAY_S
                names = _names(task.first, batch["name"], days, in_day)
                rows.write([names, batch["state"], pa.array(in_day), *shape.numbers(columns)])
            if totals is not None:
                totals.add(begins, batch["state"], columns)
            keys.add(batch["name"], batch["key"], days * DAY_S, batch["state"], columns)
    of_days = totals.write() if totals is not None else {}
    return DaysMade(
        task,
        tuple(
            DayMade(day, count, keys.written[day - task.first], *of_days.get(day, (0, None)))
            for day, count in groups.items()
        ),
    )


def big_endian(values: NDArray[np.integer]) -> pa.Array:
    """Numbers as the bytes that names have of them."""
    data = pa.py_buffer(values.astype(">u4").tobytes())
    return pa.Array.from_buffers(pa.binary(NUMBER.size), len(values), [None, data]).cast(pa.binary())


def _names(first: int, names: pa.Array, days: NDArray[np.uint32], begins: NDArray[np.uint32]) -> pa.Array:
    """The names of groups in the index."""
    sections = big_endian(days.astype(np.int64) + (first // DAY_S + BIAS))
    return pc.binary_join_element_wise(sections, names, big_endian(begins), b"")


class KeyMerger:
    """Merges states of the same name and begin that follow each other, and writes a row for each."""

    def __init__(self, shape: Shape, path: Path) -> None:
        self._shape = shape
        self._writer = scratch.Writer(path, shape.schema(KEY))
        self._last: _Rows | None = None
        """Of the last name: there may be more to come."""
        self.written: dict[int, int] = {}
        """How many rows, by begin."""

    def add(
        self, names: pa.Array, keys: pa.Array, begins: NDArray[np.integer], states: pa.Array, columns: Columns
    ) -> None:
        """Some more states."""
        rows = _Rows([names, keys, pa.array(begins.astype(np.uint32)), states, *columns], np.ones(len(names), np.int64))
        if self._last is not None:
            rows = self._last.with_more(rows)
        starts = rows.starts()
        merged, parts = self._shape.merged(rows.columns[3], rows.columns[4:], starts)
        at = pa.array(starts)
        found = _Rows(
            [*(column.take(at) for column in rows.columns[:3]), merged, *parts], np.add.reduceat(rows.counts, starts)
        )
        self._write(found.slice(0, len(starts) - 1))
        self._last = found.slice(len(starts) - 1, 1)

    def _write(self, rows: _Rows) -> None:
        if not len(rows.counts):
            return
        begins = rows.columns[2].to_numpy()
        for begin, count in zip(*np.unique(begins, return_counts=True), strict=True):
            self.written[int(begin)] = self.written.get(int(begin), 0) + int(count)
        numbers = self._shape.numbers(rows.columns[4:])
        self._writer.write([*rows.columns[:4], pa.array(rows.counts.astype(np.uint32)), *numbers])

    def __enter__(self) -> KeyMerger:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._write(self._last)
        self._writer.close()


class _Rows(NamedTuple):
    """Name, key, begin, state and its parts; and of how many states each is."""

    columns: Columns
    counts: NDArray[np.int64]

    def with_more(self, more: _Rows) -> _Rows:
        columns = [pa.concat_arrays(both) for both in zip(self.columns, more.columns, strict=True)]
        return _Rows(columns, np.concatenate((self.counts, more.counts)))

    def slice(self, start: int, count: int) -> _Rows:
        return _Rows([column.slice(start, count) for column in self.columns], self.counts[start : start + count])

    def starts(self) -> NDArray[np.int64]:
        """Where another name or begin begins."""
        names, _, begins, *_ = self.columns
        is_other = pc.or_(*(
            pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)) for column in (names, begins)
        ))  # fmt: skip
        return np.concatenate(([0], np.flatnonzero(is_other.to_numpy(zero_copy_only=False)) + 1))


class Totals:
    """Merges the states of all keys, bucket by bucket."""

    def __init__(self, task: DayTask) -> None:
        self._task, self._size = task, 0
        self._states: dict[int, list[Parts]] = {}
        self._parts: list[Path] = []

    def add(self, begins: NDArray[np.uint32], states: pa.Array, columns: Columns) -> None:
        """Some more groups."""
        order = np.argsort(begins, kind="stable")
        ordered, at = begins[order], pa.array(order)
        starts = np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1))
        merged, parts = self._task.shape.merged(states.take(at), [column.take(at) for column in columns], starts)
        for begin, *state in zip(ordered[starts].tolist(), *(column.to_pylist() for column in parts), strict=True):
            of_bucket = self._states.setdefault(begin, [])
            of_bucket.append(state)
            if len(of_bucket) == MERGED_AT_ONCE:
                self._states[begin] = [self._task.shape.merged_parts(of_bucket)]
        self._size += merged.nbytes
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
        return ((begin, self._task.shape.merged_parts(self._states[begin])) for begin in sorted(self._states))

    def _all(self) -> Iterator[tuple[int, Parts]]:
        if not self._parts:
            yield from self._merged()
            return
        self._spill()
        shape, by_begin = self._task.shape, itemgetter(0)
        for begin, same in groupby(heapq.merge(*map(scratch.rows, self._parts), key=by_begin), key=by_begin):
            yield begin, shape.merged_parts([split(shape.kinds, state) for _, state in same])

    def write(self) -> dict[int, tuple[int, bytes]]:
        """Write the total of each bucket as an entry of the index. Returns how many a day has, and its own total."""
        shape, first = self._task.shape, self._task.first
        found = {}
        with scratch.Writer(self._task.place("totals"), scratch.ENTRY) as writer:
            for day, same in groupby(self._all(), key=lambda each: first + each[0] // DAY_S * DAY_S):
                section, buckets, of_day = section_name(day), 0, list[Parts]()
                for begin, state in same:
                    packed = join(state)
                    writer.add((section + NUMBER.pack(begin % DAY_S), packed), len(packed))
                    buckets += 1
                    of_day.append(state)
                    if len(of_day) == MERGED_AT_ONCE:
                        of_day = [shape.merged_parts(of_day)]
                found[day] = buckets, join(shape.merged_parts(of_day))
        return found
