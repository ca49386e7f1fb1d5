"""The peer of bench_speed.py: a plain foreachBatch -> HINCRBY job, as a person would write it, without guarantees.

It counts and sums per hour and url, has no sketches, drops no duplicates, and counts twice what is delivered twice.
The benchmark runs it: python benchmarks/plain_job.py BOOTSTRAP REDIS_URL STARTING_OFFSETS
"""

from __future__ import annotations

import json
import shutil
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from infra.clients.kafka import spark_kafka_options
from infra.clients.redis import redis_client
from infra.home import Home
from infra.settings import load_settings
from infra.spark.session import planned_end, spark_session
from speed_layer.stream import RECORDS_A_TASK, session_conf

FIELDS = "event_id string, event_time timestamp, url string, user_id string, ms double"
APPLIED = "plain:applied"


def main() -> None:
    """Follow the topic until killed."""
    bootstrap, url, starting = sys.argv[1:]
    settings = load_settings()
    client = redis_client(settings, url)
    spark = spark_session(settings, "plain", session_conf(settings))
    checkpoint = Home(settings.home).spark / "checkpoints" / "plain"
    shutil.rmtree(checkpoint, ignore_errors=True)
    records = (
        spark.readStream.format("kafka")
        .options(**spark_kafka_options(settings, bootstrap), subscribe="hits", startingOffsets=starting)
        .option("maxOffsetsPerTrigger", settings.speed_max_events)
        .option("maxRecordsPerPartition", RECORDS_A_TASK)
        .load()
    )
    events = records.select(f.from_json(f.col("value").cast("string"), FIELDS).alias("e")).select("e.*")

    def add(batch: DataFrame, batch_id: int) -> None:
        grouped = batch.groupBy(f.date_trunc("hour", "event_time").alias("hour"), "url")
        rows = grouped.agg(f.count(f.lit(1)).alias("hits"), f.sum("ms").alias("ms")).toArrow().to_pylist()
        with client.pipeline(transaction=False) as pipe:
            for row in rows:
                pipe.hincrby(f"plain:{row['hour']}:hits", row["url"], row["hits"])
                pipe.hincrbyfloat(f"plain:{row['hour']}:ms", row["url"], row["ms"])
            pipe.set(APPLIED, json.dumps(planned_end(checkpoint, batch_id, "hits")))
            pipe.execute()

    query = events.writeStream.foreachBatch(add).option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
