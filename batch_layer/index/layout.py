"""How the read index lies in its files: levels of tiles, the sections that they stand in, and the names of entries.

    grain, day, month   <section> <key> <begin>  ->  state    a tile; without a key: of all keys together
    sums   <level> <period> <block> <part>       ->  numbers  of the keys in that period, for top-n
    ids    <key>                                 ->  the number of a key
    keys   <number>                              ->  the key

A section is the day of grain tiles that are shorter than a day, and the month of all others. In it, a key over time is
one range of the file, and so are the keys that begin with some bytes.

A file holds whole days. A run that goes on writes a file with the days that it changed, and with the tiles of their
months: for each day and each month the newest file of the run's list counts. Numbers of keys go on from file to file.
"""

from __future__ import annotations

import hashlib
import struct
from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from enum import StrEnum
from typing import NamedTuple

FORMAT = 2
"""As in 0.1.0."""
READABLE = frozenset({2})
"""A new format joins, with a reader of the one before in `files`: an upgrade answers without a new run."""
META = b"m"
SUMS, IDS, KEYS = b"sums", b"ids", b"keys"
LONGEST_KEY = 480
"""LMDB takes names of 511 bytes; a section and a begin need eight. Longer keys are cut and end with their hash."""
DIGEST = 32
KEPT = LONGEST_KEY - DIGEST
FIRST_OF_KEY = b"\x01"
"""No key begins lower, and no begin of a tile as high: totals stand before the keys of their section."""
NUMBER = struct.Struct(">I")
BIAS = 2**31
DAY_S = 86_400
FIRST_DAY = date(1970, 1, 1)


class Level(StrEnum):
    """How long tiles are: UTC calendar months and days, and the view's own buckets."""

    MONTH = "month"
    DAY = "day"
    GRAIN = "grain"

    @property
    def table(self) -> bytes:
        """Where its tiles stand in a file."""
        return self.value.encode()


class TileRange(NamedTuple):
    """Tiles of one level: those that begin in [start, end)."""

    level: Level
    start: int
    end: int


def levels_of(grain_s: int) -> tuple[Level, ...]:
    """The levels of a view, coarsest first: where the grain is a day, the days are its grain."""
    return (Level.MONTH, Level.GRAIN) if grain_s == DAY_S else (Level.MONTH, Level.DAY, Level.GRAIN)


def daily_level(grain_s: int) -> Level:
    """The level whose tiles are days."""
    return Level.GRAIN if grain_s == DAY_S else Level.DAY


def period_level(level: Level) -> Level:
    """What a file holds or does not hold of a level: whole days, or whole months."""
    return Level.MONTH if level is Level.MONTH else Level.DAY


def section_level(level: Level, grain_s: int) -> Level:
    """How long the sections are in which its tiles stand."""
    return Level.DAY if level is Level.GRAIN and grain_s < DAY_S else Level.MONTH


# ---- days and months, in seconds since 1970 ------------------------------------


def day_from_text(day: str) -> int:
    """`2026-03-01` -> where it begins."""
    return (date.fromisoformat(day) - FIRST_DAY).days * DAY_S


def begin_of(level: Level, second: int) -> int:
    """Where the day or the month begins that a second is in."""
    if level is Level.MONTH:
        day = FIRST_DAY + timedelta(days=second // DAY_S)
        return (day.replace(day=1) - FIRST_DAY).days * DAY_S
    return second - second % DAY_S


def end_of(level: Level, begin: int) -> int:
    """Where the day or the month ends that begins there."""
    if level is Level.MONTH:
        first = FIRST_DAY + timedelta(days=begin // DAY_S)
        return begin + monthrange(first.year, first.month)[1] * DAY_S
    return begin + DAY_S


def cover(levels: Sequence[Level], start: int, end: int) -> Iterator[TileRange]:
    """The fewest tiles that hold the same as the buckets that begin in [start, end): the coarse ones in its middle."""
    if start >= end:
        return
    coarsest, *finer = levels
    if not finer:
        yield TileRange(coarsest, start, end)
        return
    first, last = begin_of(coarsest, start), begin_of(coarsest, end - 1)
    if first < start:
        first = end_of(coarsest, first)
    if end_of(coarsest, last) == end:
        last = end
    if first >= last:
        yield from cover(finer, start, end)
        return
    yield from cover(finer, start, first)
    yield TileRange(coarsest, first, last)
    yield from cover(finer, last, end)


# ---- names ---------------------------------------------------------------------


def short(key: bytes) -> bytes:
    """The key as it stands in a name: itself, or its beginning and its hash."""
    return key if len(key) <= LONGEST_KEY else key[:KEPT] + hashlib.blake2b(key, digest_size=DIGEST).digest()


def id_name(name: bytes) -> bytes:
    """The name of a key's number: LMDB has no empty names, and a view without keys has one empty key."""
    return name or FIRST_OF_KEY


def section_name(section: int) -> bytes:
    """What the names of all tiles of a section begin with."""
    return NUMBER.pack(section // DAY_S + BIAS)


def begin_name(begin: int, section: int) -> bytes:
    """What the name of a tile ends with."""
    return NUMBER.pack(begin - section)


def after(prefix: bytes) -> bytes:
    """The least name that comes after all that begin with `prefix`."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def part_name(level: Level, period: int, block: int, part: int) -> bytes:
    """The name of a part of a block of sums: part 0 says whose numbers they are, the others are answers."""
    return level.table[:1] + section_name(period) + NUMBER.pack(block) + bytes([part])


def block_prefix(level: Level, period: int) -> bytes:
    """What the names of all blocks of a period begin with."""
    return level.table[:1] + section_name(period)
