"""Responses and routes of every REST server: JSON by orjson, strict query strings, `/health`, `/ready`, `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast
from urllib.parse import parse_qsl

import orjson
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from infra.rest.access import Access
from infra.rest.problems import Problem


def json_response(value: Any, status: int = 200) -> Response:
    """An answer, written by orjson."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def query_pairs(connection: HTTPConnection) -> list[tuple[str, str]]:
    """Names and values of a query string, in order. What is not UTF-8 is refused, where Starlette would replace it."""
    raw = cast(bytes, connection.scope.get("query_string", b""))
    if not raw:
        return []
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise wrong_parameter("query string", "percent-encoded UTF-8", raw.decode("latin-1")) from None


def wrong_parameter(name: str, right: str, given: str) -> Problem:
    """The problem for a parameter."""
    given = given if len(given) <= 100 else f"{given[:97]}..."
    return Problem(400, "invalid-parameter", f"{name} is {given!r}; it should be {right}.", where=name)


def add_health(app: FastAPI, is_ready: Callable[[], Awaitable[dict[str, Any]]], *aliases: str) -> None:
    """`/health` (also by `aliases`) and `/ready`, without a key. `is_ready` gives its answer, or raises a problem."""

    async def health() -> Response:
        """Whether this process runs."""
        return json_response({"status": "ok"})

    async def ready() -> Response:
        """Whether it can do its work, and what of it."""
        return json_response({"status": "ready", **await is_ready()})

    app.add_api_route("/health", health, tags=["health"])
    for alias in aliases:
        app.add_api_route(alias, health, include_in_schema=False)
    app.add_api_route("/ready", ready, tags=["health"])


def add_metrics(app: FastAPI, access: Access, registry: Callable[[], CollectorRegistry]) -> None:
    """`/metrics`, for a key with the scope `metrics`: unlike a port on loopback, this address may be anybody's."""

    async def metrics(request: Request) -> Response:
        """What this server measures of itself, for Prometheus."""
        access.check(request, "metrics", "admin")
        text = await asyncio.to_thread(lambda: generate_latest(registry()))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    app.add_api_route("/metrics", metrics, tags=["health"])
