"""A cache of parsed commit files, so that a log of many commits is not parsed again by every reader.

It is a file of our own beside the table, and disposable: an entry is valid only while the commit file has the size and
the times that it had when it was read. Damaged and outdated entries are skipped; the commit itself is read then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from master_dataset.table.digest import digest_of


class Stamp(NamedTuple):
    """What reveals a change of a file. The last member cannot be set back."""

    size: int
    modified_ns: int
    changed_ns: int


class CachedCommit(NamedTuple):
    """A commit as it was when its file had this stamp; `content` is whatever the writer put there, as JSON."""

    version: int
    stamp: Stamp
    content: list[Any]


def stamp_of(found: os.stat_result) -> Stamp:
    """The stamp of a file."""
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def read_entries(path: Path) -> dict[int, CachedCommit]:
    """The entries by version; the last one of a version counts."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return {}
    entries = {}
    for line in lines:
        digest, _, text = line.partition(b" ")
        if digest == digest_of(text).encode():
            version, stamp, content = orjson.loads(text)
            entries[version] = CachedCommit(version, Stamp(*stamp), content)
    return entries


def add_entries(path: Path, entries: Iterable[CachedCommit]) -> None:
    """Append. Every line begins with a newline, so that a line that a crash cut off damages no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(map(_line, entries)))


def _line(entry: CachedCommit) -> bytes:
    text = orjson.dumps([entry.version, list(entry.stamp), entry.content])
    return b"\n" + digest_of(text).encode() + b" " + text
