"""The demo: events through a real Kafka into a real Delta table by Spark, shown, and everything taken down again."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING, Any

from rich.table import Table

from infra import terminal, up
from infra.home import Home
from infra.kafka_clients import kafka_config
from infra.local_stack import addresses
from infra.settings import Settings
from infra.spark import kafka_source_options, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "demo.page_views"
PARTITIONS = 3
PAGES = ("/", "/pricing", "/docs", "/blog/one-number", "/sign-up")


def run_demo(settings: Settings, count: int) -> None:
    """Run it on a home of its own, beside the user's. Everything that is printed was read back from the Delta table."""
    settings = settings.model_copy(update={"home": settings.home.with_name(f"{settings.home.name}-demo")})
    home = Home(settings.home)
    home.check()
    if home.exists and not home.is_locked():
        shutil.rmtree(home.root)
    with terminal.jar_progress() as progress:
        up.check_and_fetch(settings, progress)
    with terminal.live_status() as show:
        up.start_detached(settings, show)
    try:
        _through_the_stack(settings, count)
    finally:
        with terminal.live_status() as show:
            up.stop(settings, show)


def _through_the_stack(settings: Settings, count: int) -> None:
    where = addresses(settings)
    began = time.monotonic()
    _send(settings, where.kafka, count)
    _say(f"sent {count:,} events to Kafka, every one acknowledged", began)
    began = time.monotonic()
    spark = spark_session(settings, "tidemark-demo")
    try:
        _say("Spark is ready", began)
        began = time.monotonic()
        table = str(Home(settings.home).spark / "demo_page_views")
        _kafka_to_delta(spark, settings, where.kafka, table)
        _say("Spark read them from Kafka and wrote a Delta table", began)
        _show(spark, table, count)
    finally:
        spark.stop()


def _send(settings: Settings, bootstrap: str, count: int) -> None:
    from kafka import KafkaAdminClient, KafkaProducer
    from kafka.admin import NewTopic

    config = kafka_config(settings, bootstrap)
    admin = KafkaAdminClient(**config)
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])
    admin.close()
    producer = KafkaProducer(**config, acks="all", linger_ms=5)
    waiting = [
        producer.send(TOPIC, key=event["user_id"].encode(), value=json.dumps(event).encode())
        for event in map(_event, range(count))
    ]
    producer.flush()
    for future in waiting:
        future.get(timeout=30)
    producer.close()


def _event(number: int) -> dict[str, Any]:
    return {
        "event_id": f"demo-{number}",
        "event_time": f"2026-01-01T{number % 24:02}:00:00Z",
        "user_id": f"user-{number % 997}",
        "name": "page_view",
        "properties": {"url": PAGES[(number * 7919 >> 3) % len(PAGES)], "ms": 20 + number % 400},
    }


def _kafka_to_delta(spark: SparkSession, settings: Settings, bootstrap: str, table: str) -> None:
    from pyspark.sql import functions as f

    raw = (
        spark.read.format("kafka")
        .options(**kafka_source_options(settings, bootstrap))
        .options(subscribe=TOPIC, startingOffsets="earliest", endingOffsets="latest", failOnDataLoss="true")
        .load()
    )
    schema = "event_id string, event_time timestamp, user_id string, properties struct<url string, ms int>"
    parsed = raw.select("partition", "offset", "value", f.from_json(f.decode("value", "UTF-8"), schema).alias("e"))
    columns = (
        "partition",
        "offset",
        "value",
        "e.event_id",
        "e.event_time",
        "e.user_id",
        "e.properties.url",
        "e.properties.ms",
    )
    parsed.select(*columns).write.format("delta").save(table)


def _show(spark: SparkSession, table: str, count: int) -> None:
    from pyspark.sql import functions as f

    stored = spark.read.format("delta").load(table)
    rows = (
        stored.groupBy("url")
        .agg(f.count("*").alias("hits"), f.count_distinct("user_id").alias("visitors"), f.avg("ms").alias("ms"))
        .orderBy(f.desc("hits"))
        .collect()
    )
    picture = Table("page", "hits", "visitors", "average ms", title="page views, from the Delta table")
    for row in rows:
        picture.add_row(row["url"], f"{row['hits']:,}", f"{row['visitors']:,}", f"{row['ms']:.1f}")
    terminal.out.print(picture)
    total = sum(row["hits"] for row in rows)
    distinct = stored.select("partition", "offset").distinct().count()
    terminal.out.print(f"{total:,} rows, {distinct:,} distinct offsets, {count:,} acknowledged")
    if not total == distinct == count:
        raise RuntimeError("The Delta table does not hold exactly what Kafka acknowledged.")


def _say(what: str, began: float) -> None:
    terminal.err.print(f"{what} ({time.monotonic() - began:.1f} s)", highlight=False)
