"""How many records a second the archiver and the speed layer decode in each format, beside Spark reading the topic.

    python benchmarks/bench_formats.py [--events 200000] [--rounds 3]

The same page views are sent as JSON, JSON Schema, Avro and Protobuf, with schemas of this home's own registry. The
speed layer runs in a process of its own; a backlog of each format in turn comes while it is stopped. Then the archiver,
Spark's reader into nothing (the floor), and the reader with the decoder behind it read whole topics in turn. The first
round of each warms up and is not counted.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import report
from bench_archiver import archive, into_nothing, read
from bench_speed import drain_rate
from confluent_kafka import Producer
from written_formats import FIELDS, FORMATS, Format, event

from hand_off.speed_views import SpeedViews
from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.clients.redis import redis_client
from infra.settings import Settings, child_environment, load_settings
from infra.spark.session import spark_session
from infra.stack import up
from infra.stack.addresses import addresses
from master_dataset.kafka.topics import apply_topics, plan_topics
from master_dataset.table import coverage
from master_dataset.table.history import read_history
from master_dataset.table.paths import table_path
from master_dataset.writer_schemas.noted import NotedSchemas
from views.formats.framing import frame_of_id
from views.on_spark.events import with_event

HEAD = "from tidemark import Count, Distinct, Quantiles, Source, Sum, View\n"
FLOOR, DECODED, ARCHIVED, SPEED = "read into nothing", "and decoded", "archived", "applied by the speed layer"
Rates = dict[str, dict[str, list[float]]]
"""Records a second of each round, by format and by what was done with them."""


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--events", type=int, default=200_000, help="of each format and round")
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    os.environ["TIDEMARK_CONFIG"] = os.devnull
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the stack is taken down
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), given.events)
        try:
            bench.prepare()
            rates: Rates = {each.name: {} for each in FORMATS}
            bench.measure_speed(rates, given.rounds)
            bench.measure_spark(rates, given.rounds)
            sizes = bench.sizes
        finally:
            up.stop(bench.settings, lambda _status: None)
    write(rates, sizes, given)


class Bench:
    """A stack with Kafka, Redis and the collector, which has the registry; a source and a view of each format."""

    def __init__(self, place: Path, events: int) -> None:
        self.events, self.log = events, place / "jobs.log"
        self.sizes: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        (place / "views").mkdir()
        (place / "views" / "formats.py").write_text(HEAD + "".join(each.declared() for each in FORMATS))
        self.settings: Settings = load_settings(
            home=place / "home", views_dir=place / "views", with_examples=False, archiver_enabled=False,
            scheduler_enabled=False, speed_enabled=False, serving_enabled=False, alerts_enabled=False,
            archive_max_events=100 * events, archive_max_mb=100 * events,
        )  # fmt: skip

    def prepare(self) -> None:
        """Start, make the topics, and register the schemas."""
        secret = up.first_access_key(self.settings) or ""
        up.check_and_fetch(self.settings)
        up.start_detached(self.settings, lambda _status: None)
        where = addresses(self.settings)
        self.kafka, self.redis_url = where.kafka, where.redis
        self.client = redis_client(self.settings, self.redis_url)
        apply_topics(KafkaAdmin(self.settings, self.kafka), plan_topics([each.source for each in FORMATS]))
        config = librdkafka_config(self.settings, self.kafka)
        self.producer = Producer({**config, "acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 500_000})
        with httpx.Client(base_url=where.collector, auth=("admin", secret), timeout=60) as client:
            self.ids = {each.name: registered(client, each) for each in FORMATS if each.registry_type}
        self.writers = {each.name: each.writer(self.ids.get(each.name, 0)) for each in FORMATS}

    # ---- the speed layer ----

    def measure_speed(self, rates: Rates, rounds: int) -> None:
        """A backlog of each format in turn, through one process that follows all of them."""
        with self._speed_layer() as process:
            for number in range(rounds + 1):
                for format_ in FORMATS:
                    applied = self._applied(format_)
                    # It comes while the process cannot see it: a process that was restarted would be measured cold.
                    os.kill(process.pid, signal.SIGSTOP)
                    begin = self._sent(format_)
                    self._send(format_)
                    os.kill(process.pid, signal.SIGCONT)
                    rate = drain_rate(applied, begin, begin + self.events)
                    if number and not rate:
                        raise SystemExit("The backlog was one micro-batch, which has no rate: give more --events.")
                    note(rates, format_, SPEED, rate, number)

    @contextmanager
    def _speed_layer(self) -> Iterator[subprocess.Popen[bytes]]:
        environment = {**os.environ, **child_environment(self.settings)}
        environment |= {"TIDEMARK_KAFKA_BOOTSTRAP": self.kafka, "TIDEMARK_REDIS_URL": self.redis_url}
        with self.log.open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "speed_layer"], env=environment, stdout=log, stderr=log)
        try:
            for format_ in FORMATS:
                self._wait_for_start(format_, process)
            yield process
        finally:
            process.kill()
            process.wait()

    def _wait_for_start(self, format_: Format, process: subprocess.Popen[bytes]) -> None:
        """Until the speed layer follows a source."""
        reader, deadline = SpeedViews(self.client, format_.name).reader, time.monotonic() + 180
        while reader.snapshot().meta is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The speed layer does not follow {format_.name!r}:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def _applied(self, format_: Format) -> Callable[[], dict[int, int]]:
        reader = SpeedViews(self.client, format_.name).reader

        def applied() -> dict[int, int]:
            meta = reader.snapshot().meta
            return {} if meta is None else dict(meta.applied)

        return applied

    # ---- the archiver and the floor ----

    def measure_spark(self, rates: Rates, rounds: int) -> None:
        """The archiver, Spark's reader, and the reader with the decoder, over whole topics in turn."""
        spark = spark_session(self.settings, "bench-formats")
        for number in range(rounds + 1):
            for format_ in FORMATS:
                source = replace(format_.source, name=f"{format_.name}{number}", topic=format_.source.topic)
                noted = NotedSchemas(self.settings, source)
                if source.needs_writer_schemas:  # as in the life of a source: asked for once, at its first record
                    noted.resolve({frame_of_id(self.ids[format_.name])})
                records = read(spark, self.settings, self.kafka, source.topic)
                ways: dict[str, Callable[[], None]] = {
                    FLOOR: lambda: into_nothing(records),  # noqa: B023  called in this turn
                    DECODED: lambda: into_nothing(with_event(records, source, writers=noted.known())),  # noqa: B023
                    ARCHIVED: lambda: archive(spark, self.settings, self.kafka, source),  # noqa: B023
                }
                for what, way in ways.items():
                    began = time.monotonic()
                    way()
                    note(rates, format_, what, self._sent(format_) / (time.monotonic() - began), number)
                self._check(source.name, self._sent(format_))
        spark.stop()

    def _check(self, source: str, sent: int) -> None:
        """That all records were archived, as events: dead letters would be fast for nothing."""
        held = coverage.of_history(read_history(table_path(self.settings, source)))
        if held.rows != sent or held.last_invalid >= 0:
            raise SystemExit(f"{source}: {held.rows} of {sent} records were archived; invalid: {held.last_invalid}.")

    # ---- records ----

    def _sent(self, format_: Format) -> int:
        return self._counts.get(format_.name, 0)

    def _send(self, format_: Format) -> None:
        """The next page views: no id comes twice."""
        write, begin, size = self.writers[format_.name], self._sent(format_), 0
        for number in range(begin, begin + self.events):
            value = write(event(number))
            size += len(value)
            while True:
                with suppress(BufferError):
                    self.producer.produce(format_.source.topic, value)
                    break
                self.producer.poll(0.05)
        if left := self.producer.flush(60):
            raise SystemExit(f"Kafka did not take {left} records of {format_.name}.")
        self._counts[format_.name] = begin + self.events
        self.sizes[format_.name] = size / self.events


def registered(client: httpx.Client, format_: Format) -> int:
    """The id of a format's schema, registered now."""
    answer = client.post(
        f"/schema-registry/subjects/{format_.name}-value/versions",
        json={"schema": format_.schema, "schemaType": format_.registry_type},
    )
    return int(answer.raise_for_status().json()["id"])


def note(rates: Rates, format_: Format, what: str, rate: float, number: int) -> None:
    """Keep the rate of a round; the first one is only shown."""
    sys.stderr.write(f"round {number}: {format_.name} {what}: {rate:,.0f} records/s\n")
    if number:
        rates[format_.name].setdefault(what, []).append(rate)


def write(rates: Rates, sizes: dict[str, float], given: argparse.Namespace) -> None:
    """The result as figures and as text."""
    medians = {name: {what: statistics.median(each) for what, each in of.items()} for name, of in rates.items()}
    rows = [
        (
            f"`{name}`",
            f"{sizes[name]:.0f}",
            *(
                f"{of[what]:,.0f} ({min(rates[name][what]):,.0f} – {max(rates[name][what]):,.0f})"
                for what in (FLOOR, DECODED, ARCHIVED, SPEED)
            ),
            f"{of[ARCHIVED] / of[FLOOR]:.2f}",
            f"{of[SPEED] / of[FLOOR]:.2f}",
        )
        for name, of in medians.items()
    ]
    head = (
        "records/s, median (least – most)", "bytes", f"{FLOOR} (the floor)", DECODED, ARCHIVED, SPEED,
        "archived, of the floor", "applied, of the floor",
    )  # fmt: skip
    text = report.table(head, *rows)
    what = (
        f"The same page views with {len(FIELDS)} fields in each format, {given.events:,} a round, {given.rounds} "
        "rounds in turns. The floor is Spark reading the topic into `noop`, without decoding. "
        f"`{DECODED}` puts the decoder of every layer behind it. The archiver also hashes and writes, raw bytes and "
        "parsed columns, into an empty table, whose first commit is a small one. The speed layer drains a backlog into "
        "the reference view, duplicates removed. All but `json` are framed, by a schema that is known from the first "
        "record on. Protobuf goes through Python workers (decision 24)."
    )
    report.write("formats", "Formats: records decoded", {"rates": rates, "bytes": sizes}, f"{text}\n\n{what}")


if __name__ == "__main__":
    main()
