"""Compare Spark with the oracle: its states over generated events must present as the oracle's answers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from views.in_memory import Group
from views.laws import Reference
from views.on_spark.events import with_event
from views.on_spark.states import states
from views.sample_events import SampleRecord, generate
from views.states import unpack
from views.view import View

RECORDS = "topic string, partition int, offset bigint, timestamp timestamp, value binary"


def check_spark(
    spark: SparkSession, views: Iterable[View], *, seed: int = 0, events: int = 500
) -> dict[str, list[str]]:
    """By view: where Spark differs from the oracle over so many generated events. One job for all views."""
    by_source: dict[str, list[View]] = {}
    for view in views:
        by_source.setdefault(view.source.name, []).append(view)
    references, results, parsed = {}, [], []
    for together in by_source.values():
        source = together[0].source.as_json()
        # No duplicates: the layers remove them, `states` does not.
        records = generate(source, events, seed, views=together, duplicates=0)
        # Cached: otherwise Spark would read the records in the plan of every view, and compile that each time.
        read = with_event(spark.createDataFrame([_row(source.topic, record) for record in records], RECORDS), source)
        parsed.append(read.where("invalid IS NULL").cache())
        for view in together:
            references[view.name] = Reference(view, tuple(record.event for record in records))
            results.append(_computed(parsed[-1], view))
    found: dict[str, dict[Group, dict[str, Any]]] = {name: {} for name in references}
    for row in reduce(DataFrame.unionAll, results).collect() if results else ():
        view = references[row["view"]].view
        key = tuple(map(_value, row["keys"], (expression.type.kind for expression in view.key_expressions.values())))
        found[view.name][row["bucket"], key] = view.present(unpack(view.algebras, bytes(row["state"])))
    for each in parsed:
        each.unpersist()
    return {name: list(reference.differences("by Spark", found[name])) for name, reference in references.items()}


def _row(topic: str, record: SampleRecord) -> tuple[Any, ...]:
    """As Kafka would give it."""
    return topic, record.event.partition, record.event.offset, datetime(2026, 1, 1, tzinfo=UTC), record.value


def _computed(events: DataFrame, view: View) -> DataFrame:
    """The view's states in columns that those of all views have."""
    keys = [f.col(f"`{name}`").cast("string") for name in view.keys]
    return states(events, view).select(
        f.lit(view.name).alias("view"),
        f.unix_micros("bucket").alias("bucket"),
        (f.array(*keys) if keys else f.expr("cast(array() AS array<string>)")).alias("keys"),
        "state",
    )


def _value(text: str | None, kind: str) -> Any:
    match kind:
        case "bigint" if text is not None:
            return int(text)
        case "boolean" if text is not None:
            return text == "true"
        case "date" if text is not None:
            return date.fromisoformat(text)
    return text
