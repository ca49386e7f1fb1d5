"""How fresh the speed views are, and what their guarantees cost, beside a plain foreachBatch -> HINCRBY job.

    python benchmarks/bench_speed.py [--seconds 30] [--backlog 600000] [--hold 60] [--warm 25] [--peers]

Latency is from Kafka's acknowledgement until a reader of Redis can see the event. Each job runs in a process of its
own; this one produces and watches. All warm up with the same load before they are measured. With `--peers`, Kafka
Streams and Flink compute the same view in the same run; they need a JDK, and their jars are fetched once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import report
from confluent_kafka import Producer
from plain_job import APPLIED
from reference_view import DECLARED
from stream_peers import PROGRAMS, NoCompiler, Peers

from hand_off.speed_views import SpeedViews
from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.clients.redis import redis_client
from infra.settings import Settings, child_environment, load_settings
from infra.stack import up
from infra.stack.addresses import addresses
from master_dataset.kafka.positions import read_positions
from master_dataset.kafka.topics import apply_topics, plan_topics
from views.declarations import declared_by

Applied = dict[int, int]
HERE = Path(__file__).parent
URLS, USERS = 3_000, 50_000
RATES = (500, 5_000)
HELD = (10_000, 20_000, 30_000, 40_000, 60_000)
SENT_SHARE = 0.95
"""A rate was tried only if so much of it was sent in time."""
LOOK_S = 0.005
DRAIN_S = 900
"""The most a backlog may take."""
OURS, PLAIN = "Tidemark", "plain foreachBatch -> HINCRBY, no guarantees"
GUARANTEES = {
    "Kafka Streams": "Kafka Streams, at least once, changelog in Kafka",
    "Flink": "Flink, heap states, a checkpoint every 10 s",
}
PEER_STATES, PEER_BEGAN, PEER_APPLIED = "peer:states", "peer:began", "peer:applied"


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=30, help="how long each rate is measured")
    arguments.add_argument("--backlog", type=int, default=600_000, help="events of the backlog")
    arguments.add_argument("--hold", type=float, default=60, help="how long a rate must be held; 0: not measured")
    arguments.add_argument("--warm", type=float, default=25, help="seconds of load before a job is measured")
    arguments.add_argument("--peers", action="store_true", help="Kafka Streams and Flink too")
    given = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the stack is taken down
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), given.warm)
        try:
            found = {OURS: bench.measure(OURS, given.seconds, given.backlog)}
            sizes = bench.sizes()
            rebuilt_s, rebuilt = bench.rebuild()
            tried = bench.rates_tried(given.hold) if given.hold else []
            found[PLAIN] = bench.measure(PLAIN, given.seconds, given.backlog)
            for name in bench.compile_peers() if given.peers else ():
                found[name] = bench.measure(name, given.seconds, given.backlog)
        finally:
            up.stop(bench.settings, lambda _status: None)
    write(found, sizes, rebuilt_s / rebuilt * 1e6, tried, given)


@dataclass
class Measured:
    """What one job did."""

    latency_ms: dict[int, tuple[float, float]]
    """By rate: p50 and p99."""
    drained: float
    """Events a second of a backlog, once the first micro-batch is through."""


@dataclass(frozen=True)
class Tried:
    """What happened at a rate."""

    rate: int
    sent: float
    """Events a second that Kafka acknowledged."""
    half: int
    """How many were behind after half of the time."""
    behind: int
    """And at its end."""

    @property
    def was_sent(self) -> bool:
        """Whether the sender, which has the same cores, reached the rate."""
        return self.sent >= SENT_SHARE * self.rate

    @property
    def is_held(self) -> bool:
        """Whether the lag did not grow while all that was sent."""
        return self.was_sent and self.behind <= max(self.half, self.rate) * 1.5


class Bench:
    """A stack, a topic, and the jobs."""

    def __init__(self, place: Path, warm_s: float) -> None:
        self.place, self.warm_s, self.peers = place, warm_s, None
        (place / "views").mkdir()
        (place / "views" / "hits.py").write_text(DECLARED)
        self.settings: Settings = load_settings(
            home=place / "home", views_dir=place / "views", with_examples=False, collector_enabled=False,
            archiver_enabled=False, scheduler_enabled=False, speed_enabled=False, serving_enabled=False,
            alerts_enabled=False,
        )  # fmt: skip
        up.check_and_fetch(self.settings)
        up.start_detached(self.settings, lambda _status: None)
        where = addresses(self.settings)
        self.kafka, self.redis_url, self.log = where.kafka, where.redis, place / "jobs.log"
        self.client = redis_client(self.settings, self.redis_url)
        self.speed_views = SpeedViews(self.client, "hits")
        self.source = declared_by(self.settings).source("hits")
        config = librdkafka_config(self.settings, self.kafka)
        apply_topics(KafkaAdmin(self.settings, self.kafka), plan_topics([self.source]))
        self.producer = Producer({**config, "acks": "all", "linger.ms": 1, "queue.buffering.max.messages": 1_000_000})
        self.number = 0
        self.chance = random.Random(1)  # noqa: S311  made-up events
        self.job: subprocess.Popen[bytes] | None = None

    # ---- the jobs ----

    @contextmanager
    def running(self, name: str) -> Iterator[Callable[[], Applied]]:
        """One of the jobs, ready; gives what tells how far it is."""
        starting = json.dumps({"hits": {str(p): o for p, o in self.end().items()}})
        environment = {**os.environ, **child_environment(self.settings)}
        environment |= {"TIDEMARK_KAFKA_BOOTSTRAP": self.kafka, "TIDEMARK_REDIS_URL": self.redis_url}
        applied = {OURS: self.applied, PLAIN: self.plainly_applied}.get(name, self.applied_by_peer)
        if self.peers is not None and name in PROGRAMS:
            command = self.peers.command(name, self.kafka, self.redis_url, "hits", self.end())
            environment = self.peers.environment(self.redis_url)
        elif name == PLAIN:
            command = [sys.executable, str(HERE / "plain_job.py"), self.kafka, self.redis_url, starting]
        else:
            command = [sys.executable, "-m", "speed_layer"]
        with self.log.open("ab") as log:
            self.job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield applied
        finally:
            self.job.kill()
            self.job.wait()

    def compile_peers(self) -> list[str]:
        """The peers that can run here; none where there is no compiler."""
        try:
            self.peers = Peers(self.settings, self.place)
        except NoCompiler as error:
            sys.stderr.write(f"Kafka Streams and Flink are skipped: {error}\n")
            return []
        return list(PROGRAMS)

    def applied(self) -> Applied:
        """How far Tidemark is."""
        meta = self.speed_views.reader.snapshot().meta
        return dict(meta.applied) if meta is not None else {}

    def plainly_applied(self) -> Applied:
        """How far the plain job is."""
        found = self.client.get(APPLIED)
        return {int(p): o for p, o in json.loads(found).items()} if isinstance(found, bytes) else {}

    def applied_by_peer(self) -> Applied:
        """How far Kafka Streams or Flink is."""
        return {int(p): int(o) for p, o in self.client.hgetall(PEER_APPLIED).items()}  # type: ignore[union-attr]

    def check_peer(self, name: str) -> None:
        """Whether its states have every event since it began: a peer that left some out would be fast for nothing."""
        began = {int(p): int(o) for p, o in self.client.hgetall(PEER_BEGAN).items()}  # type: ignore[union-attr]
        read = sum(end - began[partition] for partition, end in self.applied_by_peer().items())
        states = self.client.hvals(PEER_STATES)
        counted = sum(int.from_bytes(state[:8], "big") for state in states)  # type: ignore[union-attr]
        if counted != read:
            raise SystemExit(f"{name} read {read} events, and its states have {counted}.")
        sys.stderr.write(f"{name}: {len(states)} states have all {read} events\n")  # type: ignore[arg-type]
        self.client.delete(PEER_STATES, PEER_BEGAN, PEER_APPLIED)

    def end(self) -> Applied:
        """How far Kafka is."""
        return read_positions(self.settings, self.kafka, self.source).latest

    def measure(self, name: str, seconds: float, backlog: int) -> Measured:
        """Latency at each rate, then a backlog that came while the job was down."""
        with self.running(name) as applied:
            self.send(RATES[-1], self.warm_s)
            self.wait_for(applied, 300)
            self.send(RATES[0], 5)
            self.wait_for(applied, 60)
            latency = {rate: self.latency(applied, rate, seconds) for rate in RATES}
            sys.stderr.write(f"{name}: {latency}\n")
            # The backlog comes while the job cannot see it: a job that was restarted would be measured cold.
            assert self.job is not None
            os.kill(self.job.pid, 19)
            self.send(0, backlog)
            os.kill(self.job.pid, 18)
            end = sum(self.end().values())
            drained = drain_rate(applied, end - backlog, end)
        if name in PROGRAMS:
            self.check_peer(name)
        sys.stderr.write(f"{name}: drained {drained:,.0f} events/s\n")
        return Measured(latency, drained)

    def rebuild(self) -> tuple[float, int]:
        """Seconds from FLUSHALL until everything is applied again, and how many events that were."""
        with self.running(OURS) as applied:
            self.wait_for(applied, 300)
            self.client.flushall()
            began = time.monotonic()
            self.wait_for(applied, 600)
            took, count = time.monotonic() - began, sum(applied().values())
        sys.stderr.write(f"rebuilt {count} events in {took:.1f} s\n")
        return took, count

    def rates_tried(self, seconds: float) -> list[Tried]:
        """Rates, each higher than the one before, until one is not held or cannot be sent."""
        tried: list[Tried] = []
        with self.running(OURS) as applied:
            self.send(RATES[-1], self.warm_s)
            self.wait_for(applied, 300)
            for rate in HELD:
                took = self.send(rate, seconds / 2)
                half = sum(self.end().values()) - sum(applied().values())
                took += self.send(rate, seconds / 2)
                behind = sum(self.end().values()) - sum(applied().values())
                tried.append(Tried(rate, round(rate * seconds / took), half, behind))
                sys.stderr.write(f"{tried[-1]}\n")
                if not tried[-1].is_held:
                    break
                self.wait_for(applied, 120)
        return tried

    def sizes(self) -> tuple[int, float]:
        """How many states, and how many bytes of Redis one takes."""
        states, size = self.speed_views.reader.size()
        return states, size / states

    # ---- events ----

    def send(self, rate: float, amount: float, on_delivery: Any = None) -> float:
        """At a rate for `amount` seconds; without a rate `amount` events, as fast as possible.

        Returns the seconds until Kafka had acknowledged all of them.
        """
        began, sent = time.monotonic(), 0
        total = int(rate * amount) if rate else int(amount)
        while sent < total:
            due = min(total, int((time.monotonic() - began) * rate) + 1) if rate else min(total, sent + 1_000)
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            for _ in range(sent, due):
                self._send_one(now, on_delivery)
            sent = due
            self.producer.poll(0)
            if rate:
                time.sleep(0.005)
        if missing := self.producer.flush(60):
            raise TimeoutError(f"Kafka did not acknowledge {missing} events within 60 s.")
        return time.monotonic() - began

    def _send_one(self, now: str, on_delivery: Any) -> None:
        self.number += 1
        key = f"e{self.number}"
        event = {
            "event_id": key,
            "event_time": now,
            "url": f"/page/{int(self.chance.random() ** 3 * URLS)}",
            "user_id": f"user-{self.chance.randrange(USERS)}",
            "ms": round(self.chance.lognormvariate(3, 1.2), 1),
        }
        while True:
            with suppress(BufferError):
                self.producer.produce("hits", orjson.dumps(event), key, on_delivery=on_delivery)
                return
            self.producer.poll(0.05)

    def wait_for(self, applied: Callable[[], Applied], deadline_s: float) -> None:
        """Until all that was sent can be seen."""
        end, deadline = self.end(), time.monotonic() + deadline_s
        while {p: o for p, o in applied().items() if o} != {p: o for p, o in end.items() if o}:
            has_ended = self.job is not None and self.job.poll() is not None
            if has_ended or time.monotonic() > deadline:
                said = self.log.read_text()[-2000:]
                what = "the job has ended" if has_ended else "the job is not done in time"
                raise TimeoutError(f"{what}, at {applied()}, not {end}; the end of its log:\n{said}")
            time.sleep(0.05)

    def latency(self, applied: Callable[[], Applied], rate: int, seconds: float) -> tuple[float, float]:
        """p50 and p99 in ms."""
        acknowledged: list[tuple[int, int, float]] = []
        seen: dict[int, list[tuple[int, float]]] = {}
        done = threading.Event()

        def watch() -> None:
            while not done.wait(LOOK_S):
                found, now = applied(), time.monotonic()
                for partition, offset in found.items():
                    known = seen.setdefault(partition, [])
                    if not known or known[-1][0] < offset:
                        known.append((offset, now))

        def delivered(_error: Any, message: Any) -> None:
            acknowledged.append((message.partition(), message.offset(), time.monotonic()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        self.send(rate, seconds, delivered)
        self.wait_for(applied, 120)
        time.sleep(0.1)
        done.set()
        watcher.join()
        waited = []
        for partition, offset, at in acknowledged:
            waited.append(next(when for end, when in seen[partition] if end > offset) - at)
        waited.sort()
        return waited[len(waited) // 2] * 1000, waited[int(len(waited) * 0.99)] * 1000


def drain_rate(applied: Callable[[], Applied], begin: int, end: int) -> float:
    """Events a second of a backlog, from the first micro-batch that has some of it until all is through."""
    first: tuple[float, int] | None = None
    deadline = time.monotonic() + DRAIN_S
    while (now := sum(applied().values())) < end:
        if now > begin and first is None:
            first = time.monotonic(), now
        if time.monotonic() > deadline:
            raise TimeoutError(f"The backlog was not drained in {DRAIN_S} s: {now} of {end} events.")
        time.sleep(LOOK_S)
    return 0.0 if first is None else (end - first[1]) / (time.monotonic() - first[0])


def write(
    found: dict[str, Measured],
    sizes: tuple[int, float],
    per_million_s: float,
    tried: list[Tried],
    given: argparse.Namespace,
) -> None:
    """The result as figures and as text."""
    ours, plain = found[OURS], found[PLAIN]
    rows = [
        (
            GUARANTEES.get(name, name),
            *(f"{p50:,.0f} / {p99:,.0f} ms" for p50, p99 in each.latency_ms.values()),
            f"{each.drained:,.0f} events/s",
        )
        for name, each in found.items()
    ]
    head = ("", *(f"p50 / p99 at {rate:,} events/s" for rate in RATES), "backlog drained")
    share = ours.drained / plain.drained if plain.drained else 0.0
    text = report.table(head, *rows)
    text += (
        f"\n\nFrom Kafka's acknowledgement until a reader of Redis sees the event; per hour and url count, distinct "
        f"users, sum and quantiles (the plain job: count and sum alone). Each rate for {given.seconds:g} s, a backlog "
        f"of {given.backlog:,} events, after {given.warm:g} s of load. A backlog is drained at {share:.2f} of the "
        "plain job's rate. "
    )
    if tried:
        text += held_text(tried, given.hold)
    text += (
        f"After FLUSHALL everything is back in {per_million_s:.1f} s a million events. {sizes[0]:,} states take "
        f"{sizes[1]:,.0f} bytes of Redis each. The aims: p50 under 100 ms and p99 under 200 ms at 500 events/s; a "
        "backlog at 60,000 events/s; guarantees for less than 20 %."
    )
    if peers := [name for name in found if name in PROGRAMS]:
        text += "\n\n" + behind(ours, {name: found[name] for name in peers})
    figures = {
        "latency_ms": {name: each.latency_ms for name, each in found.items()},
        "drained": {name: each.drained for name, each in found.items()},
        "held": highest(tried).rate if tried else None,
        "tried": [asdict(each) for each in tried],
        "rebuild_s_per_million": per_million_s,
        "bytes_per_state": sizes[1],
        "sizes": {"seconds": given.seconds, "backlog": given.backlog, "hold": given.hold, "warm": given.warm},
    }
    report.write("speed", "Speed layer: fresh views in Redis", figures, text)


def highest(tried: list[Tried]) -> Tried:
    """The highest rate that was held; 0 where none was."""
    return max((each for each in tried if each.is_held), key=lambda each: each.rate, default=Tried(0, 0, 0, 0))


def held_text(tried: list[Tried], seconds: float) -> str:
    """What the rates have shown."""
    held, last = highest(tried), tried[-1]
    text = (
        f"The highest rate that was held for {seconds:g} s: {held.rate:,} events/s ({held.sent:,.0f} a second "
        "were sent). "
    )
    if not last.was_sent:
        text += (
            f"{last.rate:,} events/s could not be tried: the sender, on the same cores, reached {last.sent:,.0f}, "
            f"with {last.behind:,} events behind at the end. "
        )
    elif not last.is_held:
        text += (
            f"At {last.rate:,} events/s, of which {last.sent:,.0f} were sent, the lag grew from {last.half:,} to "
            f"{last.behind:,} events. "
        )
    return text


def behind(ours: Measured, peers: dict[str, Measured]) -> str:
    """How Tidemark stands beside the peers, and what they do not do."""
    rate = RATES[0]
    parts = [
        f"{ours.latency_ms[rate][0] / each.latency_ms[rate][0]:.0f} times that of {name} at the median"
        for name, each in peers.items()
    ]
    return (
        f"At {rate:,} events/s Tidemark's latency is {' and '.join(parts)}: these work event by event, Tidemark in "
        "micro-batches. Both keep the same sketches and write whole states into Redis, each group once in a pipeline. "
        "They drop no duplicates, write nothing atomically, and a restart writes again what it wrote. Kafka Streams "
        "has states for each partition, which a reader would have to merge."
    )


if __name__ == "__main__":
    main()
