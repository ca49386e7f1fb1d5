"""Unpack gzip from strangers: the work grows with what comes in and what comes out, and with nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

GZIP = 16 + zlib.MAX_WBITS
FED_AT_ONCE = 1 << 14
"""zlib gives back what it was fed and did not need, as new bytes for each member and step: so it never gets all."""
STEP = 1 << 20
MAX_MEMBERS = 1000
"""Files of gzip may follow each other, and tools that pack in blocks of 64 KB write many. An empty one has 20 bytes."""


class NotGzip(ValueError):
    """The data are not gzip that we take. The text says why, for the sender."""


def inflate(packed: bytes) -> Iterator[bytes]:
    """The unpacked data, piece by piece, each of at most STEP bytes: the caller decides when they are too many."""
    data = memoryview(packed)
    at = members = 0
    rest: bytes | memoryview = b""
    while rest or at < len(data):
        members += 1
        if members > MAX_MEMBERS:
            raise NotGzip(f"it has more than {MAX_MEMBERS} members; pack it as one")
        member = zlib.decompressobj(GZIP)
        while not member.eof:
            if not rest:
                rest, at = data[at : at + FED_AT_ONCE], at + FED_AT_ONCE
            is_last = not rest
            try:
                step = member.decompress(rest, STEP)
            except zlib.error as error:
                raise NotGzip(str(error)) from None
            rest = member.unconsumed_tail
            if step:
                yield step
            elif is_last and not member.eof:
                raise NotGzip("it ends too early")
        rest = member.unused_data
