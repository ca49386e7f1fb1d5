"""Records of a JSON Schema serializer: the frame is cut off, and the rest is read like any JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.spark.test_avro_records import framed, plain
from tests.spark.test_valid_records import INVALID, KAFKA_TIME, VALID, read
from views.formats.framing import HEADER, NOT_FRAMED, frame_of_id
from views.on_spark.events import with_event
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "type": "object",
    "properties": {
        "event_id": {"type": "string"},
        "event_time": {"type": "string", "format": "date-time"},
        "n": {"type": ["null", "integer"], "maximum": 5},
        "price": {"type": "number"},
        "tags": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    },
    "required": ["n"],
}
SOURCE = Source("orders", format="json_schema", reader_schema=json.dumps(SCHEMA))


def test_a_framed_record_is_read_like_json(spark: SparkSession) -> None:
    full = {"event_id": "a", "event_time": "2026-05-01T00:00:00Z", "n": 7, "price": 1, "tags": {"a": ["b"]}, "more": 1}
    values = [
        frame_of_id(3) + json.dumps(full).encode(),
        frame_of_id(4) + b"{}",
        b"{}",
        json.dumps(full).encode(),
        frame_of_id(3),
        frame_of_id(3) + b'{"n":1.0}',
        frame_of_id(3) + b'{"n":9223372036854775808}',
        frame_of_id(3) + b"[]",
        frame_of_id(3) + b"\xff",
        None,
    ]
    headers = [[] if place != 2 else [(HEADER, b"\x01" + bytes(16))] for place in range(len(values))]
    rows = sorted(with_event(framed(spark, values, headers), SOURCE).collect(), key=lambda row: row["offset"])
    assert [row["invalid"] for row in rows] == [
        None, None, None, NOT_FRAMED, "empty", "n is not bigint", "n is not bigint", "not a JSON object", "not UTF-8",
        "no value (a tombstone)",
    ]  # fmt: skip
    nothing = dict.fromkeys(SCHEMA["properties"])
    expected = {**full, "event_time": KAFKA_TIME, "price": 1.0}
    del expected["more"]
    assert [plain(row["event"]) for row in rows[:3]] == [expected, nothing, nothing]


@pytest.mark.parametrize("table", [VALID, INVALID])
def test_without_a_frame_it_is_the_same_as_json(spark: SparkSession, table: list[tuple[bytes | None, str]]) -> None:
    properties = {name: SCHEMA["properties"][name] for name in ("event_id", "event_time")}
    bare = json.dumps({"type": "object", "properties": properties})
    source = Source("everything", format="json_schema", reader_schema=bare, framing="none")
    values = [value for value, _ in table]
    found = with_event(framed(spark, values), source).selectExpr("offset", "invalid", "event.event_id as given")
    as_json = with_event(framed(spark, values), source.as_json()).selectExpr(
        "offset", "invalid", "event.event_id as given"
    )
    assert sorted(found.collect()) == sorted(as_json.collect())
    assert len(read(spark, values)) == len(values)
