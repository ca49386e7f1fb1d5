"""Syslog on real ports while there is no Kafka: what waits is bounded, and what is dropped is counted."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from infra.errors import InfraError
from infra.settings import Settings, load_settings
from infra.stack.ports import LOOPBACK
from master_dataset.collector.app import create_app
from master_dataset.collector.doors import syslog_server
from master_dataset.collector.doors.syslog_frames import MAX_MESSAGE
from master_dataset.collector.doors.syslog_server import MAX_BACKLOG, MAX_BATCH
from torture.installation_settings import free_port
from views.catalog.syslog import syslog
from views.catalog.web import web
from views.declarations import Declarations
from views.source import Source

bare = Source("bare", fields="event_id string, event_time timestamp, n int")
DECLARED = Declarations({each.name: each for each in (web, syslog, bare)})
DEADLINE_S = 300.0


def settings_of(home: Path, **more: object) -> Settings:
    return load_settings(home=home, kafka_bootstrap="127.0.0.1:1", access_required=False, **more)


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with app.router.lifespan_context(app), httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test"
    ) as client:  # fmt: skip
        yield client


async def counts(client: httpx.AsyncClient) -> Counter[str]:
    """Messages by transport, and dropped ones by reason."""
    found = Counter[str]()
    text = (await client.get("/metrics")).text
    for label, value in re.findall(r'^tidemark_collector_syslog_\w+_total\{\w+="([^"]+)"\} (\S+)$', text, re.MULTILINE):
        found[label] = int(float(value))
    return found


async def until(what: str, client: httpx.AsyncClient, condition: Callable[[Counter[str]], bool]) -> Counter[str]:
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition(found := await counts(client)):
        assert asyncio.get_running_loop().time() < end, f"waited for {what}; counted {found}"
        await asyncio.sleep(0.05)
    return found


def test_what_waits_is_bounded_udp_is_dropped_and_counted_and_tcp_waits(tmp_path: Path) -> None:
    udp, tcp, sent = free_port(), free_port(), MAX_BACKLOG + 2 * MAX_BATCH

    async def flood() -> None:
        ports = {"collector_syslog_udp_port": udp, "collector_syslog_tcp_port": tcp}
        async with running(create_app(settings_of(tmp_path, **ports), DECLARED)) as client:
            _, writer = await asyncio.open_connection(LOOPBACK, tcp)
            writer.write(b"<13>" + b"x" * (MAX_MESSAGE + 1) + b"\n" + b"<13>a\n" * 10 * MAX_BACKLOG)
            found = await until("a full backlog", client, lambda found: found["tcp"] > MAX_BACKLOG)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for number in range(sent):
                    sender.sendto(b"<13>message %d" % number, (LOOPBACK, udp))
                    if number % 50 == 0:
                        await asyncio.sleep(0)
            found = await until("all of UDP", client, lambda found: found["udp"] + found["kernel"] >= sent)
            assert found["udp"] + found["kernel"] == sent, "the kernel's drops are counted too"
            assert found["queue-full"] > 0
            kept = found["tcp"] + found["udp"] - found["queue-full"]
            assert MAX_BACKLOG < kept <= MAX_BACKLOG + MAX_BATCH + 1, "a batch is being sent, and one waits for room"
            writer.transport.abort()

    asyncio.run(flood())


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "reset"),
        TimeoutError(errno.ETIMEDOUT, "what keepalive finds"),
        OSError(errno.EHOSTUNREACH, "no route"),
    ],
    ids=repr,
)
def test_a_connection_that_breaks_is_counted_as_cut_and_leaves_no_failed_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """A real reset; whatever else a kernel may say of a connection comes in its place."""
    read = asyncio.StreamReader.read

    async def read_or_fail(self: asyncio.StreamReader, n: int = -1) -> bytes:
        try:
            return await read(self, n)
        except ConnectionResetError:
            raise error from None

    monkeypatch.setattr(asyncio.StreamReader, "read", read_or_fail)
    monkeypatch.setattr(syslog_server, "CLOSE_TIMEOUT_S", 0.1)
    unhandled: list[dict[str, Any]] = []
    tcp = free_port()

    async def break_off() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        settings = settings_of(tmp_path, collector_syslog_tcp_port=tcp, registry_enabled=False)
        async with running(create_app(settings, DECLARED)) as client:
            reset = struct.pack("ii", 1, 0)
            with socket.create_connection((LOOPBACK, tcp)) as sender:
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                sender.sendall(b"<13>a\n<13>unfinished")
                await until("the first message", client, lambda found: found["tcp"] == 1)
            await until("the cut message", client, lambda found: found["cut"] == 1)

    asyncio.run(break_off())
    assert unhandled == []


def test_a_port_that_is_taken_is_an_error_that_says_so(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InfraError, match=f"port {port} .*in use"):
            create_app(settings_of(tmp_path, collector_syslog_tcp_port=port), DECLARED)


@pytest.mark.parametrize(("source", "said"), [("bare", "hostname"), ("nosuch", "There is no source 'nosuch'")])
def test_a_source_that_cannot_take_messages_is_refused_at_the_start(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(Exception, match=said) as refused:
        create_app(
            settings_of(tmp_path, collector_syslog_udp_port=free_port(), collector_syslog_source=source), DECLARED
        )
    assert getattr(refused.value, "exit_code", 0), "the command line prints it"


def test_nothing_listens_unless_it_was_asked_for(tmp_path: Path) -> None:
    async def ask() -> str:
        transport = httpx.ASGITransport(create_app(settings_of(tmp_path), DECLARED))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/metrics")).text

    assert "syslog" not in asyncio.run(ask())
