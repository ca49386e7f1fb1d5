"""What is measured of rows on their way into a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from master_dataset.table.append import raw_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = "key binary, value binary, headers array<struct<key:string,value:binary>>"


def test_raw_bytes_are_those_of_key_value_and_headers(spark: SparkSession) -> None:
    rows = [
        (b"k", b"12345", [("trace", b"\xff\xff"), ("né", None)]),  # 1 + 5 + (5 + 2) + (3 + 0)
        (None, None, None),
        (None, b"1", []),
    ]
    found = spark.createDataFrame(rows, ROWS)
    assert [found.where(where).agg(raw_bytes()).head()[0] for where in ("true", "false")] == [17, 0]  # type: ignore[index]
