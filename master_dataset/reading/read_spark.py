"""The records of the master dataset between two cuts, as Spark reads them."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from master_dataset.cut import Cut, ranges
from master_dataset.table.append import KAFKA_COLUMNS, RECORD_DDL, columns_ddl
from master_dataset.table.coverage import files_from
from master_dataset.table.history import History
from master_dataset.table.readings import is_of_first_reading
from master_dataset.writer_schemas.noted import SchemaNotes
from views.on_spark.events import with_event
from views.source import Source

COLUMNS = ("partition", "offset", "event_id", "event_time", "invalid", "event")


def records_between(
    spark: SparkSession, table: Path, source: Source, start: Cut, end: Cut, more: tuple[str, ...] = ()
) -> DataFrame:
    """The records at or above the cut `start` and below the cut `end`, invalid ones too, as the source reads them.

    The parsed columns of a table are those of its first reading. For any other, records are read from their bytes.
    `more` names further columns.
    """
    rows = spark.read.format("delta").load(str(table)).where(between(start, end))
    if not is_of_first_reading(table, source):
        rows = _read_again(rows, table, source)
    return rows.select(*COLUMNS, *more)


def count_records(spark: SparkSession, table: Path, start: Cut, end: Cut) -> int:
    """How many records there are, however they are read."""
    return spark.read.format("delta").load(str(table)).where(between(start, end)).count()


def records_of_files(spark: SparkSession, history: History, source: Source, start: Cut, end: Cut) -> DataFrame:
    """The same from the files that a history names. No job reads Delta's log for it: what few records cost is that."""
    paths = [str(history.table / file) for file in files_from(history, start)]
    if not paths:
        return empty_records(spark, source)
    if is_of_first_reading(history.table, source):
        rows = spark.read.schema(columns_ddl(source)).parquet(*paths).where(between(start, end))
    else:
        raw = spark.read.schema(RECORD_DDL).parquet(*paths).where(between(start, end))
        rows = _read_again(raw, history.table, source)
    return rows.select(*COLUMNS)


def _read_again(rows: DataFrame, table: Path, source: Source) -> DataFrame:
    writers = SchemaNotes(table, source).known()
    return with_event(rows.select(*KAFKA_COLUMNS), source, reasons=False, writers=writers)


def empty_records(spark: SparkSession, source: Source) -> DataFrame:
    """No records, with the columns of all."""
    return spark.createDataFrame([], columns_ddl(source)).select(*COLUMNS)


def between(start: Cut, end: Cut) -> Column:
    """The condition that selects them."""
    condition = f.lit(False)
    for each in ranges(start, end):
        inside = (f.col("offset") >= each.start) & (f.col("offset") < each.end_exclusive)
        condition = condition | ((f.col("partition") == each.partition) & inside)
    return condition


def without_duplicates(rows: DataFrame, duplicates: DataFrame | None) -> DataFrame:
    """Valid events, without those at the locations in `duplicates`."""
    valid = rows.where("invalid IS NULL").drop("invalid")
    return valid if duplicates is None else valid.join(duplicates, ["partition", "offset"], "left_anti")
