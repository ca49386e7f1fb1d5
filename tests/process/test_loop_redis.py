"""The Redis client of an event loop: replies in their order, and an error instead of a wait without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import hiredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from infra.clients.loop_redis import LoopRedis
from infra.settings import Settings, load_settings

Reply = Callable[[list[bytes]], bytes | None]
"""The reply to a command; None: there is none."""


@asynccontextmanager
async def redis(folder: Path, reply: Reply, timeout_s: float = 5.0, url: str = "") -> AsyncIterator[LoopRedis]:
    """A client of a server that replies so."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        parser, is_open = hiredis.Reader(), True
        while is_open and (data := await reader.read(65536)):
            parser.feed(data)
            while is_open and (command := parser.gets()) is not False:
                found = reply(command)
                is_open = found != b"close"
                writer.write(found or b"" if is_open else b"")
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = LoopRedis(settings(folder), (url or "redis://{at}").format(at=f"127.0.0.1:{port}"), timeout_s)
    try:
        yield client
    finally:
        client.close()
        server.close()
        await asyncio.gather(*(each for each in serving if each is not None), return_exceptions=True)


def settings(folder: Path) -> Settings:
    return load_settings(home=folder)


async def connected(client: LoopRedis) -> None:
    async with asyncio.timeout(30):
        while not client.is_connected:
            await asyncio.sleep(0.001)


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]  # a coroutine function


def encoded(*words: str) -> bytes:
    found: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return found


def test_replies_belong_to_the_commands_in_their_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with redis(tmp_path, lambda command: b"$%d\r\n%b\r\n" % (len(command[1]), command[1])) as client:
            await connected(client)
            waiting = [client.send(encoded("ECHO", str(number))) for number in range(1_000)]
            assert await asyncio.gather(*waiting) == [str(number).encode() for number in range(1_000)]

    run(work)


def test_an_error_reply_is_a_value_and_the_connection_stays(tmp_path: Path) -> None:
    async def work() -> None:
        replies = iter([b"-NOSCRIPT No matching script.\r\n", b"+OK\r\n"])
        async with redis(tmp_path, lambda _: next(replies)) as client:
            await connected(client)
            assert isinstance(await client.send(encoded("EVALSHA", "x", "0")), hiredis.ReplyError)
            assert await client.send(encoded("PING")) == b"OK"

    run(work)


def test_a_reply_that_does_not_come_is_a_timeout_for_all_who_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with redis(tmp_path, lambda _: None, timeout_s=0.05) as client:
            await connected(client)
            waiting = [client.send(encoded("PING")) for _ in range(3)]
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(each) for each in found] == [RedisTimeoutError] * 3
            await connected(client)  # it makes another connection

    run(work)


def test_a_broken_connection_is_an_error_and_made_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with redis(tmp_path, lambda command: b"close" if command[0] == b"QUIT" else b"+OK\r\n") as client:
            await connected(client)
            with pytest.raises(RedisConnectionError):
                await client.send(encoded("QUIT"))
            await connected(client)
            assert await client.send(encoded("PING")) == b"OK"

    run(work)


def test_it_signs_in_and_selects_before_it_is_used(tmp_path: Path) -> None:
    seen: list[list[bytes]] = []

    def reply(command: list[bytes]) -> bytes:
        seen.append(command)
        return b"+OK\r\n"

    async def work() -> None:
        async with redis(tmp_path, reply, url="redis://somebody:secret@{at}/3") as client:
            await connected(client)
            await client.send(encoded("PING"))

    run(work)
    assert seen == [[b"AUTH", b"somebody", b"secret"], [b"SELECT", b"3"], [b"PING"]]


def test_a_refused_password_leaves_it_unconnected(tmp_path: Path) -> None:
    async def work() -> None:
        async with redis(tmp_path, lambda _: b"-WRONGPASS\r\n", url="redis://somebody:wrong@{at}") as client:
            assert not client.is_connected
            while client._connecting is not None:
                await asyncio.sleep(0.001)
            assert not client.is_connected
            with pytest.raises(RedisConnectionError):
                client.send(encoded("PING"))

    run(work)


def test_tls_is_left_to_the_other_client(tmp_path: Path) -> None:
    async def work() -> None:
        client = LoopRedis(settings(tmp_path), "rediss://127.0.0.1:1/0", 1.0)
        assert not client.is_connected
        while client._connecting is not None:
            await asyncio.sleep(0.001)
        assert not client.is_connected
        client.close()

    run(work)
