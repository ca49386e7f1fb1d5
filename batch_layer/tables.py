"""Batch views as Delta tables: files are written first, and become part of the table only when their run is published.

The manifest of a run names its files; the table's own log is for other engines and follows the publish log.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from batch_layer.day_files import split_days, sync_files
from batch_layer.delta_commits import DAY, PROPERTIES, Schema, commit_files, make_log
from batch_layer.delta_log import damage_of_log
from batch_layer.failures import reason_of
from hand_off.errors import BatchError
from hand_off.manifests import DataFile, ViewData
from infra.failpoints import reach
from views.on_spark.states import SPARK_SCHEMA

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

log = structlog.get_logger()


def write_files(spark: SparkSession, table: Path, rows: DataFrame, keys: Sequence[str] | None = None) -> list[DataFile]:
    """Write states into a view's table folder, a folder for each day. No reader sees them yet.

    With `keys`, the names of the view's keys, Spark writes a few files and this process makes those of the days from
    them: for history that is spread over many days. Without, Spark writes them, which pays where days are large.
    """
    ensure_log(spark, table, rows.schema.jsonValue())
    files = _write_days(spark, table, rows) if keys is None else _write_and_split(table, rows, keys)
    sync_files(table, files)
    return files


def _write_days(spark: SparkSession, table: Path, rows: DataFrame) -> list[DataFile]:
    transaction = _transaction(spark, table)
    written = transaction.writeFiles(rows.withColumn(DAY, f.to_date("bucket"))._jdf)
    return [_data_file(json.loads(written.apply(place).json())["add"]) for place in range(written.size())]


def _write_and_split(table: Path, rows: DataFrame, keys: Sequence[str]) -> list[DataFile]:
    """A crash leaves a folder beside those of days, which `prune` deletes after a day."""
    staged = table / f"_staged-{uuid.uuid4()}"
    try:
        rows.sortWithinPartitions("bucket").write.parquet(str(staged))
        return split_days(table, sorted(staged.glob("*.parquet")), keys)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def read_files(spark: SparkSession, table: Path, files: Iterable[DataFile], like: DataFrame | None = None) -> DataFrame:
    """The rows of files of a view."""
    paths = [str(table / file.path) for file in files]
    if not paths:
        if like is None:
            raise BatchError(f"{str(table)!r}: no files to read.")
        return like.limit(0)
    reader = spark.read if like is None else spark.read.schema(like.schema)
    return reader.parquet(*paths)


def expose(spark: SparkSession, table: Path, view: ViewData, run: int) -> bool:
    """Make a view's Delta table hold exactly the files of a run. Idempotent; False if it did already.

    It comes after the publish log: a crash in between leaves other engines on the run before, and the next run, or the
    next call, brings them up. Spark is needed now and then, for a checkpoint.
    """
    if damage_of_log(table):
        if not view.files:
            return False  # there is nothing to show; the run that has something makes the log
        ensure_log(spark, table, _schema_of(spark, table / view.files[0].path))
    before = commit_files(table, view.files, run)
    if before is None:
        return False
    if before.version + 1 - (before.checkpoint or 0) >= int(PROPERTIES["delta.checkpointInterval"]):
        _checkpoint(spark, table)
    reach("expose.between")  # this table and the next
    return True


def _checkpoint(spark: SparkSession, table: Path) -> None:
    """Let Delta write a checkpoint, and remove from the log what is too old. Without one, the next run tries again."""
    try:
        option = _jvm(spark).scala.Option
        found = _delta_log(spark, table)
        found.update(False, option.empty(), option.empty())
        found.checkpoint()
    except Exception as error:  # the table holds the run all the same
        log.warning("checkpoint_failed", table=table.name, reason=reason_of(error))


def ensure_log(spark: SparkSession, table: Path, schema: Schema) -> None:
    """Make the table's log where it has none that can be read."""
    if damage := damage_of_log(table):
        make_log(table, schema, damage)
        _jvm(spark).org.apache.spark.sql.delta.DeltaLog.clearCache()  # which remembers logs by the path of their table


def _schema_of(spark: SparkSession, file: Path) -> Schema:
    """The columns of a data file, as Spark has them."""
    known = (pq.read_metadata(file).metadata or {}).get(SPARK_SCHEMA)
    return dict(json.loads(known) if known is not None else spark.read.parquet(str(file)).schema.jsonValue())


def _data_file(add: dict[str, Any]) -> DataFile:
    rows = json.loads(add["stats"])["numRecords"]
    action = json.dumps({"add": add}, separators=(",", ":"))
    return DataFile(day=add["partitionValues"][DAY], path=add["path"], rows=rows, bytes=add["size"], action=action)


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _delta_log(spark: SparkSession, table: Path) -> JavaObject:
    return _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))


def _transaction(spark: SparkSession, table: Path) -> JavaObject:
    option = _jvm(spark).scala.Option
    return _delta_log(spark, table).startTransaction(option.empty(), option.empty())
