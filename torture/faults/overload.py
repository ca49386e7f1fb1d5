"""Overload: far more queries and events than there is room for, and readers that do not read."""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from urllib.parse import urlencode, urlsplit

import httpx

from infra.stack.ports import LOOPBACK
from torture.errors import BrokenPromise, TortureError
from torture.fault import Fault
from torture.installation import Installation
from torture.wait import wait_for
from views.sample_events import START
from views.view import View

TIMES = 5
SENDERS = 24
RUSH = 1000.0
"""Events a second, forty times as many as usual."""
READERS, CONNECTIONS = 100, 150
PROBLEM = "application/problem+json"
TOO_MUCH = frozenset((429, 503))
WELL = frozenset((200, 202)) | TOO_MUCH
BEFORE, AFTER = timedelta(days=3), timedelta(days=9)
"""Around the start of the load: all of its events, late ones too, are between."""
RECEIVES_BYTES, SEGMENT_BYTES = 1024, 536
"""With room for so little, 40 KB fill all buffers of the system on the way, and the server itself has to keep the rest.
With the segments of loopback it would be some MB."""
OF_ANSWER_BYTES = 600
"""More unread than that is more than headers."""
HELD_S = 20.0
PART_BYTES = 1 << 16
SendRequest = Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]


class OverloadReplies:
    """The replies under overload: only 2xx, 429 and 503 are right, the latter as problem documents.

    `well` are other answers that are right as well.
    """

    def __init__(self, well: frozenset[int] = frozenset()) -> None:
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._well = WELL | well

    def note(self, answer: httpx.Response) -> None:
        """Count a reply, and note one that is wrong."""
        self.statuses[answer.status_code] += 1
        if answer.status_code not in self._well or (
            answer.status_code >= 400 and answer.headers.get("content-type") != PROBLEM
        ):
            self.wrong.append(f"{answer.status_code} {answer.headers.get('content-type')}: {answer.text[:200]}")

    def check(self) -> None:
        """Raise unless every reply was right and some requests were refused."""
        if self.wrong:
            raise BrokenPromise(f"{len(self.wrong)} answers under overload were none of 2xx, 429, 503: {self.wrong[0]}")
        if not self.statuses.keys() & TOO_MUCH:
            raise TortureError(f"it was not too much: no 429 and no 503 among {dict(self.statuses)}")


@contextmanager
def strike_questions(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Query with five times as many connections as the serving layer runs queries at once.

    Each question is about all groups of a view, and from another bucket on: it takes its time, and is not remembered.
    """
    views = _large_views(installation)
    crowd = TIMES * installation.settings.serving_max_queries
    questions = [(chance.choice(views), chance.randrange(1000)) for _ in range(5000)]

    async def ask(client: httpx.AsyncClient, number: int) -> httpx.Response:
        view, buckets = questions[number % len(questions)]
        return await client.get(f"/views/{view.name}/query", params=_all_of(installation, view, buckets))

    # 422: there may be too many groups for one answer. That is no overload, and right.
    with _crowd(installation, "serving", crowd, ask, OverloadReplies(well=frozenset((422,)))) as refused:
        yield
    installation.notes.append(f"answered {dict(refused.statuses)}")
    refused.check()


@contextmanager
def strike_invalid_events(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Send bodies that the collector has to read, check and refuse, from many sides at once.

    Others that do not end hold nearly all that it may hold: there is room for a small body, and not for a large one.
    """
    event = {"event_id": "overload", installation.source.time_field: "not a time"}
    large = json.dumps([event] * chance.randrange(500, 3000)).encode()
    small = json.dumps([event] * 10).encode()

    async def send(client: httpx.AsyncClient, number: int) -> httpx.Response:
        body = small if number % 3 else large
        return await client.post(f"/events/{installation.source_name}", content=body)

    with (
        _held(installation, room_bytes=len(large) - 1),
        _crowd(installation, "collector", SENDERS, send, OverloadReplies(well=frozenset((422,)))) as refused,
    ):
        yield
    installation.notes.append(f"answered {dict(refused.statuses)}")
    refused.check()


@contextmanager
def strike_with_events(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Send many more valid events than usual: a backlog forms, and the platform has to catch up."""
    del chance
    installation.rush = RUSH
    try:
        yield
    finally:
        installation.rush = 0.0


@contextmanager
def strike_slow_readers(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Open live feeds of large answers and do not read them, with almost no buffer on the way."""
    views = _large_views(installation)
    with ExitStack() as closing:
        readers = [closing.enter_context(_open_live(installation, chance.choice(views))) for _ in range(READERS)]
        wait_for("a feed that has more to tell than is read", lambda: any(map(_is_unread, readers)), HELD_S)
        yield
        installation.notes.append(f"{sum(map(_is_unread, readers))} of {READERS} feeds had more to tell than was read")


@contextmanager
def strike_slow_senders(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Send request bodies that never end, byte by byte."""
    senders = [_connect(installation.addresses.collector) for _ in range(CONNECTIONS)]
    first = f"POST /events/{installation.source_name} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n"
    head = f"{first}{_key(installation)}\r\n"
    stopping = threading.Event()

    def dribble() -> None:
        while not stopping.wait(0.2):
            for each in senders:
                with suppress(OSError):
                    each.send(b" ")

    for each in senders:
        with suppress(OSError):
            each.sendall(head.encode())
    thread = threading.Thread(target=dribble, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        waited_for = sum(map(_is_waited_for, senders))
        for each in chance.sample(senders, len(senders)):
            each.close()
    installation.notes.append(f"{waited_for} of {CONNECTIONS} bodies were still waited for")
    if not waited_for:
        raise TortureError("the collector had ended every request before its body did")


@contextmanager
def _crowd(
    installation: Installation, server: str, size: int, act: SendRequest, refused: OverloadReplies
) -> Iterator[OverloadReplies]:
    """`size` connections straight to the server that repeat the same request."""
    stopping = threading.Event()

    async def one(client: httpx.AsyncClient, first: int) -> None:
        number = first
        while not stopping.is_set():
            number += 1
            try:
                answer = await act(client, number)
            except httpx.TransportError:
                await asyncio.sleep(0.2)  # a dead server is found by the programme
                continue
            refused.note(answer)

    async def everybody() -> None:
        address, limits = getattr(installation.addresses, server), httpx.Limits(max_connections=size)
        async with httpx.AsyncClient(base_url=address, auth=installation.admin, timeout=60, limits=limits) as client:
            await asyncio.gather(*(one(client, each * 17) for each in range(size)))

    thread = threading.Thread(target=lambda: asyncio.run(everybody()), name="crowd", daemon=True)
    thread.start()
    try:
        yield refused
    finally:
        stopping.set()
        thread.join(timeout=90)


@contextmanager
def _held(installation: Installation, room_bytes: int) -> Iterator[None]:
    """Unfinished bodies take all but `room_bytes` of the collector's buffer."""
    settings = installation.settings
    budget, largest = int(settings.collector_buffer_mb * 1_000_000), int(settings.collector_max_body_mb * 1_000_000)
    held = budget - room_bytes
    count = math.ceil(held / (largest - 1))
    with ExitStack() as closing:
        holders = [closing.enter_context(_connect(installation.addresses.collector)) for _ in range(count)]
        for number, holder in enumerate(holders):
            _send_all_but_the_end(installation, holder, held // count + (number < held % count))
        yield


def _send_all_but_the_end(installation: Installation, holder: socket.socket, size: int) -> None:
    head = (
        f"POST /events/{installation.source_name} HTTP/1.1\r\nhost: x\r\ncontent-length: {size + 1}\r\n"
        f"{_key(installation)}\r\n"
    )
    holder.sendall(head.encode())
    part = b" " * PART_BYTES
    for begin in range(0, size, PART_BYTES):
        holder.sendall(part[: size - begin])


def _large_views(installation: Installation) -> list[View]:
    """The views with keys, whose answers have many rows; all views if none has keys."""
    views = sorted(installation.declared.views_of(installation.source_name), key=lambda view: view.name)
    return [view for view in views if view.keys] or views


def _all_of(installation: Installation, view: View, earlier_buckets: int = 0) -> dict[str, str]:
    """A query of everything in a view, by all its keys, in its own grain; the range may begin some buckets earlier."""
    bucket = timedelta(seconds=view.bucket.seconds)
    begin = -BEFORE - earlier_buckets * bucket
    end = min(AFTER, begin + (installation.settings.serving_max_periods - 2) * bucket)
    return {"from": _iso(begin), "to": _iso(end), "grain": view.bucket.text, "by": ",".join(view.keys)}


def _open_live(installation: Installation, view: View) -> socket.socket:
    """A feed of as many rows as a page may have."""
    query = {**_all_of(installation, view), "limit": installation.settings.serving_max_rows, "every": "1s"}
    made = _connect(installation.addresses.serving, RECEIVES_BYTES)
    first = f"GET /views/{view.name}/live?{urlencode(query)} HTTP/1.1\r\nhost: x\r\n{_key(installation)}\r\n"
    made.sendall(first.encode())
    return made


def _is_unread(reader: socket.socket) -> bool:
    """Whether more is sent to it than it reads: an answer, not a refusal."""
    reader.setblocking(False)
    try:
        received = reader.recv(PART_BYTES, socket.MSG_PEEK)
    except OSError:  # nothing yet, or it is closed
        return False
    return received.startswith(b"HTTP/1.1 200") and len(received) > OF_ANSWER_BYTES


def _is_waited_for(sender: socket.socket) -> bool:
    """Whether a request is open: nothing was answered yet."""
    sender.setblocking(False)
    try:
        sender.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False  # an answer, or the end


def _connect(address: str, buffer_bytes: int = 0) -> socket.socket:
    """To the server itself: a proxy between would read for it, or for us."""
    made = socket.socket()
    if buffer_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    made.settimeout(10)
    made.connect((LOOPBACK, urlsplit(address).port))
    return made


def _iso(from_start: timedelta) -> str:
    return (START + from_start).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key(installation: Installation) -> str:
    header = httpx.BasicAuth(*installation.admin)._auth_header
    return f"authorization: {header}\r\n"


FAULTS = [
    Fault("five times too many questions", "overload", strike_questions, 8, cost_s=15),
    Fault("a rush of events", "overload", strike_with_events, 6, cost_s=20),
    Fault("events to refuse from many sides", "overload", strike_invalid_events, 8, cost_s=15),
    Fault("readers that do not read", "slow", strike_slow_readers, 8, cost_s=18),
    Fault("senders that do not end", "slow", strike_slow_senders, 10, cost_s=15),
]
