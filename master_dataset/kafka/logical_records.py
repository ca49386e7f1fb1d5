"""Records that Spark reads from Kafka, with logical offsets (`offset_base`)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from master_dataset.cut import Cut


def with_logical_offsets(records: DataFrame, base: Cut) -> DataFrame:
    """Records as Spark reads them from Kafka, with logical offsets in the column `offset`."""
    bases = {partition: number for partition, number in base.items() if number}
    if not bases:
        return records
    pairs = [f.lit(value) for partition, number in bases.items() for value in (partition, number)]
    own = f.try_element_at(f.create_map(*pairs), f.col("partition"))
    return records.withColumn("offset", (f.col("offset") + f.coalesce(own, f.lit(0))).cast("bigint"))
