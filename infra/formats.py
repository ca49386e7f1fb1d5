"""Formats of files by their numbers: which of them this version of Tidemark reads, and how it says so.

A file says its format. Its module has the one that it writes, FORMAT, and all that it reads, READABLE. A new format
joins both, and the number before it stays in READABLE with a reader of its own: a home outlives the version that
made it.
"""

from __future__ import annotations

from collections.abc import Collection


def reads(readable: Collection[int]) -> str:
    """What an error says of the formats that are known: `this version of Tidemark reads 1 and 2`."""
    *before, last = map(str, sorted(readable))
    return f"this version of Tidemark reads {' and '.join([', '.join(before), last] if before else [last])}"
