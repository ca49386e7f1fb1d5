"""Records of other formats on a real Kafka: what several schemas wrote is counted once, alike in every layer."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fastavro
import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from master_dataset.kafka.topics import TopicPlan, create_topic
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.registry.errors import UnreadableTopic
from master_dataset.registry.snapshot import read_state
from master_dataset.table.paths import table_path
from serving_layer.alerts.bound_watches import BoundWatches
from serving_layer.alerts.watches import Watcher, read_states
from tests.conftest import Stack, interpreted, wait_until
from tests.schema_registry import Registry, running_registry
from tests.system.speed_source import RedisServer, SpeedPlace
from views.declarations import declared_by
from views.formats.framing import frame_of_id
from views.in_memory import Event
from views.sample_events import generate
from views.watch import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MILLIS = {"type": "long", "logicalType": "timestamp-micros"}
ITEMS: list[dict[str, Any]] = [
    {"name": "event_id", "type": "string"},
    {"name": "event_time", "type": MILLIS},
    {"name": "user_id", "type": ["null", "string"], "default": None},
    {"name": "item", "type": ["null", "string"], "default": None},
    {"name": "cents", "type": ["null", "long"], "default": None},
    {"name": "ms", "type": ["null", "double"], "default": None},
]
READER = {"type": "record", "name": "Order", "fields": ITEMS}
FIRST = {"type": "record", "name": "Order", "namespace": "shop", "fields": ITEMS}
SECOND = {**FIRST, "fields": [*ITEMS[::-1], {"name": "coupon", "type": {"type": "map", "values": "bytes"}}]}

DECLARED = """
from views.aggregates import Count, Distinct, Quantiles, Sum
from views.source import Source
from views.view import View

source = Source("{source}", format="avro", reader_schema='''READER''')
sales = View(
    "sales", source=source, grain="1h", keys={{"item": "item"}}, where="cents is not null",
    answers={{"orders": Count(), "cents": Sum("cents"), "users": Distinct("user_id"), "ms": Quantiles("ms")}},
)
totals = View("totals", source=source, grain="1d", answers={{"events": Count()}})
""".replace("READER", json.dumps(READER).replace("{", "{{").replace("}", "}}"))


class AvroPlace(SpeedPlace):
    """Events are sent in turn by the schemas of `ids`."""

    ids: dict[int, dict[str, Any]]

    def declare(self, text: str) -> None:
        self.ids = {}
        super().declare(DECLARED)

    def value_of(self, event: Event) -> bytes:
        schema_id, schema = list(self.ids.items())[event.offset % len(self.ids)]
        file = io.BytesIO()
        fields = {**event.fields, "coupon": {"a": b"\xff"}}
        fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(schema))), fields)
        return frame_of_id(schema_id) + file.getvalue()

    def send_with(self, serialize: AvroSerializer, count: int) -> None:
        """Events as a client of Confluent's serializer sends them."""
        context = SerializationContext(self.source.topic, MessageField.VALUE, [])
        with self.producing() as produce:
            for record in generate(self.source, count, seed=99, views=self.views, duplicates=0, partitions=3):
                produce(record.event, serialize(record.event.fields, context), partition=record.event.partition)

    def send_invalid(self, *values: bytes) -> None:
        with self.producing() as produce:
            for place, value in enumerate(values):
                produce(None, value, partition=place % 3)

    def reasons(self) -> list[str]:
        """Why records of the table are invalid."""
        table = table_path(self.settings, self.name)
        batches = read_records(table, RecordFilter(with_invalid=True), ["invalid"])
        return sorted(reason for batch in batches for reason in batch.column("invalid").to_pylist() if reason)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def place(
    stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession, registry: Registry
) -> Iterator[AvroPlace]:
    registry.replies.clear()
    registry.is_away = False
    with interpreted(spark) as session:
        yield AvroPlace(stack, tmp_path, redis, session, schema_registry_url=registry.url)


def test_records_of_several_schemas_are_counted_once_and_alike_by_every_layer(
    place: AvroPlace, registry: Registry
) -> None:
    registry.add(1, FIRST)
    place.ids[1] = FIRST
    with place.keeping() as writer:
        place.send(60)
        place.caught_up()
        registry.add(2, SECOND)
        place.ids[2] = SECOND
        place.send_invalid(b"{}", b"", frame_of_id(1), frame_of_id(1) + b"\xff" * 9, frame_of_id(99) + b"\x02a")
        place.send(60)
        place.caught_up()
        assert not writer.error
        place.archive_and_run()
        place.send(30)
        place.caught_up()
    assert place.reasons() == sorted(
        [
            "it is not what its schema says",
            "it is not what its schema says",
            "not framed: it has neither a schema id before it nor one in its headers",
            "not framed: it has neither a schema id before it nor one in its headers",
            "schema id 99 is unknown to the registry",
        ]
    )
    asked = {f"/schemas/ids/{number}" for number in (1, 2, 99)}
    assert set(registry.asked) == asked, "one layer asks, and both know the answer"


def test_a_stock_serializer_needs_our_own_registry_and_no_setting(
    stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession
) -> None:
    url = f"{stack.collector}/schema-registry"
    wait_until("the registry", lambda: httpx.get(f"{url}/subjects", auth=("admin", stack.secret)).is_success)
    with (
        interpreted(spark) as session,
        SchemaRegistryClient({"url": url, "basic.auth.user.info": f"admin:{stack.secret}"}) as client,
    ):
        place = AvroPlace(stack, tmp_path, redis, session)
        assert not place.settings.schema_registry_url
        place.send_with(AvroSerializer(client, json.dumps(FIRST)), 40)
        place.send_invalid(frame_of_id(2**31 - 1) + b"\x02a")
        with place.keeping():
            place.caught_up()
        place.archive_and_run()
        assert place.check() == 40
    assert place.reasons() == [f"schema id {2**31 - 1} is unknown to the registry"]


def test_a_topic_without_schemas_is_not_taken_for_one_that_is_missing(stack: Stack) -> None:
    admin, config = KafkaAdmin(stack.settings, stack.kafka), librdkafka_config(stack.settings, stack.kafka)
    name = f"t-{uuid4().hex}"
    with pytest.raises(UnreadableTopic, match="Unknown topic"):
        read_state(config, name)
    create_topic(admin, TopicPlan(name, 1, {}))
    assert read_state(config, name).highest_id == 0


def test_records_wait_while_the_registry_is_away(place: AvroPlace, registry: Registry) -> None:
    registry.is_away = True
    place.ids[7] = SECOND
    place.send(20)
    with place.keeping() as writer:
        wait_until("the speed layer to say what it waits for", lambda: "schema registry" in writer.error)
        with pytest.raises(StreamingQueryException, match="schema registry"):
            place.archive()
        assert place.reasons() == []
        assert not list(table_path(place.settings, place.name).glob("*.parquet")), "nothing is left of the attempt"
        registry.add(7, SECOND)
        registry.is_away = False
        place.caught_up()
        place.archive_and_run()
        place.send(10)
        place.caught_up()
    assert place.reasons() == []


def test_a_watch_sees_avro_records_and_waits_for_the_registry_as_the_layers_do(
    stack: Stack, tmp_path: Path, redis: RedisServer, registry: Registry
) -> None:
    registry.replies.clear()
    place = AvroPlace(stack, tmp_path, redis, None, schema_registry_url=registry.url)
    watch = Watch("dear", place.source, where="cents > 0 and ms is not null")
    bound = BoundWatches(place.settings, place.source, (watch,), lambda: declared_by(place.settings))
    stopping = threading.Event()
    watcher = Watcher(place.settings, stack.kafka, bound, place.redis.client, stopping)
    thread = threading.Thread(target=watcher.run, daemon=True)
    thread.start()
    try:
        wait_until("the watch to begin", lambda: watcher.cut)
        registry.is_away = True
        place.ids[7] = SECOND
        place.send(60)
        wait_until("the watch to say what it waits for", lambda: "schema registry" in watcher.error)
        assert watcher.read == 0
        registry.add(7, SECOND)
        registry.is_away = False
        place.send_invalid(b"{}", frame_of_id(7), frame_of_id(99) + b"\x02a")
        wait_until("the watch to have read all", lambda: watcher.read == len(place.events) + 3)
        expected = [event for event in place.events if (event.fields.get("cents") or 0) > 0]
        matched = sum(event.fields.get("ms") is not None for event in expected)
        assert matched
        assert read_states(place.redis.client, place.name, ["dear"])["dear"].matched == matched
    finally:
        stopping.set()
        thread.join(timeout=60)
    assert not thread.is_alive()
