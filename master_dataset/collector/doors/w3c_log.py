"""W3C extended logs by HTTP: what IIS and others write, line for line, read as `tidemark import` reads a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response, wrong_parameter
from master_dataset.collector.bodies import read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.doors.door import Door, Event
from master_dataset.collector.events import KEY_PARAMETER
from master_dataset.collector.parameters import query
from master_dataset.errors import InvalidEvent
from master_dataset.importer.errors import UnusableInput
from master_dataset.importer.line_ids import LineIds
from master_dataset.importer.w3c_log import W3cReader
from master_dataset.importer.web_request import PROPERTIES, compile_web_event
from views.source import Source

MAX_ORIGIN = 1_000
ABOUT = {
    "parameters": [
        KEY_PARAMETER,
        {
            "name": "origin",
            "in": "query",
            "required": True,
            "schema": {"type": "string"},
            "description": "Which log this is, such as its host and file name. A line of it that is sent again counts "
            "once; equal lines of different origins are different events.",
        },
    ],
    "requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}}}},
}


def w3c_log_routes(collector: Collector) -> APIRouter:
    """`/logs/w3c/{source}`."""
    routes = APIRouter(tags=["doors"])
    door = Door(collector, "a W3C log", ("properties", "user_id", *PROPERTIES))

    @routes.post("/logs/w3c/{source}", openapi_extra=ABOUT)
    async def store_w3c_log(source: str, request: Request) -> Response:
        """Store the lines of a W3C extended log from its beginning, or from a `#Fields` line on.

        The same log may be sent again when it has grown: the lines that were sent before count once. The answer has one
        result per line with a request. 422: some were not valid; the others are stored, see `results`.
        """
        target = door.open(request, source)
        origin = query(request).get("origin", "")
        if not 0 < len(origin) <= MAX_ORIGIN:
            raise wrong_parameter("origin", "the name of the log, such as www1/u_ex261118.log", origin)
        with collector.budget.charge() as charge:
            body = await read_body(request, collector.limits.of_body, charge, collector.parsing)
            results = await door.store_all(target, body, charge, lambda into: events_in(into, body, origin))
        return json_response(results)

    return routes


def events_in(source: Source, body: bytes, origin: str) -> Iterator[Event]:
    """The request in each line, or what is wrong with it."""
    try:
        reader = W3cReader(compile_web_event(source), UTC)
    except UnusableInput as error:
        raise Problem(422, "unsuitable-source", f"{error} Nothing was stored.") from None
    ids = LineIds(f"w3c {origin}")
    for number, line in enumerate(io.BytesIO(body), 1):
        raw = line.rstrip(b"\r\n")
        try:
            if reader.is_event(raw):
                event_id = ids.next_id(raw, number, reader.context)
                yield {**reader.read(raw), source.id_field: event_id}
        except InvalidEvent as error:
            yield InvalidEvent(f"line {number} {error.where}".rstrip(), error.reason)
