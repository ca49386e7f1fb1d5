"""Counted items: a bounded table of item -> count, in the byte form of a frequent-items sketch of DataSketches.

Spark writes it with `approx_top_k_accumulate`. As long as there is room for all items it is exact, and merging is plain
addition: TopK is approximate beyond that, Quantiles and exact Distinct never go there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from views.errors import StateError

Item = str | int
FAMILY, VERSION, EMPTY = 10, 1, 5
INTEGER = 9
"""The type byte before each 32-bit number."""
LOAD = 0.75


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
        """The table has 2 ** lg_size places."""
        return max(3, (ceil(self.items / LOAD) - 1).bit_length())

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


def shrink(items: Items, room: Room) -> Items:
    """Take the count of the first item that has no room from all; those that are left with nothing go."""
    if len(items.counts) <= room.capacity:
        return items
    taken = sorted(items.counts.values(), reverse=True)[room.capacity]
    left = {item: count - taken for item, count in items.counts.items() if count > taken}
    return Items(left, items.offset + taken)


def to_bytes(items: Items, room: Room) -> bytes:
    """As DataSketches writes it."""
    lg_now = max(3, (max(int(len(items.counts) / LOAD), 1)).bit_length())
    if items == Items({}):
        return struct.pack("<BBBBBBH", 1, VERSION, FAMILY, room.lg_size, lg_now, EMPTY, 0)
    head = struct.pack("<BBBBBBH", 4, VERSION, FAMILY, room.lg_size, lg_now, 0, 0)
    total = sum(items.counts.values()) + items.offset
    counts = struct.pack(
        f"<iiqq{len(items.counts)}q", len(items.counts), 0, total, items.offset, *items.counts.values()
    )
    return head + counts + b"".join(map(_item_to_bytes, items.counts))


def _item_to_bytes(item: Item) -> bytes:
    if isinstance(item, int):
        return struct.pack("<Bi", INTEGER, item)
    text = item.encode()
    return struct.pack("<i", len(text)) + text


def from_bytes(image: bytes | None, *, is_text: bool) -> Items:
    """The inverse, of Spark's images too."""
    if not image or image[0] & 0x3F == 1:
        return Items({})
    if image[1] != VERSION or image[2] != FAMILY:
        raise StateError(f"These bytes are no table of items: {image[:8].hex()}…")
    (count,) = struct.unpack_from("<i", image, 8)
    (offset,) = struct.unpack_from("<q", image, 24)
    counts = struct.unpack_from(f"<{count}q", image, 32)
    at = 32 + 8 * count
    names = _texts(image, at, count) if is_text else _numbers(image, at, count)
    return Items(dict(zip(names, counts, strict=True)), offset)


def _numbers(image: bytes, at: int, count: int) -> list[Item]:
    return [number for _, number in struct.iter_unpack("<Bi", image[at : at + 5 * count])]


def _texts(image: bytes, at: int, count: int) -> list[Item]:
    found: list[Item] = []
    for _ in range(count):
        (size,) = struct.unpack_from("<i", image, at)
        found.append(image[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return found


def total(counts: Mapping[Item, int]) -> int:
    """How many were counted."""
    return sum(counts.values())
