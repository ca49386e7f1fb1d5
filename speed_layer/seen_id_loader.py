"""Load seen ids from the master dataset: after Redis was lost or taken over, and where the horizon has grown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from hand_off.speed_views import Meta, Outcome, SpeedWriter, cut_text, new_id
from infra.clients.kafka import spark_kafka_options
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.cut import Cut, count_between, cut_to_json
from master_dataset.kafka.offset_base import to_kafka
from master_dataset.reading.read_spark import between, records_between
from speed_layer.seen_ids import to_bytes
from views.source import Source

CHUNK = 500_000
FIRST_RECORDS = 1_000
"""Of each partition, to find one that has a time: offsets may have no record."""


def is_lacking(meta: Meta, horizon_ms: int) -> bool:
    """Whether Redis lacks seen ids that a writer with this horizon needs."""
    return horizon_ms > 0 and (cut_text(meta.marked) != cut_text(meta.applied) or meta.horizon_ms < horizon_ms)


def load_seen_ids(
    spark: SparkSession,
    writer: SpeedWriter,
    meta: Meta,
    table: Path,
    source: Source,
    horizon_ms: int,
    first_ms: Callable[[], int],
) -> Outcome:
    """Load the ids of valid records that Redis lacks, back to the horizon before `first_ms`."""
    outcome = Outcome.OK
    start: Cut = meta.marked if meta.horizon_ms >= horizon_ms else {}  # seen ids that reach back less far are useless
    is_empty = not count_between(start, meta.applied)
    chunks = [] if is_empty else list(_chunks(spark, table, source, start, meta.applied, first_ms() - horizon_ms))
    for number, seen_ids in enumerate(chunks or [b""], start=1):
        reach("speed.before_load")
        outcome = writer.load(
            number, is_last=number >= len(chunks), name=new_id(), seen_ids=seen_ids, horizon_ms=horizon_ms
        )
        if outcome != Outcome.OK:
            return outcome
    return outcome


def _chunks(spark: SparkSession, table: Path, source: Source, start: Cut, end: Cut, since_ms: int) -> Iterator[bytes]:
    rows = (
        records_between(spark, table, source, start, end, ("timestamp",))
        .where((f.unix_millis("timestamp") >= since_ms) & f.col("invalid").isNull())
        .select(f.xxhash64("event_id").alias("hash"), f.unix_millis("timestamp").alias("at"))
    )
    found = rows.toArrow()
    hashes, times = (found.column(name).to_numpy().astype(np.int64) for name in ("hash", "at"))
    order = np.argsort(times, kind="stable")  # so that old ids can be forgotten chunk by chunk
    for begin in range(0, len(order), CHUNK):
        wanted = order[begin : begin + CHUNK]
        yield to_bytes(int(times[wanted[-1]]), np.unique(hashes[wanted]))


def first_time_ms(
    spark: SparkSession,
    settings: Settings,
    bootstrap: str,
    source: Source,
    table: Path,
    start: Cut,
    end: Cut,
    base: Cut,
) -> int:
    """About when the oldest record at or above the cut `start` came to Kafka, in ms; `end` is where Kafka ends.

    Both are logical offsets; `base` is what Kafka's are raised by.

    A record that is still to come is not older than the newest one below the cut; our own clock may be ahead. 0 where
    the time is unknown: all ids are loaded then.
    """
    if not count_between(start, end):
        return min(int(time.time() * 1000), newest_time_ms(spark, table, start))
    upto = {p: min(offset, start.get(p, 0) + FIRST_RECORDS) for p, offset in end.items()}
    options = {
        "subscribe": source.topic,
        "startingOffsets": json.dumps({source.topic: cut_to_json(to_kafka(base, {p: start.get(p, 0) for p in end}))}),
        "endingOffsets": json.dumps({source.topic: cut_to_json(to_kafka(base, upto))}),
    }
    records = spark.read.format("kafka").options(**spark_kafka_options(settings, bootstrap), **options).load()
    found = records.agg(f.min(f.unix_millis("timestamp"))).first()
    return int(found[0]) if found is not None and found[0] is not None else 0


def newest_time_ms(spark: SparkSession, table: Path, end: Cut) -> int:
    """The latest Kafka timestamp of the last records below a cut, in ms; 0 where the master dataset has none."""
    begin = {partition: max(offset - FIRST_RECORDS, 0) for partition, offset in end.items()}
    last = spark.read.format("delta").load(str(table)).where(between(begin, end))
    found = last.agg(f.max(f.unix_millis("timestamp"))).first()
    return int(found[0]) if found is not None and found[0] is not None else 0
