"""OTLP/HTTP logs: what OpenTelemetry's exporters and collectors send to `/v1/logs`, as Protobuf or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response
from master_dataset.collector.bodies import parse_within, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.doors.door import Door, Event, check_growth, placed
from master_dataset.collector.doors.otlp_messages import ExportLogsServiceResponse
from master_dataset.collector.doors.otlp_values import (
    Found,
    LogRecord,
    Origin,
    hash_of,
    records_in_json,
    records_in_protobuf,
    text_of,
)
from master_dataset.collector.doors.times import from_nanoseconds
from master_dataset.collector.events import KEY_PARAMETER
from master_dataset.collector.limits import Limits
from master_dataset.errors import InvalidEvent
from views.source import Source

SOURCE = "otel_logs"
"""The source of the route that names none; the catalog has it."""
PROTOBUF, JSON = "application/x-protobuf", "application/json"
MAX_PROTOBUF = 4_000_000
"""Of a body in Protobuf, unpacked. Small messages take many times their size in memory."""
FIELDS = (
    "observed_time", "severity_number", "severity_text", "event_name", "body", "attributes", "resource", "service",
    "scope_name", "scope_version", "scope_attributes", "trace_id", "span_id", "flags", "dropped_attributes_count",
)  # fmt: skip
SERVICE = "service.name"

ABOUT = {
    "parameters": [KEY_PARAMETER],
    "requestBody": {
        "required": True,
        "content": {
            PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
            JSON: {"schema": {"type": "object"}},
        },
    },
}


def otlp_log_routes(collector: Collector) -> APIRouter:
    """`/v1/logs` for the source `otel_logs`, and `/otlp/{source}/v1/logs` for any other."""
    routes = APIRouter(tags=["doors"])
    door = Door(collector, "OTLP", FIELDS)

    @routes.post("/v1/logs", openapi_extra=ABOUT)
    async def store_logs(request: Request) -> Response:
        """Store log records of OpenTelemetry in the source `otel_logs`: an ExportLogsServiceRequest.

        The answer is an ExportLogsServiceResponse; `partial_success` counts the records that were not valid and are
        not stored.
        """
        return await _reply(door, SOURCE, request)

    @routes.post("/otlp/{source}/v1/logs", openapi_extra=ABOUT)
    async def store_logs_of(source: str, request: Request) -> Response:
        """The same for any source."""
        return await _reply(door, source, request)

    return routes


async def _reply(door: Door, name: str, request: Request) -> Response:
    """Store what was sent. An exporter sends again after 503, and not after 507."""
    try:
        return await _store(door, name, request)
    except Problem as problem:
        if problem.status == 507:
            problem.status = 503
        raise


async def _store(door: Door, name: str, request: Request) -> Response:
    target = door.open(request, name)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (PROTOBUF, JSON):
        raise Problem(
            415, "unknown-format", f"The Content-Type is {media_type[:80]!r}; OTLP is {PROTOBUF} or {JSON}. Nothing "
            "was stored.",
        )  # fmt: skip
    limits = door.collector.limits.of_body
    if media_type == PROTOBUF and limits.size > MAX_PROTOBUF:
        limits = replace(limits, size=MAX_PROTOBUF, setting="in Protobuf")
    with door.collector.budget.charge() as charge:
        body = await read_body(request, limits, charge, door.collector.parsing)

        def read(into: Source) -> Iterable[Event]:
            max_size = door.collector.limits.event
            if media_type == JSON:
                records = records_in_json(parse_within(body, limits, charge), max_size)
            else:
                records = records_in_protobuf(body, max_size)
            return events_in(into, within(records, door.collector.limits))

        results = await door.store(target, body, charge, read)
    return _response(media_type, [result["error"]["detail"] for result in results if "error" in result])


def _response(media_type: str, errors: list[str]) -> Response:
    if media_type == JSON:
        partial = {"rejectedLogRecords": str(len(errors)), "errorMessage": errors[0]} if errors else None
        return json_response({"partialSuccess": partial} if partial else {})
    message = ExportLogsServiceResponse()
    if errors:
        message.partial_success.rejected_log_records = len(errors)
        message.partial_success.error_message = errors[0]
    return Response(message.SerializeToString(), media_type=PROTOBUF)


def within(records: Iterable[Found], limits: Limits) -> Iterator[Found]:
    """The records, or the problem 413 once what they have in common, which each is checked with, is too much in all."""
    size = 0
    for found in records:
        if not isinstance(found, InvalidEvent):
            size += found[0].size
            check_growth(size, limits)
        yield found


def events_in(source: Source, records: Iterable[Found]) -> Iterator[Event]:
    """Each record as an event, or what is wrong with it. Equal records of one request are numbered."""
    seen: dict[bytes, int] = {}
    for found in records:
        if isinstance(found, InvalidEvent):
            yield found
            continue
        try:
            digest = digest_of(*found)
            number = seen[digest] = seen.get(digest, -1) + 1
            yield event_of(source, f"{digest.hex()}-{number}" if number else digest.hex(), *found)
        except InvalidEvent as error:
            yield error


def digest_of(origin: Origin, record: LogRecord) -> bytes:
    """The same for the same record sent again, in Protobuf or JSON: OTLP has no ids."""
    return hash_of(origin.resource.digest + origin.scope.digest + text_of(vars(record)))


def event_of(source: Source, event_id: str, origin: Origin, record: LogRecord) -> dict[str, Any]:
    """A record as an event of a source, or InvalidEvent. What it says nothing of is left out."""
    time_ns, observed_ns = record.time_unix_nano, record.observed_time_unix_nano
    observed = from_nanoseconds(observed_ns, "observedTimeUnixNano") if observed_ns else None
    time = from_nanoseconds(time_ns, "timeUnixNano") if time_ns else observed
    fields: dict[str, Any] = {
        "observed_time": observed,
        "severity_number": record.severity_number or None,
        "severity_text": record.severity_text or None,
        "event_name": record.event_name or None,
        "body": record.body,
        "attributes": record.attributes or None,
        "resource": origin.resource.values or None,
        "service": origin.resource.values.get(SERVICE),
        "scope_name": origin.scope.values["name"] or None,
        "scope_version": origin.scope.values["version"] or None,
        "scope_attributes": origin.scope.values["attributes"] or None,
        "trace_id": record.trace_id or None,
        "span_id": record.span_id or None,
        "flags": record.flags or None,
        "dropped_attributes_count": record.dropped_attributes_count or None,
    }
    return placed(source, event_id, time, fields)
