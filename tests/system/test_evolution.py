"""A source evolves on real Kafka, Redis and Spark while events come: each answer is the oracle's, by one version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hand_off import publish_log
from hand_off.errors import BatchError
from hand_off.manifests import read_manifest
from master_dataset.archiver.archive import open_archive
from master_dataset.dead_letters.later_readings import LaterReadings
from master_dataset.dead_letters.letters import newest_first
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table import readings
from master_dataset.table.checks.fsck import quick_check
from master_dataset.table.fields import SourceChanged
from master_dataset.table.paths import table_path
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from serving_layer.verification.from_scratch import events_below, recompute
from tests.conftest import Killed, Stack, dying_at, wait_until
from views import in_memory
from views.declarations import declared_by
from views.in_memory import Event
from views.reading import picked
from views.sample_events import START

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.system.speed_source import RedisServer, SpeedPlace

NEXT = """
from views.aggregates import Count, Distinct, First, Last, Max, Quantiles, Sum
from views.derived import Ratio
from views.source import Source
from views.view import View

source = Source(
    "{source}", version=2, aliases={{"user": ("user_id",)}},
    fields="event_id string, event_time timestamp, user string, item string, cents bigint, "
           "coupon string DEFAULT 'none', price decimal(10,2)",
)
sales = View(
    "sales", source=source, grain="1h", keys={{"item": "item", "coupon": "coupon"}}, where="cents is not null",
    answers={{"orders": Count(), "cents": Sum("cents"), "users": Distinct("user"), "price": Sum("price")}},
)
totals = View("totals", source=source, grain="1d", answers={{"events": Count(), "users": Distinct("user")}})
"""
LARGE = 3_000_000_000
"""Cents that no int holds, but a bigint does."""


@pytest.fixture
def place(stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession) -> SpeedPlace:
    from tests.system.speed_source import SpeedPlace

    return SpeedPlace(stack, tmp_path, redis, spark, archive_max_interval_s=1)


@contextmanager
def archiving(place: SpeedPlace) -> Iterator[None]:
    """The archiver, as it was started before anything changed."""
    with ExitStack() as locks:
        archive = open_archive(place.settings, place.kafka, place.source, place.spark, locks)
        query = archive.start(place.spark)
        try:
            yield
        finally:
            archive.stop_waiting()
            query.stop()


def send_large(place: SpeedPlace, *numbers: int) -> list[Event]:
    """Events that version 1 finds invalid and version 2 does not. The oracle gets them when that is in force."""
    known, place.events = place.events, []
    with place.producing() as produce:
        for number in numbers:
            fields = {"event_id": f"large-{number}", "event_time": START, "item": "a", "cents": LARGE, "user": "u"}
            event = Event(0, 0, fields["event_id"], START, fields)
            text = f'{{"event_id":"large-{number}","event_time":"{START.isoformat()}","item":"a","cents":{LARGE}'
            produce(event, f'{text},"user":"u"}}'.encode(), partition=number % 3)
    large, place.events = place.events, known
    return large


def evolve_oracle(place: SpeedPlace, large: list[Event]) -> None:
    """From here on the oracle reads every event as version 2 does."""
    place.source = declared_by(place.settings).source(place.name)
    schema = place.source.schema
    place.events = [replace(each, fields=picked(schema, each.fields)) for each in [*place.events, *large]]


def version_served(place: SpeedPlace) -> int:
    entry = publish_log.served(place.folder)
    return 2 if all(entry.catalog[view.name] == view.hash for view in place.views) else 1


def test_fields_are_added_widened_renamed_and_removed_while_events_come(place: SpeedPlace) -> None:
    place.send(60, poison=3)
    with place.keeping() as writer, archiving(place):
        place.caught_up()
        place.run()
        large = send_large(place, 1, 2, 3)
        place.send(40)
        place.caught_up()
        place.wait_until_archived()  # as version 1 judges them
        old_views = place.views
        engine = QueryEngine(place.settings, declared_by(place.settings))  # a serving process, started before
        assert coupons(engine, place) == {}
        place.declare(NEXT)

        def meanwhile(step: str) -> None:
            nonlocal large
            if step == "run.after_prepare":  # all of version 2 is computed: version 1 is served, and goes on
                place.send(30)
                large += send_large(place, 3, 4)  # a duplicate of what version 1 never counted
                place.wait_until_applied()
                assert version_served(place) == 1
                assert check_of(place, old_views) == len(place.events)

        first = place.run(failpoint=meanwhile)
        assert version_served(place) == 2
        assert first.base_run == first.run - 1, "it went on from what was prepared"
        evolve_oracle(place, large)
        wait_until("the speed views to follow", lambda: published(place) == first.run, 60)
        place.caught_up()
        assert set(coupons(engine, place)) == {"none"}
        place.send(40)
        evolve_oracle(place, send_large(place, 4, 5))  # a duplicate from before the cut, and a new one
        place.caught_up()
        second = place.run()
        assert (second.base_run, second.events - second.invalid) == (first.run, len(place.events))
        place.caught_up()
        place.send(30)
        place.caught_up()
        assert len(coupons(engine, place)) > 1, "of the batch view and of the speed view"
        engine.close()
    assert writer.error == ""
    place.archive()
    table, end = table_path(place.settings, place.name), place.kafka_end()
    again = list(events_below(table, place.source, end))
    assert len(again) == len(place.events)
    for view in place.views:
        assert in_memory.answers(view, again) == in_memory.answers(view, place.events), "read again without Spark"
    assert [finding for finding in quick_check(table) if finding.is_damage] == []
    assert readings.reading_in_force(table, place.source).version == 2
    rows = [row for batch in read_records(table, RecordFilter(with_invalid=True)) for row in batch.to_pylist()]
    late = [row for row in rows if row["event_id"] == "large-5"]
    assert [(row["invalid"], row["event"]["cents"]) for row in late] == [(None, None)], (
        "valid, in the columns there are"
    )
    by_id = {row["offset"]: row for row in rows if b'"large-1"' in row["value"]}
    assert all(row["invalid"] == "cents is not int" for row in by_id.values()), "as it was judged when it came"
    by_now, letters = LaterReadings(table, place.source), list(newest_first(place.config, place.source))
    assert len(letters) == sum(row["invalid"] is not None for row in rows)
    assert {each.reason for each in letters if by_now.counts_since(each) == 2} == {"cents is not int"}
    assert {by_now.counts_since(each) for each in letters if each.reason != "cents is not int"} == {None}


def coupons(engine: QueryEngine, place: SpeedPlace) -> dict[Any, int]:
    """The orders of each coupon, the oracle's at the cut of the result; empty before there are any."""
    view = engine.served_view("sales")
    if "coupon" not in view.keys:
        return {}
    pairs = [("by", "coupon"), ("grain", "all"), ("from", "2026-01-01"), ("to", "2027-01-01"), ("limit", "1000")]
    query = parse_query(view, pairs, now=time.time(), limits=QueryLimits())
    result = engine.execute(query)
    below = [event for event in place.events if event.offset < result.meta.cut.get(event.partition, 0)]
    expected = {key: answers["orders"] for (_, key), answers in recompute(query, below).items()}
    found = {row.key: row.answers["orders"] for row in result.rows}
    assert found == expected
    return {key[0]: orders for key, orders in found.items()}


def check_of(place: SpeedPlace, views: tuple[Any, ...]) -> int:
    """As `place.check`, of views that are no longer declared."""
    text = (place.views_dir / "declared.py").read_text()
    from tests.system.speed_source import DECLARED

    place.declare(DECLARED)
    try:
        assert place.views == views
        return place.check()
    finally:
        (place.views_dir / "declared.py").write_text(text)


def published(place: SpeedPlace) -> int:
    meta = place.speed_views.reader.snapshot().meta
    return -1 if meta is None else meta.published


STEPS = (
    "readings.before_adopt",
    "readings.after_adopt",
    "run.after_prepare",
    "run.before_publish",
    "run.after_publish",
)


def test_a_switch_that_is_killed_anywhere_is_whole_or_not_there(
    place: SpeedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send(60, poison=3)
    place.archive()
    with place.keeping() as writer:
        place.caught_up()
        place.run()
        large = send_large(place, 1)
        place.caught_up()
        place.archive()
        old_views = place.views
        place.declare(NEXT)
        for step in STEPS:
            with monkeypatch.context() as patched:
                patched.setattr(readings, "reach", dying_at(step))
                with pytest.raises(Killed):
                    place.run(failpoint=dying_at(step))
            if step == STEPS[-1]:
                break
            assert version_served(place) == 1
            place.wait_until_applied()
            assert check_of(place, old_views) == len(place.events), step
        run = publish_log.last(place.folder).run
        wait_until("the writer to complete it", lambda: published(place) == run, 60)
        evolve_oracle(place, large)
        place.send(30)
        evolve_oracle(place, send_large(place, 1))
        place.caught_up()
        place.archive()
        place.run()
        place.caught_up()
    assert writer.error == ""


def test_a_switch_without_a_writer_and_one_that_is_refused(place: SpeedPlace) -> None:
    place.send(60)
    place.archive()
    with place.keeping():
        place.caught_up()
        place.run()
    large = send_large(place, 1)
    place.archive()
    place.declare(NEXT.replace("version=2", "version=3"))
    with pytest.raises(
        SourceChanged, match=r"its version is 3, and that of its master table 1\..*Declare it with version=2"
    ):
        place.run()
    place.declare(NEXT.replace("cents bigint", "cents smallint"))
    with pytest.raises(SourceChanged, match="'cents' was int and is smallint, which does not hold every value of it"):
        place.run()
    place.declare(NEXT)
    with pytest.raises(Killed):
        place.run(failpoint=dying_at("run.after_publish"))
    published = publish_log.last(place.folder).run
    prepared = read_manifest(place.folder, place.run().base_run or 0)
    assert prepared.base_run == published, "what was published of a switch that did not end is not computed again"
    evolve_oracle(place, large)
    with place.keeping() as writer:
        place.send(20)
        evolve_oracle(place, send_large(place, 1, 2))
        place.caught_up()
    assert writer.error == ""
    place.declare(NEXT.replace("coupon string DEFAULT 'none'", "coupon string"))
    with pytest.raises(
        SourceChanged, match=r"'coupon' has no DEFAULT, and had the DEFAULT 'none'\. Declare it with version=3"
    ):
        place.run()
    place.declare(NEXT)
    publish_log.serve(place.folder, 1)
    place.declare(NEXT.replace("version=2", "version=3"))
    with pytest.raises(BatchError, match="cannot begin while readers are rolled back to run 1"):
        place.run()
    assert readings.reading_in_force(table_path(place.settings, place.name), place.source).version == 2, "nothing began"
