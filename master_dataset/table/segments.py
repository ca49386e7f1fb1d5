"""Sealed segments: the commits of the past with their lines of the ledger, in files that nothing ever changes.

A segment holds some hundred commits, each as its file in the Delta log was, byte by byte. So the log itself and the
ledger's file hold the newest commits alone, and a repair can still bring every commit back. The name says which
versions a segment holds; its first line has the digest of the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import orjson

from infra.formats import reads
from infra.store import ObjectMissing, PosixStore, Store
from master_dataset.errors import MasterDatasetError
from master_dataset.table.paths import own_folder

PREFIX = "segments/"
FORMAT = 1
READABLE = frozenset({1})
NOTHING = -1
"""The last sealed version of a table of which nothing is sealed."""


class SegmentDamaged(MasterDatasetError):
    """A segment is not what was sealed."""

    def __init__(self, table: Path, name: str, reason: str) -> None:
        super().__init__(
            f"The segment {name!r} in {str(own_folder(table))!r} cannot be read: {reason}. It holds the proofs of old "
            f"commits; bring it back from a backup. `tidemark master fsck {table.name}` says what else is damaged."
        )
        self.name = name


class Segment(NamedTuple):
    """The versions `first` to `last`, both included."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """Its name in the store. A name is safe from a disk that changes bytes."""
        return f"{PREFIX}{self.first:020}-{self.last:020}"


class SealedCommit(NamedTuple):
    """One commit: the text of its file, and its proof by the ledger (empty if the ledger had none)."""

    version: int
    proof: str
    text: str


def store_of(table: Path) -> Store:
    """The store with what we keep of a table."""
    return PosixStore(own_folder(table))


def list_segments(table: Path) -> list[Segment]:
    """The segments in order, by their names."""
    found = []
    for name in store_of(table).list(PREFIX):
        first, _, last = name.removeprefix(PREFIX).partition("-")
        if first.isdigit() and last.isdigit():
            found.append(Segment(int(first), int(last)))
    return sorted(found)


def sealed_until(table: Path) -> int:
    """The last sealed version, or NOTHING."""
    return max((segment.last for segment in list_segments(table)), default=NOTHING)


def write_segment(table: Path, commits: Sequence[SealedCommit]) -> Segment:
    """Seal commits of consecutive versions. The segment is on the disk when this returns."""
    segment = Segment(commits[0].version, commits[-1].version)
    body = zlib.compress(b"\n".join(orjson.dumps(list(commit)) for commit in commits))
    head = orjson.dumps({"tidemark_segment": FORMAT, "bytes": len(body), "digest": _digest(segment, body)})
    if not store_of(table).put_if_absent(segment.name, head + b"\n" + body):
        raise MasterDatasetError(
            f"The segment {segment.name!r} of {str(table)!r} is there already: two processes seal this table."
        )
    return segment


def read_segment(table: Path, segment: Segment) -> list[SealedCommit]:
    """The commits of a segment. SegmentDamaged if a single byte of it changed."""
    try:
        head, _, body = store_of(table).get(segment.name).partition(b"\n")
        header = orjson.loads(head)
        if header["tidemark_segment"] not in READABLE:
            found = f"it has format {header['tidemark_segment']!r}; {reads(READABLE)}"
            raise SegmentDamaged(table, segment.name, found)
        if header["digest"] != _digest(segment, body):
            raise SegmentDamaged(table, segment.name, "its digest is wrong")
        commits = [SealedCommit(*orjson.loads(line)) for line in zlib.decompress(body).split(b"\n")]
    except ObjectMissing:
        raise SegmentDamaged(table, segment.name, "it is not there") from None
    except (ValueError, KeyError, TypeError, OSError, zlib.error) as error:
        raise SegmentDamaged(table, segment.name, f"{type(error).__name__}: {str(error)[:100]}") from None
    if [commit.version for commit in commits] != list(range(segment.first, segment.last + 1)):
        raise SegmentDamaged(table, segment.name, "it lacks versions")
    return commits


def sealed_commits(table: Path, after: int = NOTHING) -> Iterator[SealedCommit]:
    """The sealed commits above a version, in order; one segment is in memory at a time."""
    for segment in list_segments(table):
        if segment.last > after:
            yield from (commit for commit in read_segment(table, segment) if commit.version > after)


def sealed_commit(table: Path, version: int) -> SealedCommit | None:
    """One sealed commit, or None if that version is not sealed."""
    for segment in list_segments(table):
        if segment.first <= version <= segment.last:
            return read_segment(table, segment)[version - segment.first]
    return None


def _digest(segment: Segment, body: bytes) -> str:
    return blake2b(segment.name.encode() + b"\n" + body, digest_size=16).hexdigest()
