"""`tidemark verify` and what excuses a difference, on a real Redis, real read indexes and a master dataset on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_layer.consistency import quarantine
from hand_off.speed_views import totals_of
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from serving_layer.verification import verify
from tests.serving_data import SALES, SHOP, TOTALS, end_of
from tests.system.speed_source import RedisServer
from tests.system.test_quarantine import Compare
from tests.system.test_query_engine import END, EVENTS, HALF, QUARTER
from views.in_memory import Event

EVENT = pa.struct(
    [
        ("event_id", pa.string()), ("event_time", pa.timestamp("us", "UTC")), ("item", pa.string()),
        ("size", pa.int32()), ("gift", pa.bool_()), ("on_day", pa.date32()), ("user_id", pa.string()),
        ("cents", pa.int32()), ("price", pa.decimal128(9, 2)), ("ms", pa.float64()),
    ]
)  # fmt: skip
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
        ("event_time", pa.timestamp("us", "UTC")), ("event_id", pa.string()), ("invalid", pa.string()),
        ("event", EVENT),
    ]
)  # fmt: skip
SENT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    yield found
    found.kill()


@pytest.fixture
def shop(tmp_path: Path, server: RedisServer) -> Iterator[Compare]:
    made = Compare(tmp_path / "home", server)
    made.place.settings = made.place.settings.model_copy(update={"batch_wait_s": 0.3})
    yield made
    made.engine.close()


def archive(shop: Compare, events: Sequence[Event] = EVENTS, late: Sequence[tuple[int, int]] = ()) -> None:
    """A master dataset of one commit, as the archiver would have made it; `late`: records that came a day later."""
    table = table_path(shop.place.settings, SHOP.name)
    (table / "_delta_log").mkdir(parents=True)
    rows = [
        {
            "partition": event.partition, "offset": event.offset, "event_id": event.event_id,
            "event_time": event.event_time, "event": event.fields,
            "timestamp": SENT + timedelta(days=(event.partition, event.offset) in late),
        }
        for event in events
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), table / "part-0.parquet")
    proof = Proof(Kind.APPEND, end=end_of(events), rows=len(rows))
    actions = [
        {"commitInfo": {"userMetadata": proof.to_json()}},
        {"add": {"path": "part-0.parquet", "size": (table / "part-0.parquet").stat().st_size}},
    ]
    (table / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def check_speed(shop: Compare) -> dict[str, quarantine.Compared]:
    found = verify.verify_speed_views(shop.place.settings, shop.speed_views, SHOP, [SALES, TOTALS])
    return {each.view: each for each in found}


def check_answers(shop: Compare) -> list[quarantine.Compared]:
    return verify.from_scratch(shop.place.settings, shop.engine, SHOP, [SALES, TOTALS])


@pytest.mark.parametrize("at_a_time", [200_000, 60], ids=["at once", "in parts"])
def test_right_sides_are_found_right_however_much_fits_into_memory(shop: Compare, at_a_time: int) -> None:
    archive(shop)
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    shop.writer.apply(EVENTS, END)
    for found in check_speed(shop).values():
        assert (found.mismatched, found.why_not) == (0, "")
        assert found.compared > 0
    shop.place.settings = shop.place.settings.model_copy(update={"consistency_events": at_a_time})
    for found in check_answers(shop):
        assert (found.mismatched, found.why_not) == (0, ""), found.examples
        assert found.compared >= 4
    too_many = check_speed(shop)["sales"].why_not
    assert ("more than consistency_events" in too_many) == (at_a_time == 60)


@pytest.mark.parametrize("name", [SALES.hash, totals_of(SALES.hash)], ids=["group", "total"])
def test_wrong_state_is_found_on_demand_and_quarantined(shop: Compare, name: str) -> None:
    archive(shop)
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    shop.writer.apply(EVENTS, END)
    shop.corrupt(name)
    sales, totals = check_answers(shop)
    assert sales.mismatched > 0
    assert totals.mismatched == 0
    assert not shop.query().meta.degraded, "from scratch only looks"
    assert {view: each.mismatched for view, each in check_speed(shop).items()} == {"sales": 1, "totals": 0}
    assert shop.query().meta.degraded
    assert [each.mismatched for each in check_answers(shop)] == [0, 0], "what is left is right at its own cut"
    shop.speed_views.runs.forget()
    shop.writer.start()
    shop.writer.apply(EVENTS, END)
    assert check_speed(shop)["sales"].mismatched == 0
    assert not shop.query().meta.degraded


def test_view_that_is_found_right_on_demand_comes_back(shop: Compare) -> None:
    archive(shop)
    shop.writer.apply(EVENTS, QUARTER)
    shop.corrupt()
    assert shop.compared_run(1)["sales"].mismatched == 1
    shop.writer.apply(EVENTS, END)
    assert shop.query().meta.degraded
    assert check_speed(shop)["sales"].mismatched == 0
    assert not shop.query().meta.degraded


@pytest.mark.parametrize(("is_late", "excused"), [(True, 2), (False, 0)])
def test_copy_counts_as_an_excuse_only_if_it_came_after_the_horizon(shop: Compare, is_late: bool, excused: int) -> None:
    """The speed view counts a duplicate: legal where it had forgotten the id by then, wrong where it had not."""
    first = next(event for event in EVENTS if event.fields.get("cents") is not None)
    place = (first.partition, END[first.partition])
    again = replace(first, offset=place[1])
    end = {**END, place[0]: place[1] + 1}
    archive(shop, [*EVENTS, again], [place] if is_late else [])
    shop.writer.apply(EVENTS, END)
    renamed = replace(again, event_id="counted", fields={**again.fields, "event_id": "counted"})
    shop.writer.apply([*EVENTS, renamed], end)
    found = check_speed(shop)["sales"]
    assert (found.mismatched, found.excused) == (2, excused), "the group and its total"
    assert shop.query().meta.degraded == (not is_late)


@pytest.mark.parametrize(
    ("is_late", "most", "excused", "is_quarantined"),
    [(True, 100, 2, False), (False, 100, 0, True), (True, 1, 0, False), (False, 1, 0, False)],
)
def test_run_after_many_events_explains_duplicates_by_their_own_buckets(
    shop: Compare, is_late: bool, most: int, excused: int, is_quarantined: bool
) -> None:
    """And what it cannot explain it tells, without quarantining the view: it may be legal."""
    shop.place.settings = shop.place.settings.model_copy(update={"consistency_events": most})
    first = next(event for event in EVENTS if event.fields.get("cents") is not None)
    place = (first.partition, END[first.partition])
    again = replace(first, offset=place[1])
    end = {**END, place[0]: place[1] + 1}
    archive(shop, [*EVENTS, again], [place] if is_late else [])
    shop.writer.apply(EVENTS, END)
    renamed = replace(again, event_id="counted", fields={**again.fields, "event_id": "counted"})
    shop.writer.apply([*EVENTS, renamed], end)
    found = shop.compared_run(1, events=[*EVENTS, again])["sales"]
    assert (found.mismatched, found.excused) == (2, excused)
    assert bool(found.not_explained) == ("not explained" in found.in_words) == (most == 1)
    assert shop.query().meta.degraded == is_quarantined


@pytest.mark.parametrize("wrong", [0, 1], ids=["last", "count too"])
def test_equal_duplicates_in_two_partitions_may_give_another_last_one_and_nothing_else(
    shop: Compare, wrong: int
) -> None:
    first = next(event for event in EVENTS if event.fields.get("cents") is not None)

    def made(partition: int, name: str) -> Event:
        fields = {**first.fields, "event_id": name, "user_id": name}
        return replace(first, partition=partition, offset=END[partition], event_id=name, fields=fields)

    ours, other, copy = made(0, "ours"), made(1, "other"), made(2, "ours")
    end = {partition: offset + 1 for partition, offset in END.items()}
    archive(shop, [*EVENTS, ours, other, copy])
    shop.writer.apply([*EVENTS, other, copy, *([replace(ours, event_id="x")] if wrong else [])], end)
    found = check_speed(shop)["sales"]
    assert found.mismatched > 0
    assert found.excused == (0 if wrong else found.mismatched)
    assert shop.query().meta.degraded == bool(wrong)


def test_events_that_are_not_archived_yet_are_waited_for_and_then_named(shop: Compare) -> None:
    archive(shop, [event for event in EVENTS if event.offset < HALF[event.partition]])
    shop.writer.apply(EVENTS, END)
    assert "does not hold" in check_speed(shop)["sales"].why_not
    assert "does not hold" in check_answers(shop)[0].why_not
