"""Counted items: a bounded table of item -> count, in the byte form of a frequent-items sketch of DataSketches.

Spark writes it with `approx_top_k_accumulate`. As long as there is room for all items it is exact, and merging is plain
addition: TopK is approximate beyond that, Quantiles and exact Distinct never go there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

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
    return head + counts + b"".join(map(_item_to_bytes, items.counts))


def _head(count: int, counted: int, offset: int, room: Room) -> bytes:
    lg_now = max(SMALLEST_LG, (max(int(count / LOAD), 1)).bit_length())
    return HEAD.pack(4, VERSION, FAMILY, room.lg_size, lg_now, 0, 0, count, 0, counted + offset, offset)


def _item_to_bytes(item: Item) -> bytes:
    if isinstance(item, int):
        return struct.pack("<Bi", INTEGER, item)
    text = item.encode()
    return struct.pack("<i", len(text)) + text


def from_bytes(image: bytes | None, *, is_text: bool) -> Items:
    """A table from bytes, including those that Spark wrote."""
    if not image or image[0] & 0x3F == 1:
        return Items({})
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
