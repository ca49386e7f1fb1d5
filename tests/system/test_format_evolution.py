"""Sources of other formats evolve on real Kafka, Redis and Spark while events come: each answer is the oracle's.

Producers of two schemas write at the same time, before the switch and after it. Every third event of the second one is
invalid by version 1 and valid by version 2.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zlib import crc32

import fastavro
import pytest
from google.protobuf import message_factory

from master_dataset.dead_letters.later_readings import LaterReadings
from master_dataset.dead_letters.letters import newest_first
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table import readings
from master_dataset.table.checks.fsck import quick_check
from master_dataset.table.paths import table_path
from serving_layer.engine import QueryEngine
from serving_layer.verification.from_scratch import events_below
from serving_layer.verification.verify import from_scratch, verify_speed_views
from tests.conftest import Stack, wait_until
from tests.schema_registry import Registry, running_registry
from tests.system.speed_source import DECLARED, SpeedPlace
from tests.system.test_evolution import archiving, published, version_served
from views import in_memory
from views.declarations import declared_by
from views.formats.framing import GUID_BYTE, HEADER, frame_of_id, name_of
from views.formats.protobuf_schema import compiled, pool_of
from views.in_memory import Event
from views.sample_events import generate
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.system.speed_source import RedisServer

VIEWS = """
from views.aggregates import Count, Distinct, Sum
from views.source import Source
from views.view import View

source = Source({source!r}, version={version}, format={format!r}, reader_schema={schema!r})
sales = View(
    "sales", source=source, grain="1h", keys={keys!r}, where="cents is not null",
    answers={{"orders": Count(), "cents": Sum("cents"), "users": Distinct({user!r})}},
)
totals = View("totals", source=source, grain="1d", answers={{"events": Count(), "users": Distinct({user!r})}})
"""
LOGICAL = "event_id string, event_time timestamp, user_id string, item string, cents bigint"
Fields = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """A format: the schemas of both versions, which the producers write by, and what each version reads."""

    format: str
    schemas: tuple[str, str]
    encode: Callable[[str, Fields], bytes]
    read: Callable[[int, int, Fields], Fields | None]
    """By (version, writer, what the producer meant): the event, or None for an invalid record."""
    reason: str
    """Why version 1 finds records invalid."""
    user: str = "user"
    is_in_header: bool = False

    def views(self, source: str, version: int) -> str:
        keys = {"item": "item"} if version == 1 else {"item": "item", "coupon": "coupon"}
        return VIEWS.format(
            source=source, version=version, format=self.format, schema=self.schemas[version - 1], keys=keys,
            user="user_id" if version == 1 else self.user,
        )  # fmt: skip


def is_odd(fields: Fields) -> bool:
    """Whether an event of the second producer is one that version 1 does not take."""
    return crc32(fields["event_id"].encode()) % 3 == 0


def coupon_of(fields: Fields) -> str:
    return f"c{crc32(fields['event_id'].encode()) % 4}"


# ---- Avro ----------------------------------------------------------------------

MICROS = {"type": "long", "logicalType": "timestamp-micros"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


def avro_schema(user: Fields, symbols: list[str], *more: Fields) -> str:
    fields = [
        {"name": "event_id", "type": "string"},
        {"name": "event_time", "type": MICROS},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": symbols}},
        {"type": ["null", "string"], "default": None, **user},
        {"name": "item", "type": ["null", "string"], "default": None},
        {"name": "cents", "type": ["null", "long"], "default": None},
        *more,
    ]
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})


def encode_avro(schema: str, fields: Fields) -> bytes:
    is_second = '"coupon"' in schema
    kind = ("PHONE" if is_odd(fields) else "SHOP") if is_second else "WEB"
    more = {"user": fields.get("user_id"), "coupon": coupon_of(fields), "price": Decimal("1.50"), "kind": kind}
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(schema)), {**fields, **more})
    return file.getvalue()


def read_avro(version: int, writer: int, fields: Fields) -> Fields | None:
    base, user = {**dict.fromkeys(("item", "cents")), **fields}, fields.get("user_id")
    if version == 1:
        return None if writer == 2 and is_odd(fields) else {**base, "user_id": user if writer == 1 else None}
    coupon = coupon_of(fields) if writer == 2 else "none"
    return {**base, "user": user, "coupon": coupon, "price": Decimal("1.50") if writer == 2 else None}


AVRO = Form(
    "avro",
    (
        avro_schema({"name": "user_id"}, ["WEB", "SHOP"]),
        avro_schema(
            {"name": "user", "aliases": ["user_id"]},
            ["WEB", "SHOP", "PHONE"],
            {"name": "coupon", "type": "string", "default": "none"},
            {"name": "price", "type": ["null", PRICE], "default": None},
        ),
    ),
    encode_avro,
    read_avro,
    "it is not what its schema says",
)


# ---- Protobuf ------------------------------------------------------------------

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  string event_id = 1;
  google.protobuf.Timestamp event_time = 2;
  optional string USER = 3;
  optional string item = 4;
  optional int64 cents = 5;
  POINTS points = 6;
  MORE
}
"""
TOO_MANY = 2**64 - 1
"""Points that no bigint holds."""


def proto_schema(user: str, points: str, more: str) -> str:
    return PROTO.replace("USER", user).replace("POINTS", points).replace("MORE", more)


def encode_protobuf(schema: str, fields: Fields) -> bytes:
    message = message_factory.GetMessageClass(pool_of(compiled(schema)).FindMessageTypeByName("shop.Order"))
    given = {name: value for name, value in fields.items() if value is not None and name != "user_id"}
    made = message(**given, points=1)
    is_second = "coupon" in schema
    if fields.get("user_id") is not None:
        setattr(made, "user" if is_second else "user_id", fields["user_id"])
    if is_second:
        made.coupon = coupon_of(fields)
        made.points = TOO_MANY if is_odd(fields) else 1
    return bytes(made.SerializeToString())


def read_protobuf(version: int, writer: int, fields: Fields) -> Fields | None:
    base, user = {**dict.fromkeys(("item", "cents")), **fields}, fields.get("user_id")
    if version == 1:
        return None if writer == 2 and is_odd(fields) else {**base, "user_id": user}
    return {**base, "user": user, "coupon": coupon_of(fields) if writer == 2 else ""}


PROTOBUF = Form(
    "protobuf",
    (proto_schema("user_id", "uint32", ""), proto_schema("user", "uint64", "string coupon = 7;")),
    encode_protobuf,
    read_protobuf,
    "a number is too large for a bigint",
    is_in_header=True,
)


# ---- JSON Schema ---------------------------------------------------------------


def json_schema(**more: str) -> str:
    types = {"event_id": "string", "user_id": "string", "item": "string", "cents": "integer", **more}
    properties: Fields = {name: {"type": [type_, "null"]} for name, type_ in types.items()}
    properties["event_time"] = {"type": "string", "format": "date-time"}
    return json.dumps({"type": "object", "properties": properties})


def encode_json(schema: str, fields: Fields) -> bytes:
    event = {**fields, "event_time": fields["event_time"].isoformat()}
    if '"coupon"' in schema:
        event |= {"coupon": coupon_of(fields), "note": "a text" if is_odd(fields) else 1}
    return json.dumps(event).encode()


def read_json(version: int, writer: int, fields: Fields) -> Fields | None:
    base = {**dict.fromkeys(("user_id", "item", "cents")), **fields}
    if version == 1:
        return None if writer == 2 and is_odd(fields) else base
    return {**base, "coupon": coupon_of(fields) if writer == 2 else None}


JSON_SCHEMA = Form(
    "json_schema",
    (json_schema(note="integer"), json_schema(coupon="string")),
    encode_json,
    read_json,
    "note is not bigint",
    user="user_id",
)


# ---- the source ----------------------------------------------------------------


class FormPlace(SpeedPlace):
    """A source of a format, whose events are sent in turn by as many producers as there are by then."""

    def __init__(self, form: Form, *arguments: Any, **overrides: Any) -> None:
        self.form, self.version, self.producers = form, 1, 1
        self.sent: list[Event] = []
        """What producers meant, whether it is an event or not."""
        self.writers: dict[str, int] = {}
        """By event id: a duplicate is by the same producer."""
        super().__init__(*arguments, **overrides)
        self.logical = Source(self.name, fields=LOGICAL)

    def declare(self, text: str) -> None:
        version = 1 if text == DECLARED else 2
        (self.views_dir / "declared.py").write_text(self.form.views(self.name, version))

    def frame(self, writer: int) -> bytes:
        """What names the schema of a producer."""
        return GUID_BYTE + UUID(int=writer).bytes if self.form.is_in_header else frame_of_id(writer)

    def register(self, registry: Registry) -> None:
        for number, schema in enumerate(self.form.schemas, start=1):
            kind = {} if self.form.format == "avro" else {"schemaType": self.form.format.upper()}
            path = f"/schemas/{'guids' if self.form.is_in_header else 'ids'}/{name_of(self.frame(number))}"
            registry.put(path, {"schema": schema, **kind})

    def send(self, count: int = 60, poison: int = 0, *, copies: float = 0.15, partitions: int = 3) -> None:
        self.seed += 1
        records = generate(self.logical, count, self.seed, duplicates=copies, partitions=partitions)
        again = self.sent[:: max(len(self.sent) // 7, 1)][:7]
        self.events = []
        with self.producing() as produce:
            for number in range(poison):
                produce(None, b"\1 no frame", partition=number % 3)
            for event in [*(record.event for record in records), *again]:
                writer = self.writers.setdefault(event.event_id, 1 + crc32(event.event_id.encode()) % self.producers)
                value, headers = self.form.encode(self.form.schemas[writer - 1], event.fields), []
                more = b"\0" if self.form.format == "protobuf" else b""
                if self.form.is_in_header:
                    headers = [(HEADER, self.frame(writer) + more)]
                else:
                    value = self.frame(writer) + more + value
                produce(event, value, partition=event.partition, headers=headers)
        self.sent += self.events
        self.read_as(self.version)

    def read_as(self, version: int) -> None:
        """From here on the oracle reads every record as a version does."""
        self.version = version
        self.source = declared_by(self.settings).source(self.name)
        read = [(each, self.form.read(version, self.writers[each.event_id], dict(each.fields))) for each in self.sent]
        self.events = [replace(each, fields=fields) for each, fields in read if fields is not None]


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


@pytest.mark.parametrize("form", [AVRO, PROTOBUF, JSON_SCHEMA], ids=lambda form: form.format)
def test_source_of_a_format_evolves_while_events_come(
    form: Form, stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession, registry: Registry
) -> None:
    registry.replies.clear()
    place = FormPlace(form, stack, tmp_path, redis, spark, schema_registry_url=registry.url, archive_max_interval_s=1)
    place.register(registry)
    place.send(60, poison=3)
    with place.keeping() as writer, archiving(place):
        place.caught_up()
        place.run()
        place.producers = 2
        place.send(60)
        place.caught_up()
        place.wait_until_archived()  # as version 1 judges them
        odd = len(place.sent) - len(place.events)
        assert odd > 0
        place.declare("the next version")

        def meanwhile(step: str) -> None:
            if step == "run.after_prepare":  # all of version 2 is computed: version 1 is served, and goes on
                place.send(30)
                place.wait_until_applied()
                assert version_served(place) == 1

        first = place.run(failpoint=meanwhile)
        place.read_as(2)
        assert len(place.events) == len(place.sent) > first.events - first.invalid - odd
        assert version_served(place) == 2
        assert first.base_run == first.run - 1, "it went on from what was prepared"
        wait_until("the speed views to follow", lambda: published(place) == first.run, 60)
        place.caught_up()
        place.send(40)  # duplicates from before the cut among them
        place.caught_up()
        second = place.run()
        assert (second.base_run, second.events - second.invalid) == (first.run, len(place.events))
        place.caught_up()
        place.send(30)
        place.caught_up()
        place.wait_until_archived()
        check_verified(place)
    assert writer.error == ""
    check_master(place)


def check_verified(place: FormPlace) -> None:
    """The system's own checks read every record again, and find nothing wrong."""
    engine = QueryEngine(place.settings, declared_by(place.settings))
    try:
        compared = from_scratch(place.settings, engine, place.source, place.views)
    finally:
        engine.close()
    compared += verify_speed_views(place.settings, place.speed_views, place.source, place.views)
    assert [(each.why_not, each.mismatched) for each in compared] == [("", 0)] * 4
    assert all(each.compared for each in compared)


def check_master(place: FormPlace) -> None:
    """The master table has the columns of version 1, and its records are read by version 2."""
    table, end = table_path(place.settings, place.name), place.kafka_end()
    again = list(events_below(table, place.source, end))
    assert len(again) == len(place.events)
    for view in place.views:
        assert in_memory.answers(view, again) == in_memory.answers(view, place.events), "read again without Spark"
    assert [finding for finding in quick_check(table) if finding.is_damage] == []
    assert readings.reading_in_force(table, place.source).version == 2
    rows = [row for batch in read_records(table, RecordFilter(with_invalid=True)) for row in batch.to_pylist()]
    reasons = {row["invalid"] for row in rows if row["invalid"]}
    unframed = "not framed: it has neither a schema id before it nor one in its headers"
    assert reasons == {unframed, place.form.reason}, "as they were judged when they came"
    assert all("coupon" not in row["event"] for row in rows if row["event"]), "in the columns there are"
    by_now, letters = LaterReadings(table, place.source), list(newest_first(place.config, place.source))
    assert len(letters) == sum(row["invalid"] is not None for row in rows)
    assert {each.reason for each in letters if by_now.counts_since(each) == 2} == {place.form.reason}
    assert {each.reason for each in letters if by_now.counts_since(each) is None} == {unframed}
