"""Batch views as Delta tables: files are written first, and become part of the table only when their run is published.

The manifest of a run names its files; the table's own log is for other engines and follows the publish log.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from batch_layer.delta_log import RUN_TAG, damage_of_log, log_folder
from hand_off.errors import BatchError
from hand_off.manifests import DataFile, ViewData
from infra.disk import make_folder, sync_file, sync_folder
from infra.failpoints import reach

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

DAY = "day"
PROPERTIES = {
    "delta.checkpointInterval": "20",
    "delta.dataSkippingNumIndexedCols": "8",
    # The log is bounded by these, not by the age of the table. Commits stay for two weeks: another engine that follows
    # the table, and was away for some days, goes on where it was. Old checkpoints serve nobody. Data files are deleted
    # by `prune`, so the records of removed files need not stay longer than the commits.
    "delta.enableExpiredLogCleanup": "true",
    "delta.logRetentionDuration": "interval 14 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.checkpointRetentionDuration": "interval 2 days",
}
"""Of every table; one that an older version made gets them with its next run."""

log = structlog.get_logger()


def write_files(spark: SparkSession, table: Path, rows: DataFrame) -> list[DataFile]:
    """Write states into a view's table folder, a folder for each day. No reader sees them yet."""
    dated = rows.withColumn(DAY, f.to_date("bucket"))
    _ensure_log(spark, table, dated.schema)
    transaction = _transaction(spark, table)
    written = transaction.writeFiles(dated._jdf)
    files = [_data_file(json.loads(written.apply(place).json())["add"]) for place in range(written.size())]
    for folder in {(table / file.path).parent for file in files}:
        sync_folder(folder)
    for file in files:
        sync_file(table / file.path)
    sync_folder(table)
    return files


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
    next call, brings them up.
    """
    if damage_of_log(table):
        if not view.files:
            return False  # there is nothing to show; the run that has something makes the log
        _ensure_log(spark, table, _dated_schema(spark, table, view.files[0]))
    transaction = _transaction(spark, table)
    have = {file.path(): file for file in transaction.snapshot().allFiles().collect()}
    want = {file.path: file for file in view.files}
    is_changed = _set_properties(spark, transaction)
    if have.keys() == want.keys() and not is_changed:
        return False
    actions = _actions(spark, transaction, have, want)
    operation = getattr(_jvm(spark).org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$")
    version = int(transaction.commit(actions, getattr(operation, "MODULE$"), _tags(spark, run)))
    sync_file(log_folder(table) / f"{version:020}.json")
    sync_folder(log_folder(table))
    reach("expose.between")  # this table and the next
    return True


def _actions(
    spark: SparkSession, transaction: JavaObject, have: dict[str, JavaObject], want: dict[str, DataFile]
) -> JavaObject:
    actions = getattr(getattr(_jvm(spark).scala.collection.immutable, "Nil$"), "MODULE$")
    for path, file in want.items():
        if path not in have:
            actions = actions.appended(_action(spark, file.action))
    for path, known in have.items():
        if path not in want:
            actions = actions.appended(known.remove())
    return actions


def _set_properties(spark: SparkSession, transaction: JavaObject) -> bool:
    """Give the table ours where it has others; False where it has them. The commit that follows has the change."""
    known = json.loads(transaction.metadata().json())
    configuration = known["metaData"]["configuration"]
    if configuration.items() >= PROPERTIES.items():
        return False
    known["metaData"]["configuration"] = {**configuration, **PROPERTIES}
    transaction.updateMetadata(_action(spark, json.dumps(known)), False)
    return True


def _ensure_log(spark: SparkSession, table: Path, schema: StructType) -> None:
    """Make the table's log where it has none that can be read. The data files stay: manifests name them.

    All of it can be made again: the log says nothing that a manifest does not.
    """
    from delta.tables import DeltaTable

    if not (damage := damage_of_log(table)):
        return
    # Step 1. A log with version 0, in a folder of its own: Delta makes no table where data files lie already.
    made = table.with_name(f"{table.name}.making")
    shutil.rmtree(made, ignore_errors=True)
    make_folder(table)
    builder = DeltaTable.createIfNotExists(spark).location(str(made)).addColumns(schema).partitionedBy(DAY)
    for name, value in PROPERTIES.items():
        builder = builder.property(name, value)
    builder.execute()
    sync_file(log_folder(made) / f"{0:020}.json")
    sync_folder(log_folder(made))
    # Step 2. Into its place. A crash before leaves a folder that the next call removes; one within, a table without a
    # log, for which the next call makes another. `prune` deletes the damaged log after a day.
    if log_folder(table).is_dir():
        log.warning("table_log_replaced", table=table.name, reason=damage)
        damaged = log_folder(table).with_suffix(".damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        log_folder(table).rename(damaged)
    log_folder(made).rename(log_folder(table))
    shutil.rmtree(made, ignore_errors=True)
    for folder in (table, table.parent):
        sync_folder(folder)
    _jvm(spark).org.apache.spark.sql.delta.DeltaLog.clearCache()  # which remembers logs by the path of their table


def _dated_schema(spark: SparkSession, table: Path, file: DataFile) -> StructType:
    """The columns of a table, by one of its data files: the day is in the name of the file's folder."""
    rows = read_files(spark, table, [file]).drop(DAY)
    return rows.withColumn(DAY, f.lit(None).cast("date")).schema


def _data_file(add: dict[str, Any]) -> DataFile:
    rows = json.loads(add["stats"])["numRecords"]
    action = json.dumps({"add": add}, separators=(",", ":"))
    return DataFile(day=add["partitionValues"][DAY], path=add["path"], rows=rows, bytes=add["size"], action=action)


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _transaction(spark: SparkSession, table: Path) -> JavaObject:
    option = _jvm(spark).scala.Option
    found = _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))
    return found.startTransaction(option.empty(), option.empty())


def _action(spark: SparkSession, text: str) -> JavaObject:
    """An action of Delta's, from its JSON."""
    actions = _jvm(spark).org.apache.spark.sql.delta.actions
    return getattr(getattr(actions, "Action$"), "MODULE$").fromJson(text)


def _tags(spark: SparkSession, run: int) -> JavaObject:
    """The run's number, in the commit."""
    empty = getattr(getattr(_jvm(spark).scala.collection.immutable, "Map$"), "MODULE$").empty()
    return empty.updated(RUN_TAG, str(run))
