"""The Spark session from which the class archive is made: it uses what our jobs use, and its JVM records the classes.

`python -m infra.java.class_training FILE` writes the archive when its JVM ends. infra/java/class_archive.py starts it.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from infra.clients.kafka import spark_kafka_options
from infra.java.class_archive import option
from infra.settings import Settings, load_settings
from infra.spark.session import spark_session

NO_BROKER = "127.0.0.1:1"
IMPATIENT = {
    "kafka.default.api.timeout.ms": "600",
    "kafka.request.timeout.ms": "500",
    "kafka.session.timeout.ms": "500",
    "fetchOffset.numRetries": "1",
}
ENDS_S = 300.0


def train(archive: Path, folder: Path) -> None:
    """Start a session, use what our jobs use, end it. The JVM dumps its classes on its way out."""
    settings = load_settings(home=folder / "home", spark_master="local[2]", spark_conf={})
    session = spark_session(
        settings, "classes", {"spark.driver.defaultJavaOptions": option("-XX:ArchiveClassesAtExit", archive)}
    )
    gateway: Any = session.sparkContext._gateway
    try:
        _tables(session, folder)
        _streams(session, folder)
        _kafka(session, settings)
    finally:
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with it
        code = gateway.proc.wait(ENDS_S)
    if code:
        sys.exit(f"The JVM ended with {code}.")


def _tables(session: SparkSession, folder: Path) -> None:
    events = session.range(1000).select(
        F.to_json(F.struct("id", (F.col("id") % 7).alias("k"), F.lit("2026-01-01T00:00:00Z").alias("at"))).alias(
            "value"
        )
    )
    parsed = F.from_json("value", "id bigint, k bigint, at timestamp")
    table = str(folder / "table")
    for mode in ("overwrite", "append"):
        events.withColumn("e", parsed).write.format("delta").mode(mode).save(table)
    read = session.read.format("delta").load(table).where("e.id > 10").withColumn("hour", F.date_trunc("hour", "e.at"))
    read.createOrReplaceTempView("events")
    grouped = session.sql(
        "SELECT hour, e.k, count(*) AS n, sum(e.id) AS s, max(e.id) AS m, collect_list(xxhash64(value)) AS h, "
        "row_number() OVER (ORDER BY e.k) AS r FROM events GROUP BY hour, e.k"
    )
    grouped.join(read.select(F.col("e.k").alias("k")).distinct(), "k").orderBy("k").write.parquet(str(folder / "rows"))
    session.read.parquet(str(folder / "rows")).toArrow()


def _streams(session: SparkSession, folder: Path) -> None:
    def keep(batch: DataFrame, _number: int) -> None:
        batch.persist()
        batch.groupBy("e.k").count().toArrow()
        batch.write.format("delta").mode("append").save(str(folder / "kept"))
        batch.unpersist()

    stream = session.readStream.format("delta").load(str(folder / "table")).writeStream.foreachBatch(keep)
    stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()


def _kafka(session: SparkSession, settings: Settings) -> None:
    """No broker answers there; the client and the source are loaded nevertheless."""
    options = {**spark_kafka_options(settings, NO_BROKER), **IMPATIENT, "subscribe": "none"}
    with suppress(Exception):
        session.read.format("kafka").options(**options).load().count()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tidemark-classes-") as made:
        train(Path(sys.argv[1]).absolute(), Path(made))
