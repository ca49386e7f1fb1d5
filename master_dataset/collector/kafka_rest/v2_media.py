"""What the routes of REST Proxy v2 have in common: media types, and errors as its clients read them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from master_dataset.collector.kafka_rest.embedded_schemas import schema_problem
from master_dataset.registry.errors import RegistryError
from views.strict_json import dump_json

PREFIX = "/rest-proxy"
"""Clients take it as part of their base URL. `/topics` without it is a route of our own."""
MEDIA_TYPE = "application/vnd.kafka.v2+json"
FORMATS = ("binary", "json", "avro", "jsonschema", "protobuf")
SCHEMA_FORMATS = {"avro": "AVRO", "jsonschema": "JSON", "protobuf": "PROTOBUF"}
PLAIN = frozenset({MEDIA_TYPE, "application/vnd.kafka+json", "application/json"})
ANYTHING = frozenset({"", "*/*", "application/*"})
CODES = {
    "unknown-topic": 40401,
    "unknown-partition": 40402,
    "unknown-consumer": 40403,
    "schema-incompatible": 40901,
    "consumer-exists": 40902,
    "not-assigned": 40903,
    "partitions-lost": 40903,
    "group-rebalances": 40903,
    "subscribed-otherwise": 40903,
    "format-differs": 40601,
    "key-schema-missing": 42201,
    "value-schema-missing": 42202,
    "data-misfits": 42203,
    "invalid-consumer": 42204,
    "invalid-schema": 42205,
    "undecodable": 42206,
    "kafka-unreachable": 50003,
}
"""Confluent's `error_code` by our kind of problem; for all others it is the status."""

Handle = Callable[[Request], Coroutine[Any, Any, Response]]


class V2Route(APIRoute):
    """A route whose errors have the members that clients of REST Proxy v2 read, `error_code` and `message`."""

    def get_route_handler(self) -> Handle:
        """FastAPI's own way to change what a route does."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RegistryError as error:
                problem = schema_problem(error)
            except Problem as found:
                problem = found
            code = CODES.get(problem.kind, problem.status)
            document = {"error_code": code, "message": problem.detail, **problem.document()}
            response = Response(orjson.dumps(document, default=str), problem.status, media_type=MEDIA_TYPE)
            response.headers.update(problem.headers)
            return response

        return answer


def reply(value: Any, status: int = 200, media_type: str = MEDIA_TYPE) -> Response:
    """An answer."""
    return Response(dump_json(value), status, media_type=media_type)


def empty() -> Response:
    """204, which most changes are answered with."""
    return Response(None, 204)


def media_type_of(format: str) -> str:
    """The media type of records in a format: `application/vnd.kafka.json.v2+json`."""
    return f"application/vnd.kafka.{format}.v2+json"


EMBEDDED = {media_type_of(format): format for format in FORMATS}


def check_media(request: Request) -> None:
    """Raise 406 for a client that takes nothing of what is answered here, 415 for a body of another type.

    Clients also send the types of records here, as Confluent's quick start does.
    """
    if not _accepted(request) & (PLAIN | ANYTHING):
        raise _not_acceptable(MEDIA_TYPE)
    given = _content_type(request)
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if has_body and given not in {*PLAIN, *EMBEDDED}:
        raise _unsupported(given, MEDIA_TYPE)


def format_of_body(request: Request) -> str:
    """The format of the records in a body, by its Content-Type; 406 and 415 as above."""
    if not _accepted(request) & (PLAIN | ANYTHING):
        raise _not_acceptable(MEDIA_TYPE)
    given = _content_type(request)
    formats = EMBEDDED | dict.fromkeys(PLAIN, "binary")
    if given not in formats:
        raise _unsupported(given, ", ".join(map(media_type_of, FORMATS)))
    return formats[given]


def check_format_accepted(request: Request, format: str) -> None:
    """Raise 40601 for a client that wants records in another format than it made its instance for."""
    right = media_type_of(format)
    if not _accepted(request) & (PLAIN | ANYTHING | {right}):
        raise Problem(
            406,
            "format-differs",
            f"This consumer instance was made with the format {format!r}: its records are {right}, and Accept names "
            f"{request.headers.get('accept', '')[:200]!r}.",
        )


def _accepted(request: Request) -> set[str]:
    return {each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(",")}


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _not_acceptable(right: str) -> Problem:
    return Problem(406, "not-acceptable", f"HTTP 406 Not Acceptable: answers are {right}.")


def _unsupported(given: str, right: str) -> Problem:
    return Problem(
        415,
        "unsupported-media-type",
        f"HTTP 415 Unsupported Media Type: Content-Type is {given[:200]!r}; it should be {right}.",
    )
