"""Find the duplicates of a few events in this process, from one Spark job: most continued runs have no more.

The same rule as in `duplicates`, which does it by Spark for any number of events. Ids are compared by their SHA-256, so
that long ones cost no more memory than short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

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

MAX_EVENTS = 200_000
"""A run with more new records than this asks Spark: about 20 MB here."""
MAX_KNOWN = 20_000_000
"""And so does one that goes on from more events than this: their hashes are 8 bytes each."""
SLICE = 1_000_000
Integers = np.ndarray[Any, np.dtype[np.int64]]
Location = tuple[int, int]
"""Partition and offset."""
HASHES_SCHEMA = pa.schema([("hash", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())])
LOCATIONS_SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


@dataclass(frozen=True)
class Events:
    """The records between two cuts, as far as duplicates are concerned."""

    records: int
    hashes: pa.Table
    """Hash and location of each valid event, the lowest location first."""
    digests: list[bytes]
    """Of their ids, in the same order."""
    values: pa.Table
    """Of their columns for views, where these were asked for, and their locations."""
    everywhere: pa.Table
    """The locations of all records, in no order."""

    @cached_property
    def locations(self) -> list[Location]:
        """Of the valid events."""
        return list(zip(self.hashes["partition"].to_pylist(), self.hashes["offset"].to_pylist(), strict=True))


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
    found = rows.select("partition", "offset", *own, *values).toArrow()
    valid = found.filter(found["valid"]).sort_by([("partition", "ascending"), ("offset", "ascending")])
    return Events(
        records=found.num_rows,
        hashes=valid.select(HASHES_SCHEMA.names).cast(HASHES_SCHEMA),
        digests=valid["digest"].to_pylist(),
        values=valid.drop_columns(["hash", "digest", "valid"]),
        everywhere=found.select(["partition", "offset"]),
    )


def without(events: Events, duplicates: set[Location]) -> pa.Table:
    """The values of the events that count."""
    counts = [location not in duplicates for location in events.locations]
    return events.values.filter(pa.array(counts, pa.bool_()))


def count_from(records: pa.Table, cut: Cut) -> int:
    """How many of the locations are at or above a cut."""
    partitions, offsets = records["partition"].to_pylist(), records["offset"].to_pylist()
    return sum(offset >= cut.get(partition, 0) for partition, offset in zip(partitions, offsets, strict=True))


def within(events: Events) -> set[Location]:
    """Duplicates of each other: all but the lowest location of each id."""
    first: set[bytes] = set()
    found: set[Location] = set()
    for location, digest in zip(events.locations, events.digests, strict=True):
        if digest in first:
            found.add(location)
        first.add(digest)
    return found


def across(
    spark: SparkSession,
    table: Path,
    source: Source,
    start: Cut,
    events: Events,
    known: Sequence[Path],
    removed: Sequence[Path] = (),
) -> dict[Location, bool]:
    """Duplicates of events below `start`, whose hashes are in the files `known`, and whether theirs is lower.

    Where it is, they should have counted instead, which needs another partition. States have no inverse. An event that
    counted and was removed since counts for ever: its digest is in the files `removed`.
    """
    met = _places(read_column(known, "hash"), np.sort(events.hashes["hash"].to_numpy()))
    if not len(met):
        return {}
    columns = [pa.array(read_column(known, name)[met]) for name in LOCATIONS_SCHEMA.names]
    suspects = spark.createDataFrame(pa.Table.from_arrays(columns, schema=LOCATIONS_SCHEMA))
    lowest = _lowest(spark, table, source, start, suspects)
    gone = _among(removed, {digest[:DIGEST_BYTES] for digest in events.digests})
    return {
        location: digest[:DIGEST_BYTES] not in gone and location < lowest[digest]
        for location, digest in zip(events.locations, events.digests, strict=True)
        if digest in lowest or digest[:DIGEST_BYTES] in gone
    }


def _among(files: Sequence[Path], wanted: set[bytes]) -> set[bytes]:
    """Those of some digests that are in files."""
    found: set[bytes] = set()
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(SLICE, columns=["digest"]):
                found |= wanted & set(batch.column("digest").to_pylist())
    return found


def _places(values: Integers, wanted: Integers) -> Integers:
    """Where `values` are among `wanted`, which are sorted. By slices: a few bytes beside each value are gigabytes."""
    found = []
    for begin in range(0, len(values), SLICE):
        part = values[begin : begin + SLICE]
        at = np.searchsorted(wanted, part).clip(max=len(wanted) - 1)
        found.append(begin + np.flatnonzero(wanted[at] == part))
    return np.concatenate([np.array([], np.int64), *found])


def _lowest(spark: SparkSession, table: Path, source: Source, end: Cut, suspects: DataFrame) -> dict[bytes, Location]:
    """The lowest location of each id among valid events below `end` at the locations of `suspects`."""
    before = records_between(spark, table, source, {}, end).where("invalid IS NULL")
    rows = before.join(f.broadcast(suspects), list(LOCATIONS_SCHEMA.names), "left_semi")
    lowest: dict[bytes, Location] = {}
    for row in rows.select(_digest(), *LOCATIONS_SCHEMA.names).toArrow().to_pylist():
        location = (row["partition"], row["offset"])
        lowest[row["digest"]] = min(location, lowest.get(row["digest"], location))
    return lowest


def _digest() -> Column:
    return f.unhex(f.sha2(f.col("event_id").cast("binary"), 256)).alias("digest")


def as_table(locations: set[Location]) -> pa.Table:
    """The locations, as Spark reads them."""
    partitions, offsets = zip(*sorted(locations), strict=True)
    return pa.table([pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())], schema=LOCATIONS_SCHEMA)
