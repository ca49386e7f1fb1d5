"""The floors of bench_history.py: how fast the same file is aggregated or sent by programs that do nothing else."""

from __future__ import annotations

import csv
import time
from contextlib import suppress
from pathlib import Path

import orjson
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from infra.clients.kafka import librdkafka_config
from infra.settings import Settings

TOPIC, PARTITIONS = "history-floor", 3
KEYS = {"carriers": "origin, carrier", "origins": "origin"}
ANSWERS = {
    "carriers": "count(*), count(*) FILTER (dep_delay IS NULL), approx_count_distinct(tailnum), avg(dep_delay), "
    "max(arr_delay), approx_quantile(arr_delay, [0.5, 0.95, 0.99]), sum(distance)",
    "origins": "count(*), count(*) FILTER (arr_delay > 15), approx_count_distinct(dest), min(air_time), "
    "max(air_time), sum(air_time)",
}


def aggregate(path: Path, out: Path) -> tuple[float, int]:
    """Both views by DuckDB, each flight once, values only, into Parquet files. Seconds, and the flights it counted."""
    import duckdb

    engine = duckdb.connect()
    engine.sql("SET threads = 2")
    began = time.monotonic()
    engine.sql(
        f"CREATE TABLE flights AS SELECT * FROM read_csv('{path}', header = true) "
        "QUALIFY row_number() OVER (PARTITION BY flight_id) = 1"
    )
    for name, keys in KEYS.items():
        query = f"SELECT date_trunc('hour', event_time) AS bucket, {keys}, {ANSWERS[name]} FROM flights GROUP BY ALL"
        engine.sql(f"COPY ({query}) TO '{out / name}.parquet' (FORMAT parquet)")
    seconds = time.monotonic() - began
    ((flights,),) = engine.sql("SELECT count(*) FROM flights").fetchall()
    return seconds, flights


def send(path: Path, settings: Settings, bootstrap: str) -> float:
    """Every row as JSON into Kafka, unchecked, acknowledged by all, by bare confluent-kafka. Seconds."""
    config = librdkafka_config(settings, bootstrap)
    admin = AdminClient(config)
    for done in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        done.result(30)
    failed: list[str] = []
    producer = Producer({**config, "acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    began = time.monotonic()
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            _produce(producer, row["flight_id"], orjson.dumps(row), failed)
    producer.flush(120)
    if failed:
        raise SystemExit(f"{len(failed)} rows were not acknowledged: {failed[0]}")
    return time.monotonic() - began


def _produce(producer: Producer, key: str, value: bytes, failed: list[str]) -> None:
    while True:
        with suppress(BufferError):
            producer.produce(
                TOPIC, value, key, on_delivery=lambda error, _: failed.append(str(error)) if error else None
            )
            producer.poll(0)
            return
        producer.poll(0.05)
