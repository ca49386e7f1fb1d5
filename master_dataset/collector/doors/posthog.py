"""PostHog's capture: what its libraries send from servers, as events of a source."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.responses import json_response
from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.context import Collector
from master_dataset.collector.doors.door import Door, Event, placed
from master_dataset.collector.doors.times import by_our_clock, moment_or_none
from master_dataset.collector.events import KEY_PARAMETER
from master_dataset.errors import InvalidEvent
from views.formats.times import moment_of, time_text
from views.source import Source

SOURCE = "posthog"
"""The source of the routes that name none; the catalog has it."""
CAPTURE = ("/capture", "/batch", "/e", "/i/v0/e")
FLAGS = ("/flags", "/decide")
NAMES = {"$set": "person_set", "$set_once": "person_set_once", "$groups": "groups"}
"""What PostHog calls a field, and what it is in an event. Others keep their names."""
FIELDS = ("event", "distinct_id", "properties", *NAMES.values(), "original_timestamp", "sent_at", "received_at")
NOT_STORED = ("api_key", "token", "uuid", "timestamp", "offset", "sent_at", "distinct_id", "$distinct_id")
KEYS = ("api_key", "token")
"""Where a key is; in properties too. It is a secret, and is not stored."""
MAX_OFFSET_MS = 100 * 366 * 86_400_000
REPLY = {"status": "Ok"}
NO_FLAGS: dict[str, Any] = {
    "flags": {},
    "featureFlags": {},
    "featureFlagPayloads": {},
    "errorsWhileComputingFlags": False,
}
"""There are no feature flags here; the libraries evaluate them to what the program says for that case."""

ABOUT = {
    "parameters": [KEY_PARAMETER],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}
            }
        },
    },
}


def posthog_routes(collector: Collector) -> APIRouter:
    """`/batch/` and its like for the source `posthog`, and `/posthog/{source}/batch/` for any other."""
    routes = APIRouter(tags=["doors"])
    door = Door(collector, "PostHog's capture", FIELDS)

    async def capture(request: Request) -> Response:
        """Store the events of PostHog's libraries in the source `posthog`.

        The project's API key is the secret of a key with the scope `produce`. `uuid` is the event id. 200: all are
        stored. 422: some were not valid; the others are stored, see `results`.
        """
        return await _store(door, SOURCE, request)

    async def capture_to(source: str, request: Request) -> Response:
        """The same for any source."""
        return await _store(door, source, request)

    async def flags(request: Request) -> Response:
        """No feature flags: Tidemark has none, and PostHog's libraries ask."""
        return await _no_flags(door, SOURCE, request)

    async def flags_of(source: str, request: Request) -> Response:
        """The same for any source."""
        return await _no_flags(door, source, request)

    for paths, handler, handler_of in ((CAPTURE, capture, capture_to), (FLAGS, flags, flags_of)):
        for path in paths:
            for prefix, its_handler in (("", handler), ("/posthog/{source}", handler_of)):
                routes.add_api_route(f"{prefix}{path}", its_handler, methods=["POST"], openapi_extra=ABOUT)
                routes.add_api_route(f"{prefix}{path}/", its_handler, methods=["POST"], include_in_schema=False)
    return routes


async def _store(door: Door, name: str, request: Request) -> Response:
    with door.collector.budget.charge() as charge:
        target, body, value = await door.receive_json(request, name, charge, key_of)
        received = datetime.now(UTC)
        messages, sent = messages_in(value)
        sent_at = moment_or_none(sent)
        await door.store_all(
            target, body, charge, lambda into: (_event(into, each, sent_at, received) for each in messages)
        )
    return json_response(REPLY)


async def _no_flags(door: Door, name: str, request: Request) -> Response:
    with door.collector.budget.charge() as charge:
        await door.receive_json(request, name, charge, key_of)
    return json_response(NO_FLAGS)


def messages_in(value: object) -> tuple[Sequence[Any], object]:
    """The messages of a request, and when the client says that it sent them."""
    if type(value) is list:
        return value, None
    if type(value) is not dict:
        raise invalid_body("", "this should be a JSON object or an array", status=400)
    if "batch" not in value:
        return [value], value.get("sent_at")
    if type(value["batch"]) is not list:
        raise invalid_body("batch", "this should be an array of messages", status=400)
    return value["batch"], value.get("sent_at")


def event_of(source: Source, message: object, sent: datetime | None, received: datetime) -> dict[str, Any]:
    """A message as an event of a source, or InvalidEvent."""
    if type(message) is not dict:
        raise InvalidEvent("", "a message is a JSON object")
    properties = message.get("properties")
    if properties is not None and type(properties) is not dict:
        raise InvalidEvent("properties", "this should be an object")
    properties = dict(properties or {})
    distinct_id = next(
        (
            found
            for found in (message.get("distinct_id"), message.get("$distinct_id"), properties.get("distinct_id"))
            if found not in (None, "")
        ),
        None,
    )
    for name, found in (("event", message.get("event")), ("distinct_id", distinct_id)):
        if found in (None, ""):
            raise InvalidEvent(name, "every event of PostHog has this; here it is missing")
    given = message.get("timestamp")
    happened = received if given is None else moment_of(given, "timestamp")
    if given is None:
        happened -= timedelta(milliseconds=_offset(message.get("offset")))
    elif properties.get("$ignore_sent_at") is not True:
        happened = by_our_clock(happened, sent, received, "sent_at")
    for key in KEYS:
        properties.pop(key, None)
    fields = {NAMES.get(name, str(name)): value for name, value in message.items() if name not in NOT_STORED}
    fields |= {
        "distinct_id": distinct_id,
        "properties": properties or None,
        "original_timestamp": None if given is None else time_text(moment_of(given, "timestamp"), "timestamp"),
        "sent_at": None if sent is None else time_text(sent, "sent_at"),
        "received_at": time_text(received, "received_at"),
    }
    return placed(source, message.get("uuid"), time_text(happened, "timestamp"), fields)


def key_of(value: object) -> str | None:
    """The key in a body, or in the first message of an array."""
    first = value[0] if type(value) is list and value else value
    if type(first) is not dict:
        return None
    properties = first.get("properties")
    for holder in (first, properties if type(properties) is dict else {}):
        for name in KEYS:
            if isinstance(holder.get(name), str):
                return str(holder[name])
    return None


def _event(source: Source, message: object, sent: datetime | None, received: datetime) -> Event:
    try:
        return event_of(source, message, sent, received)
    except InvalidEvent as error:
        return error


def _offset(value: object) -> int:
    """How many milliseconds before it was sent something happened."""
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= MAX_OFFSET_MS:
        raise InvalidEvent("offset", "this should be a whole number of milliseconds")
    return value
