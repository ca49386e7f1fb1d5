"""How a record says which schema wrote it: the frame that Confluent's serializers put before it or into a header.

    00 00000007 <Avro>                                  schema id 7
    header __value_schema_id = 01 <16 bytes>, <Avro>    the schema with this GUID; nothing before the record

The bytes of a frame, `00` with four bytes or `01` with sixteen, name the schema everywhere in the code.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

ID_BYTE, GUID_BYTE = b"\x00", b"\x01"
ID_FRAME_BYTES, GUID_FRAME_BYTES = 5, 17
MAX_DIGITS = 10
"""Of an id."""
HEADER = "__value_schema_id"
"""Where serializers put the schema's GUID, if they are asked to leave the record as it is."""
NOT_FRAMED = "not framed: it has neither a schema id before it nor one in its headers"

REGISTRY, NONE = "registry", "none"
FRAMINGS = (REGISTRY, NONE)


class Framed(NamedTuple):
    """A record's frame and what is left of it."""

    frame: bytes
    payload: bytes
    more: bytes = b""
    """What follows the frame in a header: of Protobuf, which message it is."""


def split(value: bytes, headers: Iterable[tuple[str, bytes | None]] = ()) -> Framed | None:
    """A record's frame and its payload; None where it has no frame. Of several headers the last counts."""
    of_header = [content for name, content in headers if name == HEADER]
    if of_header:
        given = of_header[-1] or b""
        size = GUID_FRAME_BYTES if given[:1] == GUID_BYTE else ID_FRAME_BYTES
        is_frame = given[:1] in (ID_BYTE, GUID_BYTE) and len(given) >= size
        return Framed(given[:size], value, given[size:]) if is_frame else None
    if len(value) < ID_FRAME_BYTES or value[:1] != ID_BYTE:
        return None
    return Framed(value[:ID_FRAME_BYTES], value[ID_FRAME_BYTES:])


def frame_of_id(schema_id: int) -> bytes:
    """7 -> 00 00000007"""
    return ID_BYTE + schema_id.to_bytes(4, "big")


def name_of(frame: bytes) -> str:
    """What people call the schema: `7`, or its GUID."""
    return str(int.from_bytes(frame[1:], "big")) if frame[:1] == ID_BYTE else str(uuid.UUID(bytes=frame[1:]))


def frame_named(name: str) -> bytes | None:
    """The inverse of `name_of`; None for a name of no frame."""
    if name.isascii() and name.isdecimal():
        return frame_of_id(int(name)) if len(name) <= MAX_DIGITS and int(name) < 2**32 else None
    try:
        return GUID_BYTE + uuid.UUID(name).bytes
    except ValueError:
        return None


def described(frame: bytes) -> str:
    """For messages: `schema id 7` or `schema 89791762-...`."""
    return f"schema {'id ' if frame[:1] == ID_BYTE else ''}{name_of(frame)}"
