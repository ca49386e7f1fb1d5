"""What Delta itself makes of a master table whose old commits are sealed and whose log is short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from master_dataset.table import append as append_module
from master_dataset.table import coverage
from master_dataset.table.append import append, columns_ddl, commit_lock, create_table
from master_dataset.table.checks.fsck import deep_check, quick_check
from master_dataset.table.checks.void_commits import restore_log
from master_dataset.table.compaction import compact, remove_replaced
from master_dataset.table.history import read_history, read_live_files
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.sealing import list_checkpoints, tidy
from master_dataset.table.segments import sealed_until
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WEB = Source("web", fields="event_id string, event_time timestamp, n int")


def commit(spark: SparkSession, table: Path, commits: int) -> None:
    """So many commits of two records each."""
    for _ in range(commits):
        at = coverage.of(table).cut.get(0, 0)
        rows = spark.range(at, at + 2).select(
            f.lit(0).alias("partition"), f.col("id").alias("offset"), f.lit(b"{}").alias("value")
        )
        for name, kind in [part.strip().split(" ", 1) for part in _columns()]:
            if name not in rows.columns:
                rows = rows.withColumn(name, f.lit(None).cast(kind))
        with commit_lock(table):
            append(spark, table, rows, Proof(Kind.APPEND, "web", "id", {0: at}, {0: at + 2}), files=1)


def sequences(table: Path) -> list[int]:
    """The sequence numbers of the commits, in order."""
    log = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    return [action["txn"]["version"] for action in actions if "txn" in action]


def _columns() -> list[str]:
    from pyspark.sql.types import StructType

    return [f"{field.name} {field.dataType.simpleString()}" for field in StructType.fromDDL(columns_ddl(WEB)).fields]


def counted(spark: SparkSession, table: Path) -> int:
    """The rows as a reader finds them who sees the table for the first time."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return spark.read.format("delta").load(str(table)).count()


def test_delta_reads_and_writes_a_table_whose_log_was_shortened(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "web"
    properties = append_module.PROPERTIES | {"delta.checkpointInterval": "3"}
    of_older_versions = properties | {"delta.deletedFileRetentionDuration": "interval 36500 days"}
    monkeypatch.setattr(append_module, "PROPERTIES", of_older_versions)
    create_table(spark, table, WEB)
    commit(spark, table, 10)
    assert len(list_checkpoints(table)) == 3
    before = spark.read.format("delta").load(str(table))
    assert tidy(table, segment_commits=2, grace_s=0).sealed == 7
    assert (sealed_until(table), list_checkpoints(table)) == (6, [6, 9])
    assert (before.count(), counted(spark, table)) == (20, 20), "who opened it before, and who opens it now"
    create_table(spark, table, WEB)  # as each start of the archiver does
    commit(spark, table, 3)
    assert compact(spark, table).files_after == 1
    assert remove_replaced(table, 0) == 13
    commit(spark, table, 4)
    tidy(table, segment_commits=2, grace_s=0)
    assert sealed_until(table) == 15
    assert (counted(spark, table), coverage.of(table).rows) == (34, 34)
    assert quick_check(table) == []
    assert deep_check(spark, table) == []
    # The newest checkpoint is enough, the one before it too, and without both the commits come back.
    for _ in range(2):
        newest = list_checkpoints(table)[-1]
        for path in [
            *(table / "_delta_log").glob(f"*{newest:020}.*checkpoint*"),
            table / "_delta_log/_last_checkpoint",
        ]:
            path.unlink(missing_ok=True)
        restore_log(table)
        assert counted(spark, table) == 34
        assert deep_check(spark, table) == []
    assert list_checkpoints(table) == []
    commit(spark, table, 8)
    tidy(table, segment_commits=2, grace_s=0)
    assert counted(spark, table) == 50
    assert len(read_live_files(table)) == 13
    assert read_history(table).newest == 26
    monkeypatch.setattr(append_module, "PROPERTIES", properties)
    for _ in range(2):
        create_table(spark, table, WEB)
        assert read_history(table).newest == 27, "the properties of this version, in one commit"
    commit(spark, table, 1)
    assert (counted(spark, table), read_history(table).newest) == (52, 28)
    assert deep_check(spark, table) == []


def test_of_two_writers_that_commit_at_once_one_fails(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "web"
    create_table(spark, table, WEB)
    commit(spark, table, 2)
    (table / "_delta_log" / f"{2:020}.crc").unlink()  # a commit without a checksum file, as other engines write them
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for _ in range(2):  # without the checksum file, and with it
        before = coverage.of(table).rows
        empty = Proof(Kind.APPEND, "web", "id", coverage.of(table).cut, coverage.of(table).cut)
        with pytest.raises(Exception, match=r"(?i)concurrent"):
            append(spark, table, None, empty, check=lambda _names: commit(spark, table, 1))
        assert coverage.of(table).rows == before + 2
    assert sequences(table) == [0, 1, 2, 3]
