"""Records of every format, read in Python by the schemas that are noted: what watches and tools see."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from infra.settings import load_settings
from infra.store import PosixStore
from master_dataset.errors import InvalidEvent
from master_dataset.events.raw_records import RawRecord
from master_dataset.reading.event_reader import EventReader
from master_dataset.table.paths import own_folder, table_path
from master_dataset.writer_schemas import later_notes
from master_dataset.writer_schemas.noted import NotedSchemas, to_bytes
from master_dataset.writer_schemas.registry import RegistryAway
from views.catalog.cloudevents import cloudevents
from views.formats.framing import HEADER, frame_of_id
from views.formats.protobuf_schema import compiled, pool_of
from views.formats.writer_schemas import WriterSchema
from views.source import Source
from views.watch import Watch

KAFKA_MS = 1_767_225_600_000
AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "fields": [
        {"name": "event_id", "type": ["null", "string"], "default": None},
        {"name": "event_time", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}  # fmt: skip
AVRO = Source("orders", format="avro", reader_schema=json.dumps(ORDER))
FULL = {"event_id": "a", "event_time": AT, "price": Decimal("12.30"), "day": date(2026, 3, 1), "tags": ["x"]}
PROTO = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Order { string event_id = 1; google.protobuf.Timestamp event_time = 2; optional int64 cents = 3; }"""
PROTOBUF = Source("orders", format="protobuf", reader_schema=PROTO)
JSON_SCHEMA = Source(
    "orders", format="json_schema", reader_schema=json.dumps(
        {"type": "object", "properties": {
            "event_id": {"type": "string"}, "event_time": {"type": "string", "format": "date-time"},
            "cents": {"type": "integer"},
        }}
    ),
)  # fmt: skip


def noted(home: Path, source: Source, schemas: dict[int, WriterSchema | None]) -> NotedSchemas:
    """As a layer notes what the registry said. Nobody is asked for others: no registry is on."""
    settings = load_settings(home=home, registry_enabled=False)
    store = PosixStore(own_folder(table_path(settings, source.name)))
    for number, schema in schemas.items():
        store.put_if_absent(f"schemas/{number}", to_bytes(schema))
    return NotedSchemas(settings, source)


def reader(home: Path, source: Source, schemas: dict[int, WriterSchema | None] | None = None) -> EventReader:
    return EventReader(source, noted(home, source, schemas or {}))


def record(value: bytes | None, *headers: tuple[str, bytes | None], offset: int = 7) -> RawRecord:
    return RawRecord(1, offset, KAFKA_MS, value, headers)


def avro(fields: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(ORDER))), fields)
    return file.getvalue()


def test_avro_is_read_by_the_schema_that_is_noted_and_shown_as_json(tmp_path: Path) -> None:
    reading = reader(tmp_path, AVRO, {1: WriterSchema("AVRO", json.dumps(ORDER))})
    framed = record(frame_of_id(1) + avro(FULL))
    by_header = record(avro(FULL), (HEADER, frame_of_id(1)))
    reading.learn([framed, by_header])
    for each in (framed, by_header):
        event = reading.read(each)
        assert event.fields == FULL
        assert event.shown == {
            "event_id": "a", "event_time": "2026-03-01T12:00:00.250000Z", "price": "12.30", "day": "2026-03-01",
            "tags": ["x"],
        }  # fmt: skip
        watch = Watch("w", AVRO, where="price > 12.29 and day = date '2026-03-01' and array_contains(tags, 'x')")
        assert watch.condition.evaluate(event.fields)


def test_bare_avro_is_read_by_the_reader_schema(tmp_path: Path) -> None:
    bare = replace(AVRO, framing="none")
    reading = reader(tmp_path, bare)
    reading.learn([record(avro(FULL))])
    assert reading.read(record(avro(FULL))).fields == FULL


@pytest.mark.process
def test_protobuf_is_read_by_the_schema_that_is_noted(tmp_path: Path) -> None:
    from google.protobuf import message_factory

    made = message_factory.GetMessageClass(pool_of(compiled(PROTO)).FindMessageTypeByName("Order"))
    reading = reader(tmp_path, PROTOBUF, {1: WriterSchema("PROTOBUF", PROTO)})
    sent = record(frame_of_id(1) + b"\x00" + made(event_id="p", event_time=AT, cents=5).SerializeToString())
    reading.learn([sent])
    assert reading.read(sent).fields == {"event_id": "p", "event_time": AT, "cents": 5}


def test_json_of_a_serializer_and_cloudevents_are_read(tmp_path: Path) -> None:
    reading = reader(tmp_path / "a", JSON_SCHEMA)
    assert reading.read(record(frame_of_id(3) + b'{"event_id":"j","cents":5}')).fields["cents"] == 5
    with pytest.raises(InvalidEvent, match="not framed"):
        reading.read(record(b'{"cents":5}'))
    enveloped = replace(cloudevents, name="orders", envelope="cloudevents")
    ce = [("ce_specversion", b"1.0"), ("ce_id", b"c"), ("ce_source", b"/s"), ("ce_type", b"t")]
    event = reader(tmp_path / "b", enveloped).read(record(None, *ce))
    assert (event.fields["event_id"], event.shown["source"]) == ("c", "/s")


def test_an_event_without_id_or_time_has_its_location_and_kafkas_time(tmp_path: Path) -> None:
    reading = reader(tmp_path, replace(AVRO, framing="none"))
    found = reading.read(record(avro({**FULL, "event_id": "", "event_time": None}))).fields
    assert (found["event_id"], found["event_time"]) == ("orders/1/7", datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"", "not framed"),
        (avro(FULL), "not framed"),
        (frame_of_id(1), "not what its schema says"),
        (frame_of_id(1) + avro(FULL) + b"x", "bytes follow the record"),
        (frame_of_id(2) + avro(FULL), "schema id 2 is unknown to the registry"),
        (frame_of_id(3) + avro(FULL), "schema id 3 cannot be read"),
        (frame_of_id(1) + avro({**FULL, "event_id": "x" * 513}), "longer than 512"),
        (frame_of_id(1) + avro({**FULL, "event_time": datetime(2201, 1, 1, tzinfo=UTC)}), "1970 to 2199"),
    ],
)
def test_what_the_layers_find_invalid_is_no_event(tmp_path: Path, value: bytes | None, reason: str) -> None:
    other = {"type": "record", "name": "Other", "fields": []}
    schemas = {
        1: WriterSchema("AVRO", json.dumps(ORDER)), 2: None, 3: WriterSchema("AVRO", json.dumps(other)),
    }  # fmt: skip
    reading = reader(tmp_path, AVRO, schemas)
    reading.learn([record(value)])
    with pytest.raises(InvalidEvent, match=reason):
        reading.read(record(value))


def test_a_schema_that_nobody_looked_up_is_waited_for(tmp_path: Path) -> None:
    reading = reader(tmp_path, AVRO)
    sent = record(frame_of_id(1) + avro(FULL))
    with pytest.raises(RegistryAway):
        reading.learn([sent])
    noted(tmp_path, AVRO, {1: WriterSchema("AVRO", json.dumps(ORDER))})
    reading.learn([sent])
    assert reading.read(sent).fields == FULL


def test_a_schema_that_was_found_late_is_known_from_its_cut_on(tmp_path: Path) -> None:
    reading = reader(tmp_path, AVRO, {1: None})
    value = frame_of_id(1) + avro(FULL)
    reading.learn([record(value)])
    store = PosixStore(own_folder(table_path(load_settings(home=tmp_path), "orders")))
    store.put_if_absent("later_schemas/1", later_notes.begun())
    with pytest.raises(RegistryAway, match="ask-again orders 1"):
        reading.learn([record(value)])
    store.delete("later_schemas/1")
    store.put_if_absent("later_schemas/1", later_notes.to_bytes(WriterSchema("AVRO", json.dumps(ORDER)), {0: 9, 1: 8}))
    reading.learn([record(value)])
    with pytest.raises(InvalidEvent, match="schema id 1 is unknown to the registry"):
        reading.read(record(value, offset=7))
    assert reading.read(record(value, offset=8)).fields == FULL
