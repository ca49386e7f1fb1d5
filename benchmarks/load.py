"""Ask a server over some connections for some seconds, and say how long each answer took. For a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

import uvloop

PATIENCE_S = 30.0
"""How long after the end an answer is waited for."""
DEGRADED = b'"degraded":true'
"""In no answer: one that lacks events would be a cheap one."""


def drive(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> list[float]:
    """Seconds that each answer took. Every connection asks these requests in turn, the next when one is answered."""
    return uvloop.run(_drive(port, requests, connections, seconds))


async def _drive(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> list[float]:
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    askers = []
    for number in range(connections):
        turns = islice(cycle(requests), number * len(requests) // connections, None)
        made = partial(_Asker, turns, until, loop.create_future())
        askers.append((await loop.create_connection(made, "127.0.0.1", port))[1])
    async with asyncio.timeout(seconds + PATIENCE_S):
        await asyncio.gather(*(asker.ended for asker in askers))
    return [each for asker in askers for each in asker.times]


class _Asker(asyncio.Protocol):
    """One connection, kept alive."""

    def __init__(self, requests: Iterator[bytes], until: float, ended: asyncio.Future[None]) -> None:
        self._requests, self._until, self.ended = requests, until, ended
        self.times: list[float] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._got, self._size = bytearray(), 0
        self._began = time.perf_counter()
        if self._began < self._until:
            self._transport.write(next(self._requests))
            return
        self.ended.set_result(None)
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._size:
            end = self._got.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._got[:end]).lower()
            self._size = end + 4 + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._got) < self._size:
            return
        self.times.append(time.perf_counter() - self._began)
        if not self._got.startswith(b"HTTP/1.1 200") or DEGRADED in self._got:
            self._fail(f"unexpected answer: {bytes(self._got[:2000]).decode()}")
            return
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the server closed the connection ({error})")

    def _fail(self, what: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(what))
        self._transport.close()
