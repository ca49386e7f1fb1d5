"""How fast the archiver follows Kafka, beside Spark reading the same topic into nothing, in one run.

    python benchmarks/bench_archiver.py [--events 1000000] [--rounds 3]

The floor does no parsing, no validity, no Parquet, no hash and no fsync. What each of these costs is measured too, by
adding one after the other. The whole archiver is measured twice: with one commit for everything, into a new table, and
with commits of their usual sizes, into a table that has some. The rounds take turns, so that a busy moment hits all
alike.
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
from master_dataset.cut import Cut
from master_dataset.kafka.positions import read_positions
from master_dataset.kafka.topics import apply_topics, plan_topics
from master_dataset.table.append import measures
from master_dataset.table.delta_log import live_files, read_commits
from master_dataset.table.paths import table_path
from views.catalog.web import web
from views.on_spark.events import with_event
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLOOR, WHOLE, USUAL = "read into nothing (the floor)", "archiver, whole", "archiver, whole, as it runs by default"
AIM = 0.40
EARLIER_COMMITS, EARLIER_SHARE = 20, 0.1
"""How many commits the other table has before it is measured, and which part of all events is in them."""


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
        FLOOR: lambda _: into_nothing(read(spark, settings, bootstrap)),
        "+ parse and judge": lambda _: into_nothing(with_event(read(spark, settings, bootstrap), web)),
        "+ count and hash": lambda _: into_nothing(
            with_event(read(spark, settings, bootstrap), web).observe(Observation(), *measures())
        ),
        WHOLE: lambda number: archive(spark, settings, bootstrap, replace(web, name=f"web{number}")),
        USUAL: lambda number: archive(spark, usual, bootstrap, replace(web, name=f"usual{number}")),
    }
    usual, end = by_default(settings), read_positions(settings, bootstrap, web).latest
    rates: dict[str, list[float]] = {name: [] for name in ways}
    commits = 0
    for number in range(rounds + 1):  # the first round warms up the JVM and is not counted
        for name, way in ways.items():
            earlier, table = 0, table_path(settings, f"usual{number}")
            if name == USUAL:
                earlier = begin_table(spark, usual, bootstrap, replace(web, name=f"usual{number}"), end)
                commits = len(read_commits(table))
            began = time.monotonic()
            way(number)
            rate = (count - earlier) / (time.monotonic() - began)
            sys.stderr.write(f"round {number}: {name}: {rate:,.0f} events/s\n")
            if name == USUAL:
                commits = len(read_commits(table)) - commits
            if number:
                rates[name].append(rate)
    files = live_files(read_commits(table_path(settings, f"web{rounds}"))).values()
    on_disk = sum(file.size for file in files) / count
    spark.stop()
    write(rates, count, size, on_disk, commits, usual)


def write(
    rates: dict[str, list[float]], count: int, size: float, on_disk: float, commits: int, usual: Settings
) -> None:
    """The result as figures and as text."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    floor = medians[FLOOR]
    rows = [
        (name, f"{rate:,.0f}", f"{min(rates[name]):,.0f} – {max(rates[name]):,.0f}", f"{rate / floor:.2f}")
        for name, rate in medians.items()
    ]
    text = report.table(("", "events/s, median", "least – most", "of the floor"), *rows)
    text += (
        f"\n\n{count:,} events of {size:.0f} bytes; {on_disk:.0f} bytes an event on disk, "
        f"raw bytes and parsed columns together. `{WHOLE}` makes one commit in a new table. `{USUAL}` has commits of "
        f"at most {usual.archive_max_events:,} events and about {usual.archive_max_mb:g} MB, here {commits} of them, "
        f"and its table had {EARLIER_COMMITS} before. The aim is {AIM:.2f} of the floor."
    )
    figures = {
        "rates": rates,
        "share_of_floor": medians[WHOLE] / floor,
        "usual_share_of_floor": medians[USUAL] / floor,
        "usual_commits": commits,
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


def by_default(settings: Settings) -> Settings:
    """The same with the sizes of commits that an installation has."""
    names = ("archive_max_events", "archive_max_mb")
    return settings.model_copy(update={name: Settings.model_fields[name].default for name in names})


def begin_table(spark: SparkSession, settings: Settings, bootstrap: str, source: Source, end: Cut) -> int:
    """Commit the first events into a table of its own, in small commits. Returns how many these are."""
    with ExitStack() as locks:
        apply_topics(KafkaAdmin(settings, bootstrap), plan_topics([source]))
        begun = open_archive(settings, bootstrap, source, spark, locks)
        for number in range(1, EARLIER_COMMITS + 1):
            part = EARLIER_SHARE * number / EARLIER_COMMITS
            step = {partition: int(offset * part) for partition, offset in end.items()}
            begun._commit(begun._read_until(spark.range(0), step), step)
    return sum(begun.cut.values())


if __name__ == "__main__":
    main()
