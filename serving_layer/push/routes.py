"""The two routes of a live endpoint: one path for server-sent events and WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from serving_layer.push.registry import Registry, Subscription
from serving_layer.push.sse import EventStream
from serving_layer.push.websocket import serve_websocket


def push_routes(
    registry: Registry, path: str, subscribe: Callable[[HTTPConnection], Awaitable[Subscription]]
) -> list[BaseRoute]:
    """Routes for `path`. `subscribe` says what a connection follows, or raises the problem with its request."""

    async def by_events(request: Request) -> Response:
        return EventStream(registry, await subscribe(request))

    async def by_websocket(websocket: WebSocket) -> None:
        await serve_websocket(registry, websocket, subscribe)

    return [Route(path, by_events), WebSocketRoute(path, by_websocket)]
