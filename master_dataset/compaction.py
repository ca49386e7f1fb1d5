"""Fewer, larger files: the same facts, proved by their hash before and after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from master_dataset.commits import (
    Kind,
    Proof,
    append_to_ledger,
    live_files,
    missing_from_ledger,
    read_commits,
    read_ledger,
)
from master_dataset.errors import MasterDatasetError
from master_dataset.table import commit_lock, measures, sync_file, sync_folder

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class Compacted(NamedTuple):
    """What a compaction did."""

    files_before: int
    files_after: int
    rows: int


class FactsChanged(MasterDatasetError):
    """A compaction gave other facts than before: it was taken back."""


def compact(spark: SparkSession, table: Path) -> Compacted:
    """Rewrite small files into large ones. The archiver waits meanwhile; readers notice nothing."""
    from delta.tables import DeltaTable

    with commit_lock(table):
        # Step 1. Count and hash what is there, and promise to hold just that.
        before, files_before = _measure(spark, table), len(live_files(read_commits(table)))
        version_before = _version(table)
        spark.conf.set(USER_METADATA, replace(Proof(Kind.COMPACT), **before).to_json())
        try:
            DeltaTable.forPath(spark, str(table)).optimize().executeCompaction()
        finally:
            spark.conf.unset(USER_METADATA)
        # Step 2. The new files on the disk; the old ones stay there, so that a wrong result can be taken back.
        for file in live_files(read_commits(table)).values():
            sync_file(table / file.path)
        for name in sorted((table / "_delta_log").glob("*.json"))[-2:]:
            sync_file(name)
        sync_folder(table)
        sync_folder(table / "_delta_log")
        # Step 3. Read everything again.
        after = _measure(spark, table)
        if after != before:
            DeltaTable.forPath(spark, str(table)).restoreToVersion(version_before)
            raise FactsChanged(
                f"Compacting {str(table)!r} gave {after['rows']} rows instead of {before['rows']}, or other content. "
                "It was taken back."
            )
        append_to_ledger(table, missing_from_ledger(read_commits(table), read_ledger(table)))
    return Compacted(files_before, len(live_files(read_commits(table))), after["rows"])


def _measure(spark: SparkSession, table: Path) -> dict[str, Any]:
    row = spark.read.format("delta").load(str(table)).agg(*measures()).first()
    return row.asDict() if row else {}


def _version(table: Path) -> int:
    return read_commits(table)[-1].version
