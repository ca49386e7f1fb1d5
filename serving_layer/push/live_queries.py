"""Answers pushed as they change: GET /views/{name}/live by server-sent events and by WebSocket.

    subscriber ─┐
    subscriber ─┼─ mailbox each ◀── feed: one for each different question ── asks again every so often
    subscriber ─┘   (holds one message: the newest)

A feed asks as often as its question wants, and tells its subscribers when the answer is another. Where only the cuts
moved on, and all rows are as before, it tells that every `HEARTBEAT_S`. A reader that is slow finds the newest answer
when it comes back, and holds up nobody.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from infra.rest.problems import Problem
from infra.rest.responses import query_pairs
from infra.threads import Threads
from serving_layer.errors import BadParameter, ServingError
from serving_layer.query.model import Query
from serving_layer.query.parse import parse_query
from serving_layer.query.times import parse_duration
from serving_layer.rest import formats
from serving_layer.rest.context import Serving, problem_of

HEARTBEAT_S = 15.0
"""Proxies close connections on which nothing is said for long, often a minute."""
SEND_TIMEOUT_S = 60.0
"""A reader that takes nothing for so long is gone."""
DEFAULT_EVERY = "1s"
LONGEST_EVERY_S = 3600.0
RECONNECT_MS = 2000
THREADS = 2
NOT_LIVE = ("cursor", "wait", "min_cut")
"""Parameters that belong to one answer."""
STOPPING = (1001, "the serving layer stops")
KEY_GONE = (1008, "the key is not valid any more")
"""Why a WebSocket is closed: going away, policy violation."""

log = structlog.get_logger()


class Message(NamedTuple):
    """What subscribers are told: an answer, or the problem why there is none now. JSON in `data`."""

    event: str
    id: str
    data: bytes
    problem: Problem | None = None
    says: bytes = b""
    """The same as long as an answer says the same of the same run."""

    def as_sse(self) -> bytes:
        """As a server-sent event. Only an answer has an id, by which a client that comes back says what it has."""
        return format_sse_event(data_str=self.data.decode(), event=self.event, id=None if self.problem else self.id)

    def as_text(self) -> str:
        """For a WebSocket: `{"answer": {...}}` or `{"problem": {...}}`."""
        return f'{{"{self.event}":{self.data.decode()}}}'


class Asked(NamedTuple):
    """What a feed asks, again and again. Times that are relative move on with the clock."""

    view: str
    parameters: tuple[tuple[str, str], ...]
    every_s: float


@dataclass(eq=False)
class Mailbox:
    """The newest message that a subscriber has not read."""

    message: Message | None = None
    is_ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: Message) -> None:
        """It replaces what was not read."""
        self.message = message
        self.news.set()

    def end(self) -> None:
        """There will be nothing more."""
        self.is_ended = True
        self.news.set()

    async def take(self, patience_s: float) -> Message | None:
        """The newest, waited for; None when nothing came in time, or nothing more will come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.news.wait()
        found, self.message = self.message, None
        if not self.is_ended:
            self.news.clear()
        return found


@dataclass(eq=False)
class Feed:
    """The subscribers of one question, and what they were told last."""

    asked: Asked
    mailboxes: set[Mailbox] = field(default_factory=set)
    last: Message | None = None
    told_at: float = 0.0
    task: asyncio.Task[None] | None = None

    def tell(self, message: Message) -> None:
        """All of them, if it is news. Who comes next gets the newest in any case."""
        before, self.last = self.last, message
        if before is not None and (before.event, before.id) == (message.event, message.id):
            return
        is_same = before is not None and before.event == message.event and before.says == message.says != b""
        if is_same and time.monotonic() - self.told_at < HEARTBEAT_S:
            return
        self.told_at = time.monotonic()
        for mailbox in self.mailboxes:
            mailbox.put(message)


class Live:
    """All live connections of this process."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._threads = Threads("live", THREADS)
        self._feeds: dict[Asked, Feed] = {}
        self._checking: dict[Asked, asyncio.Future[Query]] = {}
        self.is_closing = False
        self.closes_with: list[Callable[[], None]] = []
        """What else has connections that would never end by themselves."""

    @property
    def subscribers(self) -> int:
        """How many there are."""
        return sum(len(feed.mailboxes) for feed in self._feeds.values())

    async def asked(self, connection: HTTPConnection, name: str) -> Asked:
        """What a connection wants to follow, checked; an error like that of the query otherwise."""
        self._serving.access.view(connection, name)
        pairs = query_pairs(connection)
        every = [value for key, value in pairs if key == "every"]
        if len(every) > 1:
            raise BadParameter("every", every[1], "every is there twice. Give it once.")
        parameters = tuple(pair for pair in pairs if pair[0] != "every")
        for key, value in parameters:
            if key in NOT_LIVE or (key == "format" and value != "json"):
                raise BadParameter(key, value, f"{key} is not for a live feed: each answer is JSON, and the newest.")
        if any(key == "max_staleness" for key, _ in parameters):
            parameters += (("wait", "0s"),)  # the next look is the wait
        asked = Asked(name, parameters, self._every_s(every[0] if every else DEFAULT_EVERY))
        if asked not in self._feeds:  # what others follow already is a right question
            await self._check(asked)
        return asked

    async def _check(self, asked: Asked) -> None:
        """Once for all that ask the same at the same time."""
        checking = self._checking.get(asked)
        if checking is None:
            checking = self._checking[asked] = asyncio.ensure_future(self._serving.run(self._question, asked))
            checking.add_done_callback(lambda _done: self._checking.pop(asked, None))
        await asyncio.shield(checking)

    def _every_s(self, given: str) -> float:
        found, least = parse_duration("every", given).seconds, self._serving.settings.serving_live_every_s
        if not least <= found <= LONGEST_EVERY_S:
            right = f"{least:g}s to {LONGEST_EVERY_S:g}s"
            raise BadParameter(
                "every", given, f"every is {given!r}; it should be {right} (serving_live_every_s).", right
            )
        return found

    async def news(self, mailbox: Mailbox, connection: HTTPConnection, view: str) -> AsyncIterator[Message | None]:
        """What comes, None where nothing came for a while; until the mailbox ends or the key is not valid any more."""
        while True:
            message = await mailbox.take(HEARTBEAT_S)
            if mailbox.is_ended or not self._is_still_allowed(connection, view):
                return
            yield message

    def _is_still_allowed(self, connection: HTTPConnection, view: str) -> bool:
        try:
            self._serving.access.view(connection, view)
        except (Problem, ServingError):
            return False
        return True

    @asynccontextmanager
    async def subscribe(self, asked: Asked) -> AsyncIterator[Mailbox]:
        """A mailbox that gets the answer at once and whenever it changes; the problem 429 where there are too many."""
        feed = self._feed(asked)
        mailbox = Mailbox()
        feed.mailboxes.add(mailbox)
        if feed.last is not None:
            mailbox.put(feed.last)
        self._serving.metrics.live.inc()
        try:
            yield mailbox
        finally:
            self._serving.metrics.live.dec()
            feed.mailboxes.discard(mailbox)
            if not feed.mailboxes:
                self._drop(feed)

    def close(self) -> None:
        """Let every connection end, and take no new one."""
        self.is_closing = True
        for feed in list(self._feeds.values()):
            for mailbox in feed.mailboxes:
                mailbox.end()
            self._drop(feed)
        self._threads.close()
        for close in self.closes_with:
            close()

    def _feed(self, asked: Asked) -> Feed:
        settings = self._serving.settings
        if self.is_closing:
            raise Problem(503, "stopping", "The serving layer stops. Connect again in a moment.", retry_after_s=1)
        for setting, count in (
            ("serving_live_subscribers", self.subscribers),
            ("serving_live_questions", len(self._feeds) if asked not in self._feeds else -1),
        ):
            if count >= (most := getattr(settings, setting)):
                raise Problem(
                    429,
                    "too-many-live",
                    f"The serving layer has {most} live connections or questions already ({setting}). Try again later, "
                    "or ask now and then with /query.",
                    retry_after_s=10,
                )
        if asked not in self._feeds:
            feed = self._feeds[asked] = Feed(asked)
            feed.task = asyncio.create_task(self._follow(feed))
        return self._feeds[asked]

    def _drop(self, feed: Feed) -> None:
        if self._feeds.get(feed.asked) is feed:
            del self._feeds[feed.asked]
        if feed.task is not None:
            feed.task.cancel()

    async def _follow(self, feed: Feed) -> None:
        """Look as often as was asked for, until nobody listens."""
        while True:
            began = time.monotonic()
            known = feed.last.id if feed.last is not None and feed.last.problem is None else None
            message = await self._look(feed.asked, known)
            if message is not None:
                feed.tell(message)
            await asyncio.sleep(max(feed.asked.every_s - (time.monotonic() - began), 0))

    async def _look(self, asked: Asked, known: str | None) -> Message | None:
        try:
            return await self._threads.run(self._answer, asked, known)
        except ServingError as error:
            return _told(problem_of(error))
        except Exception as error:  # the next look may go well, and the subscribers are to know meanwhile
            log.exception("bug", view=asked.view, error=repr(error))
            detail = "This is a mistake of the server's, and its log says more."
            return _told(Problem(500, "bug", detail))

    def _question(self, asked: Asked) -> Query:
        view = self._serving.engine.served_view(asked.view)
        return parse_query(view, asked.parameters, now=time.time(), limits=self._serving.limits)

    def _answer(self, asked: Asked, known: str | None) -> Message | None:
        """The answer now; None where it is the one that is known."""
        question = self._question(asked)
        # Whether it is fresh enough is seen when it is answered: a tag does not tell how old it is.
        can_tell = question.freshness.max_staleness_s is None
        if known is not None and can_tell and self._serving.engine.etag(question) == known:
            return None
        answer = self._serving.engine.execute(question)
        if answer.meta.etag == known:
            return None
        document = formats.document(answer)
        return Message("answer", answer.meta.etag, formats.dumps(document), says=_says(document))


def _says(document: dict[str, Any]) -> bytes:
    """A digest of what an answer says, without how far the speed side is."""
    meta = document["meta"]
    made_of = (meta["version"], meta["batch"]["run"], meta["complete"], meta["degraded"], meta["why"])
    return hashlib.blake2b(formats.dumps([document["rows"], document["next"], made_of]), digest_size=16).digest()


def _told(problem: Problem) -> Message:
    return Message("problem", problem.kind, problem.to_json(), problem)


# ---- by server-sent events -----------------------------------------------------


class EventStream(Response):
    """Sends what comes into a mailbox until the client, or this server, ends it."""

    def __init__(self, live: Live, asked: Asked, request: Request) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=EventSourceResponse.media_type
        )
        del self.headers["Content-Length"]
        self._live, self._asked, self._request = live, asked, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A problem of the question itself is answered as one; one that may pass begins the stream."""
        async with self._live.subscribe(self._asked) as mailbox:
            first = await mailbox.take(HEARTBEAT_S)
            if first is not None and first.problem is not None and first.problem.status < 500:
                raise first.problem
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            watching = asyncio.create_task(_end_when_gone(receive, mailbox))
            try:
                await self._stream(mailbox, first, send)
            finally:
                watching.cancel()

    async def _stream(self, mailbox: Mailbox, first: Message | None, send: Send) -> None:
        async def write(chunk: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": more})

        await write(format_sse_event(retry=RECONNECT_MS))
        if first is not None and first.id != self._request.headers.get("last-event-id"):
            await write(first.as_sse())
        async for message in self._live.news(mailbox, self._request, self._asked.view):
            await write(KEEPALIVE_COMMENT if message is None else message.as_sse())
        await write(b"", more=False)


async def _end_when_gone(receive: Receive, mailbox: Mailbox) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    mailbox.end()


# ---- by WebSocket --------------------------------------------------------------


async def _talk(live: Live, websocket: WebSocket) -> None:
    """The same to a WebSocket: a text message each, `{"answer": ...}` or `{"problem": ...}`."""
    name = websocket.path_params["name"]
    async with live.subscribe(await live.asked(websocket, name)) as mailbox:
        first = await mailbox.take(HEARTBEAT_S)
        if first is not None and first.problem is not None and first.problem.status < 500:
            raise first.problem
        await websocket.accept()
        reading = asyncio.create_task(_end_when_closed(websocket, mailbox))
        try:
            if first is not None:
                await _say(websocket, first)
            async for message in live.news(mailbox, websocket, name):
                if message is not None:
                    await _say(websocket, message)
            if not reading.done():
                await websocket.close(*(STOPPING if live.is_closing else KEY_GONE))
        finally:
            reading.cancel()


async def _say(websocket: WebSocket, message: Message) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await websocket.send_text(message.as_text())


async def _end_when_closed(websocket: WebSocket, mailbox: Mailbox) -> None:
    """What a client says is not listened to, until it goes."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    mailbox.end()


# ---- routes --------------------------------------------------------------------


def live_routes(live: Live) -> list[BaseRoute]:
    """One path for both: a WebSocket is told by its handshake."""

    async def by_events(request: Request) -> Response:
        return EventStream(live, await live.asked(request, request.path_params["name"]), request)

    async def by_websocket(websocket: WebSocket) -> None:
        try:
            await _talk(live, websocket)
        except ServingError as error:
            await websocket.send_denial_response(problem_of(error).response())
        except Problem as problem:
            await websocket.send_denial_response(problem.response())
        except (WebSocketDisconnect, TimeoutError):
            pass  # it went, or takes nothing any more

    return [Route("/views/{name}/live", by_events), WebSocketRoute("/views/{name}/live", by_websocket)]
