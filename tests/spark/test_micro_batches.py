"""A micro-batch, folded here or aggregated by Spark, adds what the oracle counts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hand_off.bucket_totals import by_name
from hand_off.speed_views import Group
from infra.settings import load_settings
from speed_layer import micro_batch, seen_id_loader
from speed_layer.micro_batch import AHEAD_MS, Delta, delta_of
from speed_layer.seen_id_loader import first_time_ms
from speed_layer.seen_ids import SeenBatch, SeenIds
from tests.conftest import assert_same
from views import in_memory
from views.columns import Columns
from views.declarations import load_declarations
from views.keys import unpack_key
from views.on_spark.columns import evaluated
from views.on_spark.events import with_event
from views.sample_events import SampleRecord, generate
from views.states import merge, pack, unpack
from views.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = "topic string, partition int, offset bigint, timestamp timestamp, value binary"
POISON = (b"{", b"\xff", None, b"[]")
WAYS = ("folded", "aggregated")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Both ways, whatever the size."""
    return str(request.param)


def views_of(source: str) -> tuple[View, ...]:
    return tuple(load_declarations(None, with_catalog=True, examples="all").views_of(source))


def rows_of(spark: SparkSession, views: tuple[View, ...], records: list[SampleRecord]) -> tuple[Columns, DataFrame]:
    """As Kafka gives them, poison among them, evaluated."""
    source, columns = views[0].source, Columns(views)
    at = datetime(2026, 3, 1, tzinfo=UTC)
    rows: list[tuple[Any, ...]] = [
        (source.topic, each.event.partition, each.event.offset, at, each.value) for each in records
    ]
    rows += [(source.topic, 7, offset, at, value) for offset, value in enumerate(POISON)]
    read = with_event(spark.createDataFrame(rows, RECORDS), source)
    return columns, evaluated(read, columns)


def presented(views: tuple[View, ...], states: dict[Group, bytes]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    by_hash = by_name(views)
    for group, state in states.items():
        view = by_hash[group.view]
        name = view.name if group.view == view.hash else f"totals of {view.name}"
        yield name, (group.bucket * 1_000_000, unpack_key(group.key)), view.present(unpack(view.algebras, state))


def total_answers(view: View, events: list[in_memory.Event]) -> dict[Any, dict[str, Any]]:
    """The oracle's answers for each bucket, over all keys."""
    found: dict[Any, Any] = {}
    for (bucket, _), state in in_memory.fold(view, in_memory.counted(events)).items():
        known = found.get((bucket, ()))
        found[bucket, ()] = state if known is None else merge(view.algebras, known, state)
    return {group: view.present(state) for group, state in found.items()}


def remembered(seen_ids: SeenIds, delta: Delta, name: str) -> None:
    seen_ids.add(SeenBatch(name, delta.newest_ms, delta.hashes))


@pytest.mark.parametrize("source", ["web", "logs", "sensors", "ads", "cards"])
def test_two_micro_batches_are_the_oracle(spark: SparkSession, way: str, source: str) -> None:
    views = views_of(source)
    records = generate(views[0].source, 300, 11, views=views, duplicates=0.2)
    by_hash = by_name(views)
    seen_ids, states = SeenIds(10**12), dict[Group, bytes]()
    for number, part in enumerate((records[:170], records[170:])):
        columns, rows = rows_of(spark, views, part)
        delta = delta_of(rows, columns, seen_ids, is_small=way == "folded")
        for group in delta.groups:
            algebras, known = by_hash[group.view].algebras, states.get(group)
            added = delta.add(group, None if known is None else unpack(algebras, known))
            states[group] = pack(algebras, added)
        remembered(seen_ids, delta, str(number))
    found: dict[str, dict[Any, Any]] = {}
    for name, group, answers in presented(views, states):
        found.setdefault(name, {})[group] = answers
    events = [record.event for record in records]
    assert len(in_memory.counted(events)) == seen_ids.count < len(events)
    for view in views:
        assert_same(found.pop(view.name), in_memory.answers(view, events))
        if view.keys:
            assert_same(found.pop(f"totals of {view.name}"), total_answers(view, events))
    assert not found


def test_of_duplicates_the_lowest_position_counts_unless_its_id_was_seen(spark: SparkSession, way: str) -> None:
    views = views_of("logs")
    records = generate(views[0].source, 40, 3, views=views, duplicates=0)
    again = [SampleRecord(r.value, in_memory.Event(9, n, "", r.event.event_time, {})) for n, r in enumerate(records)]
    columns, rows = rows_of(spark, views, [*again, *records])
    delta = delta_of(rows, columns, SeenIds(10**12), is_small=way == "folded")
    assert (len(delta.hashes), delta.duplicates) == (40, 40)
    seen_ids = SeenIds(10**12)
    seen_ids.add(SeenBatch("known", delta.newest_ms, delta.hashes[:15]))
    delta = delta_of(rows, columns, seen_ids, is_small=way == "folded")
    assert (len(delta.hashes), delta.duplicates) == (25, 55)
    assert not seen_ids.known(delta.hashes).any()
    without = delta_of(rows, columns, None, is_small=way == "folded")
    assert (len(without.hashes), without.duplicates) == (0, 0)


def test_nothing_valid_adds_nothing(spark: SparkSession, way: str) -> None:
    columns, rows = rows_of(spark, views_of("logs"), [])
    delta = delta_of(rows, columns, SeenIds(10**12), is_small=way == "folded")
    assert delta.groups == []
    assert (len(delta.hashes), delta.oldest_ms, delta.duplicates) == (0, 0, 0)
    assert delta.hashes.dtype == np.int64


AT_MS = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
HALF_HOUR_MS = 1_800_000


@pytest.mark.parametrize(
    ("clock_ms", "oldest_ms", "until_ms"),
    [
        (AT_MS + 5_000, AT_MS, AT_MS),
        (AT_MS + 10**9, AT_MS, AT_MS),  # a clock that is ahead changes nothing
        (AT_MS - HALF_HOUR_MS, AT_MS - HALF_HOUR_MS, AT_MS),  # one that is behind forgets nothing too early
        (AT_MS - 10 * AHEAD_MS, AT_MS - 10 * AHEAD_MS, AT_MS - 9 * AHEAD_MS),  # that is no clock, or no such records
    ],
)
def test_seen_ids_are_dated_by_kafka_though_our_clock_is_wrong(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, clock_ms: int, oldest_ms: int, until_ms: int
) -> None:
    views = views_of("web")
    columns, rows = rows_of(spark, views, generate(views[0].source, 20, 1))
    monkeypatch.setattr(micro_batch.time, "time", lambda: clock_ms / 1000)
    delta = delta_of(rows, columns, SeenIds(10**12), is_small=True)
    assert (delta.oldest_ms, delta.newest_ms) == (oldest_ms, until_ms)


@pytest.mark.parametrize(("ahead_ms", "first_ms"), [(7 * 86_400_000, AT_MS), (-5_000, AT_MS - 5_000)])
def test_seen_ids_are_loaded_from_the_newest_record_on_where_our_clock_is_ahead(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_ms: int, first_ms: int
) -> None:
    """Nothing came to Kafka since the cut. By a clock that is ahead, every mark would be too old to be loaded."""
    at = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [("web", 0, offset, at, None) for offset in range(3)]
    spark.createDataFrame(rows, RECORDS).write.format("delta").save(str(tmp_path / "table"))
    monkeypatch.setattr(seen_id_loader.time, "time", lambda: (AT_MS + ahead_ms) / 1000)
    source = views_of("web")[0].source
    found = first_time_ms(spark, load_settings(), "127.0.0.1:1", source, tmp_path / "table", {0: 3}, {0: 3}, {})
    assert found == first_ms
