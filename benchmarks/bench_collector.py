"""How fast the collector takes events, beside the bare producer libraries, on one stack in one run.

The same events go through `/events` and, over as many connections, through Confluent's REST Proxy v3, which answers
each record of a request with a line.

    python benchmarks/bench_collector.py [--seconds 4] [--rounds 3]

Every event counted here was acknowledged with acks=all. Rates are medians of the rounds, which take turns, so that a
busy moment of the machine hits all contestants alike. The processor time per event is given too: on a machine that is
busy with other things it says more than the rate.
"""

from __future__ import annotations

import argparse
import base64
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import psutil
import report
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from infra.home import Home
from infra.rest.access_keys import add_key
from infra.settings import Settings, load_settings
from infra.stack import up
from infra.stack.addresses import addresses

BATCH = 500
FLOOR = "bare confluent-kafka"
PROXY = "REST Proxy v3"
AIM = 0.4  # of the floor, for batches
LAST_CHUNK = b"\r\n0\r\n\r\n"
REFUSED = b'"message":'
"""In REST Proxy v3's line of a record that was not stored; the status is 200 all the same."""


def event(number: int) -> dict[str, object]:
    """A page view of about 300 bytes."""
    return {
        "event_id": f"bench-{number}",
        "event_time": "2026-01-01T00:00:00Z",
        "user_id": f"user-{number % 997}",
        "name": "page_view",
        "category": "shop",
        "properties": {
            "url": "/pricing?plan=team",
            "method": "GET",
            "status": 200,
            "ms": 12.5,
            "bytes": 1234,
            "referrer": "https://example.org/",
            "agent": "Mozilla/5.0 (X11; Linux x86_64)",
            "ip": "10.0.0.1",
        },
    }


# ---- the bare libraries ------------------------------------------------------


class Figures(NamedTuple):
    """What one round gave."""

    events_per_s: float
    cpu_us_per_event: float


def bare_confluent(bootstrap: str, topic: str, seconds: float, values: list[tuple[bytes, bytes]]) -> Figures:
    """By confluent-kafka, with the delivery callback that tells an acknowledgement."""
    acknowledged = 0

    def count(error: object, _message: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.list_topics(topic)
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        for key, value in values:
            producer.produce(topic, value, key, on_delivery=count)
        producer.poll(0)
        while len(producer) > 50_000:
            producer.poll(0.001)
    producer.flush()
    return Figures(
        acknowledged / (time.perf_counter() - began), (time.process_time() - cpu) * 1e6 / max(1, acknowledged)
    )


def bare_kafka_python(bootstrap: str, topic: str, seconds: float, values: list[tuple[bytes, bytes]]) -> Figures:
    """By kafka-python."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5)
    began, cpu = time.perf_counter(), time.process_time()
    sent = 0
    while time.perf_counter() - began < seconds:
        waiting = [producer.send(topic, value, key=key) for key, value in values]
        sent += len(waiting)
    producer.flush()
    waiting[-1].get(timeout=30)
    found = Figures(sent / (time.perf_counter() - began), (time.process_time() - cpu) * 1e6 / sent)
    producer.close()
    return found


# ---- the collector -----------------------------------------------------------


class Connection:
    """A connection that sends prepared bytes: the client should cost as little of the machine as it can."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        """Send, and wait for the answer 200."""
        self._socket.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._receive()
        head, _, body = head.partition(b"\r\n\r\n")
        _, has_length, length = head.lower().partition(b"content-length:")
        if has_length:
            size = len(body)
            while size < int(length.split(b"\r\n")[0]):
                size += len(self._receive())
        else:
            body = self._to_last_chunk(body)
        if not head.startswith(b"HTTP/1.1 200") or REFUSED in body:
            raise SystemExit(f"unexpected answer: {head.decode()}\n{body[:500].decode()}")

    def _to_last_chunk(self, body: bytes) -> bytes:
        received = bytearray(body)
        while not received.endswith(LAST_CHUNK):
            received += self._receive()
        return bytes(received)

    def _receive(self) -> bytes:
        data = self._socket.recv(262_144)
        if not data:
            raise SystemExit("the collector closed the connection")
        return data


def request(path: str, body: bytes, authorization: str) -> bytes:
    """A POST as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: {authorization}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def cluster_id(collector: str, secret: str) -> str:
    """What REST Proxy v3 has in its paths."""
    answer = httpx.get(f"{collector}/v3/clusters", auth=("bench", secret))
    return str(answer.raise_for_status().json()["data"][0]["cluster_id"])


def drive(port: int, asked: bytes, connections: int, seconds: float) -> list[float]:
    """The time of each request in seconds, over several connections at once."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    def work() -> None:
        connection = Connection(port)
        mine = []
        while (began := time.perf_counter()) < end:
            connection.send(asked)
            mine.append(time.perf_counter() - began)
        times.extend(mine)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Milliseconds at the middle and at the 99th percentile."""
    cuts = statistics.quantiles(times, n=100)
    return {"p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2), "requests": len(times)}


def measure(settings: Settings, seconds: float, rounds: int) -> dict[str, Any]:
    """All contestants in turn."""
    where = addresses(settings)
    port = int(where.collector.rpartition(":")[2])
    secret = add_key(Home(settings.home).root, "bench", ["produce"])
    authorization = "Basic " + base64.b64encode(f"bench:{secret}".encode()).decode()
    admin = AdminClient({"bootstrap.servers": where.kafka})
    admin.create_topics([NewTopic("bench", 3, 1)])["bench"].result()
    events = [event(number) for number in range(BATCH)]
    values = [(str(one["event_id"]).encode(), orjson.dumps(one)) for one in events]
    batch = request("/events/web", orjson.dumps(events), authorization)
    single = request("/events/web", orjson.dumps(events[0]), authorization)
    of_proxy = f"/v3/clusters/{cluster_id(where.collector, secret)}/topics/web/records"
    v3_records = [
        {"key": {"type": "STRING", "data": one["event_id"]}, "value": {"type": "JSON", "data": one}} for one in events
    ]
    v3_batch = request(of_proxy, b"".join(map(orjson.dumps, v3_records)), authorization)
    v3_single = request(of_proxy, orjson.dumps(v3_records[0]), authorization)

    status = up.read_status(settings) or {"services": []}
    process = psutil.Process(next(one["pid"] for one in status["services"] if one["name"] == "collector"))

    def collector(connections: int, asked: bytes = batch) -> Callable[[], Figures]:
        def run() -> Figures:
            began, before = time.perf_counter(), process.cpu_times()
            events = len(drive(port, asked, connections, seconds)) * BATCH
            after = process.cpu_times()
            cpu = after.user + after.system - before.user - before.system
            return Figures(events / (time.perf_counter() - began), cpu * 1e6 / events)

        return run

    contestants: dict[str, Callable[[], Figures]] = {
        FLOOR: lambda: bare_confluent(where.kafka, "bench", seconds, values),
        "bare kafka-python": lambda: bare_kafka_python(where.kafka, "bench", seconds, values),
        "collector, batches of 500, 1 connection": collector(1),
        "collector, batches of 500, 16 connections": collector(16),
        f"{PROXY}, 500 records a request, 1 connection": collector(1, v3_batch),
        f"{PROXY}, 500 records a request, 16 connections": collector(16, v3_batch),
    }
    rounds_of: dict[str, list[Figures]] = {name: [] for name in contestants}
    drive(port, batch, 2, 1.0)  # warm up
    drive(port, v3_batch, 2, 1.0)
    bare_confluent(where.kafka, "bench", 1.0, values)
    for _ in range(rounds):
        for name, run in contestants.items():
            rounds_of[name].append(run())
    medians = {name: round(statistics.median(one.events_per_s for one in found)) for name, found in rounds_of.items()}
    cpu = {
        name: round(statistics.median(one.cpu_us_per_event for one in found), 2) for name, found in rounds_of.items()
    }
    best = max(rate for name, rate in medians.items() if name.startswith("collector"))
    return {
        "events_per_second": medians,
        "rounds": {name: [round(one.events_per_s) for one in found] for name, found in rounds_of.items()},
        "cpu_us_per_event": cpu,
        "share_of_bare_confluent": round(best / medians[FLOOR], 3),
        "batch_latency_1_connection": summary(drive(port, batch, 1, seconds)),
        "single_1_connection": summary(drive(port, single, 1, seconds)),
        "single_16_connections": summary(drive(port, single, 16, seconds)),
        "single_rate_16_connections": round(len(drive(port, single, 16, seconds)) / seconds),
        "v3_batch_latency_1_connection": summary(drive(port, v3_batch, 1, seconds)),
        "v3_single_1_connection": summary(drive(port, v3_single, 1, seconds)),
        "v3_single_16_connections": summary(drive(port, v3_single, 16, seconds)),
        "v3_single_rate_16_connections": round(len(drive(port, v3_single, 16, seconds)) / seconds),
        "bytes_per_event": len(values[0][1]),
    }


def main() -> None:
    """Start a stack on a home of its own, measure, write the figures, stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="how often each rate is measured")
    arguments = parser.parse_args()
    os.environ["TIDEMARK_CONFIG"] = os.devnull
    with tempfile.TemporaryDirectory(prefix="collector-bench-", ignore_cleanup_errors=True) as folder:
        settings = load_settings(
            home=Path(folder) / "home",
            archiver_enabled=False,
            scheduler_enabled=False,
            speed_enabled=False,
            serving_enabled=False,
            alerts_enabled=False,
        )
        up.check_and_fetch(settings)
        up.start_detached(settings, lambda _status: None)
        try:
            found = measure(settings, arguments.seconds, arguments.rounds)
        finally:
            up.stop(settings, lambda _status: None)
    report.write("collector", "Collector: events by HTTP into Kafka", found, text(found))


def text(found: dict[str, Any]) -> str:
    """The figures as markdown."""
    rates, floor = found["events_per_second"], found["events_per_second"][FLOOR]
    by_rate = report.table(
        ("", "events/s, median", "least – most", "of the floor", "processor time per event"),
        *(
            (
                f"{name} (the floor)" if name == FLOOR else name,
                f"{rate:,}",
                f"{min(found['rounds'][name]):,} – {max(found['rounds'][name]):,}",
                f"{rate / floor:.2f}",
                f"{found['cpu_us_per_event'][name]:.1f} µs",
            )
            for name, rate in rates.items()
        ),
    )
    by_time = report.table(
        ("until the answer", "p50", "p99", "requests"),
        *(
            (name, f"{times['p50_ms']:.1f} ms", f"{times['p99_ms']:.1f} ms", f"{times['requests']:,}")
            for name, times in (
                (f"batch of {BATCH}, 1 connection", found["batch_latency_1_connection"]),
                ("single event, 1 connection", found["single_1_connection"]),
                ("single event, 16 connections", found["single_16_connections"]),
                (f"{PROXY}, {BATCH} records, 1 connection", found["v3_batch_latency_1_connection"]),
                (f"{PROXY}, one record, 1 connection", found["v3_single_1_connection"]),
                (f"{PROXY}, one record, 16 connections", found["v3_single_16_connections"]),
            )
        ),
    )
    return (
        f"{by_rate}\n\n{by_time}\n\n"
        f"Events of {found['bytes_per_event']} bytes, each acknowledged with acks=all, checked against their source by "
        f"one worker. Single events over 16 connections: {found['single_rate_16_connections']:,} a second, through "
        f"{PROXY} {found['v3_single_rate_16_connections']:,}. {PROXY} stores records as they are, without a source's "
        f"checks, and writes a line for each. The aim is {AIM:.2f} of the floor with batches."
    )


if __name__ == "__main__":
    sys.exit(main())
