"""The poison that the fault programme strews in: the one expression and the collector's checks refuse each kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import compile_validator, parse_json, prepare_event
from torture.poison import poison_for
from views.on_spark.events import with_event
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = Source(
    "poisoned",
    fields="""
        event_id string, event_time timestamp, user_id string, properties struct<url: string, ms: double, status: int,
        bytes: bigint, price: decimal(10,2), day: date, flag: boolean, ratio: float, tags: array<string>,
        numbers: array<int>, counts: map<string, int>>
    """,
)
POISON = poison_for(SOURCE)

NEAR_MISSES = [
    b"{}",
    b' {"event_id":"a"} \r\n',
    b'{"event_id":null,"event_time":null,"properties":null}',
    b'{"event_id":"\\ud83d\\ude00"}',
    b'{"event_id":"\\\\ud800"}',
    '{"event_id":"café"}'.encode(),
    b'{"event_id":"' + b"x" * 512 + b'"}',
    b'{"event_time":"1970-01-01T00:00:00Z"}',
    b'{"event_time":"2199-12-31T23:59:59Z"}',
    b'{"event_time":"2024-02-29T00:00:00Z"}',
    b'{"properties":{"ms":1e308}}',
    b'{"properties":{"ms":-0.0,"status":2147483647,"bytes":9223372036854775807,"price":12345678.25}}',
    b'{"properties":{"tags":[],"counts":{},"numbers":[null,1]}}',
    b'{"x":' + b"[" * 60 + b"]" * 60 + b"}",
    b'{"unknown":{"NaN":"Infinity"}}',
]
"""What looks like poison and is none."""


def why_invalid(spark: SparkSession, values: list[bytes | None]) -> list[str | None]:
    rows = [
        ("t", 0, number, datetime(2026, 5, 1, tzinfo=UTC), bytearray(value) if value is not None else None)
        for number, value in enumerate(values)
    ]
    schema = "topic string, partition int, offset bigint, timestamp timestamp, value binary"
    found = with_event(spark.createDataFrame(rows, schema), SOURCE).select("offset", "invalid").collect()
    return [row["invalid"] for row in sorted(found, key=lambda row: int(row["offset"]))]


def is_refused(value: bytes | None) -> bool:
    """Whether the collector would refuse it. It is never sent a tombstone as an event."""
    try:
        event = parse_json(value or b"")
        compile_validator(SOURCE)(event)
        prepare_event(SOURCE, event)
    except InvalidEvent:
        return True
    return False


def test_every_kind_is_invalid_for_spark_and_says_why(spark: SparkSession) -> None:
    found = why_invalid(spark, [each.value for each in POISON])
    wrong = [
        (each.name, reason)
        for each, reason in zip(POISON, found, strict=True)
        if reason is None or not reason.startswith(each.reason)
    ]
    assert wrong == []


def test_every_kind_is_refused_by_the_collectors_checks() -> None:
    assert [each.name for each in POISON if not is_refused(each.value)] == []


def test_near_misses_are_events(spark: SparkSession) -> None:
    assert why_invalid(spark, list(NEAR_MISSES)) == [None] * len(NEAR_MISSES)
    assert [value for value in NEAR_MISSES if is_refused(value)] == []
