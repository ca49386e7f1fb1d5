"""What doors make of log records: OTLP in Protobuf and JSON, and W3C extended logs."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber

from infra.rest.problems import Problem
from master_dataset.collector.bodies import parse_body
from master_dataset.collector.doors.otlp_logs import PROTOBUF, _response, events_in, within
from master_dataset.collector.doors.otlp_values import (
    MAX_DEPTH,
    MAX_VALUES,
    Shared,
    records_in_json,
    records_in_protobuf,
)
from master_dataset.collector.doors.w3c_log import events_in as w3c_events_in
from master_dataset.collector.limits import Limits
from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import compile_validator, prepare_event
from tests.unit.test_doors import HOSTILE
from views.catalog.otel_logs import otel_logs
from views.catalog.web import web
from views.formats.fit import fit_of
from views.source import Source

MAX_RECORD = 1_000_000


def stored(source: Source, event: Any) -> dict[str, Any]:
    fitted = fit_of(source)(event)
    compile_validator(source)(fitted)
    return dict(parse_body(prepare_event(source, fitted).value))


# ---- OTLP --------------------------------------------------------------------

RECORD = {
    "timeUnixNano": "1769860800123456789", "observedTimeUnixNano": "1769860801000000000", "severityNumber": 17,
    "severityText": "ERROR", "body": {"stringValue": "no room"}, "flags": 1, "eventName": "disk.full",
    "attributes": [
        {"key": "disk", "value": {"stringValue": "sda"}}, {"key": "free", "value": {"intValue": "5"}},
        {"key": "ratio", "value": {"doubleValue": 0.5}}, {"key": "bad", "value": {"boolValue": True}},
        {"key": "raw", "value": {"bytesValue": "AAE="}}, {"key": "none", "value": {}},
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "a"}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}}},
    ],
    "traceId": "0102030405060708090a0b0c0d0e0f10", "spanId": "0102030405060708",
}  # fmt: skip


def request_of(*records: dict[str, Any]) -> dict[str, Any]:
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
                "scopeLogs": [{"scope": {"name": "app", "version": "1"}, "logRecords": list(records)}],
            }
        ]
    }


def in_protobuf(request: dict[str, Any]) -> bytes:
    """As an exporter writes it, by the messages of the OpenTelemetry project; ids are base64 in this JSON."""
    found = ParseDict(json.loads(json.dumps(request)), ExportLogsServiceRequest(), ignore_unknown_fields=True)
    for resource_logs in found.resource_logs:
        for scope_logs in resource_logs.scope_logs:
            for record in scope_logs.log_records:
                if record.trace_id:
                    record.trace_id = bytes.fromhex("0102030405060708090a0b0c0d0e0f10")
                    record.span_id = bytes.fromhex("0102030405060708")
    return found.SerializeToString()


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_a_log_record_becomes_an_event_alike_in_both_encodings(encoding: str) -> None:
    request = request_of(RECORD)
    found = (
        records_in_json(request, MAX_RECORD)
        if encoding == "json"
        else records_in_protobuf(in_protobuf(request), MAX_RECORD)
    )
    (event,) = events_in(otel_logs, found)
    (other,) = events_in(otel_logs, records_in_json(request, MAX_RECORD))
    kept = stored(otel_logs, event)
    assert kept.pop("event_id") == stored(otel_logs, other)["event_id"]
    assert kept == {
        "event_time": "2026-01-31T12:00:00.123456Z", "observed_time": "2026-01-31T12:00:01Z", "service": "shop",
        "severity_number": 17, "severity_text": "ERROR", "event_name": "disk.full", "body": "no room", "flags": 1,
        "attributes": {"disk": "sda", "free": "5", "ratio": "0.5", "bad": "true", "raw": "AAE=", "none": None,
                       "list": '[1,"a"]', "map": '{"k":"v"}'},
        "resource": {"service.name": "shop"}, "scope_name": "app", "scope_version": "1",
        "trace_id": "0102030405060708090a0b0c0d0e0f10", "span_id": "0102030405060708",
    }  # fmt: skip


def ids(*records: dict[str, Any]) -> list[str]:
    return [event["event_id"] for event in events_in(otel_logs, records_in_json(request_of(*records), MAX_RECORD))]  # type: ignore[index]


def test_a_request_that_is_sent_again_has_the_same_ids_and_equal_records_have_their_own() -> None:
    other = {**RECORD, "body": {"stringValue": "other"}}
    first = ids(RECORD, RECORD, other)
    assert first == ids(RECORD, RECORD, other)
    assert len(set(first)) == 3
    assert len(set(ids(RECORD)) | set(ids({**RECORD, "timeUnixNano": "1769860800123456790"}))) == 2


def test_without_a_time_the_observed_time_counts() -> None:
    (event,) = events_in(otel_logs, records_in_json(request_of({**RECORD, "timeUnixNano": None}), MAX_RECORD))
    assert isinstance(event, dict)
    assert event["event_time"] == "2026-01-31T12:00:01Z"
    (bare,) = events_in(otel_logs, records_in_json(request_of({}), MAX_RECORD))
    assert isinstance(bare, dict)
    assert bare["event_time"] is None


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}
    return value


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"timeUnixNano": "x"}, "timeUnixNano"),
        ({"timeUnixNano": -1}, "timeUnixNano"),
        ({"timeUnixNano": 2**64 - 1}, "timeUnixNano"),
        ({"severityNumber": "LOUD"}, "severityNumber"),
        ({"severityText": 5}, "severityText"),
        ({"traceId": "xyz"}, "traceId"),
        ({"spanId": "0"}, "spanId"),
        ({"body": "bare"}, "body"),
        ({"body": {"stringValue": 5}}, "body"),
        ({"body": {"intValue": "1.5"}}, "body"),
        ({"body": {"stringValue": "a", "intValue": "1"}}, "body"),
        ({"body": {"bytesValue": "?"}}, "body"),
        ({"body": nested(MAX_DEPTH)}, "body"),
        ({"attributes": {}}, "attributes"),
        ({"attributes": [{"key": 5}]}, "attributes"),
        ({"attributes": [{"key": "a", "value": {"arrayValue": {"values": [{}] * MAX_VALUES}}}]}, "attributes"),
    ],
)
def test_a_record_that_is_not_valid_is_refused_alone(change: dict[str, Any], where: str) -> None:
    wrong, right = events_in(otel_logs, records_in_json(request_of({**RECORD, **change}, RECORD), MAX_RECORD))
    assert isinstance(wrong, InvalidEvent)
    assert wrong.where == where
    assert isinstance(right, dict)


@pytest.mark.parametrize("name", ["SEVERITY_NUMBER_INFO", "SEVERITY_NUMBER_INFO2", "SEVERITY_NUMBER_FATAL4"])
def test_a_severity_may_have_its_name(name: str) -> None:
    (event,) = events_in(otel_logs, records_in_json(request_of({"severityNumber": name}), MAX_RECORD))
    assert isinstance(event, dict)
    assert event["severity_number"] == SeverityNumber.Value(name)


def test_numbers_that_json_has_not_become_texts() -> None:
    values = [{"key": str(value), "value": {"doubleValue": value}} for value in ("NaN", "Infinity", "-Infinity")]
    request = request_of({"attributes": values})
    for found in (records_in_json(request, MAX_RECORD), records_in_protobuf(in_protobuf(request), MAX_RECORD)):
        (event,) = events_in(otel_logs, found)
        assert isinstance(event, dict)
        assert event["attributes"] == {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity"}


@pytest.mark.parametrize("value", [5, [], {"resourceLogs": {}}, {"resourceLogs": [5]}, request_of(5)])  # type: ignore[arg-type]
def test_json_that_is_no_request_is_refused(value: object) -> None:
    with pytest.raises(Problem) as refused:
        list(records_in_json(value, MAX_RECORD))
    assert refused.value.status == 400


@pytest.mark.parametrize("body", [b"\xff", b"{}", b"\x0a\x05\x01"])
def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        list(records_in_protobuf(body, MAX_RECORD))
    assert refused.value.status == 400


def test_a_large_record_is_refused_before_it_is_unfolded() -> None:
    body = in_protobuf(request_of({"body": {"stringValue": "x" * 2_000}}, RECORD))
    wrong, right = records_in_protobuf(body, 1_000)
    assert isinstance(wrong, InvalidEvent)
    assert not isinstance(right, InvalidEvent)


def scopes(count: int, *, attributes: int = 1, value: str = "v", records: int = 1) -> dict[str, Any]:
    """A request with one resource, which has so many attributes, and so many scopes."""
    resource = {"attributes": [{"key": f"k{each}", "value": {"stringValue": value}} for each in range(attributes)]}
    scope_logs = [{"scope": {"name": f"s{each}"}, "logRecords": [RECORD] * records} for each in range(count)]
    return {"resourceLogs": [{"resource": resource, "scopeLogs": scope_logs}]}


def found_in(request: dict[str, Any], encoding: str, max_size: int = MAX_RECORD) -> list[Any]:
    if encoding == "json":
        return list(records_in_json(request, max_size))
    return list(records_in_protobuf(in_protobuf(request), max_size))


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_a_resource_is_read_once_however_many_scopes_it_has(encoding: str) -> None:
    found = found_in(scopes(3, attributes=2), encoding)
    assert [origin.scope.values["name"] for origin, _ in found] == ["s0", "s1", "s2"]
    assert len({id(origin.resource) for origin, _ in found}) == 1
    assert len({event["event_id"] for event in events_in(otel_logs, found)}) == 3  # type: ignore[index]


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_a_resource_or_scope_without_records_is_not_read(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    of = Shared.of
    monkeypatch.setattr(Shared, "of", lambda values, where, size: read.append(where) or of(values, where, size))
    request = scopes(3)
    request["resourceLogs"][0]["scopeLogs"][1]["logRecords"] = []
    request["resourceLogs"] += scopes(3, records=0)["resourceLogs"]
    assert len(found_in(request, encoding)) == 2
    assert read == ["resource", "scope", "scope"]


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_a_resource_that_fits_into_no_event_is_refused_with_its_records(encoding: str) -> None:
    (refused,) = found_in(scopes(1, value="x" * 2_000), encoding, 2_000)
    assert isinstance(refused, InvalidEvent)
    assert (refused.where, "collector_max_event_kb" in refused.reason) == ("resource", True)
    assert not isinstance(found_in(scopes(1, value="x" * 1_900), encoding, 2_000)[0], InvalidEvent)


def test_what_records_have_in_common_is_bounded_before_each_is_checked() -> None:
    limits = Limits(body=10_000, event=MAX_RECORD, batch=10_000, buffer=10**6, body_timeout_s=30)
    few, many = (found_in(scopes(1, value="x" * 1_000, records=count), "json") for count in (30, 40))
    assert len(list(within(few, limits))) == 30
    with pytest.raises(Problem) as refused:
        list(within(many, limits))
    assert refused.value.status == 413


def test_refused_records_are_counted_in_the_reply() -> None:
    reply = ExportLogsServiceResponse.FromString(bytes(_response(PROTOBUF, ["first", "second"]).body))
    assert (reply.partial_success.rejected_log_records, reply.partial_success.error_message) == (2, "first")
    assert bytes(_response(PROTOBUF, []).body) == b""
    assert json.loads(bytes(_response("application/json", ["first"]).body)) == {
        "partialSuccess": {"rejectedLogRecords": "1", "errorMessage": "first"}
    }


@given(record=st.dictionaries(st.sampled_from(list(RECORD)), HOSTILE))
def test_any_json_in_place_of_a_record_is_an_event_or_refused(record: dict[str, Any]) -> None:
    for event in events_in(otel_logs, records_in_json(request_of({**RECORD, **record}), MAX_RECORD)):
        if not isinstance(event, InvalidEvent):
            with suppress(InvalidEvent):
                stored(otel_logs, event)


@given(body=st.binary(max_size=80), at=st.integers(0, 400))
def test_any_bytes_in_place_of_a_request_are_read_or_refused(body: bytes, at: int) -> None:
    whole = in_protobuf(request_of(RECORD))
    for each in (body, whole[:at] + body + whole[at + len(body) :], whole[:at]):
        with suppress(Problem):
            for event in events_in(otel_logs, records_in_protobuf(each, MAX_RECORD)):
                if not isinstance(event, InvalidEvent):
                    with suppress(InvalidEvent):
                        stored(otel_logs, event)


# ---- W3C ---------------------------------------------------------------------

W3C = b"""#Software: Microsoft Internet Information Services 10.0
#Fields: date time c-ip cs-method cs-uri-stem sc-status time-taken
2026-03-01 12:00:00 10.0.0.1 GET /a 200 15
2026-03-01 12:00:00 10.0.0.1 GET /a 200 15
2026-03-01 12:00:01 10.0.0.1 GET /b x 15
"""


def test_lines_of_a_w3c_log_become_requests_with_ids_of_their_content() -> None:
    first, again, wrong = w3c_events_in(web, W3C, "www1")
    assert isinstance(first, dict)
    assert isinstance(again, dict)
    assert stored(web, first) == {
        "event_time": "2026-03-01T12:00:00Z", "name": "request", "event_id": first["event_id"],
        "properties": {"url": "/a", "method": "GET", "status": 200, "ms": 15.0, "ip": "10.0.0.1"},
    }  # fmt: skip
    assert again["event_id"] != first["event_id"]
    assert isinstance(wrong, InvalidEvent)
    assert wrong.where.startswith("line 5")


def test_a_log_that_has_grown_has_the_same_ids_and_another_log_has_others() -> None:
    def ids_of(body: bytes, origin: str) -> list[str]:
        return [event["event_id"] for event in w3c_events_in(web, body, origin) if isinstance(event, dict)]

    before = ids_of(W3C, "www1")
    assert ids_of(W3C + b"2026-03-01 12:00:09 10.0.0.1 GET /c 200 15\r\n", "www1")[:2] == before
    assert not set(ids_of(W3C, "www2")) & set(before)


def test_a_source_that_no_request_fits_is_refused() -> None:
    with pytest.raises(Problem) as refused:
        list(w3c_events_in(Source("bare", fields="event_id string, event_time timestamp, n int"), W3C, "a"))
    assert refused.value.status == 422
