"""Requests as clients of other protocols send them: CloudEvents, Segment, PostHog, OTLP logs, W3C logs.

Each has the right shape; now and then one part of it is another, or a few bytes are.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

from master_dataset.collector.doors.otlp_messages import ExportLogsServiceRequest
from tests.system.fuzzed_kafka import OddValue, spoiled
from tests.system.fuzzed_parts import Request

Maker = Callable[[random.Random], Request]
SOURCES = ("cloudevents", "segment", "posthog", "otel_logs")
"""Of the catalog, beside `web`, which takes W3C logs."""
TIMES = ("2026-11-18T12:00:00Z", "2026-11-18T12:00:00.123456789+01:00", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
DAMAGED = 0.1
PROPERTIES: list[Any] = [
    {"price": 12.5, "items": [1, {"a": None}], "on": True}, {}, {"nested": {"deep": {"er": []}}}, {"": ""},
    {"long": "x" * 3_000}, {"ü€𝄞": "\u0001"},
]  # fmt: skip


def _sent(chance: random.Random, path: str, body: bytes, content_type: str, **headers: str) -> Request:
    """Now and then with a few other bytes, cut off, or for another source."""
    if chance.random() < DAMAGED:
        damaged = bytearray(body or b"x")
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        body = bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged) + 1)])])
    return "POST", path, body, {"Content-Type": content_type, **headers}


def _id(chance: random.Random) -> str:
    return chance.choice([f"{chance.randrange(50)}", base64.b64encode(chance.randbytes(9)).decode(), "7" * 300])


# ---- CloudEvents ----------------------------------------------------------------------


def cloudevents(odd: OddValue) -> Maker:
    """In the structured, the batch and the binary mode."""

    def make(chance: random.Random) -> Request:
        path = f"/cloudevents/cloudevents{chance.choice(['', '?id_scope=source', '?key=k', '?id_scope=global'])}"
        event = _cloudevent(chance)
        if chance.random() < 0.3:
            batch = spoiled(chance, odd, [event, _cloudevent(chance)])
            return _sent(chance, path, _dumps(batch), "application/cloudevents-batch+json")
        if chance.random() < 0.4:
            return _sent(chance, path, _dumps(spoiled(chance, odd, event)), "application/cloudevents+json")
        data = event.pop("data", None)
        event.pop("data_base64", None)
        headers = {f"ce-{name}": str(value).encode("ascii", "ignore").decode() for name, value in event.items()}
        if chance.random() < DAMAGED:
            headers[chance.choice([*headers])] = chance.choice(["%ff", "", '"', '"\\', "%", "x" * 3_000, "1.1"])
        kind = chance.choice(["application/json", "text/plain", "text/plain; charset=utf-16", "image/png", "a/b+json"])
        return _sent(chance, path, _dumps(data), kind, **headers)

    return make


def _cloudevent(chance: random.Random) -> dict[str, Any]:
    event = {
        "specversion": "1.0", "id": _id(chance), "source": "/orders", "type": "com.example.order",
        "subject": "a%20b", "time": chance.choice(TIMES), "dataschema": "urn:x", "traceparent": "00-aa-bb-01",
        "sequence": chance.randrange(9), "datacontenttype": "application/json",
    }  # fmt: skip
    data = chance.choice([{"data": chance.choice(PROPERTIES)}, {"data": "text"}, {"data_base64": "AAEC"}, {}])
    return event | data


def _dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


# ---- Segment and PostHog ---------------------------------------------------------------

CALLS = ("track", "identify", "page", "screen", "group", "alias")


def segment(odd: OddValue) -> Maker:
    """A batch, or one call."""

    def make(chance: random.Random) -> Request:
        prefix = chance.choice(["", "", "/segment/segment"])
        if chance.random() < 0.5:
            call = chance.choice(CALLS)
            return _sent(chance, f"{prefix}/v1/{call}", _dumps(spoiled(chance, odd, _call(chance))), "application/json")
        batch = [{**_call(chance), "type": chance.choice(CALLS)} for _ in range(chance.randrange(1, 4))]
        body = {"batch": batch, "sentAt": chance.choice(TIMES), "context": {"library": {"name": "x"}}}
        return _sent(chance, f"{prefix}/v1/batch", _dumps(spoiled(chance, odd, body)), "application/json")

    return make


def _call(chance: random.Random) -> dict[str, Any]:
    call = {
        "event": "Order Completed", "messageId": _id(chance), "userId": "u1", "anonymousId": "a1", "previousId": "p1",
        "groupId": "g1", "name": "Home", "category": "shop", "properties": chance.choice(PROPERTIES),
        "traits": chance.choice(PROPERTIES), "context": {"ip": "::1"}, "integrations": {"All": False},
        "timestamp": chance.choice(TIMES), "originalTimestamp": chance.choice(TIMES), "sentAt": chance.choice(TIMES),
    }  # fmt: skip
    return {name: value for name, value in call.items() if chance.random() < 0.7}


def posthog(odd: OddValue) -> Maker:
    """A batch, one event, or an array of events."""

    def make(chance: random.Random) -> Request:
        end, prefix = chance.choice(["", "/"]), chance.choice(["", "", "/posthog/posthog"])
        one = _captured(chance)
        path, body = chance.choice(
            [
                ("/batch", {"batch": [one, _captured(chance)], "sent_at": chance.choice(TIMES)}),
                ("/capture", one), ("/e", [one]), ("/i/v0/e", {**one, "offset": chance.choice([0, 5, 1e18, -1])}),
                ("/flags", {"distinct_id": "u1"}), ("/decide", {"distinct_id": "u1"}),
            ]
        )  # fmt: skip
        return _sent(chance, f"{prefix}{path}{end}", _dumps(spoiled(chance, odd, body)), "application/json")

    return make


def _captured(chance: random.Random) -> dict[str, Any]:
    event = {
        "uuid": _id(chance), "distinct_id": "u1", "timestamp": chance.choice(TIMES), "$set": chance.choice(PROPERTIES),
        "$set_once": chance.choice(PROPERTIES), "$groups": {"company": "x"}, "library": "x", "offset": 5,
        "properties": {**chance.choice(PROPERTIES), "$ignore_sent_at": True},
    }  # fmt: skip
    return {"event": "$pageview", **{name: value for name, value in event.items() if chance.random() < 0.7}}


# ---- OTLP logs, and W3C logs -------------------------------------------------------------


def otlp(odd: OddValue) -> Maker:
    """The same records as JSON or as Protobuf."""

    def make(chance: random.Random) -> Request:
        path = chance.choice(["/v1/logs", "/otlp/otel_logs/v1/logs"])
        if chance.random() < 0.5:
            return _sent(chance, path, _dumps(spoiled(chance, odd, _logs(chance))), "application/json")
        return _sent(chance, path, _logs_in_protobuf(chance), "application/x-protobuf")

    return make


def _logs(chance: random.Random) -> dict[str, Any]:
    record = {
        "timeUnixNano": chance.choice(["1763467200000000000", 0, "18446744073709551615"]),
        "observedTimeUnixNano": "1763467200000000001", "severityNumber": chance.choice([9, "SEVERITY_NUMBER_INFO"]),
        "severityText": "INFO", "body": _any_value(chance, 0), "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174", "flags": 1, "droppedAttributesCount": 2, "eventName": "x",
        "attributes": [{"key": chance.choice(["a", "", "ü"]), "value": _any_value(chance, 0)} for _ in range(2)],
    }  # fmt: skip
    scope = {"name": "s", "version": "1", "attributes": [{"key": "k", "value": {"stringValue": "v"}}]}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    logs = [record] * chance.randrange(1, 4)
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": logs}]}]}


def _any_value(chance: random.Random, depth: int) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"stringValue": "x"}, {"boolValue": True}, {"intValue": "-9223372036854775808"}, {"intValue": 5},
        {"doubleValue": chance.choice([0.5, "NaN", "Infinity", 1e300])}, {"bytesValue": "AAEC"}, {},
    ]  # fmt: skip
    if depth < 4:
        inner = _any_value(chance, depth + 1)
        kinds += [{"arrayValue": {"values": [inner]}}, {"kvlistValue": {"values": [{"key": "k", "value": inner}]}}] * 3
    return chance.choice(kinds)


def _logs_in_protobuf(chance: random.Random) -> bytes:
    request = ExportLogsServiceRequest()
    of_resource = request.resource_logs.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    of_scope = of_resource.scope_logs.add()
    of_scope.scope.name = "s"
    for _ in range(chance.randrange(1, 4)):
        record = of_scope.log_records.add(severity_number=9, trace_id=chance.randbytes(chance.choice([16, 0, 3])))
        record.time_unix_nano = chance.choice([1_763_467_200_000_000_000, 0, 2**64 - 1])
        record.body.kvlist_value.values.add(key="k").value.double_value = chance.choice([0.5, float("nan")])
        value = record.attributes.add(key="a").value
        for _ in range(chance.choice([0, 1, 5, 90])):
            value = value.array_value.values.add()
        value.bytes_value = chance.randbytes(3)
    return bytes(request.SerializeToString())


W3C = ("#Version: 1.0", "#Fields: date time c-ip cs-username cs-method cs-uri-stem cs-uri-query sc-status time-taken",
       "2026-11-18 12:00:00 ::1 - GET /a x=1 200 15", "2026-11-18 12:00:01 10.0.0.1 u POST /b - 500 -",
       "2026-11-18 12:00:02 x", '#Fields: time cs(User-Agent)', '12:00:03 "a b"', "#Date: 2026-11-18", "")  # fmt: skip


def w3c(odd: OddValue) -> Maker:
    """Lines in their order, some of them missing, or odd."""

    def make(chance: random.Random) -> Request:
        lines = [line for line in W3C if chance.random() < 0.9]
        if chance.random() < 0.3:
            lines.insert(chance.randrange(len(lines) + 1), str(odd(chance))[:500])
        body = chance.choice(["\n", "\r\n"]).join(lines).encode("utf-8", "surrogatepass")
        return _sent(chance, f"/logs/w3c/web?origin=o{chance.randrange(3)}", body, "text/plain")

    return make
