"""The groups of a day in the order of the index: by key, then by bucket. In memory are some of them at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batch_layer.index import scratch
from batch_layer.index.layout import DAY_S, LONGEST_KEY, short
from hand_off.errors import BatchError
from views.keys import pack_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

READ_ROWS = 4_096
CHUNK_BYTES = 2**25
"""So much is sorted in memory."""
MAX_PARTS = 256
MICROS = 1_000_000
ROW = pa.schema({"name": pa.binary(), "key": pa.binary(), "begin": pa.uint32(), "state": pa.binary()})
"""A group: its key as in the index, whole where that had to be cut, where its bucket begins in the day, its state."""


class DayFiles(NamedTuple):
    """The Parquet files of a day, with the keys of their view."""

    day: int
    keys: tuple[str, ...]
    files: tuple[Path, ...]


def sorted_groups(given: Sequence[DayFiles], folder: Path) -> Iterator[pa.RecordBatch]:
    """The groups in order, day by day; their begins are counted from the first day.

    `folder` is for what does not fit into memory: it is split by name first, then sorted. This is done with one day
    alone; several are few enough.
    """
    chunk: list[pa.RecordBatch] = []
    size, split = 0, None
    for batch in _read(given):
        chunk.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES and len(given) == 1:
            table = pa.Table.from_batches(chunk).sort_by("name")
            split = split or _Split(_bounds(given[0], table), folder / f"{given[0].day}.part")
            split.add(table)
            chunk, size = [], 0
    rest = pa.Table.from_batches(chunk, ROW)
    if split is None:
        yield from _in_order(given, rest)
        return
    split.add(rest.sort_by("name"))
    for table in split.tables():
        yield from _in_order(given, table)


def _read(given: Sequence[DayFiles]) -> Iterator[pa.RecordBatch]:
    for day, keys, files in given:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(READ_ROWS, columns=["bucket", *keys, "state"]):
                begins = batch["bucket"].cast("int64").to_numpy() // MICROS - day
                if not len(begins):
                    continue
                if not 0 <= begins.min() <= begins.max() < DAY_S:
                    raise BatchError(
                        f"{str(file)!r} has groups of another day than its folder's. Nothing was published."
                    )
                names, whole = _named([batch[name] for name in keys], len(begins))
                begins = (begins + (day - given[0].day)).astype(np.uint32)
                columns = [names, whole, pa.array(begins), batch["state"].cast(pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, schema=ROW)


def _named(columns: Sequence[pa.Array], rows: int) -> tuple[pa.Array, pa.Array]:
    """The keys as in the index, and whole where they had to be cut. Each key is packed once."""
    codes = np.zeros(rows, np.int64)
    for column in columns:
        encoded = column.dictionary_encode("encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]  # numbers stay small, however many columns there are
    _, first, places = np.unique(codes, return_index=True, return_inverse=True)
    values = [column.take(pa.array(first)).to_pylist() for column in columns]
    packed = [pack_key(key) for key in (zip(*values, strict=True) if values else [()])]
    names = pa.array([short(key) for key in packed], pa.binary())
    whole = pa.array([key if len(key) > LONGEST_KEY else b"" for key in packed], pa.binary())
    return names.take(pa.array(places)), whole.take(pa.array(places))


def ranks_of(names: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Numbers in the order of the names: sorting them takes far less than sorting the names."""
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    encoded = names.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    found: NDArray[np.int64] = ranks[encoded.indices.to_numpy()]
    return found


def _in_order(given: Sequence[DayFiles], table: pa.Table) -> Iterator[pa.RecordBatch]:
    if not len(table):
        return iter(())
    names, begins = ranks_of(table["name"]), table["begin"].to_numpy().astype(np.int64)
    order = np.lexsort((begins, names, begins // DAY_S))
    names, begins = names[order], begins[order]
    is_same = (names[1:] == names[:-1]) & (begins[1:] == begins[:-1])
    if is_same.any():
        day = given[0].day + int(begins[1:][is_same][0]) // DAY_S * DAY_S
        raise BatchError(
            f"{np.count_nonzero(is_same)} groups stand twice in the files of the day {day}. Nothing was published."
        )
    return scratch.batches_of(table.take(pa.array(order)).combine_chunks())


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
