"""Seen ids: which event ids were counted lately, as 64-bit hashes. Redis stores them, the writer searches a replica.

The replica always equals what Redis has: only the writer that owns the epoch adds seen ids, in the same step as the
states, and whatever makes Redis forget some (a flush, an older snapshot) makes that step fail. All are read again then.

A seen id lives until the stream is `horizon` past it, by Kafka's timestamps: a replay drops the same duplicates again.
With n seen ids, an event is taken for a duplicate of another by chance once in 2^64 / n events: with 18 million (an
hour at 5,000 a second) once in 10^12. The next batch run, which compares ids, corrects that too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SLICES = 16
"""How many slices the horizon has; a slice is forgotten as a whole."""
HEADER = struct.Struct("<q")

Hashes = NDArray[np.int64]


class SeenBatch(NamedTuple):
    """The seen ids of one micro-batch, under the name that Redis has for them."""

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
class SeenIds:
    """The seen ids of a source within the horizon."""

    horizon_ms: int
    slices: dict[int, _Slice] = field(default_factory=dict)
    count: int = 0
    newest_ms: int = 0
    """The latest time of any."""

    @property
    def _slice_ms(self) -> int:
        return max(self.horizon_ms // SLICES, 1)

    def add(self, batch: SeenBatch) -> None:
        """Add the ids of a micro-batch."""
        into = self.slices.setdefault(batch.until_ms // self._slice_ms, _Slice())
        into.names.append(batch.name)
        self.newest_ms = max(self.newest_ms, batch.until_ms)
        into.add(batch.hashes)
        self.count += len(batch.hashes)

    def known(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of these were seen."""
        is_seen = np.zeros(len(hashes), dtype=bool)
        for part in self.slices.values():
            for seen in part.sorted:
                positions = np.searchsorted(seen, hashes)
                positions[positions == len(seen)] = 0
                is_seen |= seen[positions] == hashes
        return is_seen

    def outdated(self, oldest_ms: int) -> tuple[str, ...]:
        """Names of the batches that are older than the horizon before any record from `oldest_ms` on."""
        return tuple(name for number in self._old(oldest_ms) for name in self.slices[number].names)

    def forget(self, oldest_ms: int) -> None:
        """Drop what `outdated` named."""
        for number in self._old(oldest_ms):
            self.count -= sum(map(len, self.slices.pop(number).sorted))

    def _old(self, oldest_ms: int) -> list[int]:
        return [n for n in self.slices if (n + 1) * self._slice_ms + self.horizon_ms < oldest_ms]


def to_bytes(until_ms: int, hashes: Hashes) -> bytes:
    """As Redis stores them: 8 bytes for the time, 8 for each id."""
    return HEADER.pack(until_ms) + hashes.astype("<i8").tobytes()


def from_bytes(stored: Iterable[tuple[str, bytes]], horizon_ms: int) -> SeenIds:
    """All seen ids that Redis has."""
    seen_ids = SeenIds(horizon_ms)
    for name, packed in stored:
        (until_ms,) = HEADER.unpack_from(packed)
        seen_ids.add(SeenBatch(name, until_ms, np.frombuffer(packed, "<i8", offset=HEADER.size).astype(np.int64)))
    return seen_ids
