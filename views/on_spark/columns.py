"""The columns that views need, evaluated once by Spark: where both paths of a micro-batch begin.

Small ones are collected and folded in Python (`views/columns.py`), large ones are aggregated by Spark (`states`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from views.columns import AT, ID, KAFKA, OFFSET, PARTITION, SIZE, VALID, Columns
from views.like import without_backtracking
from views.on_spark.states import COUNTED
from views.state_sql import plan
from views.view import View


def evaluated(events: DataFrame, columns: Columns, *more: Column) -> DataFrame:
    """Records with their events -> whether each is valid, where it stands, the hash of its id, the columns of views.

    `more` columns of the records come last. Invalid records are still among them: Spark would move a filter down to
    where the record is read, and read it twice.
    """
    return events.select(
        f.col("invalid").isNull().alias(VALID),
        f.xxhash64("event_id").alias(ID),
        f.col("partition").alias(PARTITION),
        f.col("offset").alias(OFFSET),
        f.unix_millis("timestamp").alias(KAFKA),
        f.coalesce(f.length("value"), f.lit(0)).alias(SIZE),
        *values_of(columns),
        *more,
    )


def values_of(columns: Columns) -> list[Column]:
    """The time of an event, and the columns of views."""
    values = [f.expr(without_backtracking(sql)).alias(name) for sql, name in columns.names.items()]
    return [f.unix_micros("event_time").alias(AT), *values]


def states_of(rows: DataFrame, columns: Columns, view: View) -> DataFrame:
    """Evaluated events, without duplicates -> `bucket` (seconds), the keys as _key_0.. and `state`."""
    needed = rows if view.condition is None else rows.where(columns.of(view.condition))
    needed = needed.withColumn("event_time", f.timestamp_micros(AT))  # what First and Last go by
    keys = [f.expr(columns.of(key)).alias(f"_key_{place}") for place, key in enumerate(view.key_expressions.values())]
    seconds = view.bucket.seconds
    bucket = f.expr(f"({AT} - pmod({AT}, {seconds}000000L)) div 1000000L").alias("bucket")
    planned = plan(view, columns.of)
    aggregates = [f.expr(sql).alias(name) for name, sql in planned.aggregates.items()]
    grouped = needed.groupBy(bucket, *keys).agg(f.count(f.lit(1)).alias(COUNTED), *aggregates)
    return grouped.select(
        "bucket", *(f"_key_{place}" for place in range(len(keys))), f.expr(planned.state).alias("state")
    )


def without_rows(rows: DataFrame, positions: Iterable[tuple[int, int]]) -> DataFrame:
    """The rows without those at these (partition, offset)."""
    listed = list(positions)
    if not listed:
        return rows
    excluded = f.broadcast(rows.sparkSession.createDataFrame(listed, f"{PARTITION} int, {OFFSET} bigint"))
    return rows.join(excluded, [PARTITION, OFFSET], "left_anti")
