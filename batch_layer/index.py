"""The read index of a batch view: its states by key and by bucket, in LMDB files that processes share without a JVM.

    k <key> <bucket>  ->  state                a key over time is one stretch of the file
    b <bucket> <key>  ->  the whole key, if it had to be cut; else nothing

A file holds whole days. A run that goes on writes a file with the days that it touched; for each day the newest file of
the run's list counts. When the list gets long, all days go into one new file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import pyarrow.parquet as pq

from batch_layer.errors import BatchError
from infra.disk import make_folder, sync_folder
from views.keys import pack_key, unpack_key

FORMAT = 1
META, BY_KEY, BY_BUCKET = b"m", b"k", b"b"
LONGEST_KEY = 480
"""LMDB takes keys of 511 bytes; a letter and a bucket need nine. Longer keys are cut and end with their hash."""
DIGEST = 32
MAP_BYTES = 2**40
"""The most that a file may grow to. Only what is written takes disk, and address space is free."""
BATCH_ROWS, CHUNK_ROWS = 20_000, 200_000
MOST_FILES = 8


Packed = tuple[bytes, bytes, bytes]
"""Bucket, key and state of a group."""


class Row(NamedTuple):
    """A group: the beginning of its bucket in microseconds since 1970, its key, its state."""

    bucket: int
    key: tuple[Any, ...]
    state: bytes


def build(path: Path, files: Mapping[str, Sequence[Path]], keys: Sequence[str]) -> int:
    """Write the states of Parquet files, listed by day, into a new index. Returns how many groups it has.

    Some rows are in memory at a time. The file is on the disk, whole, before it has its name.
    """
    make_folder(path.parent)
    partial = path.with_suffix(".partial")
    for left in (partial, partial.with_name(f"{partial.name}-lock")):
        left.unlink(missing_ok=True)
    count = 0
    with lmdb.open(str(partial), map_size=MAP_BYTES, subdir=False, sync=False, writemap=False, lock=False) as made:
        for day in sorted(files):
            for rows in _chunks(row for file in files[day] for row in _rows_of(file, keys)):
                count += len(rows)
                with made.begin(write=True) as transaction:
                    _put(transaction, rows)
        with made.begin(write=True) as transaction:
            meta = {"format": FORMAT, "days": sorted(files), "groups": count}
            transaction.put(META, json.dumps(meta).encode())
        made.sync(True)
    partial.rename(path)
    sync_folder(path.parent)
    return count


def _put(transaction: lmdb.Transaction, rows: list[Packed]) -> None:
    cursor = transaction.cursor()
    by_key = sorted((BY_KEY + short(key) + bucket, state) for bucket, key, state in rows)
    by_bucket = sorted((BY_BUCKET + bucket + short(key), _whole(key)) for bucket, key, _ in rows)
    for entries in (by_key, by_bucket):
        _, added = cursor.putmulti(entries, overwrite=False)
        if added != len(entries):
            raise BatchError(f"{len(entries) - added} groups stand twice in the files of a day. Nothing was published.")


def _chunks(rows: Iterator[Packed]) -> Iterator[list[Packed]]:
    while chunk := list(islice(rows, CHUNK_ROWS)):
        yield chunk


def _rows_of(file: Path, keys: Sequence[str]) -> Iterator[Packed]:
    for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS, columns=["bucket", *keys, "state"]):
        buckets = batch["bucket"].cast("int64").to_pylist()
        columns = [batch[name].to_pylist() for name in keys]
        values = zip(*columns, strict=True) if columns else ((),) * len(buckets)
        for bucket, key, state in zip(buckets, values, batch["state"].to_pylist(), strict=True):
            yield struct.pack(">Q", bucket), pack_key(key), state


def short(key: bytes) -> bytes:
    """The key as it stands in LMDB: itself, or its beginning and its hash."""
    if len(key) <= LONGEST_KEY:
        return key
    return key[: LONGEST_KEY - DIGEST] + hashlib.blake2b(key, digest_size=DIGEST).digest()


def _whole(key: bytes) -> bytes:
    return key if len(key) > LONGEST_KEY else b""


@dataclass(frozen=True)
class Index:
    """The index of one view in one run: several files, each for some days."""

    files: tuple[lmdb.Environment, ...]
    by_day: dict[str, int]

    def close(self) -> None:
        """Let go of the files."""
        for file in self.files:
            file.close()

    def of_key(self, key: Sequence[Any], start: int, end: int) -> Iterator[Row]:
        """The groups of one key in [start, end), microseconds since 1970, in the order of their buckets."""
        packed = BY_KEY + short(pack_key(key))
        found = []
        for number, file in enumerate(self.files):
            with file.begin() as transaction, transaction.cursor() as cursor:
                for name, state in _from(cursor, packed + struct.pack(">Q", max(start, 0))):
                    if not name.startswith(packed) or len(name) != len(packed) + 8:
                        break
                    (bucket,) = struct.unpack(">Q", name[-8:])
                    if bucket >= end:
                        break
                    if self._is_in(bucket, number):
                        found.append(Row(bucket, tuple(key), bytes(state)))
        yield from sorted(found, key=lambda row: row.bucket)

    def between(self, start: int, end: int) -> Iterator[Row]:
        """All groups in [start, end), file by file."""
        for number, file in enumerate(self.files):
            with file.begin() as transaction, transaction.cursor() as cursor:
                for name, whole in _from(cursor, BY_BUCKET + struct.pack(">Q", max(start, 0))):
                    if not name.startswith(BY_BUCKET):
                        break
                    (bucket,) = struct.unpack(">Q", name[1:9])
                    if bucket >= end:
                        break
                    if self._is_in(bucket, number):
                        key = bytes(whole) or bytes(name[9:])
                        state = transaction.get(BY_KEY + bytes(name[9:]) + bytes(name[1:9]))
                        yield Row(bucket, unpack_key(key), bytes(state or b""))

    def _is_in(self, bucket: int, number: int) -> bool:
        return self.by_day.get(day_of(bucket)) == number


def _from(cursor: Any, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    if cursor.set_range(start):
        yield from cursor.iternext()


def day_of(bucket: int) -> str:
    """The day of a bucket, like 2026-03-01."""
    return datetime.fromtimestamp(bucket // 1_000_000, UTC).date().isoformat()


def open_index(paths: Iterable[Path]) -> Index:
    """Open the files of a run's index, oldest first. BatchError names one that is missing or damaged."""
    opened: list[lmdb.Environment] = []
    by_day: dict[str, int] = {}
    for number, path in enumerate(paths):
        try:
            file = lmdb.open(str(path), readonly=True, subdir=False, lock=False, readahead=False, max_readers=512)
            opened.append(file)
            with file.begin() as transaction:
                meta = json.loads(transaction.get(META) or b"null")
            days = meta["days"]
        except (lmdb.Error, OSError, ValueError, TypeError, KeyError) as error:
            with suppress(lmdb.Error):
                for known in opened:
                    known.close()
            raise BatchError(
                f"The index {str(path)!r} cannot be read ({error}). `tidemark batch run --full` makes it anew."
            ) from None
        by_day |= dict.fromkeys(days, number)
    return Index(tuple(opened), by_day)
