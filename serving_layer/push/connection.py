"""What server-sent events and WebSockets have in common: one connection, from its first message to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from infra.rest.problems import Problem
from serving_layer.errors import ServingError
from serving_layer.push.mailbox import Mailbox, Message
from serving_layer.push.registry import Subscription

HEARTBEAT_S = 15.0
"""Proxies close idle connections, often after a minute."""
SEND_TIMEOUT_S = 60.0
"""A client that accepts no data for this long is disconnected."""


def last_event_id(connection: HTTPConnection) -> str | None:
    """The id of the last message that a client received before it reconnected."""
    return connection.headers.get("last-event-id")


async def first_messages(mailbox: Mailbox, subscription: Subscription, known: str | None) -> list[Message]:
    """The messages to open with, without the one that the client has already.

    Raises the problem instead if the subscription starts with one that the client caused; another one may pass.
    """
    if not subscription.waits_for_first:
        return []
    messages = await mailbox.take(HEARTBEAT_S)
    for message in messages:
        if message.problem is not None and message.problem.status < 500:
            raise message.problem
    return [message for message in messages if not message.id or message.id != known]


async def following_messages(mailbox: Mailbox, subscription: Subscription) -> AsyncIterator[list[Message]]:
    """Messages that the key may see, and an empty list after each idle `HEARTBEAT_S`.

    Ends when the mailbox is closed, or when the key is no longer valid: it is checked again each time.
    """
    while True:
        messages = await mailbox.take(HEARTBEAT_S)
        if mailbox.is_closed:
            return
        try:
            may_see = subscription.check_access()
        except (Problem, ServingError):
            return
        visible = [message for message in messages if not message.about or may_see(message.about)]
        if visible or not messages:
            yield visible


@asynccontextmanager
async def closed_on(
    disconnect: str, receive: Callable[[], Awaitable[MutableMapping[str, Any]]], mailbox: Mailbox
) -> AsyncIterator[asyncio.Task[None]]:
    """Close the mailbox when the client disconnects. Anything else that the client sends is ignored."""

    async def watch() -> None:
        while (await receive())["type"] != disconnect:
            pass
        mailbox.close()

    task = asyncio.create_task(watch())
    try:
        yield task
    finally:
        task.cancel()
