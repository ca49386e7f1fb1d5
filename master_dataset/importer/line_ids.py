"""Give a line an id made of its content, so that the same file sent twice is counted once.

See docs/decisions/0004-import-ids.md for why it is this, and what else was thought of.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

REMEMBERED_LINES = 1 << 17
"""Different lines in one table of counts; there are two. About 20 MB each."""
FORGOTTEN_BITS = 28
"""The filter of forgotten lines has 2**28 bits: 32 MiB, made when the first line is forgotten."""


class LineIds:
    """The ids of one file's lines, in their order.

    first time              the hash of the line            5f0c…
    again, soon             ... and how often before        5f0c…-1
    again, perhaps, but     ... and the line's number       5f0c…@7340032
    too long ago to know

    Two lines of a file never get the same id; the same bytes always get the same ids.
    """

    def __init__(self, origin: str = "", remembered_lines: int = REMEMBERED_LINES) -> None:
        self._origin = origin.encode()
        self._context = b""
        self._person = _person(self._origin, b"")
        self._limit = remembered_lines
        self._recent: dict[bytes, int] = {}
        self._older: dict[bytes, int] = {}
        self._forgotten: _Filter | None = None

    def next_id(self, raw: bytes, number: int, context: bytes = b"") -> str:
        """The id of the next line. `context` is what gives it its meaning: the header of a CSV file, for example."""
        if context is not self._context:
            self._context, self._person = context, _person(self._origin, context)
        digest = blake2b(raw, digest_size=16, person=self._person).digest()
        before = self._recent.get(digest)
        if before is None:
            before = self._older.pop(digest, None)
            if before is None:
                if self._forgotten is not None and digest in self._forgotten:
                    return f"{digest.hex()}@{number}"
                before = 0
            if len(self._recent) >= self._limit:
                self._forget()
        self._recent[digest] = before + 1
        return f"{digest.hex()}-{before}" if before else digest.hex()

    def _forget(self) -> None:
        """Forget the lines that were not seen while the newer table filled; keep a trace that they were there."""
        if self._older:
            self._forgotten = self._forgotten or _Filter()
            for digest in self._older:
                self._forgotten.add(digest)
        self._older, self._recent = self._recent, {}


class _Filter:
    """A Bloom filter: says "never added" rightly always, "added" rightly but for one in thousands."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (FORGOTTEN_BITS - 3))

    def add(self, digest: bytes) -> None:
        bits = self._bits
        for bit in struct.unpack("<4I", digest):
            bits[bit >> (32 - FORGOTTEN_BITS + 3)] |= 1 << (bit & 7)

    def __contains__(self, digest: bytes) -> bool:
        bits = self._bits
        return all(bits[bit >> (32 - FORGOTTEN_BITS + 3)] & (1 << (bit & 7)) for bit in struct.unpack("<4I", digest))


def _person(origin: bytes, context: bytes) -> bytes:
    """Sixteen bytes that set the hashes of one origin and context apart; nothing for a plain log."""
    return blake2b(origin + b"\n" + context, digest_size=16).digest() if origin or context else b""
