"""Spark makes of every view of the catalog what the oracle makes of it; so does the SQL that `views show` prints."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from views.aggregates import Count, Distinct, Sum
from views.declarations import ALL_EXAMPLES, load_declarations
from views.on_spark.events import with_event
from views.on_spark.laws import RECORDS, check_spark
from views.on_spark.states import states
from views.sample_events import generate
from views.source import Source
from views.state_sql import state_sql
from views.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = load_declarations(examples=ALL_EXAMPLES).views
KEYS = View(
    "every_kind_of_key",
    Source("keys", fields="event_id string, event_time timestamp, s string, n int, b boolean, d date, x double"),
    {"events": Count(), "sum": Sum("x"), "times": Distinct("event_time")},
    keys={"s": "s", "n": "n", "b": "b", "d": "d", "hour": "hour(event_time)"},
    grain="1d",
)


@pytest.fixture(scope="module")
def differences(spark: SparkSession) -> dict[str, list[str]]:
    """Of all views, by one job."""
    return check_spark(spark, [*CATALOG.values(), KEYS], seed=7, events=400)


@pytest.mark.parametrize("name", [*CATALOG, KEYS.name])
def test_spark_is_the_oracle(differences: dict[str, list[str]], name: str) -> None:
    assert differences[name] == []


def test_a_wrong_state_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("views.aggregates.counting.CountAlgebra.aggregate", lambda *_arguments: ["count(1) + 1"])
    (found,) = check_spark(spark, [CATALOG["page_hits"]], events=50)["page_hits"]
    assert found.startswith("View 'page_hits', answer 'hits': ")
    assert " by Spark, " in found


@pytest.mark.parametrize("name", ["page_latency", "top_pages"])
def test_the_sql_that_is_shown_makes_the_same_states(spark: SparkSession, name: str) -> None:
    view = CATALOG[name]
    rows = [
        (view.source.topic, record.event.partition, record.event.offset, datetime(2026, 1, 1, tzinfo=UTC), record.value)
        for record in generate(view.source, 100, 3, views=[view], duplicates=0)
    ]
    events = with_event(spark.createDataFrame(rows, RECORDS), view.source)
    events.createOrReplaceTempView("events")
    wanted = states(events, view).select("bucket", *view.keys, "state")
    shown = spark.sql(state_sql(view))
    assert shown.schema.names == wanted.schema.names
    assert sorted(map(repr, shown.collect())) == sorted(map(repr, wanted.collect()))
    spark.catalog.dropTempView("events")
