"""How fast the archiver follows Kafka, beside Spark reading the same topic into nothing, in one run.

    python benchmarks/bench_archiver.py [--events 1000000] [--rounds 3]

The floor does no parsing, no validity, no Parquet, no hash and no fsync. What each of these costs is measured too, by
adding one after the other. The rounds take turns, so that a busy moment of the machine hits all alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import report
from confluent_kafka import Producer
from pyspark.sql import Observation

from infra.clients.kafka import librdkafka_config, spark_kafka_options
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings, load_settings
from infra.spark.session import spark_session
from infra.stack import up
from infra.stack.addresses import addresses
from master_dataset.archiver.archive import open_archive
from master_dataset.kafka.topics import apply_topics, plan_topics
from master_dataset.table.append import measures
from master_dataset.table.delta_log import live_files, read_commits
from master_dataset.table.paths import table_path
from views.catalog.web import web
from views.on_spark.events import with_event
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            home=Path(folder) / "home",
            collector_enabled=False,
            archiver_enabled=False,
            scheduler_enabled=False,
            speed_enabled=False,
            serving_enabled=False,
            alerts_enabled=False,
            archive_max_events=given.events,
            archive_max_mb=given.events,
        )
        up.check_and_fetch(settings)
        up.start_detached(settings, lambda _status: None)
        try:
            measure(settings, given.events, given.rounds)
        finally:
            up.stop(settings, lambda _status: None)


def measure(settings: Settings, count: int, rounds: int) -> None:
    """Fill a topic, then let every contestant read it, in turns."""
    bootstrap = addresses(settings).kafka
    size = fill(settings, bootstrap, web, count)
    spark = spark_session(settings, "bench-archiver")
    ways: dict[str, Callable[[int], None]] = {
        "read into nothing (the floor)": lambda _: into_nothing(read(spark, settings, bootstrap)),
        "+ parse and judge": lambda _: into_nothing(with_event(read(spark, settings, bootstrap), web)),
        "+ count and hash": lambda _: into_nothing(
            with_event(read(spark, settings, bootstrap), web).observe(Observation(), *measures())
        ),
        "archiver, whole": lambda number: archive(spark, settings, bootstrap, replace(web, name=f"web{number}")),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first round warms up the JVM and is not counted
        for name, way in ways.items():
            began = time.monotonic()
            way(number)
            rate = count / (time.monotonic() - began)
            sys.stderr.write(f"round {number}: {name}: {rate:,.0f} events/s\n")
            if number:
                rates[name].append(rate)
    files = live_files(read_commits(table_path(settings, f"web{rounds}"))).values()
    on_disk = sum(file.size for file in files) / count
    spark.stop()
    write(rates, count, size, on_disk)


def write(rates: dict[str, list[float]], count: int, size: float, on_disk: float) -> None:
    """The result as figures and as text."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    floor = medians["read into nothing (the floor)"]
    rows = [
        (name, f"{rate:,.0f}", f"{min(rates[name]):,.0f} – {max(rates[name]):,.0f}", f"{rate / floor:.2f}")
        for name, rate in medians.items()
    ]
    text = report.table(("", "events/s, median", "least – most", "of the floor"), *rows)
    text += (
        f"\n\n{count:,} events of {size:.0f} bytes; {on_disk:.0f} bytes an event on disk, "
        "raw bytes and parsed columns together. The aim is half of the floor."
    )
    figures = {
        "rates": rates,
        "share_of_floor": medians["archiver, whole"] / floor,
        "bytes_per_event": size,
        "bytes_on_disk": on_disk,
    }
    report.write("archiver", "Archiver: Kafka into the master dataset", figures, text)


def fill(settings: Settings, bootstrap: str, source: Source, count: int) -> float:
    """Send page views. Returns their mean size in bytes."""
    config = librdkafka_config(settings, bootstrap)
    apply_topics(KafkaAdmin(settings, bootstrap), plan_topics([source]))
    producer = Producer({**config, "acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 500_000})
    total = 0
    for number in range(count):
        value = orjson.dumps(event(number))
        total += len(value)
        while True:
            try:
                producer.produce(source.topic, value, f"e{number}")
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return total / count


def event(number: int) -> dict[str, object]:
    """A page view as a web site sends it."""
    return {
        "event_id": f"e{number:012}",
        "event_time": f"2026-01-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:{number // 60 % 60:02}Z",
        "user_id": f"u{number * 7919 % 100_003}",
        "name": "page_view",
        "properties": {
            "url": f"/p/{number * 31 % 1000}",
            "method": "GET",
            "status": 200,
            "ms": number % 400 + 0.5,
            "bytes": number % 100_000,
            "agent": "Mozilla/5.0 (X11; Linux x86_64)",
            "ip": f"10.0.{number % 250}.{number % 251}",
        },
    }


def read(spark: SparkSession, settings: Settings, bootstrap: str, topic: str = web.topic) -> DataFrame:
    """The whole topic."""
    return (
        spark.read.format("kafka")
        .options(**spark_kafka_options(settings, bootstrap))
        .options(subscribe=topic, startingOffsets="earliest", includeHeaders="true")
        .option("minPartitions", str(3 * spark.sparkContext.defaultParallelism))
        .load()
    )


def into_nothing(frame: DataFrame) -> None:
    """Compute every column and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def archive(spark: SparkSession, settings: Settings, bootstrap: str, source: Source) -> None:
    """The archiver as it runs, from its start to the last commit, into a table of its own."""
    with ExitStack() as locks:
        apply_topics(KafkaAdmin(settings, bootstrap), plan_topics([source]))
        open_archive(settings, bootstrap, source, spark, locks).start(spark, once=True).awaitTermination()


if __name__ == "__main__":
    main()
