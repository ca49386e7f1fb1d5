"""Events of a declared source: validated, given an id where they have none, stored, one result for each."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import islice
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.failpoints import reach
from infra.rest.problems import Problem
from infra.rest.responses import json_response
from master_dataset.collector.bodies import beside_loop, charge_for_now, check_batch, parse_events, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.produce import ACKS_PARAMETER
from master_dataset.collector.limits import Charge, Limits
from master_dataset.collector.outcomes import describe, problem_of
from master_dataset.collector.parameters import acks_of, flag, query
from master_dataset.collector.producer import Acks, Refusal
from master_dataset.collector.reserved import check_writable
from master_dataset.collector.validators import InForce
from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import PreparedEvent, parse_json, prepare_event
from views.source import Source
from views.strict_json import parse_with_text

Texts = Sequence[bytes | None]
"""What `dump_json` writes for each event, where parsing it has shown that."""
KEY_PARAMETER = {
    "name": "key",
    "in": "query",
    "schema": {"type": "string"},
    "description": "The Kafka key of all these events, instead of the one that the source declares.",
}
EVENTS = {
    "parameters": [
        {
            "name": "atomic",
            "in": "query",
            "schema": {"type": "boolean", "default": False},
            "description": "Store nothing at all if one of the events is not valid.",
        },
        KEY_PARAMETER,
        ACKS_PARAMETER,
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}
            },
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    },
}


def event_routes(collector: Collector) -> APIRouter:
    """`/events/{source}`."""
    routes = APIRouter(tags=["events"])

    @routes.post("/events/{source}", openapi_extra=EVENTS)
    async def store_events(source: str, request: Request) -> Response:
        """Store events: one, an array, or NDJSON; gzip with `Content-Encoding: gzip`.

        The answer is an array with one result per event, in order: its id and its location (for `min_cut`), or its
        `error`.
        200: all are stored. 207: some were not valid and are not stored. 422: none was valid. 503: Kafka did not
        acknowledge in time; they may be stored or not, and a retry with the same ids counts each once.
        """
        return await store(collector, source, request)

    return routes


async def store(collector: Collector, source: str, request: Request) -> Response:
    """Store the events in a request."""
    declared = collector.allow(request, "produce").source(source)
    check_writable(collector.declarations, declared.topic)
    check_takes_json(collector.validators.source(declared.name))
    parameters = query(request)
    acks, is_atomic = acks_of(parameters), flag("atomic", parameters.get("atomic", ""))
    key = given_key(declared, parameters)
    with collector.budget.charge() as charge:
        body = await read_body(request, collector.limits.of_body, charge, collector.parsing)
        content_type = request.headers.get("content-type", "")
        prepared = await beside_loop(
            collector.parsing, body, _read_and_prepare, collector, declared, body, content_type, charge, key
        )
        results = await send_prepared(collector, declared, prepared, acks, is_atomic=is_atomic)
        return json_response(results, 207 if any(isinstance(event, InvalidEvent) for event in prepared) else 200)


def check_takes_json(source: Source) -> None:
    """Raise the problem 415 for a source whose records are not JSON: they need a serializer and its schema."""
    if source.format != "json":
        raise Problem(
            415,
            "other-format",
            f"The records of source {source.name!r} have the format {source.format!r}, and what is sent here is stored "
            f"as JSON. Send to another source, or to the Kafka topic {source.topic!r} with a Kafka client and a "
            "serializer of that format.",
            format=source.format,
        )


def _read_and_prepare(
    collector: Collector, source: Source, body: bytes, content_type: str, charge: Charge, key: bytes | None
) -> list[PreparedEvent | InvalidEvent]:
    """From bytes to what Kafka gets, in one go: what was parsed is far larger, and lives no longer than this."""
    charged = charge_for_now(body, collector.limits.of_body, charge)
    events, texts = read_events(body, content_type, collector.limits)
    check_batch(len(events), collector.limits, charge)
    prepared = prepare_events(collector, collector.validators.in_force(source.name), events, texts, key)
    charge.give_back(charged)
    return prepared


def given_key(source: Source, parameters: dict[str, str]) -> bytes | None:
    """The Kafka key that the request names for all its events."""
    if not (key := parameters.get("key")):
        return None
    if source.compacted:
        detail = (
            f"The topic of source {source.name!r} is compacted: of events with one key Kafka keeps only the last. "
            "Leave `key` out; then each event is keyed by its id. Nothing was stored."
        )
        raise Problem(422, "compacted-topic", detail, where="key")
    return key.encode()


def read_events(body: bytes, content_type: str, limits: Limits) -> tuple[list[Any], Texts]:
    """The events in a body, parsed, and their texts; a line of NDJSON that is not JSON is its InvalidEvent.

    NDJSON is recognized by its Content-Type, or by a first line that is a complete JSON object and more lines after it.
    Of too many lines only one too many is read.
    """
    if "ndjson" in content_type or "jsonl" in content_type or _looks_like_lines(body):
        lines = ((number, line) for number, line in enumerate(io.BytesIO(body), 1) if line.strip())
        found = [_read_line(number, line.rstrip(b"\n")) for number, line in islice(lines, limits.batch + 1)]
        return [event for event, _text in found], [text for _event, text in found]
    return parse_events(body, limits.batch)


def _looks_like_lines(body: bytes) -> bool:
    first, _, rest = body.strip().partition(b"\n")
    if not rest or first[:1] != b"{":
        return False
    try:
        parse_json(first)
    except (InvalidEvent, ValueError):
        return False
    return True


def _read_line(number: int, line: bytes) -> tuple[Any, bytes | None]:
    try:
        return parse_with_text(line)
    except InvalidEvent as error:
        where = error.where.removeprefix("line 1 ")
        return InvalidEvent(f"line {number} {where}".rstrip(), error.reason), None
    except ValueError as error:  # as in parse_body
        return InvalidEvent(f"line {number}", f"this cannot be read: {error}"), None


def prepare_events(
    collector: Collector, in_force: InForce, events: Sequence[Any], texts: Texts, key: bytes | None = None
) -> list[PreparedEvent | InvalidEvent]:
    """Each event as Kafka gets it, or what is wrong with it."""
    (source, validate), largest = in_force, collector.limits.event
    prepared: list[PreparedEvent | InvalidEvent] = []
    for event, text in zip(events, texts, strict=True):
        try:
            if type(event) is not InvalidEvent:
                validate(event)
                event = prepare_event(source, event, key, text=text)
        except InvalidEvent as error:
            event = error
        except ValueError as error:  # as in parse_body
            event = InvalidEvent("", f"this cannot be read: {error}")
        else:
            if type(event) is PreparedEvent and len(event.value) + len(event.key) > largest:
                size = len(event.value) + len(event.key)
                event = InvalidEvent("", f"it has {size} bytes; at most {largest} are taken (collector_max_event_kb)")
        prepared.append(event)
    return prepared


async def send_prepared(
    collector: Collector,
    source: Source,
    prepared: list[PreparedEvent | InvalidEvent],
    acks: Acks = "all",
    *,
    is_atomic: bool = False,
) -> list[dict[str, Any]]:
    """Store the valid events: a result for each event, in order. A problem if none is valid, or Kafka lacks one."""
    topic = source.topic
    valid = [event for event in prepared if isinstance(event, PreparedEvent)]
    collector.metrics.count_invalid(topic, len(prepared) - len(valid))
    if len(valid) < len(prepared) and (is_atomic or not valid):
        raise _refused(prepared, is_atomic=is_atomic)
    await collector.topics.partitions(topic)
    reach("collector.before_produce")
    outcomes = collector.bases.logical(topic, await collector.producer.send_values(topic, valid, acks))
    reach("collector.before_answer")
    collector.metrics.count(topic, outcomes)
    stored: list[dict[str, Any]] = [
        {"event_id": event.event_id, "topic": topic, "error": describe(outcome)}
        if isinstance(outcome, Refusal)
        else {
            "event_id": event.event_id,
            "topic": topic,
            "partition": outcome[0],
            "offset": outcome[1],
            "timestamp": outcome[2],
        }
        for event, outcome in zip(valid, outcomes, strict=True)
    ]
    if len(valid) == len(prepared):
        results = stored
    else:
        next_stored = iter(stored)
        results = [
            next(next_stored) if isinstance(event, PreparedEvent) else {"error": _error(event, index)}
            for index, event in enumerate(prepared)
        ]
    if problem := problem_of(outcomes, results):
        if problem.status == 404:
            collector.topics.forget(topic)
        raise problem
    return results


def _error(invalid: InvalidEvent, index: int) -> dict[str, Any]:
    where = invalid.where if len(invalid.where) <= 200 else f"{invalid.where[:197]}..."
    return {
        "status": 422,
        "type": "urn:tidemark:problem:invalid-event",
        "where": where,
        "detail": f"event {index}: {where + ': ' if where else ''}{invalid.reason}",
    }


def _refused(prepared: list[PreparedEvent | InvalidEvent], *, is_atomic: bool) -> Problem:
    errors = {index: event for index, event in enumerate(prepared) if isinstance(event, InvalidEvent)}
    first_index, first = next(iter(errors.items()))
    not_sent = {"error": {"status": 424, "type": "urn:tidemark:problem:not-sent", "detail": "another event is invalid"}}
    results = [_error(errors[index], index) if index in errors else not_sent["error"] for index in range(len(prepared))]
    why = " and atomic=true was asked" if is_atomic and len(errors) < len(prepared) else ""
    detail = f"{len(errors)} of {len(prepared)} events are not valid{why}. Nothing was stored. The first: " + str(
        _error(first, first_index)["detail"]
    )
    return Problem(
        422,
        "invalid-event",
        detail,
        where=_error(first, first_index)["where"],
        results=[{"error": result} for result in results],
    )
