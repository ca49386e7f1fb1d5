"""A watch looks at valid events alone, with the values that Spark would give its condition."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from infra.settings import load_settings
from infra.store import PosixStore
from master_dataset.errors import InvalidEvent
from master_dataset.events.raw_records import RawRecord
from master_dataset.reading.event_reader import EventReader, ReadEvent
from master_dataset.table.paths import own_folder, table_path
from master_dataset.writer_schemas.noted import NotedSchemas
from serving_layer.alerts.bound_watches import BoundWatches
from serving_layer.alerts.watch_events import MAX_EVENT_BYTES, match_json, record_of
from serving_layer.alerts.watches import Watcher
from views.declarations import Declarations
from views.source import Source
from views.watch import Watch

SOURCE = Source(
    "shop",
    fields="""
        event_id string, event_time timestamp, item string, cents int, price decimal(9,2), ms double, on_day date,
        weight decimal(38,10), tags array<string>, at struct<host: string, since: timestamp>
    """,
)
NOTHING_NOTED = NotedSchemas(load_settings(home=Path("no-home")), SOURCE)
EVENT: dict[str, Any] = {
    "event_id": "e1", "event_time": "2026-03-01T01:00:00+01:00", "item": "Tea", "cents": 250, "price": 2.5, "ms": 7,
    "on_day": "2026-03-01", "tags": ["hot", "new"], "at": {"host": "h1", "since": "2026-02-01T00:00:00Z"},
}  # fmt: skip


def record(value: bytes | dict[str, Any], base: int = 0) -> RawRecord:
    written = value if isinstance(value, bytes) else json.dumps(value).encode()
    return record_of(Message("shop", 1, 7, b"key", written), base)


def read(found: RawRecord) -> ReadEvent:
    return EventReader(SOURCE, NOTHING_NOTED).read(found)


@pytest.mark.parametrize(("where", "expected"), [
    ("item = 'Tea'", True), ("lower(item) = 'tea'", True), ("cents > 250", False), ("price = 2.50", True),
    ("price * 2 > 4.99", True), ("ms >= 7.0", True), ("on_day = date '2026-03-01'", True),
    ("event_time = timestamp '2026-03-01T00:00:00Z'", True), ("hour(event_time) = 0", True),
    ("array_contains(tags, 'new')", True), ("at.host = 'h1' and year(at.since) = 2026", True),
    ("event_id = 'e1'", True), ("item is null", False),
])  # fmt: skip
def test_a_condition_is_evaluated_on_the_fields_as_declared(where: str, expected: bool) -> None:
    assert bool(Watch("w", SOURCE, where=where).condition.evaluate(read(record(EVENT)).fields)) is expected


@pytest.mark.parametrize("value", [
    b"", b"{", b"[]", b'{"event_id": "torn', b"\xff\xfe", b'{"cents": "many"}', b'{"cents": 99999999999}',
    b'{"event_time": "soon"}', b'{"item": "a", "item": "b"}',
])  # fmt: skip
def test_what_is_no_event_matches_nothing(value: bytes) -> None:
    with pytest.raises(InvalidEvent):
        read(record(value))


def test_an_event_without_an_id_has_its_place_as_one() -> None:
    event = {"item": "Tea", "event_time": EVENT["event_time"]}
    found = read(record(event)).fields
    assert (found["event_id"], found["cents"]) == ("shop/1/7", None)
    assert read(record(event, base=40)).fields["event_id"] == "shop/1/47", "logical offsets, as in the master dataset"


def test_a_match_has_its_location_and_a_large_one_is_pushed_without_content() -> None:
    watch = Watch("w", SOURCE, where="cents > 0")
    for event, is_large in ((EVENT, False), ({**EVENT, "item": "x" * MAX_EVENT_BYTES}, True)):
        found = record(event)
        shown = json.loads(match_json(watch, found, read(found)))
        assert (shown["watch"], shown["partition"], shown["offset"], shown["event_id"]) == ("w", 1, 7, "e1")
        assert shown["event_time"] == "2026-03-01T00:00:00Z"
        assert (shown["event"] is None, shown["too_large"]) == (is_large, is_large)


def test_a_decimal_of_38_digits_is_compared_exactly() -> None:
    number = "1234567890123456789012345678.0000000001"
    found = read(record(f'{{"weight": {number}, "event_time": "2026-03-01T00:00:00Z"}}'.encode()))
    assert str(found.fields["weight"]) == number


def test_a_record_that_cannot_be_asked_about_is_counted_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_record: RawRecord) -> ReadEvent:
        raise OverflowError("a defect of ours")

    watch = Watch("w", SOURCE, where="item = 'Tea'")
    client: Any = None
    bound = bound_watches(tmp_path, watch)
    assert bound.look()
    watcher = Watcher(bound.settings, "", bound, client, threading.Event())
    absurd = Message("shop", 1, 7, b"key", b'{"item": "Tea"}', timestamp=(TIMESTAMP_CREATE_TIME, 2**62))
    assert watcher.matches(record_of(absurd)) == []
    assert watcher.skipped == 0, "it is invalid: its time is not between 1970 and 2199"
    with monkeypatch.context() as broken:
        broken.setattr(bound.reader, "read", fail)
        assert watcher.matches(record_of(absurd)) == []
    assert watcher.skipped == 1
    assert [watch.name for watch, _ in watcher.matches(record(EVENT))] == ["w"]


def bound_watches(home: Path, *watches: Watch) -> BoundWatches:
    declared = Declarations({SOURCE.name: SOURCE}, watches={each.name: each for each in watches})
    return BoundWatches(load_settings(home=home), SOURCE, watches, lambda: declared)


def put_reading(home: Path, source: Source) -> None:
    """As a batch run adopts it."""
    store = PosixStore(own_folder(table_path(load_settings(home=home), source.name)))
    store.put_if_absent(f"readings/{source.version:08}", json.dumps(source.reading).encode())


def test_watches_follow_the_version_that_is_in_force_with_the_condition_that_is_declared_for_it(tmp_path: Path) -> None:
    old = Watch("w", SOURCE, where="item = 'Tea'")
    gone = Watch("gone", SOURCE, where="cents > 0")
    following = replace(SOURCE, version=2, fields="event_id string, event_time timestamp, thing string", aliases={})
    bound = bound_watches(tmp_path, old, gone)
    put_reading(tmp_path, SOURCE)
    assert bound.look()
    assert not bound.look(), "nothing changed since"
    new = Watch("w", following, where="thing = 'Cup'")
    bound.declared = lambda: Declarations({SOURCE.name: following}, watches={"w": new})
    assert not bound.look(), "declared, and not in force"
    put_reading(tmp_path, following)
    assert bound.look()
    assert [(each.name, each.where, each.source.version) for each in bound.evaluated] == [("w", "thing = 'Cup'", 2)]
    assert list(bound.refused) == ["gone"]
    assert "not evaluated while version 2" in bound.refused["gone"]
    watcher = Watcher(bound.settings, "", bound, None, threading.Event())  # type: ignore[arg-type]
    found = record({"event_id": "a", "event_time": "2026-03-01T00:00:00Z", "thing": "Cup"})
    assert [watch.where for watch, _ in watcher.matches(found)] == ["thing = 'Cup'"]
    assert bound.status()["where:w"] == "thing = 'Cup'"
    assert bound.status()["refused:gone"] == bound.refused["gone"]


def test_a_condition_for_a_version_to_come_waits_for_it(tmp_path: Path) -> None:
    following = replace(SOURCE, version=2, fields=f"{SOURCE.fields}, coupon string")
    watch = Watch("w", following, where="coupon is not null")
    declared = Declarations({SOURCE.name: following}, watches={"w": watch})
    bound = BoundWatches(load_settings(home=tmp_path), following, (watch,), lambda: declared)
    put_reading(tmp_path, SOURCE)
    bound.look()
    assert (bound.evaluated, list(bound.refused)) == ((), ["w"])
    put_reading(tmp_path, following)
    assert bound.look()
    assert ([each.name for each in bound.evaluated], bound.refused) == (["w"], {})
