"""Batch views as Delta tables: files are written first, and become part of the table only when their run is published.

The manifest of a run names its files; the table's own log is for other engines and follows the publish log.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from batch_layer.delta_log import RUN_TAG
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
}


def write_files(spark: SparkSession, table: Path, rows: DataFrame) -> list[DataFile]:
    """Write states into a view's table folder, a folder for each day. No reader sees them yet."""
    dated = rows.withColumn(DAY, f.to_date("bucket"))
    _create(spark, table, dated)
    log = _log(spark, table)
    option = _jvm(spark).scala.Option
    transaction = log.startTransaction(option.empty(), option.empty())
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
    option = _jvm(spark).scala.Option
    transaction = _log(spark, table).startTransaction(option.empty(), option.empty())
    have = {file.path(): file for file in transaction.snapshot().allFiles().collect()}
    want = {file.path: file for file in view.files}
    if have.keys() == want.keys():
        return False
    actions = _actions(spark, transaction, have, want)
    operation = getattr(_jvm(spark).org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$")
    version = int(transaction.commit(actions, getattr(operation, "MODULE$"), _tags(spark, run)))
    sync_file(table / "_delta_log" / f"{version:020}.json")
    sync_folder(table / "_delta_log")
    reach("expose.between")  # this table and the next
    return True


def _actions(
    spark: SparkSession, transaction: JavaObject, have: dict[str, JavaObject], want: dict[str, DataFile]
) -> JavaObject:
    jvm = _jvm(spark)
    parse = getattr(getattr(jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$").fromJson
    actions = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
    for path, file in want.items():
        if path not in have:
            actions = actions.appended(parse(file.action))
    for path, known in have.items():
        if path not in want:
            actions = actions.appended(known.remove())
    return actions


def _create(spark: SparkSession, table: Path, rows: DataFrame) -> None:
    from delta.tables import DeltaTable

    first = table / "_delta_log" / f"{0:020}.json"
    if first.is_file() and first.stat().st_size:
        return
    if first.parent.is_dir():  # left by a crash: Delta would take it for a table that it cannot read
        shutil.rmtree(first.parent)
    make_folder(table.parent)
    builder = DeltaTable.createIfNotExists(spark).location(str(table)).addColumns(rows.schema).partitionedBy(DAY)
    for name, value in PROPERTIES.items():
        builder = builder.property(name, value)
    builder.execute()
    sync_file(first)
    for folder in (first.parent, table, table.parent):
        sync_folder(folder)


def _data_file(add: dict[str, Any]) -> DataFile:
    rows = json.loads(add["stats"])["numRecords"]
    action = json.dumps({"add": add}, separators=(",", ":"))
    return DataFile(day=add["partitionValues"][DAY], path=add["path"], rows=rows, bytes=add["size"], action=action)


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _log(spark: SparkSession, table: Path) -> JavaObject:
    return _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))


def _tags(spark: SparkSession, run: int) -> JavaObject:
    """The run's number, in the commit."""
    empty = getattr(getattr(_jvm(spark).scala.collection.immutable, "Map$"), "MODULE$").empty()
    return empty.updated(RUN_TAG, str(run))
