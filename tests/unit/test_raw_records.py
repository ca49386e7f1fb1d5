"""Records as Kafka delivered them, read without Spark: what is no event is invalid, by every format."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from master_dataset.errors import InvalidEvent
from master_dataset.events.raw_records import RawRecord, RecordReader
from views.formats.framing import HEADER, NOT_FRAMED, frame_of_id
from views.formats.writer_schemas import WriterSchema
from views.source import Source

TIME = {"type": "long", "logicalType": "timestamp-micros"}
FIELDS: list[dict[str, Any]] = [
    {"name": "event_id", "type": ["null", "string"], "default": None},
    {"name": "event_time", "type": ["null", TIME], "default": None},
    {"name": "n", "type": "int", "default": 7},
]
SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})
AVRO = Source("shop", format="avro", reader_schema=SCHEMA)
ONE, LATE, UNKNOWN, OTHER = (frame_of_id(number) for number in (1, 2, 3, 4))
WRITERS = {
    ONE: WriterSchema("AVRO", SCHEMA),
    LATE: WriterSchema("AVRO", SCHEMA, since=((0, 20),)),
    UNKNOWN: None,
    OTHER: WriterSchema("JSON", "{}"),
}
MAY = 1_777_593_600_000
"""2026-05-01, as Kafka has it."""


def avro(event_id: str | None = "a", at: int | None = None) -> bytes:
    file = io.BytesIO()
    value = {"event_id": event_id, "event_time": at, "n": 1}
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(SCHEMA.replace("timestamp-micros", "x"))), value)
    return file.getvalue()


def record(value: bytes | None, offset: int = 7, at: int = MAY) -> RawRecord:
    return RawRecord(0, offset, at, value)


READER = RecordReader(AVRO, WRITERS)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (record(None), "no value (a tombstone)"),
        (record(b""), NOT_FRAMED),
        (record(avro()), NOT_FRAMED),
        (record(UNKNOWN + avro()), "schema id 3 is unknown to the registry"),
        (record(frame_of_id(9) + avro()), "schema id 9 is unknown to the registry"),
        (record(OTHER + avro()), "schema id 4 cannot be read: it is of the type JSON, and this source reads AVRO"),
        (record(LATE + avro(), offset=19), "schema id 2 is unknown to the registry"),
        (record(ONE + avro() + b"\0"), "bytes follow the record"),
        (record(ONE + avro()[:-1]), "it is not what its schema says"),
        (record(ONE + avro("x" * 513)), "event_id: it is longer than 512 characters"),
        (record(ONE + avro(at=-1)), "event_time: an event's time lies in 1970 to 2199"),
        (record(ONE + avro(), at=-1), "event_time: an event's time lies in 1970 to 2199"),
    ],
)
def test_record_that_is_no_event_says_why(given: RawRecord, why: str) -> None:
    with pytest.raises(InvalidEvent) as found:
        READER.read(given)
    assert why in str(found.value)


def test_schema_that_was_found_late_reads_records_from_its_cut_on() -> None:
    assert READER.read(record(LATE + avro(), offset=20))["n"] == 1
    elsewhere = record(LATE + avro(), offset=3)._replace(partition=1)
    assert READER.read(elsewhere)["n"] == 1, "the cut names other partitions"


def test_frame_in_a_header_counts_before_one_in_the_value() -> None:
    headers = ((HEADER, UNKNOWN), (HEADER, ONE))
    assert READER.read(record(avro())._replace(headers=headers))["event_id"] == "a"
    with pytest.raises(InvalidEvent, match="unknown"):
        READER.read(record(avro())._replace(headers=headers[::-1]))


def test_bare_records_are_of_the_reader_schema() -> None:
    bare = RecordReader(replace(AVRO, framing="none"))
    assert bare.read(record(avro(None)))["event_id"] is None


@pytest.mark.parametrize("framing", ["registry", "none"])
def test_json_of_a_json_schema_is_read_like_any_json(framing: str) -> None:
    properties = {"event_id": {"type": "string"}, "event_time": {"type": "string", "format": "date-time"}}
    text = json.dumps({"properties": properties})
    source = Source("shop", format="json_schema", reader_schema=text, framing=framing)
    frame = frame_of_id(99) if framing == "registry" else b""
    reader = RecordReader(source)
    assert reader.read(record(frame + b'{"event_id": "a", "more": [1]}')) == {"event_id": "a", "event_time": None}
    for broken in (b"{", b"[]", b'{"event_id": 3}', b'{"event_id": "a"} 1'):
        with pytest.raises(InvalidEvent):
            reader.read(record(frame + broken))
