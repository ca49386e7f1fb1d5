"""What is pushed as it happens: transitions of alerts, and matches of watches, by server-sent events and WebSocket.

    subscriber ─┐
    subscriber ─┼─ mailbox each ◀── channel: all alerts, or a watch ── reads while anybody listens
    subscriber ─┘   (bounded)

Unlike an answer, which the next one replaces, each of these counts. A reader that is slow finds up to `MOST_UNREAD` of
them when it comes back, and is told how many it missed; it holds up nobody. One whose connection broke says by the
header `Last-Event-ID` what it has, as browsers do by themselves, and gets what came since.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from infra.rest.problems import Problem
from serving_layer.errors import ServingError
from serving_layer.push.live_queries import HEARTBEAT_S, KEY_GONE, RECONNECT_MS, SEND_TIMEOUT_S, STOPPING
from serving_layer.rest.context import Serving, problem_of

MOST_UNREAD = 1_000
MOST_DIGITS = 20
LAST = "last-event-id"
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

    after: str | None = None
    """The last message that it has, where it wants to know first what came since; None: it is told what comes."""
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


class Reading(Protocol):
    """Where messages are kept for a while, in an order. Their ids are whole numbers, or two with a hyphen between."""

    async def newest(self) -> str:
        """The id of the last one, or the least of all ids where there is none."""

    async def after(self, last: str) -> list[Pushed]:
        """Those that come after an id, the oldest first, waited for a moment."""

    async def kept(self, last: str, until: str) -> tuple[list[Pushed], int]:
        """Those that are kept of what came after an id, up to another; and how many at least are not kept any more."""

    async def close(self) -> None:
        """Nobody listens any more."""


Wanted = tuple[str, Callable[[], Reading], Callable[[], Callable[[str], bool]]]
"""What a connection follows: the name of a channel, what is read for it, and who says now what it may see (views or
watches by name), or raises where the key is gone."""


def place(id_: str) -> tuple[int, ...] | None:
    """By what ids are in order; None: it is none."""
    parts = id_.split("-", 2)
    is_one = all(each.isascii() and each.isdigit() and len(each) <= MOST_DIGITS for each in parts)
    return tuple(map(int, parts)) if is_one else None


@dataclass(eq=False)
class Channel:
    """What is read once for all that listen."""

    name: str
    reading: Reading
    mailboxes: set[Mailbox] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    last: str = ""

    async def follow(self) -> None:
        """Hand on what comes; begin again where reading failed."""
        try:
            while True:
                try:
                    self.last = self.last or await self.reading.newest()
                    while True:
                        await self._catch_up()
                        for message in await self.reading.after(self.last):
                            self.last = message.id
                            for mailbox in self.mailboxes:
                                if mailbox.after is None:
                                    mailbox.put(message)
                except Exception as error:  # Redis, the disk: it comes back
                    log.warning("not_pushed", channel=self.name, why=str(error))
                await asyncio.sleep(AGAIN_S)
        finally:
            await self.reading.close()

    async def _catch_up(self) -> None:
        """Tell those who come back what came since, up to where the others are: from there on they hear the same."""
        for mailbox in [each for each in self.mailboxes if each.after is not None]:
            has, until = place(mailbox.after or ""), place(self.last)
            if has is not None and until is not None and len(has) == len(until) and has < until:
                messages, missed = await self.reading.kept(mailbox.after or "", self.last)
                mailbox.missed += missed
                for message in messages:
                    mailbox.put(message)
            mailbox.after = None


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
    async def subscribe(
        self, name: str, reading: Callable[[], Reading], after: str | None = None
    ) -> AsyncIterator[Mailbox]:
        """A mailbox for what a channel brings, after an id; the problem 429 where there are too many."""
        if self.is_closing:
            raise Problem(503, "stopping", "The serving layer stops. Connect again in a moment.", retry_after_s=1)
        most = self._serving.settings.serving_live_subscribers
        if self.subscribers + self._others() >= most:
            detail = f"The serving layer has {most} live connections already (serving_live_subscribers)."
            raise Problem(429, "too-many-live", f"{detail} Try again later.", retry_after_s=10)
        channel = self._channels.get(name) or self._channels.setdefault(name, Channel(name, reading()))
        mailbox = Mailbox(after if place(after or "") else None)  # what is no id is as good as none
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

    async def news(self, mailbox: Mailbox, allowed: Callable[[], Callable[[str], bool]]) -> AsyncIterator[list[Pushed]]:
        """What comes and may be seen, an empty list where nothing came; until it ends or the key is not valid."""
        while True:
            messages = await mailbox.take(HEARTBEAT_S)
            if mailbox.is_ended:
                return
            try:
                may_see = allowed()
            except (Problem, ServingError):
                return
            seen = [each for each in messages if not each.about or may_see(each.about)]
            if seen or not messages:
                yield seen


class PushStream(Response):
    """Server-sent events: what a mailbox brings, until the client or this server ends it."""

    def __init__(self, pushing: Pushing, wanted: Wanted) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=EventSourceResponse.media_type
        )
        del self.headers["Content-Length"]
        self._pushing = pushing
        self._name, self._reading, self._allowed = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer."""
        after = HTTPConnection(scope).headers.get(LAST)
        async with self._pushing.subscribe(self._name, self._reading, after) as mailbox:
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
        async for messages in self._pushing.news(mailbox, self._allowed):
            await write(b"".join(each.as_sse() for each in messages) or KEEPALIVE_COMMENT)
        await write(b"", more=False)


async def push_by_websocket(pushing: Pushing, websocket: WebSocket, wanted: Callable[[HTTPConnection], Wanted]) -> None:
    """The same to a WebSocket, a text each. `wanted` says what it follows, or raises what is wrong with that."""
    try:
        name, reading, allowed = wanted(websocket)
        async with pushing.subscribe(name, reading, websocket.headers.get(LAST)) as mailbox:
            await websocket.accept()
            watching = asyncio.create_task(_end_when(websocket.receive, "websocket.disconnect", mailbox))
            try:
                async for messages in pushing.news(mailbox, allowed):
                    for each in messages:
                        async with asyncio.timeout(SEND_TIMEOUT_S):
                            await websocket.send_text(each.as_text())
                if not watching.done():
                    await websocket.close(*(STOPPING if pushing.is_closing else KEY_GONE))
            finally:
                watching.cancel()
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


def stream(pushing: Pushing, wanted: Wanted) -> Response:
    """The answer to a request."""
    return PushStream(pushing, wanted)
