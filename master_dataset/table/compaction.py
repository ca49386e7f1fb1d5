"""Compaction: the same records in fewer, larger files, proved by their hash before the commit."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from infra.failpoints import reach
from master_dataset.errors import MasterDatasetError
from master_dataset.table.append import append, commit_lock
from master_dataset.table.checks.fsck import Measurement, hash_files, refuse_damage
from master_dataset.table.delta_log import TableFile
from master_dataset.table.history import read_live_files
from master_dataset.table.proofs import Kind, Proof

LARGE_BYTES = 256 * 2**20
"""Files of this size stay as they are; smaller ones are merged into files of about this size."""


class Compacted(NamedTuple):
    """What a compaction did."""

    files_before: int
    files_after: int
    rows: int


class RecordsChanged(MasterDatasetError):
    """A compaction gave other records than before: it was not committed."""


def compact(spark: SparkSession, table: Path) -> Compacted:
    """Rewrite small files into large ones. The archiver waits meanwhile; readers notice nothing.

    A crash before the commit leaves stray files. The old files stay on the disk, so that a repair can go back to them.
    """
    with commit_lock(table):
        refuse_damage(table.name, table)
        live = read_live_files(table)
        small = [file for file in live.values() if file.size < LARGE_BYTES]
        files = ceil(sum(file.size for file in small) / LARGE_BYTES)
        if len(small) > files:
            before = _measure(spark, table, small)

            def check(names: list[str]) -> None:
                after = _measure(spark, table, [TableFile(name, 0, 0, 0) for name in names])
                if after != before:
                    raise RecordsChanged(
                        f"Compacting {str(table)!r} gave {after.rows} rows instead of {before.rows}, or other content. "
                        "Nothing was committed; `tidemark master fsck --deep` says whether the files are sound."
                    )
                reach("compact.before_commit")

            rows = spark.read.parquet(*(str(table / file.path) for file in small))
            old = [file.path for file in small]
            append(spark, table, rows, Proof(Kind.COMPACT), files=files, instead_of=old, check=check)
        now = read_live_files(table)
    return Compacted(len(live), len(now), sum(file.rows for file in now.values()))


def _measure(spark: SparkSession, table: Path, files: list[TableFile]) -> Measurement:
    total = Measurement()
    for name, value in hash_files(spark, table, files).items():
        if isinstance(value, str):
            raise RecordsChanged(f"{name} in {str(table)!r} cannot be read: {value}. Nothing was committed.")
        total = total.plus(value)
    return total
