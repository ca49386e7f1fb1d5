"""Merge tables of counted items (`views/aggregates/items.py`), segment by segment, many segments at once.

The items of each segment are sorted, and the counts of equal ones added up. None: a table is not for this, because
items had to give way, or would have to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from batch_layer.index.state_columns import blobs_of, bytes_of, gather, places_of
from views.aggregates.items import FAMILY, HEAD, INTEGER, LOAD, NUMBERS, SMALLEST_LG, VERSION, Room
from views.short_texts import MAX_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_TEXTS = 1_000
"""A table of texts is read one text after the other, those of all tables at once: longer ones are not for this."""
COUNT, LENGTH = 8, 4
_HEAD = np.dtype(
    [
        ("ints", "u1"), ("version", "u1"), ("family", "u1"), ("lg_size", "u1"), ("lg_now", "u1"), ("flags", "u1"),
        ("unused", "<u2"), ("count", "<i4"), ("unused_too", "<i4"), ("counted", "<i8"), ("offset", "<i8"),
    ]
)  # fmt: skip
"""`items.HEAD`, many at a time."""


class _Opened(NamedTuple):
    """Tables: their bytes, where each begins and ends, of which segment it is, and how many items it has."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    segments: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def items(self) -> NDArray[np.int64]:
        """Where the items begin, behind their counts."""
        return self.starts + HEAD.size + COUNT * self.counts

    def added(self) -> NDArray[np.int64]:
        """The counts of all items."""
        return gather(self.data, self.starts + HEAD.size, COUNT * self.counts).view("<i8")


def merge_number_tables(room: Room, images: pa.Array, starts: NDArray[np.int64]) -> pa.Array | None:
    """Tables of numbers, as `items.merge_numbers` does it."""
    opened = _open(images, starts, NUMBERS.itemsize)
    if opened is None:
        return None
    items = gather(opened.data, opened.items, NUMBERS.itemsize * opened.counts).view(NUMBERS)["item"].astype(np.int64)
    both, totals = _add(opened, items + 2**31)
    named = np.empty(len(both), NUMBERS)
    named["type"], named["item"] = INTEGER, (both & (2**32 - 1)) - 2**31
    return _write(room, both, totals, named.view(np.uint8), np.full(len(both), NUMBERS.itemsize), len(starts))


def merge_text_tables(room: Room, images: pa.Array, starts: NDArray[np.int64]) -> pa.Array | None:
    """Tables of texts, as `items.merge_all` does it."""
    opened = _open(images, starts, LENGTH)
    texts = _texts(opened) if opened is not None else None
    if opened is None or texts is None:
        return None
    encoded = texts.dictionary_encode()
    both, totals = _add(opened, encoded.indices.to_numpy().astype(np.int64))
    data, places = bytes_of(encoded.dictionary.take(pa.array(both & (2**32 - 1))))
    sizes = np.diff(places)
    named = np.empty(len(data) + LENGTH * len(sizes), np.uint8)
    at = places[:-1] + LENGTH * np.arange(len(sizes))
    named[places_of(at, np.full(len(sizes), LENGTH))] = sizes.astype("<i4").view(np.uint8)
    named[places_of(at + LENGTH, sizes)] = data
    return _write(room, both, totals, named, sizes + LENGTH, len(starts))


def _open(images: pa.Array, starts: NDArray[np.int64], item_bytes: int) -> _Opened | None:
    """None where one is no whole table, or holds more than mere counts. An item has at least so many bytes."""
    segments = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(images)))
    if images.null_count:
        is_there = images.is_valid().to_numpy(zero_copy_only=False)
        segments, images = segments[is_there], images.filter(pa.array(is_there))
    data, places = bytes_of(images)
    sizes = np.diff(places)
    if not len(sizes) or sizes.min() < HEAD.size:
        return None
    heads: Any = gather(data, places[:-1], np.full(len(sizes), HEAD.size)).view(_HEAD)
    counts = heads["count"].astype(np.int64)
    is_plain = (heads["version"] == VERSION) & (heads["family"] == FAMILY) & (heads["offset"] == 0)
    # What Spark writes has some unused bytes at its end.
    is_whole = (counts > 0) & (sizes >= HEAD.size + (COUNT + item_bytes) * counts)
    return _Opened(data, places[:-1], places[1:], segments, counts) if (is_plain & is_whole).all() else None


def _texts(opened: _Opened) -> pa.Array | None:
    """The texts of all tables, one table after the other; None where one is torn, or a text is not as it is stored."""
    if opened.counts.max() > MAX_TEXTS:
        return None
    first = np.cumsum(opened.counts) - opened.counts
    begins, sizes = np.zeros(int(opened.counts.sum()), np.int64), np.zeros(int(opened.counts.sum()), np.int64)
    rows, at = np.arange(len(opened.counts)), opened.items
    for place in range(int(opened.counts.max())):
        is_left = opened.counts[rows] > place
        rows, at = rows[is_left], at[is_left]
        if (at + LENGTH > opened.ends[rows]).any():
            return None
        size = gather(opened.data, at, np.full(len(at), LENGTH)).view("<i4").astype(np.int64)
        if size.min() < 0 or size.max() > MAX_BYTES or (at + LENGTH + size > opened.ends[rows]).any():
            return None
        begins[first[rows] + place], sizes[first[rows] + place] = at + LENGTH, size
        at = at + LENGTH + size
    return blobs_of(gather(opened.data, begins, sizes), sizes)


def _add(opened: _Opened, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Segment and item of each different one, as one number, and its count. Items are numbers below 2^32."""
    both = (np.repeat(opened.segments, opened.counts) << 32) + items
    order = np.argsort(both, kind="stable")
    both = both[order]
    firsts = np.flatnonzero(np.concatenate(([True], both[1:] != both[:-1])))
    return both[firsts], np.add.reduceat(opened.added()[order], firsts)


def _write(
    room: Room,
    both: NDArray[np.int64],
    totals: NDArray[np.int64],
    items: NDArray[np.uint8],
    item_sizes: NDArray[np.int64],
    segments: int,
) -> pa.Array | None:
    """The tables of segments; None where one has more items than room."""
    counts = np.bincount(both >> 32, minlength=segments)
    if counts.max() > room.capacity:
        return None
    there = np.flatnonzero(counts)
    own = counts[there]
    begins = np.cumsum(own) - own
    heads = np.zeros(len(there), _HEAD)
    heads["ints"], heads["version"], heads["family"], heads["lg_size"] = 4, VERSION, FAMILY, room.lg_size
    # The bits of a whole number are the exponent of it as a double.
    bits = np.frexp(np.maximum((own / LOAD).astype(np.int64), 1))[1]
    heads["lg_now"] = np.maximum(bits, SMALLEST_LG)
    heads["count"], heads["counted"] = own, np.add.reduceat(totals, begins)
    of_items = np.add.reduceat(item_sizes, begins)
    sizes = HEAD.size + COUNT * own + of_items
    ends = np.cumsum(sizes)
    made = np.empty(int(ends[-1]), np.uint8)
    at = ends - sizes
    made[places_of(at, np.full(len(there), HEAD.size))] = heads.view(np.uint8)
    made[places_of(at + HEAD.size, COUNT * own)] = totals.astype("<i8").view(np.uint8)
    made[places_of(at + HEAD.size + COUNT * own, of_items)] = items
    of_all = np.zeros(segments, np.int64)
    of_all[there] = sizes
    return blobs_of(made, of_all, counts == 0)
