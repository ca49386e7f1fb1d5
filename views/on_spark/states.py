"""View -> states: one job that the batch and the speed layer share."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from views.state_sql import plan
from views.view import View

EVENT_COLUMNS = ("event_id", "event_time", "partition", "offset", "event")
"""What a job reads: valid events, each once."""
COUNTED = "_events"
SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""Under this name, a Parquet file has the types of its columns as Spark has them."""


def states(events: DataFrame, view: View) -> DataFrame:
    """Events -> `bucket`, the view's keys, its answers (those that a plain column can hold), `_events` and `state`.

    `events` has EVENT_COLUMNS; duplicates were removed. `_events` is how many events went into the row.
    """
    needed = events if view.condition is None else events.where(view.condition.spark_sql)
    keys = [f.expr(key.spark_sql).alias(f"_key_{name}") for name, key in view.key_expressions.items()]
    bucket = f.expr(view.bucket.bucket_sql("event_time")).alias("bucket")
    planned = plan(view)
    aggregates = [f.expr(sql).alias(name) for name, sql in planned.aggregates.items()]
    columns = [f.expr(sql).alias(name) for name, sql in planned.answers.items()]
    grouped = needed.groupBy(bucket, *keys).agg(f.count(f.lit(1)).alias(COUNTED), *aggregates)
    named = [f.col(f"_key_{name}").alias(name) for name in view.keys]
    packed = f.expr(planned.state).alias("state")
    return with_derived(grouped.select("bucket", *named, *columns, COUNTED, packed), view)


def arrow_schema(events: DataFrame, view: View) -> pa.Schema:
    """The columns of `states` as Arrow has them, with their types in Spark as metadata. No job runs for this."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found = states(events, view).schema
    return to_arrow_schema(found, timezone="UTC").with_metadata({SPARK_SCHEMA: found.json().encode()})


def with_derived(rows: DataFrame, view: View) -> DataFrame:
    """The rows with the view's derived answers beside the stored ones, where plain columns are enough for them."""
    missing = [f"`{name}`" for name in view.measures if name not in rows.columns]
    derived = {
        name: f.expr(answer.spark_sql)
        for name, answer in view.derived.items()
        if not any(column in answer.sql for column in missing)
    }
    last = [COUNTED, "state"]
    first = [name for name in rows.columns if name not in last and name not in view.derived]
    return rows.withColumns(derived).select(*first, *derived, *last) if derived else rows
