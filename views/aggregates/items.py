"""Counted items: a bounded table of item -> count, in the byte form of a frequent-items sketch of DataSketches.

Spark writes it with `approx_top_k_accumulate`. As long as there is room for all items it is exact, and merging is plain
addition: TopK is approximate beyond that, Quantiles and exact Distinct never go there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from views.errors import StateError
from views.short_texts import MAX_BYTES, shorten

Item = str | int
FAMILY, VERSION, EMPTY = 10, 1, 5
INTEGER = 9
"""The type byte before each 32-bit number."""
LOAD = 0.75
SMALLEST_LG = 3
HEAD = struct.Struct("<BBBBBBHiiqq")
NUMBERS = np.dtype([("type", "u1"), ("item", "<i4")])
SHORT = 0
"""The first byte of the short form, which no sketch of DataSketches begins with."""
SHORT_HEAD = struct.Struct("<BcI")
WIDTHS = {"B": 2**8, "H": 2**16, "I": 2**32}
"""The formats of counts in the short form, with what each is too small for."""
MAX_SHORT = 2**15 - 1


class Items(NamedTuple):
    """Counts by item; `offset` is by how much they may be too low, because items had to give way."""

    counts: dict[Item, int]
    offset: int = 0


@dataclass(frozen=True)
class Room:
    """How many items there is room for: the smallest table of DataSketches that holds `items`."""

    items: int

    @property
    def lg_size(self) -> int:
        """The table has 2 ** lg_size slots."""
        return max(SMALLEST_LG, (ceil(self.items / LOAD) - 1).bit_length())

    @property
    def capacity(self) -> int:
        """How many items are kept before some give way."""
        return int(LOAD * 2**self.lg_size)


def merge(left: Items, right: Items, room: Room) -> Items:
    """Add the counts; where that is more items than there is room for, the rarest give way."""
    counts = dict(left.counts)
    for item, count in right.counts.items():
        counts[item] = counts.get(item, 0) + count
    return shrink(Items(counts, left.offset + right.offset), room)


def merge_all(tables: Sequence[Items], room: Room) -> Items:
    """The same of many tables at once: items give way at the end, if they must."""
    counts = dict(tables[0].counts)
    for table in tables[1:]:
        for item, count in table.counts.items():
            counts[item] = counts.get(item, 0) + count
    return shrink(Items(counts, sum(table.offset for table in tables)), room)


def merge_numbers(images: Sequence[bytes], room: Room) -> bytes | None:
    """The same of tables of numbers, from bytes to bytes and many times as fast; None where it is not mere addition."""
    counts, items = [], []
    for image in images:
        if image[:1] == bytes([SHORT]):
            names, numbers = _read_short(image)
            named = np.empty(len(names), NUMBERS)
            named["type"], named["item"] = INTEGER, names
            counts.append(numbers.astype("<i8").tobytes())
            items.append(named.tobytes())
            continue
        if len(image) < HEAD.size or image[1] != VERSION or image[2] != FAMILY:
            return None
        *_, count, _, _, offset = HEAD.unpack_from(image)
        if offset:
            return None
        at = HEAD.size + 8 * count
        counts.append(image[HEAD.size : at])
        items.append(image[at : at + 5 * count])
    found = np.frombuffer(b"".join(items), NUMBERS)["item"]
    order = np.argsort(found, kind="stable")
    found = found[order]
    starts = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
    if len(starts) > room.capacity:
        return None
    totals = np.add.reduceat(np.frombuffer(b"".join(counts), "<i8")[order], starts)
    named = np.empty(len(starts), NUMBERS)
    named["type"], named["item"] = INTEGER, found[starts]
    return _head(len(starts), int(totals.sum()), 0, room) + totals.tobytes() + named.tobytes()


def shrink(items: Items, room: Room) -> Items:
    """Take the count of the first item that has no room from all; those that are left with nothing go."""
    if len(items.counts) <= room.capacity:
        return items
    taken = sorted(items.counts.values(), reverse=True)[room.capacity]
    left = {item: count - taken for item, count in items.counts.items() if count > taken}
    return Items(left, items.offset + taken)


def to_bytes(items: Items, room: Room) -> bytes:
    """As DataSketches writes it."""
    if items == Items({}):
        return struct.pack("<BBBBBBH", 1, VERSION, FAMILY, room.lg_size, SMALLEST_LG, EMPTY, 0)
    head = _head(len(items.counts), total(items.counts), items.offset, room)
    counts = struct.pack(f"<{len(items.counts)}q", *items.counts.values())
    return head + counts + _items_to_bytes(items.counts)


def to_short_bytes(items: Items, room: Room) -> bytes:
    """A table of numbers in a quarter of the bytes, for where memory is dear; as DataSketches writes it if need be.

    0  |  format of a count  |  how many  |  the numbers, 16 bits each  |  their counts
    """
    largest = max(items.counts.values(), default=0)
    width = next((width for width, limit in WIDTHS.items() if largest < limit), None)
    names = cast("Mapping[int, int]", items.counts)
    if width is None or items.offset or not names or not -MAX_SHORT <= min(names) <= max(names) <= MAX_SHORT:
        return to_bytes(items, room)
    count = len(names)
    numbers = struct.pack(f"<{count}h", *names) + struct.pack(f"<{count}{width}", *names.values())
    return SHORT_HEAD.pack(SHORT, width.encode(), count) + numbers


def _read_short(image: bytes) -> tuple[NDArray[np.int16], NDArray[np.unsignedinteger[Any]]]:
    """The numbers and their counts."""
    _, code, count = SHORT_HEAD.unpack_from(image)
    width = code.decode("latin-1")
    if width not in WIDTHS or len(image) != SHORT_HEAD.size + (2 + struct.calcsize(f"<{width}")) * count:
        raise StateError(f"A table of {count} numbers has {len(image)} bytes: it is torn.")
    at = SHORT_HEAD.size + 2 * count
    return np.frombuffer(image, "<i2", count, SHORT_HEAD.size), np.frombuffer(image, f"<{width}", count, at)


def _head(count: int, counted: int, offset: int, room: Room) -> bytes:
    lg_now = max(SMALLEST_LG, (max(int(count / LOAD), 1)).bit_length())
    return HEAD.pack(4, VERSION, FAMILY, room.lg_size, lg_now, 0, 0, count, 0, counted + offset, offset)


def _items_to_bytes(counts: Mapping[Item, int]) -> bytes:
    if isinstance(next(iter(counts), ""), str):
        return b"".join(
            [struct.pack("<i", len(text)) + text for text in map(str.encode, cast("Iterable[str]", counts))]
        )
    named = np.empty(len(counts), NUMBERS)
    named["type"], named["item"] = INTEGER, np.fromiter(cast("Iterable[int]", counts), "<i4", len(counts))
    return named.tobytes()


def from_bytes(image: bytes | None, *, is_text: bool) -> Items:
    """A table from bytes, including those that Spark wrote."""
    if not image or image[0] & 0x3F == 1:
        return Items({})
    if image[0] == SHORT:
        numbers, found_counts = _read_short(image)
        return Items(dict(zip(numbers.tolist(), found_counts.tolist(), strict=True)))
    if image[1] != VERSION or image[2] != FAMILY:
        raise StateError(f"These bytes are not a table of items: {image[:8].hex()}…")
    *_, count, _, _, offset = HEAD.unpack_from(image)
    counts = struct.unpack_from(f"<{count}q", image, HEAD.size)
    at = HEAD.size + 8 * count
    names = _texts(image, at, count) if is_text else _numbers(image, at, count)
    found = dict(zip(names, counts, strict=True))
    if len(found) < count:  # an older Tidemark stored a long text as it is, and a newer one its short form
        found = dict.fromkeys(names, 0)
        for name, number in zip(names, counts, strict=True):
            found[name] += number
    return Items(found, offset)


def _numbers(image: bytes, at: int, count: int) -> list[Item]:
    if len(image) < at + 5 * count:
        raise StateError(f"A table of {count} items has {len(image)} bytes: it is torn.")
    found: list[Item] = np.frombuffer(image, NUMBERS, count, at)["item"].tolist()
    return found


def _texts(image: bytes, at: int, count: int) -> list[Item]:
    found: list[Item] = []
    for _ in range(count):
        (size,) = struct.unpack_from("<i", image, at)
        text = image[at + 4 : at + 4 + size].decode()
        found.append(shorten(text) if size > MAX_BYTES else text)
        at += 4 + size
    return found


def total(counts: Mapping[Item, int]) -> int:
    """How many were counted."""
    return sum(counts.values())
