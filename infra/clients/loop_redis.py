"""A Redis client for an event loop: one connection, commands that are encoded before, replies in their order.

redis-py's own client for event loops takes four times as long for a small command. This one knows nothing but to send
bytes and to read replies. It never waits for a connection: while there is none, callers use another client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import hiredis
from redis.connection import parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from infra.clients.redis import redis_login
from infra.settings import Settings

RECONNECT_AFTER_S = 0.5
"""After a connection failed, so long none is made."""


class LoopRedis:
    """Sends commands from one event loop. It makes its connection by itself, again where it broke."""

    def __init__(self, settings: Settings, url: str, timeout_s: float) -> None:
        self._settings, self._url, self._timeout_s = settings, url, timeout_s
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether a command can be sent now. If not, a connection is begun, unless one failed just now."""
        if self._connection is not None and self._connection.is_open:
            return True
        loop = asyncio.get_running_loop()
        if self._connecting is None and not self._is_closed and loop.time() >= self._not_before:
            self._connecting = loop.create_task(self._connect())
        return False

    def send(self, command: bytes) -> asyncio.Future[Any]:
        """The reply to an encoded command, as hiredis reads it: an error reply is a value.

        A RedisError where the connection breaks or no reply comes in time.
        """
        if self._connection is None:
            raise RedisConnectionError("There is no connection to Redis.")
        return self._connection.send(command)

    def close(self) -> None:
        """Close the connection. No other is made."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                self._connection = await self._connected(loop)
        except (OSError, TimeoutError, RedisError, ValueError):
            self._not_before = loop.time() + RECONNECT_AFTER_S
        finally:
            self._connecting = None

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        login = redis_login(self._settings, self._url)
        options: Any = parse_url(login.url)  # type: ignore[no-untyped-call]
        if "connection_class" in options and "path" not in options:
            raise ValueError("Redis by TLS is left to the other client.")

        def protocol() -> _Connection:
            return _Connection(loop, self._timeout_s)

        if "path" in options:
            _, connection = await loop.create_unix_connection(protocol, options["path"])
        else:
            host, port = options.get("host", "localhost"), options.get("port", 6379)
            _, connection = await loop.create_connection(protocol, host, port)
        try:
            password = login.password or options.get("password")
            if password:
                user = [options["username"]] if options.get("username") else []
                await connection.checked("AUTH", *user, password)
            if options.get("db"):
                await connection.checked("SELECT", str(options["db"]))
        except BaseException:
            connection.close()
            raise
        return connection


class _Connection(asyncio.Protocol):
    """One connection. Replies come in the order of the commands."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._loop, self._timeout_s = loop, timeout_s
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """When each command was sent, and who waits for its reply."""
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False

    def send(self, command: bytes) -> asyncio.Future[Any]:
        """The reply to a command."""
        if not self.is_open:
            raise RedisConnectionError("The connection to Redis is closed.")
        result = self._loop.create_future()
        self._waiting.append((self._loop.time(), result))
        self._transport.write(command)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check_time)
        return result

    async def checked(self, *words: str) -> None:
        """Send a command and wait until it is accepted."""
        encoded: Any = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub wants a tuple of one word
        reply = await self.send(encoded)
        if isinstance(reply, Exception):
            raise ResponseError(str(reply))

    def close(self) -> None:
        """End it. Whoever waits for a reply gets an error."""
        self._end(RedisConnectionError("The connection to Redis was closed."))

    # ---- called by the event loop ----

    def connection_made(self, transport: Any) -> None:
        """It is open."""
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        """Some replies, whole or in part."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                _, result = self._waiting.popleft()
                if not result.done():
                    result.set_result(reply)
        except (hiredis.HiredisError, IndexError) as error:
            self._end(RedisConnectionError(f"Redis replied what is no reply ({error})."))

    def connection_lost(self, error: Exception | None) -> None:
        """The other side closed it, or the network did."""
        self._end(RedisConnectionError(f"The connection to Redis broke ({error})."))

    def _check_time(self) -> None:
        """One timer for all commands: the oldest has waited longest."""
        self._timer = None
        if not self._waiting:
            return
        left_s = self._waiting[0][0] + self._timeout_s - self._loop.time()
        if left_s <= 0:
            self._end(RedisTimeoutError("Timeout reading from socket"))
        else:
            self._timer = self._loop.call_later(left_s, self._check_time)

    def _end(self, error: Exception) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._transport.abort()
        while self._waiting:
            _, result = self._waiting.popleft()
            if not result.done():
                result.set_exception(error)
