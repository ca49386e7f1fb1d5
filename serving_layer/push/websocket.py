"""WebSocket: the same messages, one text frame each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from infra.rest.problems import Problem
from serving_layer.errors import ServingError
from serving_layer.push.connection import (
    SEND_TIMEOUT_S,
    closed_on,
    first_messages,
    following_messages,
    last_event_id,
)
from serving_layer.push.mailbox import Mailbox, Message
from serving_layer.push.registry import Registry, Subscription
from serving_layer.rest.context import problem_of

SERVER_STOPPING = (1001, "the serving layer is stopping")
KEY_INVALID = (1008, "the key is no longer valid")
CHANNEL_FAILED = (1011, "internal error; reconnect")
"""Close codes with their reasons: going away, policy violation, internal error."""


async def serve_websocket(
    registry: Registry, websocket: WebSocket, subscribe: Callable[[HTTPConnection], Awaitable[Subscription]]
) -> None:
    """Send messages until the client or this server ends the connection; deny the handshake with a problem document."""
    try:
        subscription, known = await subscribe(websocket), last_event_id(websocket)
        async with registry.subscribe(subscription, known) as mailbox:
            first = await first_messages(mailbox, subscription, known)
            await websocket.accept()
            async with closed_on("websocket.disconnect", websocket.receive, mailbox) as disconnected:
                await _send(websocket, first)
                async for messages in following_messages(mailbox, subscription):
                    await _send(websocket, messages)
                if not disconnected.done():
                    await websocket.close(*_close_reason(registry, mailbox))
    except ServingError as error:
        await websocket.send_denial_response(problem_of(error).response())
    except Problem as problem:
        await websocket.send_denial_response(problem.response())
    except (WebSocketDisconnect, TimeoutError):
        pass  # the client is gone, or accepts no more data


def _close_reason(registry: Registry, mailbox: Mailbox) -> tuple[int, str]:
    if registry.is_closing:
        return SERVER_STOPPING
    return CHANNEL_FAILED if mailbox.is_closed else KEY_INVALID


async def _send(websocket: WebSocket, messages: list[Message]) -> None:
    for message in messages:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await websocket.send_text(message.as_text())
