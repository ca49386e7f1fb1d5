"""CloudEvents 1.0 by HTTP: one in headers and body (binary), one as JSON (structured), or many as JSON (batch)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response
from master_dataset.collector.bodies import invalid_body, parse_within, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.doors.door import Door, Event
from master_dataset.collector.events import KEY_PARAMETER
from master_dataset.collector.parameters import one_of, query
from master_dataset.errors import InvalidEvent
from views.formats.cloudevents import BATCH, FIELDS, STRUCTURED, CloudEvent, data_of, event_of
from views.source import Source

PREFIX = "ce-"

_ESCAPED = re.compile(r"\\(.)")

ABOUT = {
    "parameters": [
        KEY_PARAMETER,
        {
            "name": "id_scope",
            "in": "query",
            "schema": {"enum": ["global", "source"], "default": "global"},
            "description": "`source`: ids are unique for each `source` attribute only, which joins the event id.",
        },
    ],
    "requestBody": {
        "required": True,
        "content": {
            STRUCTURED: {"schema": {"type": "object"}},
            BATCH: {"schema": {"type": "array", "items": {"type": "object"}}},
            "*/*": {"schema": {}},
        },
    },
}


def cloudevents_routes(collector: Collector) -> APIRouter:
    """`/cloudevents/{source}`."""
    routes = APIRouter(tags=["doors"])
    door = Door(collector, "a CloudEvent", FIELDS)

    @routes.post("/cloudevents/{source}", openapi_extra=ABOUT)
    async def store_cloudevents(source: str, request: Request) -> Response:
        """Store CloudEvents 1.0: binary (`ce-` headers), structured or batch, by the Content-Type.

        The attribute `id` is the event id. The answer has one result per event, in order: its id and its location, or
        its `error`. 200: all are stored. 422: some were not valid; the others are stored, see `results`.
        """
        target = door.open(request, source)
        id_scope = one_of("id_scope", query(request).get("id_scope", "global"), ("global", "source"))
        with collector.budget.charge() as charge:
            body = await read_body(request, collector.limits.of_body, charge, collector.parsing)

            def parse(part: bytes) -> Any:
                return parse_within(part, collector.limits.of_body, charge)

            def read(into: Source) -> Iterable[Event]:
                found = cloudevents_in(request.headers, body, parse)
                return (_event(into, each, joins_source=id_scope == "source") for each in found)

            return json_response(await door.store_all(target, body, charge, read))

    return routes


def cloudevents_in(headers: Headers, body: bytes, parse: Callable[[bytes], Any]) -> list[Any]:
    """What a request carries, by its content mode: each a CloudEvent, or what is wrong with it."""
    content_type = headers.get("content-type", "").strip()
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == BATCH:
        found = parse(body)
        if type(found) is not list:
            raise invalid_body("", f"a batch ({BATCH}) is a JSON array of CloudEvents", status=400)
        return found
    if media_type == STRUCTURED:
        return [parse(body)]
    if media_type.startswith("application/cloudevents"):
        raise _unknown_mode(f"the format {media_type[:80]!r} is not known")
    if f"{PREFIX}specversion" in headers:
        return [_binary(headers, content_type, body, parse)]
    raise _unknown_mode(f"the Content-Type is {media_type[:80]!r}, and there is no header ce-specversion")


def _event(source: Source, found: object, *, joins_source: bool) -> Event:
    try:
        return event_of(source, found, joins_source=joins_source)
    except InvalidEvent as error:
        return error


def _binary(headers: Headers, content_type: str, body: bytes, parse: Callable[[bytes], Any]) -> CloudEvent:
    """`ce-id: 7`, `Content-Type: application/json` and a body -> its attributes and data."""
    found: CloudEvent = {}
    for name, value in headers.items():
        if not name.startswith(PREFIX):
            continue
        attribute = name.removeprefix(PREFIX)
        if attribute in found or attribute in ("datacontenttype", "data"):
            raise invalid_body(name, "this header is given twice, or not allowed in the binary mode", status=400)
        found[attribute] = _header_text(name, value)
    if content_type:
        found["datacontenttype"] = content_type
    if body:
        found |= data_of(content_type, body, parse)
    return found


def _header_text(name: str, value: str) -> str:
    """`Euro%20%E2%82%AC` -> `Euro €`; a quoted value loses its quotes."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _ESCAPED.sub(r"\1", value[1:-1])
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise invalid_body(name, "this header should be percent-encoded UTF-8", status=400) from None


def _unknown_mode(found: str) -> Problem:
    return Problem(
        415,
        "unknown-content-mode",
        f"This is no CloudEvent: {found}. Send ce- headers (binary), {STRUCTURED} or {BATCH}. Nothing was stored.",
    )
