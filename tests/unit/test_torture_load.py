"""The load of the fault programme: the same for a seed, and as unkind as it is meant to be."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from torture.fates import Fate, Fates
from torture.load import COPY_KINDS, HOUR_BEFORE_S, Planned, planned
from torture.poison import poison_for
from torture.shop import minutes, sales, shop, totals
from views.catalog.campaign_spend import ads
from views.catalog.sensor_readings import sensors
from views.catalog.web import web
from views.source import Source

COUNT = 10_000
VIEWS = [sales, totals, minutes]


@pytest.fixture(scope="module")
def records() -> list[Planned]:
    return list(islice(planned(shop, VIEWS, 7), COUNT))


def test_the_same_seed_is_the_same_load(records: list[Planned]) -> None:
    assert list(islice(planned(shop, VIEWS, 7), 3_000)) == records[:3_000]
    assert list(islice(planned(shop, VIEWS, 8), 3_000)) != records[:3_000]


def test_it_has_its_share_of_copies_of_every_kind_and_of_poison(records: list[Planned]) -> None:
    copies = Counter(record.copy for record in records if record.copy)
    assert set(copies) == set(COPY_KINDS)
    assert 0.015 < copies.total() / COUNT < 0.025
    assert 0.003 < sum(record.poison is not None for record in records) / COUNT < 0.008
    assert len({record.poison.name for record in records if record.poison}) > 30


@pytest.mark.parametrize("source", [shop, web, ads, sensors], ids=lambda source: source.name)
def test_poison_is_poison_for_the_source_that_gets_it(source: Source) -> None:
    """What is an event for one source may be poison for another, and would be missed among the dead letters."""
    strewn = [record.poison for record in islice(planned(source, [], 7), 6_000) if record.poison]
    assert len(strewn) > 20
    assert [each.name for each in strewn if each not in poison_for(source)] == []


def test_a_copy_is_its_event_byte_for_byte(records: list[Planned]) -> None:
    first: dict[str, Planned] = {}
    for record in records:
        if record.copy:
            assert record.value == first[record.event_id].value
            assert (record.partition != first[record.event_id].partition) == (record.copy == "partitions")
            if record.copy == "hour":
                assert first[record.event_id].age_s - record.age_s in (HOUR_BEFORE_S, 0)
        elif record.event:
            assert first.setdefault(record.event_id, record) is record


def test_events_are_late_and_out_of_order_and_keys_are_uneven(records: list[Planned]) -> None:
    times = [record.event.event_time for record in records if record.event and not record.copy]
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


def test_every_partition_and_both_ways_are_used(records: list[Planned]) -> None:
    assert {record.partition for record in records} == set(range(shop.partitions))
    assert 0.2 < sum(record.by_rest for record in records) / COUNT < 0.4
    assert not any(record.by_rest for record in records if record.poison)


def test_fates_are_written_as_they_happen(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fates") / "fates.jsonl"
    fates = Fates(path)
    fates.note(Fate(1, "a", "kafka", "acknowledged", 0, 7))
    fates.note(Fate(2, "b", "rest", "unknown", why="503"))
    assert path.read_text().splitlines() == [
        '[1, "a", "kafka", "acknowledged", 0, 7, ""]',
        '[2, "b", "rest", "unknown", -1, -1, "503"]',
    ]
    assert fates.ends() == {0: 8}
    assert fates.acknowledged == {(0, 7): "a"}
    fates.close()
