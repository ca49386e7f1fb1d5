"""Records that carry CloudEvents become the events that the collector's door stores for the same CloudEvents."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import http as sdk_http
from cloudevents.core.bindings import kafka as sdk
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as OldCloudEvent
from cloudevents.v1.kafka import to_binary as old_to_binary
from cloudevents.v1.kafka import to_structured as old_to_structured
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from master_dataset.collector.bodies import parse_body
from master_dataset.collector.doors.cloudevents import cloudevents_in
from master_dataset.events.envelope import compile_validator
from master_dataset.events.json_records import compile_reader
from views.catalog.cloudevents import cloudevents
from views.errors import InvalidEvent, SourceError
from views.evolution import evolution
from views.formats.cloudevents import event_of
from views.formats.cloudevents_in_kafka import resolver
from views.formats.fit import fit_of
from views.source import Source

SOURCE = replace(cloudevents, envelope="cloudevents")
BY_SOURCE = replace(cloudevents, envelope="cloudevents_by_source")
READ = compile_reader(SOURCE)
ATTRIBUTES: dict[str, Any] = {
    "specversion": "1.0", "id": "ce-1", "source": "/kassa/é", "type": "com.example.order", "subject": "Größe 7%20",
    "time": datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC), "traceparent": "00-aa-bb-01", "retries": "3",
}  # fmt: skip
DATA: list[tuple[str, Any]] = [
    ("application/json", {"amount": 12.5, "lines": [1, {"sku": "x"}], "note": None}),
    ("application/json", [1, 2]),
    ("application/vnd.shop+json", {"a": "text"}),
    ("text/plain", "Größe"),
    ("application/octet-stream", b"\x00\xff"),
    ("application/json", None),
]
BINARY = {
    "ce_specversion": b"1.0", "ce_id": b"7", "ce_source": b"/s", "ce_type": b"t", "content-type": b"application/json",
}  # fmt: skip


def given_headers(message: Any) -> list[tuple[str, bytes | None]]:
    return list(message.headers.items())


def at_the_door(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """What the collector stores of a CloudEvent that comes by HTTP."""
    (found,) = cloudevents_in(Headers(headers), body, parse_body)
    event: dict[str, Any] = fit_of(SOURCE)(event_of(SOURCE, found))
    compile_validator(SOURCE)(event)
    return event


@pytest.mark.parametrize(("content_type", "data"), DATA)
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_a_record_becomes_the_event_that_the_door_stores(mode: str, content_type: str, data: Any) -> None:
    event = CloudEvent({**ATTRIBUTES, "datacontenttype": content_type}, data)
    if mode == "binary":
        record, request = sdk.to_binary_event(event), sdk_http.to_binary_event(event)
    else:
        record, request = sdk.to_structured_event(event), sdk_http.to_structured_event(event)
    found = READ(record.value, given_headers(record))
    assert found == at_the_door(request.headers, request.body)
    assert (found["event_id"], found["event_time"]) == ("ce-1", "2026-03-01T12:00:00.250000Z")
    assert found["subject"] == "Größe 7%20", "headers of Kafka are not percent-encoded"


@pytest.mark.parametrize("convert", [old_to_binary, old_to_structured])
def test_version_1_of_the_sdk_sends_the_same_event(convert: Callable[[OldCloudEvent], Any]) -> None:
    """Its structured mode gives the type of the data as the content type, and no header names a CloudEvent."""
    attributes = {**ATTRIBUTES, "time": "2026-03-01T12:00:00.25Z", "datacontenttype": "application/json"}
    record = convert(OldCloudEvent(attributes, {"amount": 12.5}))
    value = record.value if isinstance(record.value, bytes) else record.value.encode()
    newer = sdk.to_binary_event(CloudEvent({**ATTRIBUTES, "datacontenttype": "application/json"}, {"amount": 12.5}))
    assert READ(value, given_headers(record)) == READ(newer.value, given_headers(newer))


def test_a_record_without_data_has_no_value_and_is_an_event() -> None:
    assert READ(None, list(BINARY.items()))["event_id"] == "7"
    assert resolver(SOURCE)(None, []) is None, "a tombstone is no CloudEvent"


def test_ids_of_each_sender_are_joined_with_it_where_that_is_declared() -> None:
    event = compile_reader(BY_SOURCE)(b"{}", list(BINARY.items()))
    assert (event["event_id"], event["id"]) == ("/s 7", "7")


@pytest.mark.parametrize(
    ("change", "value", "reason"),
    [
        ({"ce_id": None}, b"{}", "id: this attribute should be a text that is not empty"),
        ({"ce_id": ...}, b"{}", "id: every CloudEvent has this attribute; here it is missing"),
        ({"ce_source": ...}, b"{}", "source: every CloudEvent has this attribute"),
        ({"ce_specversion": ...}, b"{}", "specversion: this should be '1.0'; it is 'None'"),
        ({"ce_specversion": b"0.3"}, b"{}", "specversion: this should be '1.0'; it is '0.3'"),
        ({"ce_type": b"\xff"}, b"{}", "ce_type: this header should be UTF-8"),
        ({"content-type": b"\xff"}, b"{}", "content-type: this header should be UTF-8"),
        ({"ce_time": b"yesterday"}, b"{}", "time: this should be a time"),
        ({"ce_Upper": b"a"}, b"{}", "Upper: names of attributes"),
        ({"ce_data": b"a"}, b"{}", "ce_data: this header is given twice, or not allowed"),
        ({"ce_datacontenttype": b"a"}, b"{}", "ce_datacontenttype: this header is given twice, or not allowed"),
        ({"Content-Type": b"text/plain"}, b"{}", "content-type: this header is given twice"),
        ({}, b"{", "data: line 1 column 2: this is not JSON"),
        ({}, b'{"a": 1, "a": 2}', "data: "),
        ({"content-type": b"application/cloudevents+json"}, None, "the record has no value"),
        ({"content-type": b"application/cloudevents+json"}, b"[]", "a CloudEvent is a JSON object"),
        ({"content-type": b"application/cloudevents+json"}, b"{", "line 1 column 2: this is not JSON"),
        ({"content-type": b"application/cloudevents-batch+json"}, b"[]", "a record of Kafka has one CloudEvent"),
        ({"content-type": b"application/cloudevents+avro"}, b"", "the format 'application/cloudevents+avro' is not"),
    ],
)
def test_a_wrong_cloudevent_is_refused_with_the_reason(
    change: dict[str, Any], value: bytes | None, reason: str
) -> None:
    headers = [(name, content) for name, content in {**BINARY, **change}.items() if content is not ...]
    with pytest.raises(InvalidEvent) as refused:
        READ(value, headers)
    assert str(refused.value).startswith("not a CloudEvent: ")
    assert reason in str(refused.value)


def test_a_header_given_twice_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="ce_id: this header is given twice"):
        READ(b"{}", [*BINARY.items(), ("ce_id", b"8")])


def test_other_records_are_events_as_the_collector_stores_them() -> None:
    value = json.dumps({"event_id": "a", "type": "t", "more": {"specversion": "1.0"}}).encode()
    assert READ(value, [("content-type", b"application/json"), ("trace", None)]) == json.loads(value)
    assert resolver(SOURCE)(b'{"specversion" broken', []) == b'{"specversion" broken'


def test_the_collector_refuses_an_event_that_the_layers_would_take_for_a_cloudevent() -> None:
    event = {"event_id": "a", "specversion": "1.0"}
    with pytest.raises(InvalidEvent, match="specversion: records of this source that have it are CloudEvents"):
        compile_validator(SOURCE)(event)
    compile_validator(cloudevents)(event)
    own = replace(SOURCE, fields=f"{SOURCE.fields}, specversion string")
    compile_validator(own)(event)
    assert compile_reader(own)(json.dumps(event).encode(), []) == event, "a field like others is no sign"


def test_an_envelope_is_declared_for_json_and_stays() -> None:
    with pytest.raises(SourceError, match="there are: cloudevents, cloudevents_by_source"):
        replace(cloudevents, envelope="avro")
    with pytest.raises(SourceError, match="is for format='json'"):
        Source("a", format="protobuf", reader_schema='syntax = "proto3";', envelope="cloudevents")
    assert cloudevents.with_reading(SOURCE.reading) == SOURCE
    assert "envelope" not in cloudevents.reading, "what is declared without one is stored as before"
    assert SOURCE.meaning != cloudevents.meaning
    assert SOURCE.as_json() == cloudevents
    (refused,) = evolution(cloudevents, replace(SOURCE, version=2)).refused[:1]
    assert "the envelope was '' and is 'cloudevents'" in refused
    later = replace(SOURCE, version=2, fields=f"{SOURCE.fields}, specversion string")
    assert "'specversion' tells CloudEvents from other records" in evolution(SOURCE, later).refused[0]


NAMES = st.sampled_from([*BINARY, "Content-Type", "ce_time", "ce_subject", "ce_data", "ce_", "ce_n", "x"]) | st.text()
CONTENTS = st.sampled_from([None, *BINARY.values(), b"application/cloudevents+json", b"text/plain"]) | st.binary()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
DOCUMENTS = st.dictionaries(
    st.sampled_from(["specversion", "id", "source", "type", "time", "data", "data_base64", "extensions", "n"]),
    SCALARS | st.sampled_from(["1.0", "2026-03-01T12:00:00Z", "AA=="]) | st.dictionaries(st.text(max_size=3), SCALARS),
).map(lambda found: json.dumps(found).encode())


@given(st.none() | st.binary() | DOCUMENTS, st.lists(st.tuples(NAMES, CONTENTS), max_size=6), st.booleans())
def test_any_record_is_resolved_or_refused(
    value: bytes | None, headers: list[tuple[str, bytes | None]], is_binary: bool
) -> None:
    given = {**BINARY, **dict(headers)}.items() if is_binary else headers
    with suppress(InvalidEvent):
        found = resolver(SOURCE)(value, given)
        assert found is value or json.loads(found or b"")["event_id"]
