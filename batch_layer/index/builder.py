"""Build a file of the read index from the Parquet files of a batch view, month by month.

    Parquet files of a day -> sorted groups, a tile for each key, totals        in several processes
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
from batch_layer.index.reader import Index
from batch_layer.index.sort import DayFiles
from batch_layer.index.sums import BLOCK_ROWS, Rows, parts_of
from batch_layer.index.tiles import DayMade, DayTask, MonthTask, Shape, make_day, make_month
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
        self.days: dict[int, int] = {}

    def go(self) -> None:
        if self.old is not None:
            self._copy_keys(self.old)
        by_month: dict[int, list[int]] = {}
        for day in sorted({*self.files, *(self.old.days if self.old is not None else ())}):
            by_month.setdefault(begin_of(Level.MONTH, day), []).append(day)
        for month, days in by_month.items():
            if any(day in self.files for day in days):
                self._make(month, days)
            elif self.old is not None:
                self._copy(self.old, month, days)
        meta = IndexMeta(
            grain_s=self.shape.grain_s,
            is_keyed=bool(self.shape.keys),
            days=self.days,
            months=tuple(by_month),
            answers=tuple(self.shape.answers),
            first_key=self.first_key,
            keys=self.next_key - self.first_key,
        )
        with self.environment.begin(write=True) as transaction:
            transaction.put(META, meta.to_bytes())

    # ---- a month with new days ---------------------------------------------------

    def _make(self, month: int, days: list[int]) -> None:
        tasks = [DayTask(self.shape, self._day_files(day), self.folder) for day in days if day in self.files]
        made = {found.task.day: found for found in self.each(make_day, tasks)}
        parts = list(self.each(make_month, self._parts(month, tuple(made.values()))))
        for day in days:
            if day in made:
                self._append_day(made[day])
            elif self.old is not None:
                self._copy_day(self.old, day)
        self._append_month(month, parts)
        for used in self.folder.iterdir():
            used.unlink()

    def _day_files(self, day: int) -> DayFiles:
        return DayFiles(day, self.shape.keys, self.files[day])

    def _parts(self, month: int, made: tuple[DayMade, ...]) -> list[MonthTask]:
        """What there is to merge in a month, in parts of about as many keys."""
        before = tuple(file.path for file in self.before.files) if self.before is not None else ()
        largest = max(made, key=lambda each: each.groups)
        names = pa.concat_arrays([batch["name"] for batch in scratch.batches(largest.task.place("keys"))])
        days = (end_of(Level.MONTH, month) - month) // (end_of(Level.DAY, month) - month)
        count = min(max(len(names) * days // PART_TILES, 1), MAX_PARTS, len(names))
        bounds = [b"", *(names[len(names) * part // count].as_py() for part in range(1, count)), None]
        return [
            MonthTask(self.shape, month, made, before, self.is_whole, self.folder, part, low or b"", high)
            for part, (low, high) in enumerate(pairwise(bounds))
        ]

    def _append_day(self, made: DayMade) -> None:
        """Its grain tiles; its sums by grain and by day. The tiles of the day itself come with the month."""
        task = made.task
        self.days[task.day] = made.groups
        self.new_groups += made.groups
        numbers, counts = [], []
        with self._blocks(self.shape.daily, task.day) as blocks:
            for batch in scratch.batches(task.place("keys")):
                numbers.append(self._numbers(batch["name"].to_pylist(), batch["key"].to_pylist()))
                counts.append(batch["rows"].to_numpy())
                blocks.add(numbers[-1], np.zeros(batch.num_rows, np.uint32), batch)
        if self.shape.daily is Level.GRAIN:
            return
        if made.total is not None:
            self._append(Level.GRAIN, _rows(task.place("totals")))
        at, of_rows = 0, np.repeat(np.concatenate(numbers), np.concatenate(counts))
        with self._blocks(Level.GRAIN, task.day) as blocks:
            for batch in scratch.batches(task.place("rows")):
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
        with self.environment.begin(self.tables[SUMS], write=True) as transaction:
            for name, part in file.entries(SUMS, first, after(first)):
                transaction.put(name, part)

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
            with self.environment.begin(write=True) as transaction:
                _, added = transaction.cursor(self.tables[table]).putmulti(chunk, append=True)
            if added != len(chunk):
                raise BatchError(
                    f"{len(chunk) - added} entries of the read index are out of order. Nothing was published; "
                    "please report this."
                )

    def _numbers(self, names: list[bytes], keys: list[bytes] | None = None) -> NDArray[np.uint32]:
        """The numbers of keys, by their names in the index; new ones are given out. `keys`: whole, where cut."""
        numbers = np.empty(len(names), np.uint32)
        with self.environment.begin(write=True) as transaction:
            for place, name in enumerate(names):
                found = transaction.get(id_name(name), db=self.tables[IDS])
                number = NUMBER.unpack(found)[0] if found is not None else self._number_before(name)
                if number is None:
                    number, self.next_key = self.next_key, self.next_key + 1
                    transaction.put(id_name(name), NUMBER.pack(number), db=self.tables[IDS])
                    whole = (keys[place] if keys is not None else b"") or name
                    transaction.put(NUMBER.pack(number), whole, append=True, db=self.tables[KEYS])
                numbers[place] = number
        return numbers

    def _number_before(self, name: bytes) -> int | None:
        return self.before.number_of(name) if self.before is not None and not self.is_whole else None

    def _blocks(self, level: Level, period: int) -> _Blocks:
        return _Blocks(self.environment, self.tables[SUMS], level, period, len(self.shape.answers))


class _Blocks:
    """Writes the sums of a period in blocks, when enough have come together and at the end."""

    def __init__(self, environment: Any, table: Any, level: Level, period: int, answers: int) -> None:
        self._environment, self._table = environment, table
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
        with self._environment.begin(self._table, write=True) as transaction:
            for part, content in enumerate(parts_of(Rows(np.concatenate(ids), np.concatenate(begins), together))):
                transaction.put(part_name(self._level, self._period, self._block, part), content)
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
