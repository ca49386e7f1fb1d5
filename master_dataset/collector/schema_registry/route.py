"""What the registry's routes have in common: paths with encoded slashes, errors and media types as clients expect."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from infra.rest.problems import Problem
from master_dataset.registry.errors import RegistryError

PREFIX = "/schema-registry"
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
MEDIA_TYPES = (MEDIA_TYPE, "application/vnd.schemaregistry+json", "application/json")
ACCEPTED = frozenset({*MEDIA_TYPES, "", "*/*", "application/*", "text/plain"})
"""Clients that fetch a text ask for text/plain, and take JSON."""


class RegistryRoute(APIRoute):
    """A route whose parameters may hold slashes, and whose errors have an `error_code` and a `message`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """By the path as it was sent: an encoded slash belongs to a name."""
        raw = scope.get("raw_path", b"").split(b"?", 1)[0]
        if b"%2f" in raw.lower():
            scope = {**scope, "path": raw.decode("latin-1")}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, with errors answered as clients of a registry read them."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RegistryError as error:
                return reply(request, {"error_code": error.code, "message": str(error)}, error.status)
            except Problem as problem:
                document = {"error_code": problem.status, "message": problem.detail, **problem.document()}
                response = reply(request, document, problem.status)
                response.headers.update(problem.headers)
                return response

        return answer


def reply(request: Request, value: Any, status: int = 200) -> Response:
    """An answer in the media type that the client prefers, of those that clients know."""
    return Response(orjson.dumps(value, default=str), status, media_type=_media_type(request.headers.get("accept", "")))


def check_accepted(request: Request) -> None:
    """Raise 406 for a client that takes nothing of what is answered here."""
    accepted = request.headers.get("accept", "")
    wanted = [each.partition(";")[0].strip().lower() for each in accepted.split(",")]
    if not any(each in ACCEPTED for each in wanted):
        raise RegistryError(406, f"HTTP 406 Not Acceptable: answers are {', '.join(MEDIA_TYPES)}.")


def _media_type(accepted: str) -> str:
    for each in accepted.split(","):
        wanted = each.partition(";")[0].strip().lower()
        if wanted in MEDIA_TYPES:
            return wanted
    return MEDIA_TYPE
