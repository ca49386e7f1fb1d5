"""Syslog over UDP and TCP: ports of the collector that take messages as events of a source. Off by default.

Syslog knows no acknowledgement. Received messages wait in a backlog of bounded size and are stored in batches, again
and again until Kafka has them. When the backlog is full, a TCP connection is not read, so that its sender waits; a UDP
message is dropped, and counted.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector as MetricsCollector

from infra.cron import parse_zone
from infra.errors import InfraError
from infra.rest.problems import Problem
from infra.settings import Settings
from master_dataset.collector.context import Collector
from master_dataset.collector.doors.fields import check_suitable
from master_dataset.collector.doors.syslog_frames import MAX_MESSAGE, Frames
from master_dataset.collector.doors.syslog_message import FIELDS, event_of
from master_dataset.collector.events import prepare_events, send_prepared
from master_dataset.collector.reserved import check_writable
from master_dataset.events.envelope import PreparedEvent, new_event_id
from views.formats.fit import fit_of
from views.source import Source

MAX_BACKLOG = 20_000
MAX_BACKLOG_BYTES = 16_000_000
MAX_BATCH = 1_000
MAX_CONNECTIONS = 500
RECEIVE_BUFFER = 4 << 20
"""What the kernel is asked to keep of UDP messages that were not read yet; net.core.rmem_max may allow less."""
READ_SIZE = 1 << 15
RETRY_AFTER_S, MAX_RETRY_AFTER_S = 0.2, 5.0
REPORT_EVERY_S = 10.0
CLOSE_TIMEOUT_S = 5.0

SENT_AGAIN = (404, 429, 502, 503)
"""Statuses of records that Kafka may take later."""
QUEUE_FULL, TOO_LONG, CUT, NO_ROOM, INVALID, REFUSED, UNSTORED, KERNEL = (
    "queue-full", "too-long", "cut", "too-many-connections", "invalid", "refused-by-kafka", "not-stored-at-stop",
    "kernel",
)  # fmt: skip
"""Why messages are dropped. `too-many-connections` counts connections."""

log = structlog.get_logger()


class SyslogUnusable(InfraError):
    """The settings of syslog cannot be used."""

    exit_code = 2


class Received(NamedTuple):
    """One message as it came."""

    event_id: str
    raw: bytes
    at: datetime
    sender: str
    transport: str


class Backlog:
    """Messages that wait to be stored, for one event loop."""

    def __init__(self) -> None:
        self._messages: deque[Received] = deque()
        self._bytes = 0
        self._has_some = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def __len__(self) -> int:
        return len(self._messages)

    def offer(self, message: Received) -> bool:
        """Add a message, if there is room."""
        if not self._has_room.is_set():
            return False
        self._messages.append(message)
        self._bytes += len(message.raw)
        self._has_some.set()
        if len(self._messages) >= MAX_BACKLOG or self._bytes >= MAX_BACKLOG_BYTES:
            self._has_room.clear()
        return True

    async def add(self, message: Received) -> None:
        """Add a message as soon as there is room."""
        while not self.offer(message):
            await self._has_room.wait()

    async def take(self) -> list[Received]:
        """The oldest messages, at least one."""
        await self._has_some.wait()
        taken = [self._messages.popleft() for _ in range(min(MAX_BATCH, len(self._messages)))]
        self._bytes -= sum(len(message.raw) for message in taken)
        if not self._messages:
            self._has_some.clear()
        self._has_room.set()
        return taken


class SyslogServer:
    """The ports, the backlog, and the task that stores what arrives."""

    def __init__(self, collector: Collector, source: Source) -> None:
        self._collector, self._source = collector, source
        self._zone = parse_zone(collector.settings.collector_syslog_timezone)
        self._backlog = Backlog()
        self.received = Counter[str]()
        self.dropped = Counter[str]()
        self._reported = 0
        self._unstored = 0
        self._sockets: dict[str, socket.socket] = {}
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def of(cls, collector: Collector) -> SyslogServer | None:
        """The server that the settings ask for, if any; SyslogUnusable where the source or a port cannot be used."""
        settings = collector.settings
        if not (settings.collector_syslog_udp_port or settings.collector_syslog_tcp_port):
            return None
        source = collector.declarations.source(settings.collector_syslog_source)
        try:
            check_writable(collector.declarations, source.topic)
            check_suitable(collector.validators.source(source.name), "syslog", FIELDS)
        except Problem as problem:
            raise SyslogUnusable(f"collector_syslog_source: {problem.detail}") from None
        server = cls(collector, source)
        server._bind(settings)
        return server

    def _bind(self, settings: Settings) -> None:
        """Take the ports before anything else starts: a port that is taken is an error for a person."""
        host = settings.collector_syslog_host
        for kind, transport, port in (
            (socket.SOCK_DGRAM, "udp", settings.collector_syslog_udp_port),
            (socket.SOCK_STREAM, "tcp", settings.collector_syslog_tcp_port),
        ):
            if not port:
                continue
            try:
                family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
                bound = self._sockets[transport] = socket.socket(family, kind)
                if transport == "tcp":
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                else:
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
                bound.bind(address)
            except OSError as error:
                self._close_sockets()
                raise SyslogUnusable(
                    f"Syslog cannot listen on {host} port {port} ({transport}): {error.strerror or error}. Choose "
                    f"another collector_syslog_{transport}_port, or stop what listens there; ports below 1024 need a "
                    "privilege."
                ) from None

    def _close_sockets(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

    async def start(self) -> None:
        """Listen, and store what arrives."""
        loop = asyncio.get_running_loop()
        if "udp" in self._sockets:
            self._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=self._sockets["udp"])
        if "tcp" in self._sockets:
            self._tcp = await asyncio.start_server(self._serve, sock=self._sockets["tcp"], limit=READ_SIZE)
        self._tasks = [asyncio.create_task(self._store()), asyncio.create_task(self._report())]
        log.info("listening_for_syslog", source=self._source.name, ports=sorted(self._sockets))

    async def close(self) -> None:
        """Stop listening, and store what has arrived, for a few seconds."""
        if self._udp is not None:
            self.dropped[KERNEL] += _dropped_by_kernel(self._sockets["udp"])
            self._udp.close()
            self._udp = None
        if self._tcp is not None:
            self._tcp.close()
        for connection in list(self._connections):
            connection.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._backlog or self._unstored:
                    await asyncio.sleep(0.02)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._connections, return_exceptions=True)
        self.dropped[UNSTORED] += len(self._backlog) + self._unstored
        self._report_dropped()

    def status(self) -> dict[str, Any]:
        """What `/ready` says: messages received, dropped by reason, and waiting."""
        return {"received": dict(self.received), "dropped": self.all_dropped(), "waiting": len(self._backlog)}

    def all_dropped(self) -> dict[str, int]:
        """Dropped messages by reason, with those that the kernel had no room for."""
        dropped = Counter(self.dropped)
        if self._udp is not None:
            dropped[KERNEL] += _dropped_by_kernel(self._sockets["udp"])
        return {reason: count for reason, count in sorted(dropped.items()) if count}

    # ---- in ------------------------------------------------------------------

    def receive_datagram(self, raw: bytes, sender: str) -> None:
        """One message over UDP: it waits to be stored, or is dropped and counted."""
        self.received["udp"] += 1
        if not self._backlog.offer(_received(raw, sender, "udp")):
            self.dropped[QUEUE_FULL] += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection over TCP. It is read only while there is room."""
        if len(self._connections) >= MAX_CONNECTIONS:
            self.dropped[NO_ROOM] += 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  for the type checker
        self._connections.add(task)
        sender, frames = str((writer.get_extra_info("peername") or ("",))[0]), Frames()
        waiting = deque[bytes]()
        try:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            while data := await reader.read(READ_SIZE):
                waiting.extend(frames.feed(data))
                await self._add_all(waiting, sender)
            waiting.extend(filter(None, [frames.end()]))
            await self._add_all(waiting, sender)
        except OSError as error:  # a reset; or what keepalive found, such as a time-out, which is no ConnectionError
            frames.break_off()
            log.warning("lost_syslog_connection", sender=sender, error=str(error))
        except asyncio.CancelledError:  # asyncio's streams would log a task that ends by it, with a traceback
            waiting.extend(filter(None, [frames.end()]))
            self.received["tcp"] += len(waiting)
            self.dropped[UNSTORED] += len(waiting)
        finally:
            self.dropped[TOO_LONG] += frames.too_long
            self.dropped[CUT] += frames.cut
            self._connections.discard(task)
            writer.close()

    async def _add_all(self, waiting: deque[bytes], sender: str) -> None:
        """Messages leave `waiting` once there is room for them in the backlog."""
        while waiting:
            await self._backlog.add(_received(waiting[0], sender, "tcp"))
            self.received["tcp"] += 1
            waiting.popleft()

    # ---- out -----------------------------------------------------------------

    async def _store(self) -> None:
        while True:
            messages = await self._backlog.take()
            self._unstored = len(messages)
            await self._store_batch(await self._collector.parsing.run(self._prepare, messages))
            self._unstored = 0

    def _prepare(self, messages: list[Received]) -> list[PreparedEvent]:
        in_force = self._collector.validators.in_force(self._source.name)
        source, fit = in_force.source, fit_of(in_force.source)
        events = [
            fit(event_of(source, each.event_id, each.raw, each.at, self._zone, each.sender, each.transport))
            for each in messages
        ]
        prepared = prepare_events(self._collector, in_force, events, [None] * len(events))
        valid = [event for event in prepared if isinstance(event, PreparedEvent)]
        if len(valid) < len(prepared):
            self.dropped[INVALID] += len(prepared) - len(valid)
            self._collector.metrics.count_invalid(self._source.topic, len(prepared) - len(valid))
        return valid

    async def _store_batch(self, events: list[PreparedEvent]) -> None:
        """Send until Kafka has all of it. What is sent again has the same ids, and counts once."""
        pause_s = RETRY_AFTER_S
        while events := await self._send(events):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_AFTER_S)

    async def _send(self, events: list[PreparedEvent]) -> list[PreparedEvent]:
        """The events that have to be sent again. Those that Kafka refuses for good are dropped and counted."""
        try:
            self._collector.disk.check()
            await send_prepared(self._collector, self._source, list(events))
        except Problem as problem:
            log.warning("retrying", step="store syslog messages", error=problem.detail)
            results = problem.more.get("results")
            if results is None:
                return events
            statuses = [result.get("error", {}).get("status") for result in results]
            self.dropped[REFUSED] += sum(status not in (None, *SENT_AGAIN) for status in statuses)
            return [event for event, status in zip(events, statuses, strict=True) if status in SENT_AGAIN]
        except Exception as error:  # a bug must not end the only task that stores
            log.exception("retrying", step="store syslog messages", error=repr(error))
            return events
        return []

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self._report_dropped()

    def _report_dropped(self) -> None:
        """A line in the log when messages were dropped since the last one."""
        dropped = self.all_dropped()
        count = sum(dropped.values())
        if count > self._reported:
            log.warning("dropped_syslog_messages", count=count - self._reported, **dropped)
            self._reported = count


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: SyslogServer) -> None:
        self._server = server

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._server.receive_datagram(data, str(addr[0]))


class SyslogMetrics(MetricsCollector):
    """Received and dropped messages."""

    def __init__(self, received: Callable[[], Mapping[str, int]], dropped: Callable[[], Mapping[str, int]]) -> None:
        """`received` counts by transport, `dropped` by reason."""
        self._received, self._dropped = received, dropped

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts as they are now; the registry calls it at each scrape."""
        received = CounterMetricFamily(
            "tidemark_collector_syslog_messages", "Syslog messages that arrived.", labels=["transport"]
        )
        dropped = CounterMetricFamily(
            "tidemark_collector_syslog_dropped", "Syslog messages that were dropped, by reason.", labels=["reason"]
        )
        for transport, count in dict(self._received()).items():
            received.add_metric([transport], count)
        for reason, count in self._dropped().items():
            dropped.add_metric([reason], count)
        yield from (received, dropped)


def _received(raw: bytes, sender: str, transport: str) -> Received:
    return Received(new_event_id(), raw[:MAX_MESSAGE], datetime.now(UTC), sender, transport)


def _dropped_by_kernel(bound: socket.socket) -> int:
    """How many messages Linux dropped because they were not read in time; 0 where it does not say."""
    with suppress(OSError, ValueError, IndexError):
        inode = str(os.fstat(bound.fileno()).st_ino)
        for table in ("udp", "udp6"):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                columns = line.split()
                if columns[9] == inode:
                    return int(columns[-1])
    return 0
