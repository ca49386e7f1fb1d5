"""The byte form of a key, by which groups are found in Redis and in the read index.

Its order is that of the values (null first, then by value), and the bytes of a text begin with those of its beginnings:
a range or a prefix of keys is a range of bytes. Two keys have the same bytes only if they are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from views.aggregates.numbers import FIRST_DAY
from views.errors import StateError
from views.short_texts import MAX_BYTES, is_long, shorten_value

NULL, FALSE, TRUE, NUMBER, DAY, TEXT = range(1, 7)
END, ESCAPED = b"\x00\x01", b"\x00\xff"
"""A zero byte inside a text is written as 00 ff; 00 01 ends the text, and comes before whatever could follow."""


def pack_key(values: Sequence[Any]) -> bytes:
    """`("/docs", 200)` -> bytes."""
    return b"".join(map(_pack, values))


def pack_prefix(values: Sequence[Any], prefix: str) -> bytes:
    """What the bytes of every key begin with that has these first values, and then a text that begins with `prefix`."""
    return pack_key(values) + bytes([TEXT]) + prefix.encode().replace(b"\x00", ESCAPED)


def _pack(value: Any) -> bytes:
    match value:
        case None:
            return bytes([NULL])
        case bool():
            return bytes([TRUE if value else FALSE])
        case int():
            return struct.pack(">BQ", NUMBER, value + 2**63)
        case str():
            return bytes([TEXT]) + value.encode().replace(b"\x00", ESCAPED) + END
        case date():
            return struct.pack(">BI", DAY, (value - FIRST_DAY).days + 2**31)
    raise StateError(f"{value!r} cannot be part of a key.")


def shorten_key(packed: bytes) -> bytes:
    """A key as it is stored: with its long texts in short form. An older Tidemark also wrote long ones."""
    return pack_key([*map(shorten_value, unpack_key(packed))]) if has_long_text(packed) else packed


def has_long_text(packed: bytes) -> bool:
    """Whether a key has a text that is stored in short form now."""
    return len(packed) > MAX_BYTES and any(isinstance(value, str) and is_long(value) for value in unpack_key(packed))


def unpack_key(packed: bytes) -> tuple[Any, ...]:
    """The inverse. StateError where the bytes are no key."""
    values: list[Any] = []
    at = 0
    try:
        while at < len(packed):
            value, at = _unpack(packed, at)
            values.append(value)
    except (struct.error, ValueError, OverflowError) as error:
        raise StateError(f"These bytes are not a key: {packed[:40].hex()} ({error}).") from None
    return tuple(values)


def _unpack(packed: bytes, at: int) -> tuple[Any, int]:
    match packed[at]:
        case 1:
            return None, at + 1
        case 2 | 3:
            return packed[at] == TRUE, at + 1
        case 4:
            return struct.unpack_from(">Q", packed, at + 1)[0] - 2**63, at + 9
        case 5:
            return FIRST_DAY + timedelta(days=struct.unpack_from(">I", packed, at + 1)[0] - 2**31), at + 5
        case 6:
            end = packed.index(END, at + 1)
            return packed[at + 1 : end].replace(ESCAPED, b"\x00").decode(), end + 2
    raise ValueError(f"kind {packed[at]}")
