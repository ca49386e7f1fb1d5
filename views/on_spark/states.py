"""View -> states: one job that the batch and the speed layer share."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from views.states import pack_sql
from views.view import View

EVENT_COLUMNS = ("event_id", "event_time", "partition", "offset", "event")
"""What a job reads: valid events, each once."""
COUNTED = "_events"


def states(events: DataFrame, view: View) -> DataFrame:
    """Events -> `bucket`, the view's keys, its answers (those that a plain column can hold), `_events` and `state`.

    `events` has EVENT_COLUMNS; copies were removed. `_events` is how many events went into the row.
    """
    needed = events if view.condition is None else events.where(view.condition.sql)
    keys = [f.expr(key.sql).alias(f"_key_{name}") for name, key in view.key_expressions.items()]
    bucket = f.expr(view.bucket.bucket_sql("event_time")).alias("bucket")
    aggregates, parts, columns = [f.count(f.lit(1)).alias(COUNTED)], [], []
    for number, (name, measure) in enumerate(view.measures.items()):
        only = f" FILTER (WHERE {measure.where.sql})" if measure.where else ""
        found = measure.algebra.aggregate(measure.of.sql if measure.of else "1", only)
        names = [f"_{number}_{place}" for place in range(len(found))]
        aggregates += [f.expr(sql).alias(alias) for sql, alias in zip(found, names, strict=True)]
        parts += list(zip(measure.algebra.kinds, measure.algebra.parts(names), strict=True))
        if (column := measure.algebra.column(names)) is not None:
            columns.append(f.expr(column).alias(name))
    grouped = needed.groupBy(bucket, *keys).agg(*aggregates)
    named = [f.col(f"_key_{name}").alias(name) for name in view.keys]
    packed = f.expr(pack_sql(parts)).alias("state")
    return with_derived(grouped.select("bucket", *named, *columns, COUNTED, packed), view)


def with_derived(rows: DataFrame, view: View) -> DataFrame:
    """The rows with the view's derived answers beside the stored ones, where plain columns are enough for them."""
    missing = [f"`{name}`" for name in view.measures if name not in rows.columns]
    derived = {
        name: f.expr(answer.sql)
        for name, answer in view.derived.items()
        if not any(column in answer.sql for column in missing)
    }
    last = [COUNTED, "state"]
    first = [name for name in rows.columns if name not in last and name not in view.derived]
    return rows.withColumns(derived).select(*first, *derived, *last) if derived else rows
