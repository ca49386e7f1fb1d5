"""A TCP proxy on loopback between two parts of an installation, which can cut, swallow, delay, trickle and reset.

One thread with one event loop carries all proxies of an installation. A proxy keeps its port for life, also while it
refuses connections, so that nobody else is given the port meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from infra.stack.ports import LOOPBACK

CHUNK = 65_536
CONNECT_TIMEOUT_S = 5.0
LINGER_NONE = struct.pack("ii", 1, 0)
"""Closing sends a reset instead of a polite end."""

T = TypeVar("T")


class ProxyMode(StrEnum):
    """What happens to the bytes."""

    PASS = "pass"  # noqa: S105  no password
    CUT = "cut"  # connections are reset, new ones refused
    HALF_OPEN = "half_open"  # connections are taken, and nothing that is sent arrives, either way
    DELAY = "delay"  # everything arrives later, in order
    TRICKLE = "trickle"  # everything arrives, a few bytes at a time
    RESET = "reset"  # each connection is reset in the middle of what it carries


@dataclass(frozen=True)
class Condition:
    """A mode, and how bad it is."""

    mode: ProxyMode = ProxyMode.PASS
    delay_s: float = 0.3
    """DELAY: by so much, in each direction."""
    bytes_at_once: int = 512
    pause_s: float = 0.02
    """TRICKLE: so many bytes, then such a pause."""
    reset_after_bytes: int = 700
    """RESET: after so many bytes, both directions together, counted from when it began."""


GOOD = Condition()


class _Connection:
    """One client, and our connection to the target for it."""

    def __init__(self, client: asyncio.StreamWriter, target: asyncio.StreamWriter) -> None:
        self.client, self.target = client, target
        self.carried = 0
        self.has_swallowed = False

    def reset(self) -> None:
        for writer in (self.client, self.target):
            _reset(writer)


class Proxy:
    """From a port of its own to a target. Made by `Proxies.add`."""

    def __init__(self, carrier: Proxies, name: str, target_port: int, port: int = 0) -> None:
        self.name, self.target_port = name, target_port
        self._carrier, self._condition = carrier, GOOD
        self._holder = socket.socket()  # bound for life and never listening: it keeps the port ours
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind((LOOPBACK, port))
        self.port = int(self._holder.getsockname()[1])
        self.connections = 0
        """How many were ever taken."""
        self.hurt = 0
        """How often something was cut, swallowed, held back or reset since the condition began."""
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where clients go instead of to the target."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def condition(self) -> Condition:
        """What it does now."""
        return self._condition

    def be(self, condition: Condition) -> None:
        """Change what it does, for connections that are there and for new ones."""
        self._carrier.run(self._be(condition))

    @contextmanager
    def during(self, condition: Condition) -> Iterator[None]:
        """Be so inside the block, and good again after it."""
        self.be(condition)
        try:
            yield
        finally:
            self.be(GOOD)

    # ---- inside the loop ----

    async def _be(self, condition: Condition) -> None:
        self._condition, self.hurt = condition, 0
        for each in list(self._open):
            each.carried = 0
            self.hurt += condition.mode is ProxyMode.CUT
            # What was swallowed is missing from the stream: nobody may go on with the rest of it.
            if condition.mode is ProxyMode.CUT or (each.has_swallowed and condition.mode is not ProxyMode.HALF_OPEN):
                each.reset()
        if condition.mode is ProxyMode.CUT:
            await self._refuse()
        else:
            await self._listen()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._take, LOOPBACK, self.port, reuse_address=True)

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _end(self) -> None:
        await self._refuse()
        for each in list(self._open):
            each.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._holder.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                target_reader, target_writer = await asyncio.open_connection(LOOPBACK, self.target_port)
        except (OSError, TimeoutError):
            _reset(writer)
            return
        connection = _Connection(writer, target_writer)
        self._open.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(connection, reader, target_writer))
                group.create_task(self._carry(connection, target_reader, writer))
        except* OSError:
            pass
        finally:
            connection.reset()  # whoever still waits for more of it learns that there is none
            self._open.discard(connection)

    async def _carry(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: read, and hand on when it is due."""
        on_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        sending = asyncio.create_task(self._hand_on(connection, on_way, writer))
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(CHUNK):
                is_late = self._condition.mode is ProxyMode.DELAY
                late_s = self._condition.delay_s if is_late else 0.0
                self.hurt += is_late
                await _put(on_way, (loop.time() + late_s, data), sending)
            await _put(on_way, (loop.time(), b""), sending)
            await sending
        finally:
            sending.cancel()

    async def _hand_on(
        self, connection: _Connection, on_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await on_way.get()
            await asyncio.sleep(max(due - loop.time(), 0))
            if not data:
                with suppress(OSError):
                    writer.write_eof()
                return
            await self._hand_on_some(connection, data, writer)

    async def _hand_on_some(self, connection: _Connection, data: bytes, writer: asyncio.StreamWriter) -> None:
        """All of it, as the condition of each moment has it."""
        while data:
            now = self._condition
            size = len(data)
            match now.mode:
                case ProxyMode.HALF_OPEN:
                    connection.has_swallowed = True
                    self.hurt += 1
                    return
                case ProxyMode.TRICKLE:
                    size = now.bytes_at_once
                    self.hurt += len(data) > size
                    await asyncio.sleep(now.pause_s)
                case ProxyMode.RESET:
                    size = now.reset_after_bytes - connection.carried
                    if size <= 0:
                        self.hurt += 1
                        connection.reset()
                        return
            part, data = data[:size], data[size:]
            connection.carried += len(part)
            writer.write(part)
            await writer.drain()


class Proxies:
    """The thread that carries all proxies of an installation. Close it when done."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self._made: list[Proxy] = []

    def add(self, name: str, target_port: int, port: int = 0) -> Proxy:
        """A proxy to a loopback port, on a port of its own (0: any). It begins good."""
        made = Proxy(self, name, target_port, port)
        self._made.append(made)
        made.be(GOOD)
        return made

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop, from another thread."""
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(timeout=30)

    def close(self) -> None:
        """End all of them."""
        for each in self._made:
            self.run(each._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


@contextmanager
def proxies() -> Iterator[Proxies]:
    """A carrier that is closed at the end."""
    made = Proxies()
    try:
        yield made
    finally:
        made.close()


async def _put(
    queue: asyncio.Queue[tuple[float, bytes]], item: tuple[float, bytes], sender: asyncio.Task[None]
) -> None:
    """Put, unless whoever takes from the queue has ended: then what ended it is raised."""
    putting = asyncio.ensure_future(queue.put(item))
    await asyncio.wait({putting, sender}, return_when=asyncio.FIRST_COMPLETED)
    if not putting.done():
        putting.cancel()
        await sender


def _reset(writer: asyncio.StreamWriter) -> None:
    found: Callable[..., Any] | None = getattr(writer.get_extra_info("socket"), "setsockopt", None)
    if found is not None:
        with suppress(OSError):
            found(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
    writer.transport.abort()
