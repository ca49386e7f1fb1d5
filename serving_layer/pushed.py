"""What is pushed as it happens: transitions of alerts, and matches of watches, by server-sent events and WebSocket.

    subscriber ─┐
    subscriber ─┼─ mailbox each ◀── channel: all alerts, or a watch ── reads while anybody listens
    subscriber ─┘   (bounded)

Unlike an answer, which the next one replaces, each of these counts. A reader that is slow finds up to `MOST_UNREAD` of
them when it comes back, and is told how many it missed; it holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from infra.problems import Problem
from serving_layer.context import Serving, problem_of
from serving_layer.errors import ServingError
from serving_layer.live import HEARTBEAT_S, KEY_GONE, RECONNECT_MS, SEND_TIMEOUT_S, STOPPING

MOST_UNREAD = 1_000
AGAIN_S = 1.0
"""After what is read did not answer."""

log = structlog.get_logger()


class Pushed(NamedTuple):
    """One message: JSON in `data`. `about` is the view or watch that a key must be allowed to see."""

    event: str
    id: str
    data: str
    about: str

    def as_sse(self) -> bytes:
        """As a server-sent event."""
        return format_sse_event(data_str=self.data, event=self.event, id=self.id or None)

    def as_text(self) -> str:
        """For a WebSocket: `{"alert": {...}}`."""
        return f'{{"{self.event}":{self.data}}}'


@dataclass(eq=False)
class Mailbox:
    """What a subscriber has not read, the newest of it."""

    unread: deque[Pushed] = field(default_factory=lambda: deque(maxlen=MOST_UNREAD))
    missed: int = 0
    is_ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: Pushed) -> None:
        """Where there is no room, the oldest goes."""
        self.missed += len(self.unread) == MOST_UNREAD
        self.unread.append(message)
        self.news.set()

    def end(self) -> None:
        """There will be nothing more."""
        self.is_ended = True
        self.news.set()

    async def take(self, patience_s: float) -> list[Pushed]:
        """All that is there, waited for; nothing when nothing came in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.news.wait()
        found = list(self.unread)
        self.unread.clear()
        if self.missed:
            found.insert(0, Pushed("missed", "", f'{{"count":{self.missed}}}', ""))
            self.missed = 0
        if not self.is_ended:
            self.news.clear()
        return found


Reading = Callable[[str], AsyncIterator[Pushed]]
"""What comes after an id (of the last that is known; empty: from now on), for ever."""


@dataclass(eq=False)
class Channel:
    """What is read once for all that listen."""

    name: str
    read: Reading
    mailboxes: set[Mailbox] = field(default_factory=set)
    task: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        """Hand on what comes; begin again where reading failed."""
        last = ""
        while True:
            try:
                async for message in self.read(last):
                    last = message.id
                    for mailbox in self.mailboxes:
                        mailbox.put(message)
            except Exception as error:  # Redis, the disk: it comes back
                log.warning("not_pushed", channel=self.name, why=str(error))
            await asyncio.sleep(AGAIN_S)


class Pushing:
    """All connections to which something is pushed. `others`: how many live connections there are besides."""

    def __init__(self, serving: Serving, others: Callable[[], int]) -> None:
        self._serving, self._others = serving, others
        self._channels: dict[str, Channel] = {}
        self.is_closing = False

    @property
    def subscribers(self) -> int:
        """How many there are."""
        return sum(len(channel.mailboxes) for channel in self._channels.values())

    @asynccontextmanager
    async def subscribe(self, name: str, read: Reading) -> AsyncIterator[Mailbox]:
        """A mailbox for what a channel brings; the problem 429 where there are too many."""
        if self.is_closing:
            raise Problem(503, "stopping", "The serving layer stops. Connect again in a moment.", retry_after_s=1)
        most = self._serving.settings.serving_live_subscribers
        if self.subscribers + self._others() >= most:
            detail = f"The serving layer has {most} live connections already (serving_live_subscribers)."
            raise Problem(429, "too-many-live", f"{detail} Try again later.", retry_after_s=10)
        channel = self._channels.setdefault(name, Channel(name, read))
        mailbox = Mailbox()
        channel.mailboxes.add(mailbox)
        if channel.task is None:
            channel.task = asyncio.create_task(channel.follow())
        self._serving.metrics.live.inc()
        try:
            yield mailbox
        finally:
            self._serving.metrics.live.dec()
            channel.mailboxes.discard(mailbox)
            if not channel.mailboxes:
                channel.task.cancel()
                if self._channels.get(name) is channel:
                    del self._channels[name]

    def close(self) -> None:
        """Let every connection end, and take no new one."""
        self.is_closing = True
        for channel in self._channels.values():
            for mailbox in channel.mailboxes:
                mailbox.end()

    async def news(self, mailbox: Mailbox, may_see: Callable[[str], bool]) -> AsyncIterator[list[Pushed]]:
        """What comes and may be seen, an empty list where nothing came; until it ends or the key is not valid."""
        while True:
            messages = await mailbox.take(HEARTBEAT_S)
            if mailbox.is_ended:
                return
            try:
                seen = [each for each in messages if not each.about or may_see(each.about)]
                may_see("")  # a key that is gone ends the stream, also while nothing comes
            except (Problem, ServingError):
                return
            if seen or not messages:
                yield seen


class PushStream(Response):
    """Server-sent events: what a mailbox brings, until the client or this server ends it."""

    def __init__(self, pushing: Pushing, name: str, read: Reading, may_see: Callable[[str], bool]) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=EventSourceResponse.media_type
        )
        del self.headers["Content-Length"]
        self._pushing, self._name, self._read, self._may_see = pushing, name, read, may_see

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer."""
        async with self._pushing.subscribe(self._name, self._read) as mailbox:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            watching = asyncio.create_task(_end_when(receive, "http.disconnect", mailbox))
            try:
                await self._stream(mailbox, send)
            finally:
                watching.cancel()

    async def _stream(self, mailbox: Mailbox, send: Send) -> None:
        async def write(chunk: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": more})

        await write(format_sse_event(retry=RECONNECT_MS))
        async for messages in self._pushing.news(mailbox, self._may_see):
            await write(b"".join(each.as_sse() for each in messages) or KEEPALIVE_COMMENT)
        await write(b"", more=False)


async def push_by_websocket(
    pushing: Pushing,
    websocket: WebSocket,
    name: Callable[[HTTPConnection], tuple[str, Reading, Callable[[str], bool]]],
) -> None:
    """The same to a WebSocket, a text each. `name` says what is wanted, or raises what is wrong with that."""
    try:
        channel, read, may_see = name(websocket)
        async with pushing.subscribe(channel, read) as mailbox:
            await websocket.accept()
            reading = asyncio.create_task(_end_when(websocket.receive, "websocket.disconnect", mailbox))
            try:
                async for messages in pushing.news(mailbox, may_see):
                    for each in messages:
                        async with asyncio.timeout(SEND_TIMEOUT_S):
                            await websocket.send_text(each.as_text())
                if not reading.done():
                    await websocket.close(*(STOPPING if pushing.is_closing else KEY_GONE))
            finally:
                reading.cancel()
    except ServingError as error:
        await websocket.send_denial_response(problem_of(error).response())
    except Problem as problem:
        await websocket.send_denial_response(problem.response())
    except (WebSocketDisconnect, TimeoutError):
        pass  # it went, or takes nothing any more


async def _end_when(receive: Callable[[], Awaitable[MutableMapping[str, Any]]], gone: str, mailbox: Mailbox) -> None:
    """What a client says is not listened to, until it goes."""
    while (await receive())["type"] != gone:
        pass
    mailbox.end()


def stream(pushing: Pushing, wanted: tuple[str, Reading, Callable[[str], bool]]) -> Response:
    """The answer to a request."""
    return PushStream(pushing, *wanted)
