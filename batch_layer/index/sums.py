"""What top-n needs: whole numbers of many keys, in blocks of a file, that numpy adds up without touching a state.

    part 0    how many buckets, for each where it begins and how many numbers it has, then the keys of all numbers
    part n    the numbers of an answer, in as few bytes as the largest needs

A block is of one period (a day; a month, of tiles of months) and has its numbers in the order of their buckets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_ROWS = 2**18
HEAD = struct.Struct("<q")
WIDTHS = ("<i1", "<i2", "<i4", "<i8")
TOO_LARGE = 2**63
DOUBLE_EXACT = 2**53
"""Up to here whole numbers are doubles too, and numpy adds those up three times as fast."""
HALF = 32
HALF_ROWS = 2**20
"""So many lower halves (of 32 bits) can be added as doubles."""
AT_ONCE = 2**20
"""So many numbers are added up at a time."""
MAX_KNOWN = 4_096
"""Keys that are remembered, each way."""
MAX_IN_ORDER = 200_000
"""Keys that are looked at in their order."""
SPARSE = 8
"""Where there are so many times more keys than numbers, room is made for the keys that are there alone."""


class Rows(NamedTuple):
    """Numbers that are to become a block: of which key, where its bucket begins, and the numbers of each answer.

    An answer is None where one of its numbers is beyond 64 bits.
    """

    ids: NDArray[np.uint32]
    begins: NDArray[np.uint32]
    answers: list[NDArray[np.int64] | None]


def parts_of(rows: Rows) -> list[bytes]:
    """The parts of a block."""
    order = np.argsort(rows.begins, kind="stable")
    begins, counts = np.unique(rows.begins, return_counts=True)
    places = (begins.astype("<u4"), counts.astype("<u4"), rows.ids[order].astype("<u4"))
    answers = (None if values is None else values[order] for values in rows.answers)
    return [HEAD.pack(len(begins)) + b"".join(each.tobytes() for each in places), *map(_packed, answers)]


def _packed(values: NDArray[np.int64] | None) -> bytes:
    """The size of the largest number, then the numbers; -1 and nothing where one of them is too large."""
    if values is None:
        return HEAD.pack(-1)
    largest = max(abs(int(values.min(initial=0))), abs(int(values.max(initial=0))))
    if largest >= TOO_LARGE:  # -2^63 has no positive counterpart
        return HEAD.pack(-1)
    width = next(width for width in WIDTHS if largest <= np.iinfo(width).max)
    return HEAD.pack(largest) + values.astype(width).tobytes()


class Chosen(NamedTuple):
    """Numbers of one block: of which keys; `bound` is what those of one key cannot exceed together."""

    ids: NDArray[np.uint32]
    values: NDArray[np.int64]
    bound: int


def choose(places: bytes, numbers: bytes, start: int, end: int) -> Chosen | None:
    """The numbers of a block whose buckets begin in [start, end), from its period on; None where one is too large."""
    chosen, ids, buckets = _range_of(places, start, end)
    (largest,) = HEAD.unpack_from(numbers)
    if largest < 0:
        return None if chosen.start < chosen.stop else Chosen(ids[:0], ids[:0].astype(np.int64), 0)
    width = (len(numbers) - HEAD.size) // len(ids)
    values = np.frombuffer(numbers, f"<i{width}", offset=HEAD.size)
    return Chosen(ids[chosen], values[chosen], largest * buckets)


def chosen_keys(places: bytes, start: int, end: int) -> NDArray[np.uint32]:
    """The keys of the numbers whose buckets begin in [start, end)."""
    chosen, ids, _ = _range_of(places, start, end)
    return ids[chosen]


def _range_of(places: bytes, start: int, end: int) -> tuple[slice, NDArray[np.uint32], int]:
    """Where in a block the buckets of a range are, the keys of the whole block, and how many buckets those are."""
    (count,) = HEAD.unpack_from(places)
    begins, counts = np.frombuffer(places, "<u4", 2 * count, HEAD.size).reshape(2, count)
    ends = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    first, last = np.searchsorted(begins, (max(start, 0), max(end, start, 0)))
    ids = np.frombuffer(places, "<u4", offset=HEAD.size + 8 * count)
    return slice(int(ends[first]), int(ends[last])), ids, int(last - first)


class Keys(Protocol):
    """Who knows the keys by their numbers."""

    def key_of(self, number: int) -> bytes:
        """The packed key of a number."""

    def number_of(self, key: bytes) -> int | None:
        """The number of a packed key."""

    def numbers_by_key(self) -> Iterator[int | None]:
        """The numbers of all keys in the order of their bytes; None at a key that is too long to be in order."""


class Sums:
    """The sum of an answer for each key that has groups in a range of time. A place counts from 0, in no order."""

    def __init__(self, keys: Keys, numbers: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        self.values = values
        self._keys, self._numbers = keys, numbers
        # The first keys are asked for again and again, and each costs a look into a file or two.
        self._named: dict[int, bytes] = {}
        self._placed: dict[bytes, int] = {}

    def key(self, place: int) -> bytes:
        """The packed key of a place."""
        found = self._named.get(place)
        if found is None:
            found = self._keys.key_of(int(self._numbers[place]))
            _room_in(self._named)[place] = found
        return found

    def place(self, key: bytes) -> int | None:
        """Where a packed key stands; None where it has no group in that time."""
        found = self._placed.get(key)
        if found is None:
            found = self._place_of(self._keys.number_of(key))
            _room_in(self._placed)[key] = found
        return None if found < 0 else found

    def first(self, places: NDArray[np.int64], count: int) -> list[int] | None:
        """The `count` of these places whose keys come first in the order of bytes; None where that takes too long."""
        if len(places) <= MAX_KNOWN:
            return sorted(places.tolist(), key=self.key)[:count]
        wanted = np.zeros(len(self._numbers), np.bool_)
        wanted[places] = True
        found: list[int] = []
        for number in islice(self._keys.numbers_by_key(), MAX_IN_ORDER):
            if number is None:
                return None
            place = self._place_of(number)
            if place >= 0 and wanted[place]:
                found.append(place)
                if len(found) == count:
                    return found
        return None

    def _place_of(self, number: int | None) -> int:
        """-1: there is none."""
        if number is None:
            return -1
        place = int(np.searchsorted(self._numbers, number))
        return place if place < len(self._numbers) and self._numbers[place] == number else -1


def _room_in(known: dict[Any, Any]) -> dict[Any, Any]:
    """The same, started again where it is full."""
    if len(known) >= MAX_KNOWN:
        known.clear()
    return known


def added(keys: Keys, key_count: int, found: Iterable[Chosen | None]) -> Sums | None:
    """The sums over what was chosen; None where one could pass 64 bits, or a number did.

    What comes is added up about a million numbers at a time: memory is that of the keys, not of all periods.
    """
    bound, few, size = 0, list[Chosen](), 0
    dense: _Dense | None = None
    for chosen in found:
        if chosen is None or (bound := bound + chosen.bound) >= TOO_LARGE:
            return None
        few.append(chosen)
        size += len(chosen.ids)
        if size >= AT_ONCE:
            dense = dense or _Dense(key_count)
            dense.add(few)
            few, size = [], 0
    if dense is None and key_count > SPARSE * size:
        ids, values = _joined(few)
        there, places = np.unique(ids, return_inverse=True)
        return Sums(keys, there.astype(np.int64), _sum(places, values, len(there), bound))
    dense = dense or _Dense(key_count)
    dense.add(few)
    numbers = np.flatnonzero(dense.is_there)
    return Sums(keys, numbers, dense.totals[numbers])


class _Dense:
    """A total for each number of a key."""

    def __init__(self, key_count: int) -> None:
        self.totals = np.zeros(key_count, np.int64)
        self.is_there = np.zeros(key_count, np.bool_)

    def add(self, found: Sequence[Chosen]) -> None:
        """What was chosen, to the totals of its keys."""
        ids, values = _joined(found)
        self.is_there[ids] = True
        self.totals += _sum(ids, values, len(self.totals), sum(chosen.bound for chosen in found))


def _joined(found: Sequence[Chosen]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    nothing = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    return (
        np.concatenate([nothing[0], *(chosen.ids for chosen in found)]),
        np.concatenate([chosen.values for chosen in found]) if found else nothing[1],
    )


def _sum(places: NDArray[np.integer], values: NDArray[np.int64], size: int, bound: int) -> NDArray[np.int64]:
    """For each place the sum of its values, exactly."""
    if bound < DOUBLE_EXACT:
        return np.bincount(places, values, size).astype(np.int64)
    total, values = np.zeros(size, np.int64), values.astype(np.int64)
    for start in range(0, len(values), HALF_ROWS):
        chosen = slice(start, start + HALF_ROWS)
        upper, lower = values[chosen] >> HALF, values[chosen] & (2**HALF - 1)
        total += np.bincount(places[chosen], upper, size).astype(np.int64) << HALF
        total += np.bincount(places[chosen], lower, size).astype(np.int64)
    return total
