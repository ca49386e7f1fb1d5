"""Segment's HTTP API: `/v1/track`, `identify`, `page`, `screen`, `group`, `alias` and `batch`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response
from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.context import Collector
from master_dataset.collector.doors.door import Door, Event, placed
from master_dataset.collector.doors.times import by_our_clock, moment_or_none
from master_dataset.collector.events import KEY_PARAMETER
from master_dataset.errors import InvalidEvent
from views.formats.times import moment_of, time_text
from views.source import Source

SOURCE = "segment"
"""The source of the routes that name none; the catalog has it."""
CALLS = ("track", "identify", "page", "screen", "group", "alias")
BATCH = "batch"
NAMES = {
    "type": "type",
    "event": "event",
    "userId": "user_id",
    "anonymousId": "anonymous_id",
    "previousId": "previous_id",
    "groupId": "group_id",
    "name": "name",
    "category": "category",
    "properties": "properties",
    "traits": "traits",
    "context": "context",
    "integrations": "integrations",
    "channel": "channel",
    "version": "version",
}
"""What Segment calls a field, and what it is in an event. Others keep their names."""
FIELDS = (*NAMES.values(), "original_timestamp", "sent_at", "received_at")
FROM_BATCH = ("context", "integrations", "sentAt")
"""What the messages of a batch have from it, if they have none themselves."""
NOT_STORED = ("writeKey", "messageId", "timestamp", "originalTimestamp", "sentAt", "receivedAt")
REPLY = {"success": True}

ABOUT = {
    "parameters": [KEY_PARAMETER],
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
}


def segment_routes(collector: Collector) -> APIRouter:
    """`/v1/…` for the source `segment`, and `/segment/{source}/v1/…` for any other."""
    routes = APIRouter(tags=["doors"])
    door = Door(collector, "Segment's API", FIELDS)

    @routes.post("/v1/{call}", openapi_extra=ABOUT)
    async def store_messages(call: str, request: Request) -> Response:
        """Store what Segment's clients send in the source `segment`: `batch`, or one message of the type `call`.

        The write key is the secret of a key with the scope `produce`. `messageId` is the event id. 200: all are stored.
        422: some were not valid; the others are stored, see `results`.
        """
        return await _reply(door, SOURCE, call, request)

    @routes.post("/segment/{source}/v1/{call}", openapi_extra=ABOUT)
    async def store_messages_of(source: str, call: str, request: Request) -> Response:
        """The same for any source."""
        return await _reply(door, source, call, request)

    return routes


async def _reply(door: Door, source: str, call: str, request: Request) -> Response:
    """Store what was sent. Segment's clients look for `code` and `message` in an error."""
    try:
        await _store(door, source, call, request)
    except Problem as problem:
        problem.more |= {"success": False, "code": problem.kind, "message": problem.detail}
        raise
    return json_response(REPLY)


async def _store(door: Door, name: str, call: str, request: Request) -> None:
    with door.collector.budget.charge() as charge:
        target, body, value = await door.receive_json(request, name, charge, _key)
        received = datetime.now(UTC)
        if call not in (*CALLS, BATCH):
            raise Problem(
                404, "unknown-call", f"There is no call {call[:40]!r}. There are: {', '.join(CALLS)}, {BATCH}."
            )
        messages = messages_in(value, call)
        await door.store_all(target, body, charge, lambda into: (_event(into, each, received) for each in messages))


def messages_in(value: object, call: str) -> Sequence[Any]:
    """The messages of a request: one of the call's type, or those of a batch with what they have in common."""
    if type(value) is not dict:
        raise invalid_body("", "this should be a JSON object", status=400)
    if call != BATCH:
        return [{**value, "type": call}]
    batch = value.get(BATCH)
    if type(batch) is not list:
        raise invalid_body(BATCH, "this should be an array of messages", status=400)
    common = {name: value[name] for name in FROM_BATCH if value.get(name) is not None}
    return [{**common, **message} if type(message) is dict else message for message in batch]


def event_of(source: Source, message: object, received: datetime) -> dict[str, Any]:
    """A message as an event of a source, or InvalidEvent."""
    if type(message) is not dict:
        raise InvalidEvent("", "a message is a JSON object")
    if message.get("type") not in CALLS:
        raise InvalidEvent("type", f"this should be one of {', '.join(CALLS)}; it is {str(message.get('type'))[:40]!r}")
    if message["type"] == "track" and not message.get("event"):
        raise InvalidEvent("event", "a track call has the name of an event")
    given = message.get("originalTimestamp") or message.get("timestamp")
    sent = moment_or_none(message.get("sentAt"))
    happened = received if given is None else moment_of(given, "timestamp")
    corrected = happened if given is None else by_our_clock(happened, sent, received, "sentAt")
    fields: dict[str, Any] = {
        str(NAMES.get(name, name)): value for name, value in message.items() if name not in NOT_STORED
    }
    fields |= {
        "original_timestamp": None if given is None else time_text(happened, "timestamp"),
        "sent_at": None if sent is None else time_text(sent, "sentAt"),
        "received_at": time_text(received, "received_at"),
    }
    return placed(source, message.get("messageId"), time_text(corrected, "timestamp"), fields)


def _event(source: Source, message: object, received: datetime) -> Event:
    try:
        return event_of(source, message, received)
    except InvalidEvent as error:
        return error


def _key(value: object) -> str | None:
    key = value.get("writeKey") if type(value) is dict else None
    return key if isinstance(key, str) else None
