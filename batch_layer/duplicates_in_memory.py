"""Find the duplicates of events in this process, from one Spark job: most runs have no more than fit.

The same rule as in `duplicates`, which does it by Spark for any number of events. Ids are compared by their SHA-256, so
that long ones cost no more memory than short ones, and all events lie in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from batch_layer.parquet_files import read_column
from hand_off.foundations import DIGEST_BYTES
from master_dataset.cut import Cut
from master_dataset.reading.read_spark import records_between, records_of_files
from master_dataset.table.history import read_history
from views.columns import Columns
from views.on_spark.columns import values_of
from views.source import Source

MAX_EVENTS = 600_000
"""A run with more new records than this asks Spark. Each takes about 250 bytes here while it is searched: 150 MB."""
MAX_KNOWN = 20_000_000
"""And so does one that goes on from more events than this: their hashes are 8 bytes each."""
SLICE = 1_000_000
ID_BYTES = 32
"""Of a SHA-256."""
Integers = np.ndarray[Any, np.dtype[np.int64]]
Digests = np.ndarray[Any, np.dtype[np.bytes_]]
"""All of one length, so that the zeros that end a text for numpy make no two of them equal."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""Which of some events, in their order."""
HASHES_SCHEMA = pa.schema([("hash", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())])
LOCATIONS_SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


@dataclass(frozen=True)
class Events:
    """The records between two cuts, as far as duplicates are concerned."""

    records: int
    hashes: pa.Table
    """Hash and location of each valid event, the lowest location first."""
    digests: Digests
    """Of their ids, in the same order."""
    values: pa.Table
    """Of their columns for views, where these were asked for."""
    everywhere: pa.Table
    """The locations of all records, in no order."""


class Met(NamedTuple):
    """Which events are duplicates of earlier ones, and which of these have the lower location."""

    duplicates: Mask
    lower: Mask


class Before(NamedTuple):
    """Events that an earlier run counted, the lowest location first."""

    digests: Digests
    partitions: Integers
    offsets: Integers


def read_events(
    spark: SparkSession, table: Path, source: Source, start: Cut, end: Cut, columns: Columns | None = None
) -> Events:
    """One job: everything that is needed of the events in [start, end), and what views need of them."""
    if columns is None:
        rows, values = records_between(spark, table, source, start, end), list[Column]()
    else:
        rows = records_of_files(spark, read_history(table), source, start, end)
        values = values_of(columns)
    own = [f.xxhash64("event_id").alias("hash"), _digest(), f.col("invalid").isNull().alias("valid")]
    return events_of(rows.select("partition", "offset", *own, *values).toArrow(), has_values=columns is not None)


def events_of(found: pa.Table, *, has_values: bool) -> Events:
    """The events in a table of all records with `hash`, `digest`, whether they are `valid`, and values for views."""
    # As arrays from here on: every table of Arrow that is filtered or sorted would be one more copy of all events.
    partitions, offsets = found["partition"].to_numpy(), found["offset"].to_numpy()
    order = np.lexsort((offsets, partitions))
    order = order[found["valid"].to_numpy()[order]]
    columns_of = (found["hash"].to_numpy()[order], partitions[order], offsets[order])
    hashes = pa.Table.from_arrays([pa.array(each) for each in columns_of], schema=HASHES_SCHEMA)
    of_views = found.drop_columns(["hash", "digest", "valid"]).take(order) if has_values else hashes
    digests, records = digests_of(found["digest"], ID_BYTES)[order], found.num_rows
    del found
    pa.default_memory_pool().release_unused()
    return Events(records, hashes, digests, of_views, pa.table({"partition": partitions, "offset": offsets}))


def digests_of(column: pa.ChunkedArray, size: int) -> Digests:
    """Digests of so many bytes, one after the other. What is null becomes any."""
    found = np.empty(len(column), f"S{size}")
    end = 0
    for chunk in column.chunks:
        if len(chunk):
            fixed = chunk.cast(pa.binary(size))
            begin, end = end, end + len(chunk)
            found[begin:end] = np.frombuffer(fixed.buffers()[1], f"S{size}", len(fixed), fixed.offset * size)
    return found


def without(events: Events, duplicates: Mask) -> pa.Table:
    """The values of the events that count."""
    return events.values.filter(pa.array(~duplicates))


def count_from(records: pa.Table, cut: Cut) -> int:
    """How many of the locations are at or above a cut."""
    partitions, offsets = records["partition"].to_numpy(), records["offset"].to_numpy()
    return sum(
        int(np.count_nonzero(offsets[partitions == partition] >= cut.get(int(partition), 0)))
        for partition in np.unique(partitions)
    )


def within(events: Events) -> Mask:
    """Duplicates of each other: all but the lowest location of each id."""
    _, first = np.unique(events.digests, return_index=True)
    found = np.ones(len(events.digests), np.bool_)
    found[first] = False
    return found


def across(
    spark: SparkSession,
    table: Path,
    source: Source,
    start: Cut,
    events: Events,
    known: Sequence[Path],
    removed: Sequence[Path] = (),
) -> Met:
    """Duplicates of events below `start`, whose hashes are in the files `known`, and which of them are lower.

    These should have counted instead, which needs another partition. States have no inverse. An event that counted
    and was removed since counts for ever: its digest is in the files `removed`.
    """
    none = np.zeros(len(events.digests), np.bool_)
    suspects = _suspects(spark, events, known)
    if suspects is None:
        return Met(none, none)
    again, lower = _compared(events, _at(spark, table, source, start, suspects))
    gone = _among(removed, events.digests) if removed else none
    return Met(again | gone, lower & ~gone)


def _suspects(spark: SparkSession, events: Events, known: Sequence[Path]) -> DataFrame | None:
    """Where the files `known` have hashes of the events; None: nowhere."""
    met = _places(read_column(known, "hash"), np.sort(events.hashes["hash"].to_numpy()))
    if not len(met):
        return None
    columns = [pa.array(read_column(known, name)[met]) for name in LOCATIONS_SCHEMA.names]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=LOCATIONS_SCHEMA))


def _compared(events: Events, before: Before) -> Met:
    """Which events are among others, and which are lower than the first of these."""
    rows, again = _found(before.digests, np.argsort(before.digests, kind="stable"), events.digests)
    rows = rows[again]
    partitions, offsets = (events.hashes[name].to_numpy()[again] for name in LOCATIONS_SCHEMA.names)
    old_partitions, old_offsets = before.partitions[rows], before.offsets[rows]
    lower = np.zeros(len(again), np.bool_)
    lower[again] = (partitions < old_partitions) | ((partitions == old_partitions) & (offsets < old_offsets))
    return Met(again, lower)


def _found(known: Digests, order: Integers, wanted: Digests) -> tuple[Integers, Mask]:
    """Where each of `wanted` is first among `known`, which are sorted in this order, and which of them are there."""
    if not len(known):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    rows = order[np.searchsorted(known, wanted, sorter=order).clip(max=len(known) - 1)]
    return rows, known[rows] == wanted


def _among(files: Sequence[Path], digests: Digests) -> Mask:
    """Which of some digests begin with one of those that are in files."""
    cut_off = np.ascontiguousarray(digests.view(f"S{DIGEST_BYTES}").reshape(-1, ID_BYTES // DIGEST_BYTES)[:, 0])
    wanted, which = np.unique(cut_off, return_inverse=True)
    found = np.zeros(len(wanted), np.bool_)
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(SLICE, columns=["digest"]):
                removed = digests_of(pa.chunked_array([batch.column("digest")]), DIGEST_BYTES)
                rows, is_there = _found(wanted, np.arange(len(wanted)), removed)
                found[rows[is_there]] = True
    return found[which]


def _places(values: Integers, wanted: Integers) -> Integers:
    """Where `values` are among `wanted`, which are sorted. By slices: a few bytes beside each value are gigabytes."""
    found = []
    for begin in range(0, len(values), SLICE):
        part = values[begin : begin + SLICE]
        at = np.searchsorted(wanted, part).clip(max=len(wanted) - 1)
        found.append(begin + np.flatnonzero(wanted[at] == part))
    return np.concatenate([np.array([], np.int64), *found])


def _at(spark: SparkSession, table: Path, source: Source, end: Cut, suspects: DataFrame) -> Before:
    """The valid events below `end` at the locations of `suspects`."""
    before = records_between(spark, table, source, {}, end).where("invalid IS NULL")
    rows = before.join(f.broadcast(suspects), list(LOCATIONS_SCHEMA.names), "left_semi")
    found = rows.select(_digest(), *LOCATIONS_SCHEMA.names).toArrow()
    partitions, offsets = (found[name].to_numpy() for name in LOCATIONS_SCHEMA.names)
    order = np.lexsort((offsets, partitions))
    digests = digests_of(found["digest"], ID_BYTES)
    del found
    pa.default_memory_pool().release_unused()
    return Before(digests[order], partitions[order], offsets[order])


def _digest() -> Column:
    return f.unhex(f.sha2(f.col("event_id").cast("binary"), 256)).alias("digest")


def locations_of(events: Events, which: Mask) -> pa.Table:
    """Where some events are, as Spark reads them."""
    return events.hashes.select(LOCATIONS_SCHEMA.names).filter(pa.array(which)).cast(LOCATIONS_SCHEMA)
