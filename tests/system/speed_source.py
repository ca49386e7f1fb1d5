"""What tests of the speed layer share: a source of its own, a Redis of its own that can be harmed, and the oracle."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import Producer
from redis import Redis

from batch_layer.index import Level, open_index
from batch_layer.run import run_batch
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import Manifest, read_manifest
from hand_off.publish_log import Entry
from hand_off.speed_views import Outcome, SpeedViews, State, StateRange, cut_text, totals_of
from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings, child_environment, load_settings
from infra.stack.ports import LOOPBACK
from infra.stack.redis_server import check_redis_port, find_redis_server
from master_dataset.archiver.archive import open_archive
from master_dataset.cut import is_below
from master_dataset.kafka.positions import logical_positions, read_positions
from master_dataset.kafka.topics import apply_topics, plan_topics
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from speed_layer.writer import SourceWriter
from tests.conftest import INTERPRETED, Stack, assert_same, wait_until
from tests.system.redis_server import free_port
from views import in_memory, states
from views.declarations import declared_by
from views.in_memory import Event
from views.keys import unpack_key
from views.sample_events import encode, generate
from views.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = """
from views.aggregates import Count, Distinct, First, Last, Max, Quantiles, Sum
from views.derived import Ratio
from views.source import Source
from views.view import View

source = Source(
    "{source}", fields="event_id string, event_time timestamp, user_id string, item string, cents int, ms double"
)
sales = View(
    "sales", source=source, grain="1h", keys={{"item": "item"}}, where="cents is not null",
    answers={{"orders": Count(), "large": Count(where="cents >= 99"), "share": Ratio("large", "orders"),
             "cents": Sum("cents"), "users": Distinct("user_id"), "ms": Quantiles("ms"), "last": Last("user_id")}},
)
totals = View("totals", source=source, grain="1d", answers={{"events": Count(), "users": Distinct("user_id")}})
"""
VICTIM = """
import os, signal, sys
from speed_layer import process, writer

point, left = sys.argv[1], [int(sys.argv[2])]

def failpoint(name):
    if name == point:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

class Victim(writer.SourceWriter):
    def __post_init__(self):
        super().__post_init__()
        self.failpoint = failpoint

process.SourceWriter = Victim
sys.exit(process.main())
"""
POISON = (b"{", b"", b'{"cents": "many"}', b"\xff", b"[1]", b'{"cents": 1e400}')


class RedisServer:
    """A Redis with an append-only file, as `up` runs it; it can be killed, started again and set back."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"redis://{LOOPBACK}:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None
        self.client = Redis.from_url(self.url, socket_timeout=30)

    def start(self) -> None:
        options = ["--bind", LOOPBACK, "--port", str(self.port), "--save", "", "--appendonly", "yes"]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(find_redis_server()), *options, "--dir", str(self.folder)], stdout=log, stderr=subprocess.STDOUT
            )
        wait_until("Redis to answer", lambda: check_redis_port(self.port) is None, deadline_s=20)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=20)

    def saved(self) -> dict[bytes, bytes]:
        """Everything in it, to be put back later."""
        found: dict[bytes, Any] = {key: self.client.dump(key) for key in self.client.keys("*")}  # type: ignore[union-attr]
        return {key: value for key, value in found.items() if value is not None}

    def set_back(self, saved: dict[bytes, bytes]) -> None:
        """As after a restart that lost what came after."""
        with self.client.pipeline(transaction=True) as pipe:
            pipe.flushall()
            for key, value in saved.items():
                pipe.restore(key, 0, value)
            pipe.execute()


class Proxy:
    """Between clients and a Redis. `request` sees what they send, and says what goes on. `is_deaf`: no reply comes."""

    def __init__(self, redis: RedisServer) -> None:
        self.redis = redis
        self.request: Callable[[bytes], bytes] = lambda sent: sent
        self.is_deaf = False
        self._open = [socket.create_server((LOOPBACK, 0))]
        self.url = f"redis://{LOOPBACK}:{self._open[0].getsockname()[1]}/0"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        _shut(*self._open)
        for thread in self._threads:
            thread.join(timeout=20)
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._open[0].accept()[0]
                self._open.append(client)
                try:
                    server = socket.create_connection((LOOPBACK, self.redis.port))
                except OSError:
                    _shut(client)
                    continue
                self._open.append(server)
                for ends in ((client, server, lambda sent: self.request(sent)), (server, client, self._reply)):
                    self._threads.append(threading.Thread(target=self._pump, args=ends))
                    self._threads[-1].start()

    def _reply(self, sent: bytes) -> bytes:
        return b"" if self.is_deaf else sent

    @staticmethod
    def _pump(from_: socket.socket, to: socket.socket, through: Callable[[bytes], bytes]) -> None:
        with suppress(OSError):
            while sent := from_.recv(65536):
                to.sendall(through(sent))
        _shut(from_, to)


def _shut(*sockets: socket.socket) -> None:
    """Whoever waits at them goes on."""
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class SpeedPlace:
    """A source of its own on the shared broker, with its views, its table, its runs and its speed views."""

    def __init__(
        self, stack: Stack, folder: Path, redis: RedisServer, spark: SparkSession | None, **overrides: Any
    ) -> None:
        self.name = f"s{uuid4().hex[:12]}"
        self.views_dir = folder / "views"
        self.views_dir.mkdir()
        self.declare(DECLARED)
        self.settings: Settings = load_settings(
            home=folder / "home", views_dir=self.views_dir, with_examples=False, kafka_bootstrap=stack.kafka,
            redis_url=redis.url, speed_grace_s=0, batch_wait_s=30, spark_conf=INTERPRETED, **overrides,
        )  # fmt: skip
        self.settings.home.mkdir()
        self.spark, self.redis = spark, redis
        self.source = declared_by(self.settings).source(self.name)
        self.folder = BatchFolder.of(self.settings, self.name)
        self.speed_views = SpeedViews(redis.client, self.name)
        self.config = librdkafka_config(self.settings, stack.kafka)
        self.kafka = stack.kafka
        self.events: list[Event] = []
        self.seed = 0
        self.log = folder / "speed.log"
        apply_topics(KafkaAdmin(self.settings, stack.kafka), plan_topics([self.source]))

    def declare(self, text: str) -> None:
        (self.views_dir / "declared.py").write_text(text.format(source=self.name))

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(declared_by(self.settings).views_of(self.name))

    # ---- what happens ----

    def send(self, count: int = 60, poison: int = 0, *, copies: float = 0.15, partitions: int = 3) -> None:
        """Events, late and copied ones among them: some repeat events of earlier sendings."""
        self.seed += 1
        records = generate(self.source, count, self.seed, views=self.views, duplicates=copies, partitions=partitions)
        again = self.events[:: max(len(self.events) // 7, 1)][:7] if copies else []
        with self.producing() as produce:
            for place, event in enumerate([*(record.event for record in records), *again]):
                if place < poison:
                    produce(None, POISON[place % len(POISON)], partition=place % 3)
                produce(event, self.value_of(event), partition=event.partition)

    def value_of(self, event: Event) -> bytes:
        """What a producer sends for an event."""
        return encode(event.fields).encode()

    @contextmanager
    def producing(self) -> Iterator[Callable[..., None]]:
        """Gives what sends an event; all are acknowledged, and remembered where they are, when the block ends."""
        producer = Producer({**self.config, "acks": "all", "enable.idempotence": True})

        def produce(event: Event | None, value: bytes, **options: Any) -> None:
            def delivered(error: Any, message: Any) -> None:
                assert error is None, error
                if event is not None:
                    self.events.append(replace(event, partition=message.partition(), offset=message.offset()))

            producer.produce(self.source.topic, value, on_delivery=delivered, **options)

        yield produce
        assert producer.flush(30) == 0

    @contextmanager
    def keeping(self, failpoint: Callable[[str], None] = lambda _name: None) -> Iterator[SourceWriter]:
        """A speed layer in a thread of this process, while the block runs."""
        stopping = threading.Event()
        writer = SourceWriter(
            self.settings, self.spark, declared_by(self.settings), self.source, stopping, failpoint=failpoint
        )
        thread = threading.Thread(target=writer.run, daemon=True)
        thread.start()
        try:
            yield writer
        finally:
            stopping.set()
            thread.join(timeout=60)
            assert not thread.is_alive(), "the writer did not stop"

    def process(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A speed layer in a process of its own; with arguments one that kills itself there, after so many times."""
        command = ["-c", VICTIM, *arguments] if arguments else ["-m", "speed_layer"]
        return self.spawn([sys.executable, *command])

    def spawn(self, command: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        """A program that sees our settings."""
        environment = {**os.environ, **child_environment(self.settings), "TIDEMARK_LOG_LEVEL": "INFO", **more}
        with self.log.open("ab") as log:
            return subprocess.Popen([*command], env=environment, stdout=log, stderr=log)

    def archive(self) -> None:
        """Bring the master dataset up to Kafka's end."""
        with ExitStack() as locks:
            archive = open_archive(self.settings, self.kafka, self.source, self.spark, locks)
            archive.start(self.spark, once=True).awaitTermination()

    def run(self, **options: Any) -> Manifest:
        """A batch run, of what is archived now."""
        return run_batch(self.settings, self.name, spark=self.spark, **options)

    def archive_and_run(self, **options: Any) -> Manifest:
        """A batch run while the archiver is at work, as a nightly one is."""
        self.archive()
        return self.run(**options)

    # ---- what must be so ----

    def kafka_end(self) -> dict[int, int]:
        """In logical offsets."""
        base = coverage.of(table_path(self.settings, self.name)).offset_base
        return logical_positions(read_positions(self.settings, self.kafka, self.source), base).latest

    def wait_until_applied(self, deadline_s: float = 60) -> None:
        """Until the speed views hold all that Kafka does."""
        end = cut_text(self.kafka_end())

        def is_there() -> bool:
            meta = self.speed_views.reader.snapshot().meta
            return meta is not None and cut_text(meta.applied) == end

        wait_until(f"{self.name} to be applied up to {end}", is_there, deadline_s)

    def wait_until_archived(self, deadline_s: float = 120) -> None:
        """Until the master dataset holds all that Kafka does: somebody else runs the archiver."""
        end = self.kafka_end()
        table = table_path(self.settings, self.name)
        wait_until(f"{self.name} to be archived up to {end}", lambda: is_below(end, coverage.of(table).cut), deadline_s)

    def caught_up(self) -> None:
        """All is applied, and every answer is the oracle's."""
        self.wait_until_applied()
        assert self.check() == len(self.events)

    def check(self, entry: Entry | None = None) -> int:
        """Merged answers are those of the oracle at the cut that they report. Returns how many events that were."""
        counted = 0
        entry = entry or publish_log.served(self.folder)
        for view in self.views:
            if view.name not in entry.catalog or entry.catalog[view.name] != view.hash:
                continue  # it joins with the next run
            asked = [StateRange(view.hash), *([StateRange(totals_of(view.hash))] if view.keys else [])]
            answer = self.speed_views.reader.answer(entry.run, entry.cut, asked)
            assert answer.outcome == Outcome.OK, (entry.run, answer.outcome)
            if view.keys:
                added, kept = (_by_bucket(view, stretch) for stretch in answer.ranges)
                assert_same(kept, added)
            groups = self._batch_states(entry.run, view)
            for bucket, key, state in answer.ranges[0]:
                group = (bucket * 1_000_000, unpack_key(key))
                more = states.unpack(view.algebras, state)
                groups[group] = states.merge(view.algebras, groups[group], more) if group in groups else more
            below = [event for event in self.events if event.offset < answer.applied.get(event.partition, 0)]
            assert_same({group: view.present(state) for group, state in groups.items()}, in_memory.answers(view, below))
            counted = len(below)
        return counted

    def _batch_states(self, run: int, view: View) -> dict[Any, Any]:
        if not run:
            return {}
        data = read_manifest(self.folder, run).view(view.name)
        opened = open_index(self.folder.indexes / name for name in data.index)
        found = {
            (tile.bucket * 1_000_000, unpack_key(tile.key)): states.unpack(view.algebras, tile.state)
            for tile in opened.of_prefix(Level.GRAIN, b"", 0, 2**62)
        }
        opened.close()
        return found


def _by_bucket(view: View, stretch: Sequence[State]) -> dict[int, dict[str, Any]]:
    """The answers of each bucket, over all keys and generations."""
    packed: dict[int, list[bytes]] = {}
    for bucket, _, state in stretch:
        packed.setdefault(bucket, []).append(state)
    reader = states.Reader(view.algebras)
    return {bucket: view.present(reader.merged(every)) for bucket, every in packed.items()}
