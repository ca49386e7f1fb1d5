"""The load of the fault programme: the same for a seed, and as unkind as it is meant to be."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from itertools import islice

import pytest

from torture.fates import Fate, Fates
from torture.load import DUPLICATE_KINDS, HOUR_BEFORE_S, JITTER_S, TWO_DAYS_S, PlannedRecord, history, planned_records
from torture.poison import poison_for
from torture.shop import minutes, sales, shop, totals
from views.catalog.campaign_spend import ads
from views.catalog.sensor_readings import sensors
from views.catalog.web import web
from views.sample_events import START
from views.source import Source

COUNT = 10_000
VIEWS = [sales, totals, minutes]


@pytest.fixture(scope="module")
def records() -> list[PlannedRecord]:
    return list(islice(planned_records(shop, VIEWS, 7), COUNT))


def test_the_same_seed_is_the_same_load(records: list[PlannedRecord]) -> None:
    assert list(islice(planned_records(shop, VIEWS, 7), 3_000)) == records[:3_000]
    assert list(islice(planned_records(shop, VIEWS, 8), 3_000)) != records[:3_000]


def test_it_has_its_share_of_duplicates_of_every_kind_and_of_poison(records: list[PlannedRecord]) -> None:
    duplicates = Counter(record.duplicate for record in records if record.duplicate)
    assert set(duplicates) == set(DUPLICATE_KINDS)
    assert 0.015 < duplicates.total() / COUNT < 0.025
    assert 0.003 < sum(record.poison is not None for record in records) / COUNT < 0.008
    assert len({record.poison.name for record in records if record.poison}) > 30


@pytest.mark.parametrize("source", [shop, web, ads, sensors], ids=lambda source: source.name)
def test_poison_is_poison_for_the_source_that_gets_it(source: Source) -> None:
    """What is an event for one source may be poison for another, and would be missed among the dead letters."""
    strewn = [record.poison for record in islice(planned_records(source, [], 7), 6_000) if record.poison]
    assert len(strewn) > 20
    assert [each.name for each in strewn if each not in poison_for(source)] == []


def test_a_duplicate_is_its_event_byte_for_byte(records: list[PlannedRecord]) -> None:
    first: dict[str, PlannedRecord] = {}
    for record in records:
        if record.duplicate:
            assert record.value == first[record.event_id].value
            assert (record.partition != first[record.event_id].partition) == (record.duplicate == "partitions")
            if record.duplicate == "hour":
                assert first[record.event_id].age_s - record.age_s in (HOUR_BEFORE_S, 0)
        elif record.event:
            assert first.setdefault(record.event_id, record) is record


def test_events_are_late_and_out_of_order_and_keys_are_uneven(records: list[PlannedRecord]) -> None:
    times = [record.event.event_time for record in records if record.event and not record.duplicate]
    newest = times[0]
    late = Counter[str]()
    for at in times:
        behind = (newest - at).total_seconds()
        late["out of order"] += behind > 0
        late["hours"] += behind > 3700
        newest = max(newest, at)
    assert late["out of order"] > COUNT / 4
    assert 0.005 < late["hours"] / COUNT < 0.02
    items = Counter(record.event.fields.get("item") for record in records if record.event)
    assert items["item-0"] > 5 * items["item-20"] > 0


def test_every_partition_and_both_ways_are_used(records: list[PlannedRecord]) -> None:
    assert {record.partition for record in records} == set(range(shop.partitions))
    assert 0.2 < sum(record.by_rest for record in records) / COUNT < 0.4
    assert not any(record.by_rest for record in records if record.poison)


def test_history_is_older_than_the_load_with_duplicates_in_it_and_other_ids(records: list[PlannedRecord]) -> None:
    one, same = (history(shop, VIEWS, random.Random(5), 2_000) for _ in range(2))  # noqa: S311
    assert one == same
    assert len(one) == 2_000
    events = [record.event for record in one if record.event]
    assert len(events) == 2_000, "no poison"
    first, last = START - timedelta(seconds=TWO_DAYS_S), START + timedelta(seconds=JITTER_S)
    assert all(first <= event.event_time <= last for event in events)
    assert min(event.event_time for event in events) < first + timedelta(hours=1)
    ids = {event.event_id for event in events}
    assert len(ids) == 2_000 - sum(record.duplicate is not None for record in one)
    assert 1_850 < len(ids) < 1_950
    assert not ids & {record.event_id for record in records}
    assert not ids & {record.event_id for record in history(shop, VIEWS, random.Random(6), 2_000)}  # noqa: S311
    assert {record.partition for record in one} == set(range(shop.partitions))
    assert not any(record.by_rest for record in one)


def test_fates_are_written_as_they_happen(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fates") / "fates.jsonl"
    fates = Fates(path)
    fates.note(Fate(1, "a", "kafka", "acknowledged", 0, 7))
    fates.note(Fate(2, "b", "rest", "unknown", reason="503"))
    assert path.read_text().splitlines() == [
        '[1, "a", "kafka", "acknowledged", 0, 7, ""]',
        '[2, "b", "rest", "unknown", -1, -1, "503"]',
    ]
    assert fates.ends() == {0: 8}
    assert fates.acknowledged == {(0, 7): "a"}
    fates.close()
