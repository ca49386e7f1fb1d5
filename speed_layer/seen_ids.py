"""Marks: which event ids were counted lately, as 64-bit hashes. Redis keeps them, the writer holds a copy to ask.

The copy is always that of Redis: only the writer that owns the epoch adds marks, in the same step as the states, and
whatever makes Redis forget some (a flush, an older snapshot) makes that step fail, after which all are read again.

A mark lives until the stream is `horizon` past it, by Kafka's timestamps: a replay drops the same copies again.
With n marks alive, an event is taken for a copy of another by chance once in 2^64 / n events: with 18 million (an hour
at 5,000 a second) once in 10^12. The next batch run, which compares ids, puts that right too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SLICES = 16
"""The horizon is kept in so many slices; a slice is forgotten as a whole."""
HEADER = struct.Struct("<q")

Hashes = NDArray[np.int64]


class Named(NamedTuple):
    """The marks of one micro-batch as Redis keeps them."""

    name: str
    until_ms: int
    hashes: Hashes


@dataclass
class _Slice:
    """Sorted arrays, each at least twice as long as the next: few to search, cheap to add to."""

    names: list[str] = field(default_factory=list)
    sorted: list[Hashes] = field(default_factory=list)

    def add(self, hashes: Hashes) -> None:
        if not len(hashes):
            return  # an empty array could not be searched
        newest = np.sort(hashes)
        while self.sorted and len(self.sorted[-1]) < 2 * len(newest):
            newest = np.concatenate([self.sorted.pop(), newest])
            newest.sort(kind="stable")  # finds the two sorted parts and merges them
        self.sorted.append(newest)


@dataclass
class Marks:
    """The marks of a source within the horizon."""

    horizon_ms: int
    slices: dict[int, _Slice] = field(default_factory=dict)
    count: int = 0
    newest_ms: int = 0
    """The latest time of any."""

    @property
    def _slice_ms(self) -> int:
        return max(self.horizon_ms // SLICES, 1)

    def add(self, marks: Named) -> None:
        """Remember."""
        into = self.slices.setdefault(marks.until_ms // self._slice_ms, _Slice())
        into.names.append(marks.name)
        self.newest_ms = max(self.newest_ms, marks.until_ms)
        into.add(marks.hashes)
        self.count += len(marks.hashes)

    def known(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of these are marked."""
        found = np.zeros(len(hashes), dtype=bool)
        for each in self.slices.values():
            for marked in each.sorted:
                places = np.searchsorted(marked, hashes)
                places[places == len(marked)] = 0
                found |= marked[places] == hashes
        return found

    def outdated(self, oldest_ms: int) -> tuple[str, ...]:
        """Names of marks that no record from `oldest_ms` on can be within the horizon of."""
        return tuple(name for number in self._old(oldest_ms) for name in self.slices[number].names)

    def forget(self, oldest_ms: int) -> None:
        """Drop what `outdated` named."""
        for number in self._old(oldest_ms):
            self.count -= sum(map(len, self.slices.pop(number).sorted))

    def _old(self, oldest_ms: int) -> list[int]:
        return [n for n in self.slices if (n + 1) * self._slice_ms + self.horizon_ms < oldest_ms]


def to_bytes(until_ms: int, hashes: Hashes) -> bytes:
    """As Redis keeps them: 8 bytes for the time, 8 for each mark."""
    return HEADER.pack(until_ms) + hashes.astype("<i8").tobytes()


def from_bytes(kept: Iterable[tuple[str, bytes]], horizon_ms: int) -> Marks:
    """All that Redis keeps."""
    marks = Marks(horizon_ms)
    for name, packed in kept:
        (until_ms,) = HEADER.unpack_from(packed)
        marks.add(Named(name, until_ms, np.frombuffer(packed, "<i8", offset=HEADER.size).astype(np.int64)))
    return marks
