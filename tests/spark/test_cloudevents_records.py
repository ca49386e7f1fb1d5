"""CloudEvents in records of Kafka: Spark reads them as the Python code does that the collector's door uses."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from cloudevents.core.bindings import kafka as sdk
from cloudevents.core.v1.event import CloudEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from master_dataset.events.json_records import compile_reader
from tests.spark.test_avro_records import Headers, framed, plain
from tests.spark.test_valid_records import INVALID, KAFKA_TIME, VALID
from views.catalog.cloudevents import cloudevents
from views.errors import InvalidEvent
from views.on_spark.events import with_event
from views.reading import typed_event
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = Source(
    "orders", envelope="cloudevents",
    fields="event_id string, event_time timestamp, type string, region string, data struct<amount: decimal(12,2), "
    "lines: array<string>>, data_text string, data_base64 string, extensions map<string,string>",
)  # fmt: skip
AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
BINARY = {
    "ce_specversion": b"1.0", "ce_id": b"7", "ce_source": b"/s", "ce_type": b"t", "content-type": b"application/json",
}  # fmt: skip


def read(
    spark: SparkSession, records: list[tuple[bytes | None, Headers]], source: Source = SOURCE, **options: Any
) -> list[Any]:
    values, headers = [value for value, _ in records], [given for _, given in records]
    found = with_event(framed(spark, values, headers), source, **options)
    return sorted(found.collect(), key=lambda row: row["offset"])


def test_both_modes_of_the_sdk_and_bare_events_are_read_alike(spark: SparkSession) -> None:
    event = CloudEvent(
        {"specversion": "1.0", "id": "ce-1", "source": "/kassa", "type": "order", "time": AT, "region": "eu",
         "retries": "3", "datacontenttype": "application/json"},
        {"amount": 12.5, "lines": ["x", "y"]},
    )  # fmt: skip
    binary, structured = sdk.to_binary_event(event), sdk.to_structured_event(event)
    records = [(each.value, list(each.headers.items())) for each in (binary, structured)]
    bare = {
        "event_id": "ce-1", "event_time": AT.isoformat(), "type": "order", "region": "eu",
        "data": {"amount": "12.50", "lines": ["x", "y"]}, "extensions": {"retries": "3"},
    }  # fmt: skip
    rows = read(spark, [*records, (json.dumps(bare).encode(), [])])
    expected = typed_event(SOURCE.schema, bare)
    for row in rows:
        assert (row["invalid"], row["event_id"], row["event_time"].astimezone(UTC)) == (None, "ce-1", AT)
        assert plain(row["event"]) == expected


def test_a_cloudevent_without_data_counts_and_a_tombstone_does_not(spark: SparkSession) -> None:
    rows = read(spark, [(None, list(BINARY.items())), (None, []), (b"", list(BINARY.items()))])
    assert [(row["event_id"], row["invalid"]) for row in rows] == [
        ("7", None), ("t/1/1", "no value (a tombstone)"), ("7", None),
    ]  # fmt: skip


@pytest.mark.parametrize("reasons", [True, False])
def test_a_wrong_envelope_is_invalid_with_the_reason(spark: SparkSession, reasons: bool) -> None:
    records: list[tuple[bytes | None, Headers]] = [
        (b"{}", [("ce_id", b"7")]),
        (b"{", list(BINARY.items())),
        (b"[]", [("content-type", b"application/cloudevents+json; charset=utf-8")]),
        (b'{"specversion":"0.3"}', []),
        (b'{"amount":"x"}', list(BINARY.items())),
    ]
    found = [row["invalid"] for row in read(spark, records, reasons=reasons)]
    assert found == [
        "not a CloudEvent: specversion: this should be '1.0'; it is 'None'",
        "not a CloudEvent: data: line 1 column 2: this is not JSON: unexpected end of data",
        "not a CloudEvent: a CloudEvent is a JSON object",
        "not a CloudEvent: specversion: this should be '1.0'; it is '0.3'",
        "data.amount is not decimal(12,2)" if reasons else "corrupt",
    ]


def test_bare_records_are_judged_as_those_of_a_source_without_an_envelope(spark: SparkSession) -> None:
    source = Source("everything", fields="event_id string, event_time timestamp")
    records: list[tuple[bytes | None, Headers]] = [(value, []) for value, _ in [*VALID, *INVALID]]
    enveloped = read(spark, records, replace(source, envelope="cloudevents"))
    assert [row.asDict() for row in enveloped] == [row.asDict() for row in read(spark, records, source)]


def test_the_source_of_the_catalog_takes_any_cloudevent(spark: SparkSession) -> None:
    source = replace(cloudevents, envelope="cloudevents")
    data = {"text/plain": "Größe".encode(), "image/png": b"\xff", "application/json": b'{"n":1.50,"deep":{"a":[1]}}'}
    records: list[tuple[bytes | None, Headers]] = [
        (value, [*{**BINARY, "content-type": kind.encode()}.items()]) for kind, value in data.items()
    ]
    text, image, mapped = (row["event"] for row in read(spark, records, source))
    assert (text["data_text"], image["data_base64"]) == ("Größe", "/w==")
    assert mapped["data"] == {"n": "1.5", "deep": '{"a":[1]}'}


SCALARS = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
DATA = st.fixed_dictionaries(
    {}, optional={"amount": st.decimals(0, 10**9, places=2).map(str) | SCALARS, "lines": st.lists(SCALARS, max_size=3)}
)
EVENTS = st.fixed_dictionaries(
    {"specversion": st.just("1.0"), "id": st.text(max_size=8), "source": st.just("/s"), "type": SCALARS},
    optional={
        "time": st.sampled_from(["2026-03-01t12:00:00.123456789+01:00", "2300-01-01T00:00:00Z", "now"]),
        "data": DATA | SCALARS, "data_base64": st.sampled_from(["AA==", "?"]), "region": SCALARS, "n": SCALARS,
        "datacontenttype": st.sampled_from(["application/json", "text/plain"]),
    },
)  # fmt: skip


def as_binary(event: dict[str, Any]) -> tuple[bytes | None, Headers]:
    attributes = {name: value for name, value in event.items() if name not in ("data", "data_base64")}
    kind = attributes.pop("datacontenttype", None)
    headers = [(f"ce_{name}", None if value is None else str(value).encode()) for name, value in attributes.items()]
    value = json.dumps(event["data"]).encode() if "data" in event else None
    return value, [*headers, *([("content-type", kind.encode())] if kind else [])]


def as_structured(event: dict[str, Any]) -> tuple[bytes | None, Headers]:
    return json.dumps(event).encode(), [("content-type", b"application/cloudevents+json")]


def by_value(event: dict[str, Any]) -> tuple[bytes | None, Headers]:
    return json.dumps(event).encode(), []


RECORDS = st.builds(lambda send, event: send(event), st.sampled_from([as_binary, as_structured, by_value]), EVENTS)


@given(st.lists(RECORDS, min_size=5, max_size=30))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spark_and_python_read_any_record_alike(
    spark: SparkSession, records: list[tuple[bytes | None, Headers]]
) -> None:
    """What Python accepts is the same event in Spark; a wrong envelope has the same reason in both."""
    for (value, headers), row in zip(records, read(spark, records), strict=True):
        found = by_python(value, headers)
        if isinstance(found, str):
            assert not found.startswith("not a CloudEvent") or row["invalid"] == found
        else:
            assert row["invalid"] is None
            assert plain(row["event"]) == found
            assert row["event_id"] == found["event_id"]
            assert row["event_time"].astimezone(UTC) == (found["event_time"] or KAFKA_TIME)


def by_python(value: bytes | None, headers: Headers) -> dict[str, Any] | str:
    """The fields, or why there are none."""
    try:
        return typed_event(SOURCE.schema, compile_reader(SOURCE)(value, headers))
    except InvalidEvent as error:
        return str(error)
