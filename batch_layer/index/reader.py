"""Read the index of a view: tiles of one key, of keys that begin alike, of all keys together, and sums for top-n."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from batch_layer.index.files import Held, IndexFile, close_file, open_file
from batch_layer.index.layout import (
    FIRST_OF_KEY,
    IDS,
    KEPT,
    KEYS,
    LONGEST_KEY,
    NUMBER,
    SUMS,
    Level,
    after,
    begin_name,
    begin_of,
    cover,
    end_of,
    id_name,
    levels_of,
    part_name,
    period_level,
    section_level,
    section_name,
    short,
)
from batch_layer.index.sums import Chosen, Sums, added, choose, chosen_keys
from hand_off.errors import BatchError
from views.keys import has_long_text

LAST = b"\xff" * NUMBER.size
CHECK_EVERY = 1_000
LOOK_UP = 8
"""So many times as long as to pass by a key does it take to look one up."""


class Tile(NamedTuple):
    """The state of a key over one period; `bucket` is where that begins, in seconds since 1970."""

    bucket: int
    key: bytes
    state: bytes


class _Part(NamedTuple):
    """What one file has of a section; `days`: of which days its tiles count, where they stand by the month."""

    section: int
    end: int
    file: IndexFile
    days: Container[int] | None


class Index:
    """The index of one view in one run: several files, each for some days. Threads may share it."""

    def __init__(self, files: tuple[IndexFile, ...]) -> None:
        self.files = files
        self.levels = levels_of(files[-1].meta.grain_s) if files else (Level.GRAIN,)
        self.days = {day: file for file in files for day in file.meta.days}
        self.months = {month: file for file in files for month in file.meta.months}
        self.groups = sum(file.meta.days[day] for day, file in self.days.items())
        self.key_count = sum(file.meta.keys for file in files)
        self._periods = {Level.DAY: sorted(self.days), Level.MONTH: sorted(self.months)}
        self._parts = {level: self._parts_of(level) for level in self.levels}
        self._sections = {level: sorted(parts) for level, parts in self._parts.items()}
        self._held = Held(files)

    def _parts_of(self, level: Level) -> dict[int, list[_Part]]:
        """By section, oldest file first."""
        if not self.files:
            return {}
        length = section_level(level, self.files[-1].meta.grain_s)
        counts = self.months if level is Level.MONTH else self.days
        found: dict[int, list[_Part]] = {}
        for file in self.files:
            by_section: dict[int, set[int]] = {}
            for period, newest in counts.items():
                if newest is file:
                    by_section.setdefault(begin_of(length, period), set()).add(period)
            for section, periods in by_section.items():
                days = periods if length is not period_level(level) else None
                found.setdefault(section, []).append(_Part(section, end_of(length, section), file, days))
        return found

    def close(self) -> None:
        """Let go of the files, as soon as the reads that are under way are done."""
        self._held.let_go()

    # ---- tiles -----------------------------------------------------------------

    def of_key(self, level: Level, key: bytes, start: int, end: int) -> Iterator[Tile]:
        """The tiles of one whole key that begin in [start, end), by bucket."""
        name = short(key)
        with self._held.reading():
            for parts in self._parts_in(level, start, end):
                found = [
                    Tile(begin, key, state)
                    for part in parts
                    for begin, state in _of_name(part, level, name, max(start, part.section), min(end, part.end))
                ]
                if len(parts) > 1:
                    found.sort()
                yield from found

    def totals(self, level: Level, start: int, end: int) -> Iterator[Tile]:
        """The tiles of all keys together that begin in [start, end), one for each bucket; their key is b""."""
        return self.of_key(level, b"", start, end)

    def of_prefix(
        self, level: Level, prefix: bytes, start: int, end: int, check: Callable[[], None] = lambda: None
    ) -> Iterator[Tile]:
        """The tiles that begin in [start, end) of every key whose bytes begin with `prefix`; b"": of all keys.

        `check` is called now and then while keys are passed by; it may raise.
        """
        with self._held.reading():
            if self.files and not self.files[-1].meta.is_keyed:
                yield from self.of_key(level, b"", start, end) if not prefix else ()
                return
            for parts in self._parts_in(level, start, end):
                for part in parts:
                    bounds = max(start, part.section), min(end, part.end)
                    few = (
                        _few_keys(part, *bounds) if level is Level.GRAIN and not prefix and part.days is None else None
                    )
                    if few is not None:
                        yield from self._of_few(part, few, *bounds)
                        continue
                    for begin, name, state in _of_names(part, level, prefix[:KEPT], *bounds, check):
                        key = name if len(name) < LONGEST_KEY else self._whole(name)
                        if len(prefix) <= KEPT or key.startswith(prefix):
                            yield Tile(begin, key, state)

    def _of_few(self, part: _Part, numbers: list[int], start: int, end: int) -> Iterator[Tile]:
        for number in numbers:
            key = self.key_of(number)
            for begin, state in _of_name(part, Level.GRAIN, short(key), start, end):
                yield Tile(begin, key, state)

    def _parts_in(self, level: Level, start: int, end: int) -> Iterator[list[_Part]]:
        sections, parts = self._sections.get(level, []), self._parts.get(level, {})
        first = max(bisect_right(sections, start) - 1, 0)
        for section in sections[first : bisect_left(sections, end)]:
            if parts[section][0].end > start:
                yield parts[section]

    def entries(
        self, level: Level, section: int, without: Container[int] = (), low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries of a section by their names, as they stand in the files: keys with low <= name < high.

        Those of the days `without` are left out.
        """
        with self._held.reading():
            parts = self._parts.get(level, {}).get(section, [])
            head = section_name(section)
            first, last = head + low, after(head) if high is None else head + high
            yield from heapq.merge(*(_entries(part, level, without, first, last) for part in parts))

    # ---- sums ------------------------------------------------------------------

    def sums(self, answer: str, start: int, end: int) -> Sums | None:
        """The sum of an answer for each key with groups whose buckets begin in [start, end).

        None where the answer is no count or sum of whole numbers, or where a sum could pass 64 bits.
        """
        if not self.files or answer not in self.files[-1].meta.answers:
            return None
        part = self.files[-1].meta.answers.index(answer) + 1
        days = self._periods[Level.DAY]
        # A month that begins before the first day, or ends after the last, is whole all the same.
        start = max(start, begin_of(Level.MONTH, days[0]))
        end = min(end, end_of(Level.MONTH, begin_of(Level.MONTH, days[-1])))
        with self._held.reading():
            return added(self, self.key_count, (
                chosen for tiles in cover(self.levels, start, end) for chosen in self._chosen(part, *tiles)
            ))  # fmt: skip

    def _chosen(self, part: int, level: Level, start: int, end: int) -> Iterator[Chosen | None]:
        length = period_level(level)
        periods, files = self._periods[length], self.months if length is Level.MONTH else self.days
        first = max(bisect_right(periods, start) - 1, 0)
        for period in periods[first : bisect_left(periods, end)]:
            for places, numbers in _blocks(files[period], level, period, part):
                yield choose(places, numbers, start - period, end - period)

    def key_of(self, number: int) -> bytes:
        """The packed key of a number."""
        file = next(file for file in self.files if number < file.meta.first_key + file.meta.keys)
        with self._held.reading():
            key = file.get(KEYS, NUMBER.pack(number))
        if key is None:
            raise _damaged(file, f"key {number} is missing")
        return key

    def number_of(self, key: bytes) -> int | None:
        """The number of a packed key; None where no group ever had it."""
        name = short(key)
        with self._held.reading():
            for file in reversed(self.files):
                number = file.get(IDS, id_name(name))
                if number is not None:
                    return int(NUMBER.unpack(number)[0])
        return None

    def numbers_by_key(self) -> Iterator[int | None]:
        """The numbers of all keys in the order of their bytes; None at a key whose name holds only its beginning."""
        with self._held.reading():
            for name, number in heapq.merge(*(file.entries(IDS) for file in self.files)):
                yield int(NUMBER.unpack(number)[0]) if len(name) < LONGEST_KEY else None

    def has_long_keys(self) -> bool:
        """Whether a key has a text that is stored in short form now: an older Tidemark wrote it. Reads all keys."""
        with self._held.reading():
            return any(has_long_text(key) for file in self.files for _, key in file.entries(KEYS))

    def _whole(self, name: bytes) -> bytes:
        number = self.number_of(name)
        if number is None:
            raise _damaged(self.files[-1], f"the key {name[:40].hex()}… is missing")
        return self.key_of(number)


def _of_name(part: _Part, level: Level, name: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Begin and state of the tiles of one name."""
    section, prefix = part.section, section_name(part.section) + name
    last = prefix + begin_name(end, section)
    with part.file.reading() as transaction, transaction.cursor(part.file.tables[level.table]) as cursor:
        if not cursor.set_range(prefix + begin_name(start, section)):
            return
        for found, state in cursor.iternext():
            if found >= last:
                return
            begin = section + int.from_bytes(found[-NUMBER.size :], "big")
            if part.days is None or begin in part.days:
                yield begin, state


def _of_names(
    part: _Part, level: Level, prefix: bytes, start: int, end: int, check: Callable[[], None]
) -> Iterator[tuple[int, bytes, bytes]]:
    """Begin, name of the key and state of the tiles of all names that begin with `prefix`.

    Of each name only the range of time is read: a seek leads to it, and one to the next name.
    """
    section, head = part.section, section_name(part.section)
    last = after(head + prefix)
    low, high = begin_name(start, section), begin_name(end, section)
    with part.file.reading() as transaction, transaction.cursor(part.file.tables[level.table]) as cursor:
        is_there, seeks = cursor.set_range(head + (prefix or FIRST_OF_KEY)), 0
        while is_there:
            seeks += 1
            if not seeks % CHECK_EVERY:
                check()
            found, state = cursor.item()
            if found >= last:
                return
            name, begin = found[: -NUMBER.size], found[-NUMBER.size :]
            if begin < low:
                is_there = cursor.set_range(name + low)
                continue
            if begin >= high:
                is_there = cursor.set_range(name + LAST)
                continue
            second = section + int.from_bytes(begin, "big")
            if part.days is None or second in part.days:
                yield second, name[len(head) :], state
            is_there = cursor.next()


def _few_keys(part: _Part, start: int, end: int) -> list[int] | None:
    """The numbers of the keys with groups in a part of a day, where they are few of those of the day; else None.

    Then each is looked up by itself: passing by all the others would take longer.
    """
    if (start, end) == (part.section, part.end):
        return None
    section = part.section
    places = [places for places, _ in _blocks(part.file, Level.GRAIN, section, 0)]
    of_day = sum(len(chosen_keys(found, 0, 1)) for found, _ in _blocks(part.file, Level.DAY, section, 0))
    numbers = np.unique(np.concatenate([chosen_keys(found, start - section, end - section) for found in places]))
    return numbers.tolist() if len(numbers) * LOOK_UP < of_day else None


def _entries(
    part: _Part, level: Level, without: Container[int], first: bytes, last: bytes
) -> Iterator[tuple[bytes, bytes]]:
    with part.file.reading() as transaction, transaction.cursor(part.file.tables[level.table]) as cursor:
        if not cursor.set_range(first):
            return
        for name, state in cursor.iternext():
            if name >= last:
                return
            begin = part.section + int.from_bytes(name[-NUMBER.size :], "big")
            if begin not in without and (part.days is None or begin in part.days):
                yield name, state


def _blocks(file: IndexFile, level: Level, period: int, part: int) -> Iterator[tuple[bytes, bytes]]:
    """Of each block of a period: whose numbers they are, and the numbers."""
    with file.reading(buffers=True) as transaction:
        for block in count():
            places = transaction.get(part_name(level, period, block, 0), db=file.tables[SUMS])
            if places is None:
                return
            yield places, transaction.get(part_name(level, period, block, part), db=file.tables[SUMS])


def _damaged(file: IndexFile, what: str) -> BatchError:
    return BatchError(f"The index {str(file.path)!r} is damaged: {what}. `tidemark batch run --full` rebuilds it.")


def open_index(paths: Iterable[Path]) -> Index:
    """Open the files of a run's index, oldest first. BatchError names one that is missing, damaged or of old format."""
    opened: list[IndexFile] = []
    try:
        for path in paths:
            opened.append(open_file(path))
            keys = sum(file.meta.keys for file in opened[:-1])
            if opened[-1].meta.first_key != keys:
                raise _damaged(opened[-1], f"it goes on from {opened[-1].meta.first_key} keys, not from {keys}")
    except BatchError:
        for file in opened:
            close_file(file)
        raise
    return Index(tuple(opened))
