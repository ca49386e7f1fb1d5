"""What doors make of the messages of other protocols: tables of messages and the events that they become."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.requests import Request

from infra.rest.problems import Problem
from master_dataset.collector.bodies import parse_body
from master_dataset.collector.doors import cloudevents as ce
from master_dataset.collector.doors import posthog, segment
from master_dataset.collector.doors.door import authorization_of
from master_dataset.collector.doors.fields import check_suitable
from master_dataset.collector.doors.times import from_nanoseconds
from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import compile_validator, prepare_event
from views.catalog.cloudevents import cloudevents
from views.catalog.posthog import posthog as posthog_source
from views.catalog.segment import segment as segment_source
from views.formats.cloudevents import event_of as cloudevent_of
from views.formats.fit import fit_of
from views.formats.times import event_time
from views.source import Source

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8)
HOSTILE = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
"""Any JSON."""


def stored(source: Source, event: Any) -> dict[str, Any]:
    """An event as Kafka gets it, found valid by the check of `POST /events/{source}`."""
    fitted = fit_of(source)(event)
    compile_validator(source)(fitted)
    return dict(parse_body(prepare_event(source, fitted).value))


# ---- times -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("2026-01-31t13:00:00.123456789+01:00", "2026-01-31T12:00:00.123456Z"),
        ("2026-01-31T12:00:00.5", "2026-01-31T12:00:00.500000Z"),
        ("2026-01-31 12:00:00,250z", "2026-01-31T12:00:00.250000Z"),
        ("2026-01-31T07:00:00-0500", "2026-01-31T12:00:00Z"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999999Z"),
    ],
)
def test_a_time_of_another_protocol_is_written_as_events_have_it(text: str, expected: str) -> None:
    assert event_time(text, "time") == expected


@pytest.mark.parametrize(
    "text", ["", "now", "2026-13-01T00:00:00Z", "2026-01-31", 5, None, [], "2026-01-31T12:00:61Z",
             "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-31T12:00:00Z" + "0" * 100,
             "٢٠٢٦-01-31T12:00:00Z"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(InvalidEvent, match="time"):
        event_time(text, "time")


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [(0, "1970-01-01T00:00:00Z"), (1_769_860_800_123_456_789, "2026-01-31T12:00:00.123456Z")],
)
def test_nanoseconds_become_a_time(nanoseconds: int, expected: str) -> None:
    assert from_nanoseconds(nanoseconds, "timeUnixNano") == expected


@pytest.mark.parametrize("nanoseconds", [-1, 2**64 - 1, 2**200])
def test_nanoseconds_beyond_every_time_are_refused(nanoseconds: int) -> None:
    with pytest.raises(InvalidEvent, match="timeUnixNano"):
        from_nanoseconds(nanoseconds, "timeUnixNano")


# ---- fields ------------------------------------------------------------------

TYPES = Source(
    "types",
    fields="event_id string, event_time timestamp, text string, free map<string,string>, counts map<string,bigint>, "
    "list array<string>, own struct<name: string, ms: double, more: map<string,string>>, n int",
)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("text", "a", "a"),
        ("text", 1.50, "1.5"),
        ("text", True, "true"),
        ("text", {"b": [1, None]}, '{"b":[1,null]}'),
        ("text", None, None),
        ("free", {"a": 1, "b": "x", "c": {"d": []}, "e": None}, {"a": "1", "b": "x", "c": '{"d":[]}', "e": None}),
        ("free", {}, {}),
        ("counts", {"a": 1}, {"a": 1}),
        ("list", [1, "a", None, False], ["1", "a", None, "false"]),
        ("own", {"name": 5, "ms": 1.5, "more": {"a": True}, "other": 1},
         {"name": "5", "ms": 1.5, "more": {"a": "true"}, "other": 1}),
        ("n", 5, 5),
        ("undeclared", {"a": [1]}, {"a": [1]}),
    ],
)  # fmt: skip
def test_free_values_fit_what_the_source_declares(name: str, value: object, expected: object) -> None:
    assert stored(TYPES, {name: value})[name] == expected


@pytest.mark.parametrize(
    ("name", "value"), [("n", "5"), ("counts", {"a": "1"}), ("own", {"ms": "1"}), ("free", [1]), ("list", "a")]
)
def test_nothing_but_text_is_guessed(name: str, value: object) -> None:
    with pytest.raises(InvalidEvent, match=name):
        stored(TYPES, {name: value})


@given(value=st.dictionaries(st.sampled_from([field.name for field in TYPES.schema]), HOSTILE))
def test_whatever_is_sent_is_stored_or_refused(value: dict[str, Any]) -> None:
    with suppress(InvalidEvent):
        stored(TYPES, value)


RENAMED = Source(
    "renamed",
    version=2,
    fields="event_id string, event_time timestamp, label string, more map<string,string>, "
    "own struct<title: string>, body string, rest map<string,string>, tenancy string",
    aliases={
        "label": ("text",),
        "more": ("properties", "free"),
        "own.title": ("name",),
        "body": ("data",),
        "rest": ("extensions",),
        "tenancy": ("tenant",),
    },
)
"""A source whose fields have other names than before."""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("text", 1.5, "1.5"),
        ("label", 1.5, "1.5"),
        ("free", {"a": 1}, {"a": "1"}),
        ("properties", {"a": [1]}, {"a": "[1]"}),
        ("own", {"name": 5}, {"name": "5"}),
    ],
)
def test_free_values_fit_a_field_by_any_of_its_names(name: str, value: object, expected: object) -> None:
    assert stored(RENAMED, {name: value})[name] == expected


def test_a_source_whose_fields_were_all_renamed_is_filled_by_their_aliases() -> None:
    check_suitable(RENAMED, "Segment's API", segment.FIELDS)
    check_suitable(RENAMED, "a CloudEvent", ("tenant",))


def test_an_extension_goes_to_the_field_that_has_its_name_as_an_alias() -> None:
    sent = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "data": {"a": 1}}
    event = stored(RENAMED, cloudevent_of(RENAMED, {**sent, "tenant": "acme", "rest": "x"}))
    assert (event["tenant"], event["data"]) == ("acme", '{"a":1}')
    assert event["extensions"] == {"rest": "x"}, "an attribute must not take the place of all extensions"


def test_a_source_without_any_field_of_the_protocol_is_refused_by_name() -> None:
    with pytest.raises(Problem) as refused:
        check_suitable(TYPES, "Segment's API", segment.FIELDS)
    assert refused.value.status == 422
    assert "anonymous_id" in refused.value.detail
    check_suitable(segment_source, "Segment's API", segment.FIELDS)


def test_a_source_whose_records_are_not_json_is_refused() -> None:
    """A record that nobody can read later must not be acknowledged."""
    fields: list[dict[str, Any]] = [
        {"name": "event_id", "type": ["null", "string"], "default": None},
        {"name": "event_time", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "message", "type": "string"},
    ]
    schema = json.dumps({"type": "record", "name": "Line", "fields": fields})
    other = Source("other", format="avro", reader_schema=schema)
    with pytest.raises(Problem) as refused:
        check_suitable(other, "syslog", ("message",))
    assert (refused.value.status, refused.value.kind) == (415, "other-format")
    check_suitable(other.as_json(), "syslog", ("message",))


# ---- CloudEvents -------------------------------------------------------------

EVENT = {
    "specversion": "1.0", "id": "A234-1234", "source": "/sensors/7", "type": "com.example.reading",
    "time": "2026-01-31T12:00:00.25+00:00",
}  # fmt: skip


def test_a_cloudevent_becomes_an_event_with_its_id_and_time() -> None:
    sent = {**EVENT, "subject": "a", "data": {"celsius": 21.5}, "traceparent": "00-1", "retries": 3, "sampled": True}
    assert stored(cloudevents, cloudevent_of(cloudevents, sent)) == {
        "event_id": "A234-1234", "event_time": "2026-01-31T12:00:00.250000Z", "source": "/sensors/7",
        "type": "com.example.reading", "subject": "a", "data": {"celsius": "21.5"}, "traceparent": "00-1",
        "extensions": {"retries": "3", "sampled": "true"},
    }  # fmt: skip


def test_ids_that_are_unique_for_each_sender_are_joined_with_it() -> None:
    event = stored(cloudevents, cloudevent_of(cloudevents, EVENT, joins_source=True))
    assert (event["event_id"], event["id"]) == ("/sensors/7 A234-1234", "A234-1234")


def test_attributes_that_a_source_declares_have_their_own_fields() -> None:
    own = Source(
        "own", fields="id string, time timestamp, data struct<celsius: double>, region string, extensions string",
        id_field="id", time_field="time",
    )  # fmt: skip
    sent = {**EVENT, "data": {"celsius": 21.5}, "region": "eu", "extensions": "all"}
    event = stored(own, cloudevent_of(own, sent))
    assert event["id"] == EVENT["id"]
    assert event["time"] == "2026-01-31T12:00:00.250000Z"
    assert (event["data"], event["region"]) == ({"celsius": 21.5}, "eu")
    assert event["extensions"] == '{"extensions":"all"}'


@pytest.mark.parametrize("data", ["text", 5, [1, {"a": 2}], True])
def test_data_that_is_no_object_goes_beside_the_map(data: object) -> None:
    event = stored(cloudevents, cloudevent_of(cloudevents, {**EVENT, "data": data}))
    assert "data" not in event
    assert event["data_text"] == (data if isinstance(data, str) else parse_free(data))


def parse_free(data: object) -> str:
    return {5: "5", True: "true"}[data] if isinstance(data, int) else '[1,{"a":2}]'


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": None}, "specversion"),
        ({"id": None}, "id"),
        ({"id": ""}, "id"),
        ({"id": 7}, "id"),
        ({"source": None}, "source"),
        ({"type": ["a"]}, "type"),
        ({"time": "yesterday"}, "time"),
        ({"Upper": "a"}, "Upper"),
        ({"with_underscore": "a"}, "with_underscore"),
        ({"n": 2**31}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": {"a": 1}}, "n"),
        ({"n": "x" * 8193}, "n"),
        ({"data": 1, "data_base64": "AA=="}, "data_base64"),
        ({"data_base64": "not base64"}, "data_base64"),
        ({"data_base64": 5}, "data_base64"),
        ({f"a{number}": 1 for number in range(200)}, ""),
    ],
)
def test_what_is_no_cloudevent_is_refused_with_the_attribute(change: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        cloudevent_of(cloudevents, {**EVENT, **change})
    assert refused.value.where == where


@given(found=HOSTILE | st.dictionaries(st.sampled_from([*EVENT, "data", "data_base64", "x"]), HOSTILE))
def test_any_json_in_place_of_a_cloudevent_is_an_event_or_refused(found: Any) -> None:
    with suppress(InvalidEvent):
        stored(cloudevents, cloudevent_of(cloudevents, found if not isinstance(found, dict) else {**EVENT, **found}))


BINARY = {f"ce-{name}": value for name, value in EVENT.items()}


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("application/json", b'{"a": 1}', {"data": {"a": 1}}),
        ("application/json; charset=utf-8", b"[1]", {"data": [1]}),
        ("application/vnd.shop+json", b'"x"', {"data": "x"}),
        ("text/plain", "é".encode(), {"data": "é"}),
        ("text/plain; charset=UTF-8", b"a", {"data": "a"}),
        ("text/plain; charset=latin-1", b"a", {"data_base64": "YQ=="}),
        ("text/plain", b"\xff", {"data_base64": "/w=="}),
        ("application/octet-stream", b"\0", {"data_base64": "AA=="}),
        ("", b"{}", {"data": {}}),
        ("application/json", b"", {}),
    ],
)
def test_binary_mode_reads_headers_and_the_body_by_its_type(
    content_type: str, body: bytes, expected: dict[str, Any]
) -> None:
    headers = Headers({**BINARY, "ce-note": "Euro%20%E2%82%AC", "ce-quoted": r'"a\"b"', "content-type": content_type})
    (found,) = ce.cloudevents_in(headers, body, parse_body)
    type_ = {"datacontenttype": content_type} if content_type else {}
    assert found == {**EVENT, "note": "Euro €", "quoted": 'a"b', **type_, **expected}


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": "application/json"}, b"{}", 415),
        ({"content-type": "application/cloudevents+avro"}, b"", 415),
        ({"content-type": ce.BATCH}, b"{}", 400),
        ({"content-type": ce.STRUCTURED}, b"", 400),
        ({**BINARY, "ce-datacontenttype": "text/plain"}, b"", 400),
        ({**BINARY, "ce-x": "%ff"}, b"", 400),
        ({**BINARY, "content-type": "application/json"}, b"{", 400),
    ],
)
def test_a_request_that_carries_no_cloudevent_is_refused(headers: dict[str, str], body: bytes, status: int) -> None:
    with pytest.raises(Problem) as refused:
        ce.cloudevents_in(Headers(headers), body, parse_body)
    assert refused.value.status == status


def test_a_header_given_twice_is_refused() -> None:
    raw = [(name.encode(), value.encode()) for name, value in BINARY.items()] + [(b"ce-id", b"other")]
    with pytest.raises(Problem, match="twice"):
        ce.cloudevents_in(Headers(raw=raw), b"", parse_body)


# ---- Segment -----------------------------------------------------------------

RECEIVED = datetime(2026, 1, 31, 12, 0, 10, tzinfo=UTC)
TRACK = {"type": "track", "event": "Order Completed", "messageId": "m-1", "userId": 17, "properties": {"revenue": 9.9}}


def test_a_track_call_becomes_an_event_with_the_time_of_our_clock() -> None:
    """The client's clock is an hour behind: by it, the call was ten seconds before it was sent."""
    message = {**TRACK, "timestamp": "2026-01-31T10:59:55Z", "sentAt": "2026-01-31T11:00:05Z", "writeKey": "secret"}
    assert stored(segment_source, segment.event_of(segment_source, message, RECEIVED)) == {
        "event_id": "m-1", "event_time": "2026-01-31T12:00:00Z", "type": "track", "event": "Order Completed",
        "user_id": "17", "properties": {"revenue": "9.9"}, "original_timestamp": "2026-01-31T10:59:55Z",
        "sent_at": "2026-01-31T11:00:05Z", "received_at": "2026-01-31T12:00:10Z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, "2026-01-31T12:00:10Z"),
        ({"timestamp": "2025-01-01T00:00:00Z"}, "2025-01-01T00:00:00Z"),
        ({"timestamp": "2025-01-01T00:00:00Z", "sentAt": "nonsense"}, "2025-01-01T00:00:00Z"),
        ({"originalTimestamp": "2026-01-31T12:00:00Z", "timestamp": "2020-01-01T00:00:00Z"}, "2026-01-31T12:00:00Z"),
        ({"sentAt": "2020-01-01T00:00:00Z"}, "2026-01-31T12:00:10Z"),
    ],
)
def test_the_time_of_a_call_is_corrected_only_by_what_is_known(times: dict[str, str], expected: str) -> None:
    assert segment.event_of(segment_source, {**TRACK, **times}, RECEIVED)["event_time"] == expected


def test_the_messages_of_a_batch_have_what_they_lack_from_it() -> None:
    body = {
        "batch": [TRACK, {**TRACK, "context": {"ip": "1"}}, 5],
        "context": {"app": "x"}, "sentAt": "2026-01-31T12:00:00Z", "writeKey": "k",
    }  # fmt: skip
    first, second, third = segment.messages_in(body, "batch")
    assert first == {**TRACK, "context": {"app": "x"}, "sentAt": "2026-01-31T12:00:00Z"}
    assert second["context"] == {"ip": "1"}
    assert third == 5


def test_a_call_of_its_own_route_has_its_type() -> None:
    assert segment.messages_in({"userId": "a", "type": "track"}, "identify") == [{"userId": "a", "type": "identify"}]


@pytest.mark.parametrize(
    ("message", "where"),
    [
        (5, ""),
        ({}, "type"),
        ({"type": "trackk"}, "type"),
        ({"type": ["track"]}, "type"),
        ({"type": "track"}, "event"),
        ({**TRACK, "timestamp": "soon"}, "timestamp"),
        ({**TRACK, "timestamp": 5}, "timestamp"),
        ({**TRACK, "timestamp": "9999-12-31T00:00:00Z", "sentAt": "2000-01-01T00:00:00Z"}, "sentAt"),
    ],
)
def test_what_is_no_call_is_refused(message: object, where: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        segment.event_of(segment_source, message, RECEIVED)
    assert refused.value.where == where


@pytest.mark.parametrize("body", [5, [], {}, {"batch": {}}, {"batch": None}])
def test_what_is_no_batch_is_refused(body: object) -> None:
    with pytest.raises(Problem) as refused:
        segment.messages_in(body, "batch")
    assert refused.value.status == 400


@given(message=st.dictionaries(st.sampled_from([*segment.NAMES, "messageId", "timestamp", "sentAt", "x"]), HOSTILE))
def test_any_json_in_place_of_a_call_is_an_event_or_refused(message: dict[str, Any]) -> None:
    with suppress(InvalidEvent):
        stored(segment_source, segment.event_of(segment_source, {**TRACK, **message}, RECEIVED))


# ---- PostHog -----------------------------------------------------------------

CAPTURED = {"event": "signed_up", "distinct_id": "u-1", "uuid": "e-1", "properties": {"plan": "pro", "seats": 3}}
SENT = datetime(2026, 1, 31, 11, 0, 5, tzinfo=UTC)


def test_a_captured_event_becomes_an_event_without_the_key() -> None:
    message = {
        **CAPTURED, "timestamp": "2026-01-31T10:59:55Z", "$set": {"age": 5}, "api_key": "secret",
        "properties": {"plan": "pro", "seats": 3, "token": "secret", "api_key": "secret"},
    }  # fmt: skip
    assert stored(posthog_source, posthog.event_of(posthog_source, message, SENT, RECEIVED)) == {
        "event_id": "e-1", "event_time": "2026-01-31T12:00:00Z", "event": "signed_up", "distinct_id": "u-1",
        "properties": {"plan": "pro", "seats": "3"}, "person_set": {"age": "5"},
        "original_timestamp": "2026-01-31T10:59:55Z", "sent_at": "2026-01-31T11:00:05Z",
        "received_at": "2026-01-31T12:00:10Z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "2026-01-31T12:00:10Z"),
        ({"offset": 2500}, "2026-01-31T12:00:07.500000Z"),
        ({"timestamp": "2026-01-31T11:00:05Z"}, "2026-01-31T12:00:10Z"),
        ({"timestamp": "2026-01-31T11:00:05Z", "properties": {"$ignore_sent_at": True}}, "2026-01-31T11:00:05Z"),
    ],
)
def test_the_time_of_a_captured_event(change: dict[str, Any], expected: str) -> None:
    event = posthog.event_of(posthog_source, {**CAPTURED, **change}, SENT, RECEIVED)
    assert event["event_time"] == expected


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"event": None}, "event"),
        ({"event": ""}, "event"),
        ({"distinct_id": None}, "distinct_id"),
        ({"properties": []}, "properties"),
        ({"timestamp": "x"}, "timestamp"),
        ({"offset": -1}, "offset"),
        ({"offset": "1"}, "offset"),
        ({"offset": 10**18}, "offset"),
    ],
)
def test_what_is_no_captured_event_is_refused(change: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        posthog.event_of(posthog_source, {**CAPTURED, **change}, None, RECEIVED)
    assert refused.value.where == where


def test_a_user_may_be_named_by_the_properties() -> None:
    message = {**CAPTURED, "distinct_id": None, "properties": {"distinct_id": "u-2"}}
    assert posthog.event_of(posthog_source, message, None, RECEIVED)["distinct_id"] == "u-2"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"api_key": "k", "batch": []}, "k"),
        ({"token": "k", "event": "a"}, "k"),
        ([{"event": "a", "properties": {"token": "k"}}], "k"),
        ([], None),
        ({"api_key": 5}, None),
        (None, None),
        ([5], None),
    ],
)
def test_the_key_is_found_where_the_libraries_put_it(body: object, key: str | None) -> None:
    assert posthog.key_of(body) == key


@given(message=st.dictionaries(st.sampled_from([*CAPTURED, *posthog.NAMES, "timestamp", "offset", "x"]), HOSTILE))
def test_any_json_in_place_of_a_captured_event_is_an_event_or_refused(message: dict[str, Any]) -> None:
    with suppress(InvalidEvent):
        stored(posthog_source, posthog.event_of(posthog_source, {**CAPTURED, **message}, SENT, RECEIVED))


# ---- keys --------------------------------------------------------------------


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("Bearer x", "Bearer x"),
        (basic("secret:"), "Bearer secret"),
        (basic("name:secret"), basic("name:secret")),
        (basic(":"), basic(":")),
        (basic(":secret"), basic(":secret")),
        ("Basic !", "Basic !"),
        ("", ""),
    ],
)
def test_a_user_without_a_password_is_a_secret(header: str | None, expected: str | None) -> None:
    headers = [] if header is None else [(b"authorization", header.encode())]
    assert authorization_of(Request({"type": "http", "headers": headers})) == expected
