"""Spark on the real stack: records from Kafka into a Delta table and back, byte for byte, offset for offset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from infra.clients.kafka import kafka_python_config, spark_kafka_options
from infra.home import Home
from tests.conftest import Stack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "to_delta"
RECORDS = 10_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def acknowledged(bare_stack: Stack) -> dict[tuple[int, int], bytes]:
    """What the broker acknowledged, by partition and offset."""
    config = kafka_python_config(bare_stack.settings, bare_stack.kafka)
    admin = KafkaAdminClient(**config)
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])
    admin.close()
    producer = KafkaProducer(**config, acks="all", linger_ms=5)
    values = [b"\x00%d\xff" % number for number in range(RECORDS)]
    waiting = [producer.send(TOPIC, value, key=value[:3]) for value in values]
    sent = [future.get(timeout=60) for future in waiting]
    producer.close()
    return {(each.partition, each.offset): value for each, value in zip(sent, values, strict=True)}


@pytest.fixture(scope="module")
def records(spark: SparkSession, bare_stack: Stack) -> DataFrame:
    """The topic as Spark reads it."""
    return (
        spark.read.format("kafka")
        .options(**spark_kafka_options(bare_stack.settings, bare_stack.kafka))
        .options(subscribe=TOPIC, startingOffsets="earliest", endingOffsets="latest", failOnDataLoss="true")
        .load()
        .select("partition", "offset", "value")
    )


def as_dict(rows: DataFrame) -> dict[tuple[int, int], bytes]:
    return {(row["partition"], row["offset"]): bytes(row["value"]) for row in rows.collect()}


def test_delta_table_holds_exactly_what_kafka_acknowledged(
    spark: SparkSession, acknowledged: dict[tuple[int, int], bytes], records: DataFrame, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    records.write.format("delta").save(table)
    stored = spark.read.format("delta").load(table)
    assert stored.count() == RECORDS
    assert as_dict(stored) == acknowledged


def test_stream_into_delta_restarts_where_it_was(
    spark: SparkSession,
    bare_stack: Stack,
    acknowledged: dict[tuple[int, int], bytes],
    tmp_path: Path,
) -> None:
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    for _ in range(2):
        stream = (
            spark.readStream.format("kafka")
            .options(**spark_kafka_options(bare_stack.settings, bare_stack.kafka))
            .options(subscribe=TOPIC, startingOffsets="earliest", failOnDataLoss="true")
            .load()
            .select("partition", "offset", "value")
            .writeStream.format("delta")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(table)
        )
        assert stream.awaitTermination(120)
    stored = spark.read.format("delta").load(table)
    assert stored.count() == RECORDS
    assert as_dict(stored) == acknowledged


def test_times_are_utc_whatever_the_machine_says(spark: SparkSession) -> None:
    (row,) = spark.sql("SELECT CAST(TIMESTAMP '2026-01-01 00:00:00Z' AS STRING) AS text").collect()
    assert row["text"] == "2026-01-01 00:00:00"


def test_spark_makes_its_home_a_home(spark: SparkSession) -> None:
    """A job may run before the first `up`: its scratch folder must not make the home look like somebody else's."""
    home = Home(Path(spark.conf.get("spark.local.dir")).parents[2])
    assert home.exists
    home.check()
