"""Rows that a damaged master table lost, read again: from Kafka, else from files that are still on the disk."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from infra.clients.kafka import spark_kafka_options
from infra.settings import Settings
from master_dataset.cut import Cut, OffsetRange, cut_to_json, ranges
from master_dataset.kafka.logical_records import with_logical_offsets
from master_dataset.kafka.offset_base import to_kafka
from master_dataset.kafka.positions import Positions
from master_dataset.table.append import measures
from master_dataset.table.checks.fsck import Measurement, hash_files
from master_dataset.table.checks.void_commits import taken_out
from master_dataset.table.delta_log import TableFile
from master_dataset.table.parsed_columns import with_parsed_columns
from master_dataset.writer_schemas.noted import NotedSchemas
from views.on_spark.framed_records import unknown_frames
from views.source import Source

LOCATION = ["partition", "offset"]


@dataclass(frozen=True)
class KafkaRows:
    """The source's topic as it is now, in logical offsets. `positions` is None if it was deleted and created again."""

    settings: Settings
    bootstrap: str
    source: Source
    table: Path
    positions: Positions | None
    base: Cut = field(default_factory=dict)

    def window(self, start: Cut, end: Cut) -> tuple[dict[int, int], dict[int, int]]:
        """The part of these offsets that Kafka still has, as two cuts."""
        earliest, latest = (self.positions.earliest, self.positions.latest) if self.positions else ({}, {})
        first = {p: min(max(start.get(p, 0), earliest.get(p, 0)), end[p]) for p in end}
        return first, {p: max(first[p], min(end[p], latest.get(p, 0))) for p in end}

    def read(self, spark: SparkSession, start: Cut, end: Cut) -> DataFrame | None:
        """Kafka's records of these offsets, as rows of the table."""
        first, last = self.window(start, end)
        if not any(ranges(first, last)):
            return None
        topic = self.source.topic
        there = {p for p in first if self.positions and p in self.positions.latest}
        options = {
            "subscribe": topic,
            "startingOffsets": json.dumps({topic: cut_to_json(to_kafka(self.base, self._all(first, there)))}),
            "endingOffsets": json.dumps({topic: cut_to_json(to_kafka(self.base, self._all(last, there)))}),
            "includeHeaders": "true",
        }
        records = spark.read.format("kafka").options(**spark_kafka_options(self.settings, self.bootstrap))
        logical = with_logical_offsets(records.options(**options).load(), self.base)
        noted = NotedSchemas(self.settings, self.source)
        if self.source.needs_writer_schemas:  # a schema that was noted may be lost with the table
            noted.resolve(unknown_frames(logical, noted.known()))
        return with_parsed_columns(logical, self.table, self.source, noted.known())

    def _all(self, cut: dict[int, int], there: set[int]) -> dict[int, int]:
        """Spark wants every partition of the topic named; one that is not wanted begins and ends at one offset."""
        earliest = self.positions.earliest if self.positions else {}
        return {**earliest, **{p: cut[p] for p in there}}


def read_files(spark: SparkSession, table: Path, own: Collection[str], others: Collection[str]) -> list[DataFrame]:
    """What can be read of a damaged commit's own files, then of `others`, then of what earlier repairs took out."""
    earlier = [str(path.relative_to(table.parent)) for path in sorted(taken_out(table).glob("*/*.parquet"))]
    frames = []
    for folder, names in ((table, own), (table, others), (table.parent, earlier)):
        there = [TableFile(name, 0, 0, 0) for name in names if (folder / name).is_file()]
        good = [name for name, value in hash_files(spark, folder, there).items() if not isinstance(value, str)]
        frames += [spark.read.parquet(str(folder / name)) for name in good if "checkpoint" not in name]
    return frames


def first_of_each(frames: list[DataFrame], start: Cut, end: Cut) -> DataFrame | None:
    """Each offset between the cuts once, by the first frame that has it."""
    ranked = [
        within(frame.select(*frames[0].columns), start, end).withColumn("_rank", f.lit(n))
        for n, frame in enumerate(frames)
    ]
    if not ranked:
        return None
    best = f.row_number().over(Window.partitionBy(*LOCATION).orderBy("_rank"))
    rows = reduce(DataFrame.unionByName, ranked).withColumn("_best", best)
    return rows.where("_best = 1").drop("_rank", "_best")


def within(rows: DataFrame, start: Cut, end: Cut) -> DataFrame:
    """The rows between two cuts."""
    return rows.where(reduce(Column.__or__, map(_is_in, ranges(start, end)), f.lit(False)))


def _is_in(each: OffsetRange) -> Column:
    return (f.col("partition") == each.partition) & f.col("offset").between(each.start, each.end_exclusive - 1)


def measure(rows: DataFrame | None) -> Measurement:
    """Rows and hashes."""
    row = rows.agg(*measures()).first() if rows is not None else None
    return Measurement(row["rows"], row["hash"], row["parsed_hash"]) if row else Measurement()


def missing_offsets(frames: list[DataFrame], start: Cut, end: Cut) -> list[OffsetRange]:
    """The offsets between the cuts that no row of the frames has."""
    have = {(row[0], row[1]) for frame in frames for row in frame.select(*LOCATION).collect()}
    missing: list[OffsetRange] = []
    for each in ranges(start, end):
        for offset in range(each.start, each.end_exclusive):
            if (each.partition, offset) in have:
                continue
            if missing and missing[-1].partition == each.partition and missing[-1].end_exclusive == offset:
                missing[-1] = missing[-1]._replace(end_exclusive=offset + 1)
            else:
                missing.append(OffsetRange(each.partition, offset, offset + 1))
    return missing


def outside(missing: list[OffsetRange], start: Cut, end: Cut) -> list[OffsetRange]:
    """Those offsets that do not lie between the cuts. A topic may have holes of its own; those are no loss."""
    found = []
    for each in missing:
        first, last = start.get(each.partition, 0), end.get(each.partition, 0)
        before = each._replace(end_exclusive=min(each.end_exclusive, first))
        after = each._replace(start=max(each.start, last))
        found += [part for part in (before, after) if part.size > 0] if first < last else [each]
    return found
