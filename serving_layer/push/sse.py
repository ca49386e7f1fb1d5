"""Server-sent events: the response that streams a subscription."""

from __future__ import annotations

import asyncio

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving_layer.push.connection import (
    SEND_TIMEOUT_S,
    closed_on,
    first_messages,
    following_messages,
    last_event_id,
)
from serving_layer.push.mailbox import Mailbox, Message
from serving_layer.push.registry import Registry, Subscription

RECONNECT_MS = 2000


class EventStream(Response):
    """Streams messages until the client or this server ends the connection."""

    def __init__(self, registry: Registry, subscription: Subscription) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=EventSourceResponse.media_type
        )
        del self.headers["Content-Length"]
        self._registry, self._subscription = registry, subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond. What is raised before the stream starts becomes the problem document of an ordinary response."""
        known = last_event_id(HTTPConnection(scope))
        async with self._registry.subscribe(self._subscription, known) as mailbox:
            first = await first_messages(mailbox, self._subscription, known)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with closed_on("http.disconnect", receive, mailbox):
                await self._stream(mailbox, first, send)

    async def _stream(self, mailbox: Mailbox, first: list[Message], send: Send) -> None:
        async def write(chunk: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": more})

        await write(format_sse_event(retry=RECONNECT_MS) + _formatted(first))
        async for messages in following_messages(mailbox, self._subscription):
            await write(_formatted(messages) or KEEPALIVE_COMMENT)
        await write(b"", more=False)


def _formatted(messages: list[Message]) -> bytes:
    return b"".join(
        format_sse_event(data_str=message.data, event=message.event, id=message.id or None) for message in messages
    )
