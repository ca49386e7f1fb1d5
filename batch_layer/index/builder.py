"""Build a file of the read index from the Parquet files of a batch view, month by month.

    Parquet files of days -> sorted groups, a tile for each key, totals         in several processes
    days of a month, new and of the files before -> a tile for each key         in several processes
    -> appended to LMDB in the order of their names, with the sums for top-n    here

What is in memory does not grow with history: a few thousand groups, and eight bytes for each key of one day.
"""

from __future__ import annotations

import heapq
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batch_layer.index import scratch
from batch_layer.index.files import TABLES, IndexFile, IndexMeta, seal_file
from batch_layer.index.layout import (
    IDS,
    KEYS,
    META,
    NUMBER,
    SUMS,
    Level,
    after,
    begin_name,
    begin_of,
    block_prefix,
    day_from_text,
    end_of,
    id_name,
    part_name,
    section_name,
)
from batch_layer.index.months import MonthTask, make_month
from batch_layer.index.reader import Index
from batch_layer.index.shape import Shape
from batch_layer.index.sort import DayFiles
from batch_layer.index.sums import BLOCK_ROWS, Rows, parts_of
from batch_layer.index.tiles import DayMade, DaysMade, DayTask, make_days
from hand_off.errors import BatchError
from infra.disk import make_folder, sync_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from views.view import View

MAP_BYTES = 2**40
"""The most that a file may grow to. Only what is written takes disk, and address space is free."""
MAX_FILES = 8
WRITTEN_AT_ONCE = 20_000
PART_TILES, MAX_PARTS = 50_000, 8
"""The keys of a month are merged in parts, by several processes, where it has many tiles."""
ROWS_TOGETHER, BYTES_TOGETHER = 20_000, 2**24
"""Days with no more groups than this are made by one task."""
MONTHS_ROWS = 100_000
"""Months with no more groups than this are made at a time: they cost processes, and room on the disk, together."""
MAX_KNOWN = 100_000
"""Keys whose numbers are remembered."""

Each = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Does a piece of work for each task, like `map`; in several processes perhaps."""


def build(
    path: Path,
    view: View,
    files: Mapping[str, Sequence[Path]],
    before: Index | None = None,
    *,
    is_whole: bool = False,
    each: Each = map,
) -> int:
    """Write the Parquet files of a view, listed by day, into a new file of its index. Returns how many groups it read.

    The new file goes after those of `before`; where it `is_whole`, it takes their place and holds their days too. It
    is on the disk, whole, before it has its name.
    """
    make_folder(path.parent)
    partial, folder = path.with_suffix(".partial"), path.with_suffix(".scratch")
    for left in (partial, partial.with_name(f"{partial.name}-lock")):
        left.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    days = {day_from_text(day): tuple(found) for day, found in files.items()}
    try:
        with lmdb.open(
            str(partial), map_size=MAP_BYTES, subdir=False, sync=False, writemap=False, lock=False, max_dbs=len(TABLES)
        ) as environment:
            build = _Build(Shape.of(view), days, before, is_whole, each, folder, environment)
            build.go()
            environment.sync(True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seal_file(partial)
    partial.rename(path)
    sync_folder(path.parent)
    return build.new_groups


@dataclass
class _Build:
    shape: Shape
    files: dict[int, tuple[Path, ...]]
    before: Index | None
    is_whole: bool
    each: Each
    folder: Path
    environment: Any

    def __post_init__(self) -> None:
        self.tables = {name: self.environment.open_db(name) for name in TABLES}
        self.old = self.before if self.is_whole else None
        self.first_key = 0 if self.before is None or self.is_whole else self.before.key_count
        self.next_key, self.new_groups = self.first_key, 0
        self.sizes: dict[int, tuple[int, int]] = {}
        self.days: dict[int, int] = {}
        self.known: dict[bytes, int] = {}
        self.transaction, self.written = self.environment.begin(write=True), 0

    def go(self) -> None:
        if self.old is not None:
            self._copy_keys(self.old)
        by_month: dict[int, list[int]] = {}
        for day in sorted({*self.files, *(self.old.days if self.old is not None else ())}):
            by_month.setdefault(begin_of(Level.MONTH, day), []).append(day)
        for months in self._together(by_month):
            self._make(months)
        meta = IndexMeta(
            grain_s=self.shape.grain_s,
            is_keyed=bool(self.shape.keys),
            days=self.days,
            months=tuple(by_month),
            answers=tuple(self.shape.answers),
            first_key=self.first_key,
            keys=self.next_key - self.first_key,
        )
        self.transaction.put(META, meta.to_bytes())
        self.transaction.commit()

    # ---- months with new days ----------------------------------------------------

    def _together(self, by_month: dict[int, list[int]]) -> Iterator[dict[int, list[int]]]:
        """The months, some at a time."""
        found, rows = dict[int, list[int]](), 0
        for month, days in by_month.items():
            more = sum(self._size(day)[0] for day in days if day in self.files)
            if found and rows + more > MONTHS_ROWS:
                yield found
                found, rows = {}, 0
            found[month] = days
            rows += more
        yield found

    def _size(self, day: int) -> tuple[int, int]:
        """Groups and bytes of a new day."""
        if day not in self.sizes:
            footers = [pq.read_metadata(file) for file in self.files[day]]
            groups = (footer.row_group(place) for footer in footers for place in range(footer.num_row_groups))
            self.sizes[day] = sum(footer.num_rows for footer in footers), sum(each.total_byte_size for each in groups)
        return self.sizes[day]

    def _make(self, months: dict[int, list[int]]) -> None:
        tasks = [
            task for days in months.values() for task in self._day_tasks([day for day in days if day in self.files])
        ]
        made: dict[int, list[DaysMade]] = {}
        for each in self.each(make_days, tasks):
            made.setdefault(begin_of(Level.MONTH, each.task.first), []).append(each)
        parts: dict[int, list[MonthTask]] = {}
        for part in self.each(make_month, [part for month, days in made.items() for part in self._parts(month, days)]):
            parts.setdefault(part.month, []).append(part)
        for month, days in months.items():
            if month in made:
                self._append_days(days, made[month])
                self._append_month(month, parts[month])
            elif self.old is not None:
                self._copy(self.old, month, days)
        for used in self.folder.iterdir():
            used.unlink()

    def _day_tasks(self, days: list[int]) -> Iterator[DayTask]:
        """Days of a month, each by itself or some together."""
        waiting, rows, size = list[DayFiles](), 0, 0
        for day in days:
            more_rows, more_size = self._size(day)
            if waiting and (rows + more_rows > ROWS_TOGETHER or size + more_size > BYTES_TOGETHER):
                yield DayTask(self.shape, tuple(waiting), self.folder)
                waiting, rows, size = [], 0, 0
            waiting.append(DayFiles(day, self.shape.keys, self.files[day]))
            rows, size = rows + more_rows, size + more_size
        if waiting:
            yield DayTask(self.shape, tuple(waiting), self.folder)

    def _parts(self, month: int, made: list[DaysMade]) -> list[MonthTask]:
        """What there is to merge in a month, in parts of about as many keys."""
        before = tuple(file.path for file in self.before.files) if self.before is not None else ()
        largest = max(made, key=lambda each: each.largest.groups)
        names = pa.concat_arrays([batch["name"] for batch in scratch.batches(largest.task.place("keys"))])
        days = (end_of(Level.MONTH, month) - month) // (end_of(Level.DAY, month) - month)
        count = min(max(largest.largest.keys * days // PART_TILES, 1), MAX_PARTS, len(names))
        names = names.take(pc.array_sort_indices(names)) if len(largest.days) > 1 and count > 1 else names
        bounds = [b"", *(names[len(names) * part // count].as_py() for part in range(1, count)), None]
        return [
            MonthTask(self.shape, month, tuple(made), before, self.is_whole, self.folder, part, low or b"", high)
            for part, (low, high) in enumerate(pairwise(bounds))
        ]

    def _append_days(self, days: list[int], made: list[DaysMade]) -> None:
        """The days of a month in order, new and old."""
        tasks = {each.day: (each, task) for task in (_Task(found) for found in made) for each in task.made.days}
        for day in days:
            if day in tasks:
                self._append_day(*tasks[day])
            elif self.old is not None:
                self._copy_day(self.old, day)

    def _append_day(self, made: DayMade, task: _Task) -> None:
        """Its grain tiles; its sums by grain and by day. The tiles of the day itself come with the month."""
        self.days[made.day] = made.groups
        self.new_groups += made.groups
        numbers, counts = [], []
        with self._blocks(self.shape.daily, made.day) as blocks:
            for batch in task.keys.take(made.keys):
                numbers.append(self._numbers(batch["name"].to_pylist(), batch["key"].to_pylist()))
                counts.append(batch["rows"].to_numpy())
                blocks.add(numbers[-1], np.zeros(batch.num_rows, np.uint32), batch)
        if self.shape.daily is Level.GRAIN:
            return
        if made.total is not None:
            self._append(Level.GRAIN, (entry for batch in task.totals.take(made.buckets) for entry in _entries(batch)))
        at, of_rows = 0, np.repeat(np.concatenate(numbers), np.concatenate(counts))
        with self._blocks(Level.GRAIN, made.day) as blocks:
            for batch in task.rows.take(made.groups):
                self._append(Level.GRAIN, _entries(batch))
                blocks.add(of_rows[at : at + batch.num_rows], batch["begin"].to_numpy(), batch)
                at += batch.num_rows

    def _append_month(self, month: int, parts: list[MonthTask]) -> None:
        """The tiles of its days, those of the month, and its sums."""
        section, begin = section_name(month), begin_name(month, month)
        with self._blocks(Level.MONTH, month) as blocks:
            for part in parts:
                self._append(self.shape.daily, _rows(part.place("days")))
                for batch in scratch.batches(part.place("keys")):
                    self._append(Level.MONTH, ((section + name + begin, state) for name, state in _entries(batch)))
                    if self.shape.keys and not batch["name"][0].as_py():  # the total of all keys has no number
                        batch = batch.slice(1)
                    numbers = self._numbers(batch["name"].to_pylist())
                    blocks.add(numbers, np.zeros(batch.num_rows, np.uint32), batch)

    # ---- what the files before hold --------------------------------------------------

    def _copy(self, old: Index, month: int, days: list[int]) -> None:
        """A month without news."""
        for day in days:
            self._copy_day(old, day)
        self._append(self.shape.daily, old.entries(self.shape.daily, month))
        self._append(Level.MONTH, old.entries(Level.MONTH, month))
        self._copy_sums(old.months[month], Level.MONTH, month)

    def _copy_day(self, old: Index, day: int) -> None:
        """The grain tiles of a day, and its sums; the tiles of days stand by the month."""
        self.days[day] = old.days[day].meta.days[day]
        self._copy_sums(old.days[day], self.shape.daily, day)
        if self.shape.daily is Level.DAY:
            self._append(Level.GRAIN, old.entries(Level.GRAIN, day))
            self._copy_sums(old.days[day], Level.GRAIN, day)

    def _copy_sums(self, file: IndexFile, level: Level, period: int) -> None:
        first = block_prefix(level, period)
        for name, part in file.entries(SUMS, first, after(first)):
            self.put_sum(name, part)

    def _copy_keys(self, old: Index) -> None:
        """Keys keep their numbers."""
        self._append_to(IDS, heapq.merge(*(file.entries(IDS) for file in old.files)))
        self._append_to(KEYS, (entry for file in old.files for entry in file.entries(KEYS)))
        self.next_key = old.key_count

    # ---- into the file -----------------------------------------------------------

    def _append(self, level: Level, entries: Iterable[tuple[bytes, bytes]]) -> None:
        self._append_to(level.table, entries)

    def _append_to(self, table: bytes, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Write entries that come in the order of their names, after all that are there."""
        entries = iter(entries)
        while chunk := list(islice(entries, WRITTEN_AT_ONCE)):
            _, added = self.transaction.cursor(self.tables[table]).putmulti(chunk, append=True)
            if added != len(chunk):
                raise BatchError(
                    f"{len(chunk) - added} entries of the read index are out of order. Nothing was published; "
                    "please report this."
                )
            self._count_written(len(chunk))

    def put_sum(self, name: bytes, part: bytes) -> None:
        """Write a part of a block of sums."""
        self.transaction.put(name, part, db=self.tables[SUMS])
        self._count_written(1)

    def _count_written(self, entries: int) -> None:
        """Commit now and then: until then, what was written is in memory."""
        self.written += entries
        if self.written >= WRITTEN_AT_ONCE:
            self.transaction.commit()
            self.transaction, self.written = self.environment.begin(write=True), 0

    def _numbers(self, names: list[bytes], keys: list[bytes] | None = None) -> NDArray[np.uint32]:
        """The numbers of keys, by their names in the index; new ones are given out. `keys`: whole, where cut."""
        if len(self.known) > MAX_KNOWN:
            self.known.clear()
        known, found = self.known, []
        for place, name in enumerate(names):
            number = known.get(name)
            if number is None:
                number = known[name] = self._number(name, (keys[place] if keys is not None else b"") or name)
            found.append(number)
        return np.array(found, np.uint32)

    def _number(self, name: bytes, whole: bytes) -> int:
        found = self.transaction.get(id_name(name), db=self.tables[IDS])
        number = NUMBER.unpack(found)[0] if found is not None else self._number_before(name)
        if number is None:
            number, self.next_key = self.next_key, self.next_key + 1
            self.transaction.put(id_name(name), NUMBER.pack(number), db=self.tables[IDS])
            self.transaction.put(NUMBER.pack(number), whole, append=True, db=self.tables[KEYS])
        return int(number)

    def _number_before(self, name: bytes) -> int | None:
        return self.before.number_of(name) if self.before is not None and not self.is_whole else None

    def _blocks(self, level: Level, period: int) -> _Blocks:
        return _Blocks(self.put_sum, level, period, len(self.shape.answers))


class _Task:
    """The files of a task, from which its days are taken in order."""

    def __init__(self, made: DaysMade) -> None:
        self.made = made
        self.keys, self.totals, self.rows = (
            scratch.Taker(made.task.place(what)) for what in ("keys", "totals", "rows")
        )


class _Blocks:
    """Writes the sums of a period in blocks, when enough have come together and at the end."""

    def __init__(self, put: Callable[[bytes, bytes], None], level: Level, period: int, answers: int) -> None:
        self._put = put
        self._level, self._period, self._answers = level, period, answers
        self._waiting: list[Rows] = []
        self._block = 0

    def add(self, ids: NDArray[np.uint32], begins: NDArray[np.uint32], batch: pa.RecordBatch) -> None:
        """The numbers of a batch: of which keys, and where their buckets begin."""
        columns = [batch[f"n{place}"] for place in range(self._answers)]
        answers = [None if column.null_count else column.to_numpy() for column in columns]
        self._waiting.append(Rows(ids, begins, answers))
        if sum(len(rows.ids) for rows in self._waiting) >= BLOCK_ROWS:
            self._write()

    def _write(self) -> None:
        ids, begins, answers = zip(*self._waiting, strict=True)
        together = [
            None if any(values is None for values in column) else np.concatenate(column)
            for column in zip(*answers, strict=True)
        ]
        for part, content in enumerate(parts_of(Rows(np.concatenate(ids), np.concatenate(begins), together))):
            self._put(part_name(self._level, self._period, self._block, part), content)
        self._waiting, self._block = [], self._block + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and self._waiting:
            self._write()


def _rows(path: Path) -> Iterator[tuple[bytes, bytes]]:
    return (entry for batch in scratch.batches(path) for entry in _entries(batch))


def _entries(batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    return zip(batch["name"].to_pylist(), batch["state"].to_pylist(), strict=True)
