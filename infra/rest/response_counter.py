"""Count the responses of a REST server by their status."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ResponseCounter:
    """ASGI middleware. An error that nobody expected counts as 500, which the server answers outside of it."""

    def __init__(self, app: ASGIApp, count: Callable[[int], None]) -> None:
        """`count` is called once for each response."""
        self._app, self._count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def counted(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                self._count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not has_started:
                self._count(500)
            raise
