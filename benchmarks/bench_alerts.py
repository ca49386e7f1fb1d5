"""How soon an alert is sent after Kafka has its last event, and what many live connections cost.

    python benchmarks/bench_alerts.py [--bursts 100] [--subscribers 500] [--seconds 15]

The floor, in the same run: from Kafka's acknowledgement until the answer of a query has the event. An alert is sent on
the merged value, so it cannot be sooner than that answer. Each burst is a card of its own with four attempts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import report
from confluent_kafka import Consumer, Producer, TopicPartition

from infra.clients.kafka import librdkafka_config
from infra.settings import Settings, load_settings
from infra.stack import up
from infra.stack.addresses import addresses

VIEW = "card_attempts"
PATIENCE_S = 120
WARM = 10


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bursts", type=int, default=100, help="how many alerts are timed")
    arguments.add_argument("--subscribers", type=int, default=500, help="live connections at once")
    arguments.add_argument("--seconds", type=float, default=15, help="how long answers are timed, each way")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), given.subscribers)
        try:
            bench.warm()
            latency = bench.latency(given.bursts)
            alone = bench.answers(given.seconds)
            beside = asyncio.run(bench.with_subscribers(given.subscribers, given.seconds))
        finally:
            bench.close()
    write(given.bursts, given.subscribers, latency, alone, beside)


class Bench:
    """A stack with cards, and all who are notified."""

    def __init__(self, place: Path, subscribers: int) -> None:
        self.settings: Settings = load_settings(
            home=place / "home", examples="cards", archiver_enabled=False, scheduler_enabled=False,
            access_required=False, serving_live_subscribers=subscribers + 10,
        )  # fmt: skip
        up.check_and_fetch(self.settings)
        up.start_detached(self.settings, lambda _status: None)
        self.where = addresses(self.settings)
        config = librdkafka_config(self.settings, self.where.kafka)
        self.producer = Producer({**config, "acks": "all", "linger.ms": 0})
        self.consumer = Consumer(
            {**config, "group.id": "bench", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
        )
        self.client = httpx.Client(base_url=self.where.serving, timeout=30)
        self.acknowledged: dict[str, float] = {}
        self.notified: dict[str, dict[str, float]] = {"kafka": {}, "events": {}, "answer": {}}
        self.done = threading.Event()
        self.number = 0
        self.refused = 0

    def close(self) -> None:
        """End it."""
        self.done.set()
        up.stop(self.settings, lambda _status: None)

    def burst(self, at: datetime | None = None) -> str:
        """Four attempts on a new card; the time at which Kafka has acknowledged the last."""
        self.number += 1
        card = f"card-{self.number}"
        moment = (at or datetime.now(UTC)).isoformat()
        for number in range(4):
            event = {"event_id": f"{card}-{number}", "event_time": moment, "card": card, "outcome": "declined"}
            self.producer.produce("cards", json.dumps(event), card)
        assert self.producer.flush(30) == 0
        self.acknowledged[card] = time.monotonic()
        return card

    def warm(self) -> None:
        """Everything has run once, and somebody listens everywhere."""
        card = self.burst()
        self._until("the first alert", lambda: self._has_fired(card))
        self.consumer.assign([TopicPartition("tidemark.alerts", 0, 0)])
        for listen in (self._by_kafka, self._by_events):
            threading.Thread(target=listen, daemon=True).start()
        for _ in range(WARM):
            card = self.burst()
            self._until("the warm-up", lambda: card in self.notified["kafka"] and card in self.notified["events"])  # noqa: B023

    def latency(self, bursts: int) -> dict[str, list[float]]:
        """Milliseconds from acknowledgement: to an answer, to the topic, to a server-sent event."""
        cards = []
        for _ in range(bursts):
            card = self.burst()
            cards.append(card)
            while not self._is_answered(card):
                time.sleep(0.002)
            self.notified["answer"][card] = time.monotonic()
            self._until(card, lambda: card in self.notified["kafka"] and card in self.notified["events"])  # noqa: B023
        return {
            way: [1000 * (times[card] - self.acknowledged[card]) for card in cards]
            for way, times in self.notified.items()
        }

    def answers(self, seconds: float) -> list[float]:
        """Milliseconds that answers to one client take, which has a process to itself."""
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(timed_answers, self.where.serving, seconds).result()

    async def with_subscribers(self, count: int, seconds: float) -> dict[str, Any]:
        """The same while so many are connected, half to alerts and half to an answer, and alerts fire."""
        server = self._server()
        before_mb, got = server.memory_info().rss / 2**20, [0] * count
        streams = [asyncio.create_task(self._subscribe(number, got)) for number in range(count)]
        deadline = time.monotonic() + PATIENCE_S
        while sum(each > 0 for each in got[1::2]) < count // 2:  # those that follow an answer have it at once
            if time.monotonic() > deadline:
                raise TimeoutError(f"{sum(each > 0 for each in got[1::2])} of {count // 2} have an answer.")
            await asyncio.sleep(0.1)
        cpu, wall = _cpu_s(server), time.monotonic()
        timed = asyncio.create_task(asyncio.to_thread(self.answers, seconds))
        fired = 0
        while not timed.done():
            await asyncio.to_thread(self.burst)
            fired += 1
            await asyncio.sleep(1)
        found = await timed
        used = (_cpu_s(server) - cpu) / (time.monotonic() - wall)
        after_mb = server.memory_info().rss / 2**20
        for stream in streams:
            stream.cancel()
        return {
            "answers_ms": found, "cpu_share": used, "memory_mb": after_mb, "memory_before_mb": before_mb,
            "messages": sum(got), "fired": fired, "refused": self.refused,
        }  # fmt: skip

    async def _subscribe(self, number: int, got: list[int]) -> None:
        path = "/alerts/live" if number % 2 == 0 else f"/views/{VIEW}/live?from=-1h&every=1s"
        host, _, port = self.where.serving.removeprefix("http://").partition(":")
        while True:  # one that is refused for a moment comes again, as our page does
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            if b" 200 " in await reader.readline():
                break
            self.refused += 1
            writer.close()
            await asyncio.sleep(1)
        while line := await reader.readline():
            got[number] += line.startswith(b"data: ")

    def _server(self) -> psutil.Process:
        status = up.read_status(self.settings)
        assert status is not None
        return psutil.Process(next(each["pid"] for each in status["services"] if each["name"] == "serving"))

    def _by_kafka(self) -> None:
        while not self.done.is_set():
            for message in self.consumer.consume(100, 0.01):
                if message.error() is None:
                    self._note("kafka", json.loads(message.value() or b"{}"))

    def _by_events(self) -> None:
        with httpx.stream("GET", f"{self.where.serving}/alerts/live", timeout=None) as answer:  # noqa: S113
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self._note("events", json.loads(line.removeprefix("data: ")))

    def _note(self, way: str, episode: dict[str, Any]) -> None:
        if episode["state"] == "firing":
            self.notified[way].setdefault(episode["key"]["card"], time.monotonic())

    def _is_answered(self, card: str) -> bool:
        answer = self.client.get(f"/views/{VIEW}/query", params={"from": "-1h", "card": card, "answers": "attempts"})
        return answer.status_code == 200 and sum(row["attempts"] for row in answer.json()["rows"]) == 4

    def _has_fired(self, card: str) -> bool:
        answer = self.client.get("/alerts/history")
        return answer.status_code == 200 and any(each["key"]["card"] == card for each in answer.json()["episodes"])

    def _until(self, what: str, is_so: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Waited {PATIENCE_S} s for {what}.")
            time.sleep(0.002)


def timed_answers(serving: str, seconds: float) -> list[float]:
    """Milliseconds that answers take, one after the other."""
    found, until = [], time.monotonic() + seconds
    with httpx.Client(base_url=serving, timeout=30) as client:
        while time.monotonic() < until:
            began = time.perf_counter()
            answer = client.get(f"/views/{VIEW}/query", params={"from": "-1h", "by": "card", "limit": "10"})
            assert answer.status_code == 200, answer.text
            found.append(1000 * (time.perf_counter() - began))
    return found


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def write(
    bursts: int, subscribers: int, latency: dict[str, list[float]], alone: list[float], beside: dict[str, Any]
) -> None:
    """The result and its text."""
    ways = {"answer": "an answer has it (floor)", "kafka": "`tidemark.alerts`", "events": "a server-sent event"}
    rows = [
        (text, f"{_at(latency[way], 0.5):.0f} ms", f"{_at(latency[way], 0.99):.0f} ms") for way, text in ways.items()
    ]
    floor = _at(latency["answer"], 0.5)
    more = statistics.median(k - a for k, a in zip(latency["kafka"], latency["answer"], strict=True))
    ratio = _at(beside["answers_ms"], 0.5) / _at(alone, 0.5)
    text = "\n\n".join(
        [
            report.table((f"from Kafka's acknowledgement to (of {bursts} alerts)", "p50", "p99"), *rows),
            f"An alert is in the topic {more:.0f} ms after the answer has it (median).",
            report.table(
                ("answers to one client", "p50", "p99"),
                ("alone", f"{_at(alone, 0.5):.1f} ms", f"{_at(alone, 0.99):.1f} ms"),
                (
                    f"beside {subscribers} live connections",
                    f"{_at(beside['answers_ms'], 0.5):.1f} ms",
                    f"{_at(beside['answers_ms'], 0.99):.1f} ms",
                ),
            ),
            f"Half of them follow alerts, half an answer; {beside['messages']:,} messages were pushed; "
            f"{beside['refused']} connections were refused at first, and came again. The server used "
            f"{beside['cpu_share']:.0%} of a core, the timed answers included, and "
            f"{beside['memory_mb']:.0f} MB ({beside['memory_before_mb']:.0f} MB before).",
        ]
    )
    figures = {
        "latency_ms": {way: {"p50": _at(v, 0.5), "p99": _at(v, 0.99)} for way, v in latency.items()},
        "floor_p50_ms": floor, "ratio_with_subscribers": ratio, "subscribers": subscribers,
        "cpu_share": beside["cpu_share"], "memory_mb": beside["memory_mb"],
    }  # fmt: skip
    report.write("alerts", "Alerts and live connections", figures, text)


if __name__ == "__main__":
    main()
