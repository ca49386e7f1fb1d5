"""The groups of a day in the order of the index: by key, then by bucket. In memory are some of them at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batch_layer.index import scratch
from batch_layer.index.layout import DAY_S, LONGEST_KEY, short
from hand_off.errors import BatchError
from views.keys import pack_key

READ_ROWS = 2_000
CHUNK_BYTES = 2**25
"""So much is sorted in memory."""
MAX_PARTS = 256
KNOWN_KEYS = 100_000
MICROS = 1_000_000
ROW = pa.schema({"name": pa.binary(), "key": pa.binary(), "begin": pa.uint32(), "state": pa.binary()})
"""A group: its key as in the index, whole where that had to be cut, where its bucket begins in the day, its state."""


class DayFiles(NamedTuple):
    """The Parquet files of a day, with the keys of their view."""

    day: int
    keys: tuple[str, ...]
    files: tuple[Path, ...]


def sorted_groups(given: DayFiles, folder: Path) -> Iterator[pa.RecordBatch]:
    """The groups in order. `folder` is for what does not fit into memory: it is split by name first, then sorted."""
    chunk: list[pa.RecordBatch] = []
    size, split = 0, None
    for batch in _read(given):
        chunk.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            table = pa.Table.from_batches(chunk).sort_by("name")
            split = split or _Split(_bounds(given, table), folder / f"{given.day}.part")
            split.add(table)
            chunk, size = [], 0
    rest = pa.Table.from_batches(chunk, ROW)
    if split is None:
        yield from _in_order(given, rest)
        return
    split.add(rest.sort_by("name"))
    for table in split.tables():
        yield from _in_order(given, table)


def _read(given: DayFiles) -> Iterator[pa.RecordBatch]:
    known: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
    for file in given.files:
        for batch in pq.ParquetFile(file).iter_batches(READ_ROWS, columns=["bucket", *given.keys, "state"]):
            begins = batch["bucket"].cast("int64").to_numpy() // MICROS - given.day
            if len(begins) and not 0 <= begins.min() <= begins.max() < DAY_S:
                raise BatchError(f"{str(file)!r} has groups of another day than its folder's. Nothing was published.")
            columns = [batch[name].to_pylist() for name in given.keys]
            found = []
            for values in zip(*columns, strict=True) if columns else [()] * len(begins):
                names = known.get(values)
                if names is None:
                    key = pack_key(values)
                    names = known[values] = short(key), key if len(key) > LONGEST_KEY else b""
                found.append(names)
            yield pa.RecordBatch.from_arrays(
                [
                    *(pa.array(column, pa.binary()) for column in zip(*found, strict=True)),
                    pa.array(begins.astype(np.uint32)),
                    batch["state"].cast(pa.binary()),
                ],
                schema=ROW,
            )
            if len(known) > KNOWN_KEYS:
                known.clear()


def _in_order(given: DayFiles, table: pa.Table) -> Iterator[pa.RecordBatch]:
    found = table.sort_by([("name", "ascending"), ("begin", "ascending")]).combine_chunks()
    is_same = [pc.equal(found[name].slice(1), found[name].slice(0, len(found) - 1)) for name in ("name", "begin")]
    if pc.any(pc.and_(*is_same)).as_py():
        twice = pc.sum(pc.and_(*is_same)).as_py()
        raise BatchError(f"{twice} groups stand twice in the files of the day {given.day}. Nothing was published.")
    return scratch.batches_of(found)


def _bounds(given: DayFiles, first: pa.Table) -> list[bytes]:
    """Names that split all groups into parts that fit into memory, by what the first of them look like."""
    rows = sum(pq.read_metadata(file).num_rows for file in given.files)
    parts = min(-(-rows * first.nbytes // (len(first) * CHUNK_BYTES)), MAX_PARTS)
    names = first["name"]
    return [names[len(names) * part // parts].as_py() for part in range(1, parts)]


class _Split:
    """Files of groups, each with a range of names."""

    def __init__(self, bounds: Sequence[bytes], place: Path) -> None:
        self._bounds = bounds
        self._paths = [place.with_suffix(f".part{part}") for part in range(len(bounds) + 1)]
        self._writers = [scratch.Writer(path, ROW) for path in self._paths]

    def add(self, table: pa.Table) -> None:
        """Groups that are sorted by name."""
        names = table["name"].to_pylist()
        cuts = [0, *(bisect_left(names, bound) for bound in self._bounds), len(names)]
        for (start, end), writer in zip(pairwise(cuts), self._writers, strict=True):
            for batch in scratch.batches_of(table.slice(start, end - start)):
                writer.write(batch.columns)

    def tables(self) -> Iterator[pa.Table]:
        """The groups of each range, which are not sorted."""
        for writer in self._writers:
            writer.close()
        for path in self._paths:
            yield pa.Table.from_batches(scratch.batches(path), ROW)
            path.unlink()
