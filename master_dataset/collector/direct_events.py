"""`POST /events/{source}` on a short way: for a single event, choosing its route costs more than storing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from infra.rest.problems import Problem, disconnected

Store = Callable[[str, Request], Awaitable[Response]]


class DirectEvents:
    """ASGI middleware: hands requests for declared sources to the function that their route calls too.

    All other requests, whatever is wrong with them, go through the application. An error that nobody expected goes
    up to the middleware that answers it for the whole application.
    """

    def __init__(self, app: ASGIApp, store: Store, sources: Mapping[str, str]) -> None:
        """`sources` has the names of sources by their paths."""
        self._app, self._store, self._sources = app, store, sources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        source = self._sources.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if source is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await self._store(source, Request(scope, receive))
        except Problem as problem:
            response = problem.response()
        except ClientDisconnect:
            response = disconnected().response()
        await response(scope, receive, send)
