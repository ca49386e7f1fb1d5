"""CloudEvents in a real Kafka, as the SDK's Kafka binding writes them: counted once, alike in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cloudevents.core.bindings import kafka as sdk
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as OldCloudEvent
from cloudevents.v1.kafka import to_structured as old_to_structured

from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table.paths import table_path
from tests.conftest import Stack, interpreted
from tests.system.speed_source import RedisServer, SpeedPlace
from views.in_memory import Event
from views.sample_events import encode, generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = """
from views.aggregates import Count, Distinct, Quantiles, Sum
from views.source import Source
from views.view import View

source = Source(
    "{source}", envelope="cloudevents",
    fields="event_id string, event_time timestamp, region string, "
           "data struct<item: string, cents: int, ms: double>",
)
sales = View(
    "sales", source=source, grain="1h", keys={{"item": "data.item"}}, where="data.cents is not null",
    answers={{"orders": Count(), "cents": Sum("data.cents"), "regions": Distinct("region"),
             "ms": Quantiles("data.ms")}},
)
totals = View("totals", source=source, grain="1d", answers={{"events": Count()}})
"""
Sent = tuple[bytes, dict[str, bytes]]


def in_binary_mode(event: CloudEvent) -> Sent:
    message = sdk.to_binary_event(event)
    return message.value, message.headers


def in_structured_mode(event: CloudEvent) -> Sent:
    message = sdk.to_structured_event(event)
    return message.value, message.headers


def by_version_1_of_the_sdk(event: CloudEvent) -> Sent:
    """In its structured mode no header says that it is a CloudEvent."""
    attributes = {**event.get_attributes(), "time": event.get_time().isoformat()}
    message = old_to_structured(OldCloudEvent(attributes, event.get_data()))
    return message.value, message.headers


MODES = (in_binary_mode, in_structured_mode, by_version_1_of_the_sdk)


class CloudEventsPlace(SpeedPlace):
    """Events are sent in turn in each mode, and bare as the collector stores them."""

    def declare(self, text: str) -> None:
        super().declare(DECLARED)

    def send_cloudevents(self, count: int) -> None:
        self.seed += 1
        records = [record.event for record in generate(self.source, count, self.seed, views=self.views)]
        with self.producing() as produce:
            for place, event in enumerate([*records, *self.events[::7]]):
                mode = MODES[place % 4] if place % 4 < len(MODES) else None
                value, headers = (encode(event.fields).encode(), {}) if mode is None else mode(cloudevent_of(event))
                produce(event, value, partition=event.partition, headers=list(headers.items()))

    def send_wrong(self, *records: tuple[bytes | None, list[tuple[str, bytes | None]]]) -> None:
        with self.producing() as produce:
            for place, (value, headers) in enumerate(records):
                produce(None, value, partition=place % 3, headers=headers)

    def archived(self, column: str) -> list[Any]:
        """What a column of the table has, of all records."""
        table = table_path(self.settings, self.name)
        batches = read_records(table, RecordFilter(with_invalid=True), [column])
        return [value for batch in batches for value in batch.column(column).to_pylist()]


def cloudevent_of(event: Event) -> CloudEvent:
    attributes = {
        "specversion": "1.0", "id": event.event_id, "source": "/shop", "type": "order", "time": event.event_time,
        "datacontenttype": "application/json", "region": event.fields.get("region"),
    }  # fmt: skip
    given = {name: value for name, value in attributes.items() if value is not None}
    return CloudEvent(given, event.fields.get("data"))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


def test_cloudevents_of_every_mode_are_counted_once_and_alike_by_every_layer(
    stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession
) -> None:
    ce: list[tuple[str, bytes | None]] = [("ce_specversion", b"1.0"), ("ce_source", b"/s"), ("ce_type", b"t")]
    with interpreted(spark) as session:
        place = CloudEventsPlace(stack, tmp_path, redis, session)
        with place.keeping() as writer:
            place.send_cloudevents(80)
            place.caught_up()
            place.send_wrong(
                (b"{}", ce),
                (b"{", [*ce, ("ce_id", b"broken")]),
                (b"[]", [("content-type", b"application/cloudevents-batch+json")]),
                (b'{"specversion": "0.3", "id": "old"}', []),
                (None, []),
                (b'{"cents": "many"}', [*ce, ("ce_id", b"many")]),
            )
            place.send_cloudevents(40)
            place.caught_up()
            assert not writer.error
            place.archive_and_run()
            assert place.check() == len(place.events)
            place.send_cloudevents(40)
            place.caught_up()
    assert sorted(reason for reason in place.archived("invalid") if reason) == [
        "data.cents is not int",
        "no value (a tombstone)",
        "not a CloudEvent: content-type: application/cloudevents-batch+json is for HTTP; a record of Kafka has one "
        "CloudEvent",
        "not a CloudEvent: data: line 1 column 2: this is not JSON: unexpected end of data",
        "not a CloudEvent: id: every CloudEvent has this attribute; here it is missing",
        "not a CloudEvent: specversion: this should be '1.0'; it is '0.3'",
    ]
    assert {event.event_id for event in place.events if event.event_id.startswith("e1-")} <= set(
        place.archived("event_id")
    )
