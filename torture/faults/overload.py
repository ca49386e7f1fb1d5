"""More than can be done: many times too many questions and events at once, and readers that do not read."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import httpx

from infra.ports import LOOPBACK
from torture.errors import BrokenPromise
from torture.fault import Fault
from torture.installation import Installation

TIMES = 5
SENDERS = 24
READERS = 150
PROBLEM = "application/problem+json"
WELL = frozenset((200, 202, 429, 503))
Act = Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]


class Refused:
    """What was answered to those who asked for too much: only 2xx, 429 and 503, these as problem documents."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []

    def note(self, answer: httpx.Response) -> None:
        """One answer."""
        self.statuses[answer.status_code] += 1
        if answer.status_code not in WELL or (
            answer.status_code >= 400 and answer.headers.get("content-type") != PROBLEM
        ):
            self.wrong.append(f"{answer.status_code} {answer.headers.get('content-type')}: {answer.text[:200]}")

    def check(self) -> None:
        """Raise, unless all was well."""
        if self.wrong:
            raise BrokenPromise(f"{len(self.wrong)} answers under overload were none of 2xx, 429, 503: {self.wrong[0]}")


@contextmanager
def strike_questions(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Ask with as many connections as there are places for questions, times five, all of them at once."""
    views = sorted(view.name for view in installation.declared.views_of(installation.source_name))
    crowd = TIMES * installation.settings.serving_max_queries
    questions = [(chance.choice(views), chance.choice(("hour", "day"))) for _ in range(1000)]

    async def ask(client: httpx.AsyncClient, number: int) -> httpx.Response:
        view, grain = questions[number % len(questions)]
        return await client.get(
            f"/views/{view}/query", params={"from": "2026-01-01", "to": "2026-12-31", "grain": grain}
        )

    # A grain that is finer than the view's: a wrong question is no overload.
    with _crowd(installation, "serving", crowd, ask, well=frozenset((400, 422))) as refused:
        yield
    installation.notes.append(f"answered {dict(refused.statuses)}")
    refused.check()


@contextmanager
def strike_invalid_events(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Send bodies of the largest size that the collector has to read, check and refuse, from many sides at once."""
    event = {"event_id": "overload", installation.source.time_field: "not a time"}
    body = json.dumps([event] * chance.randrange(500, 3000)).encode()

    async def send(client: httpx.AsyncClient, number: int) -> httpx.Response:
        del number
        return await client.post(f"/events/{installation.source_name}", content=body)

    with _crowd(installation, "collector", SENDERS, send, well=frozenset((400, 413, 422))) as refused:
        yield
    installation.notes.append(f"answered {dict(refused.statuses)}")
    refused.check()


@contextmanager
def strike_slow_readers(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Live feeds that are opened and not read, with room for next to nothing on the way."""
    views = sorted(view.name for view in installation.declared.views_of(installation.source_name))
    readers = [_open_live(installation, chance.choice(views)) for _ in range(READERS)]
    try:
        yield
    finally:
        for reader in readers:
            reader.close()


@contextmanager
def strike_slow_senders(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Requests whose bodies never come to an end, byte by byte."""
    senders = [_connect(installation, "collector", 0) for _ in range(READERS)]
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
        for each in chance.sample(senders, len(senders)):
            each.close()


@contextmanager
def _crowd(
    installation: Installation, server: str, size: int, act: Act, well: frozenset[int] = frozenset()
) -> Iterator[Refused]:
    """So many connections that do the same again and again, all at once."""
    refused, stopping = Refused(), threading.Event()

    async def one(client: httpx.AsyncClient, first: int) -> None:
        number = first
        while not stopping.is_set():
            number += 1
            try:
                answer = await act(client, number)
            except httpx.TransportError:
                await asyncio.sleep(0.2)  # whoever is there no more is found by the programme
                continue
            if answer.status_code not in well:
                refused.note(answer)

    async def everybody() -> None:
        address, limits = installation.address("client", server), httpx.Limits(max_connections=size)
        async with httpx.AsyncClient(base_url=address, auth=installation.admin, timeout=60, limits=limits) as client:
            await asyncio.gather(*(one(client, each * 17) for each in range(size)))

    thread = threading.Thread(target=lambda: asyncio.run(everybody()), name="crowd", daemon=True)
    thread.start()
    try:
        yield refused
    finally:
        stopping.set()
        thread.join(timeout=90)


def _open_live(installation: Installation, view: str) -> socket.socket:
    made = _connect(installation, "serving", 1024)
    asked = f"GET /views/{view}/live?from=2026-01-01&every=200ms HTTP/1.1\r\nhost: x\r\n{_key(installation)}\r\n"
    made.sendall(asked.encode())
    return made


def _connect(installation: Installation, server: str, buffer_bytes: int) -> socket.socket:
    made = socket.socket()
    if buffer_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    made.settimeout(10)
    made.connect((LOOPBACK, urlsplit(installation.address("client", server)).port))
    return made


def _key(installation: Installation) -> str:
    header = httpx.BasicAuth(*installation.admin)._auth_header
    return f"authorization: {header}\r\n"


FAULTS = [
    Fault("five times too many questions", "overload", strike_questions, 8, cost_s=15),
    Fault("events to refuse from many sides", "overload", strike_invalid_events, 8, cost_s=15),
    Fault("readers that do not read", "slow", strike_slow_readers, 10, cost_s=15),
    Fault("senders that do not end", "slow", strike_slow_senders, 10, cost_s=15),
]
