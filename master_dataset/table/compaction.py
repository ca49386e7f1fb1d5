"""Compaction: the same records in fewer, larger files, proved by their hash before the commit.

Files are merged with files of about their size, so that a record is written again only when its file at least doubles.
The files that were replaced stay for a time: those who began to read before the compaction need them, and so does a
repair that undoes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from infra.disk import sync_folder
from infra.failpoints import reach
from master_dataset.errors import MasterDatasetError
from master_dataset.table.append import append, commit_lock
from master_dataset.table.checks.fsck import Measurement, hash_files, refuse_damage
from master_dataset.table.delta_log import TableFile
from master_dataset.table.history import read_history, read_live_files
from master_dataset.table.proofs import Kind, Proof

LARGE_BYTES = 256 * 2**20
"""Files become about so large; those of half of it stay as they are."""
MAX_FILES = 5_000
"""So many files at most are merged at once: the archiver waits meanwhile."""


class Compacted(NamedTuple):
    """What a compaction did."""

    files_before: int
    files_after: int
    rows: int


class RecordsChanged(MasterDatasetError):
    """A compaction gave other records than before: it was not committed."""


def compact(spark: SparkSession, table: Path, *, large_bytes: int = LARGE_BYTES) -> Compacted:
    """Rewrite small files into large ones, step by step. The archiver takes turns; readers notice nothing."""
    refuse_damage(table.name, table)
    before = len(read_live_files(table))
    while compact_once(spark, table, large_bytes=large_bytes):
        pass
    now = read_live_files(table)
    return Compacted(before, len(now), sum(file.rows for file in now.values()))


def compact_once(spark: SparkSession, table: Path, *, large_bytes: int = LARGE_BYTES, min_files: int = 2) -> int:
    """Merge small files into one, if there are so many. Returns how many. The archiver waits meanwhile.

    A crash before the commit leaves stray files. The old files stay on the disk, so that a repair can go back to them.
    """
    if len(choose(read_live_files(table).values(), large_bytes)) < max(2, min_files):
        return 0
    with commit_lock(table):
        refuse_damage(table.name, table)
        small = choose(read_live_files(table).values(), large_bytes)
        if len(small) < 2:
            return 0
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
        append(spark, table, rows, Proof(Kind.COMPACT), files=1, instead_of=old, check=check)
    return len(small)


def choose(files: Iterable[TableFile], large_bytes: int) -> list[TableFile]:
    """The files to merge into one: from the smallest on, as long as none is larger than all before it together.

    So the number of files grows with the logarithm of the bytes, until files are large. In the order of their commits.
    """
    chosen: list[TableFile] = []
    total = 0
    for file in sorted(files, key=lambda file: (file.size, file.version)):
        is_too_large = file.size >= large_bytes or total + file.size > large_bytes
        if is_too_large or (len(chosen) > 1 and file.size > total) or len(chosen) == MAX_FILES:
            break
        chosen.append(file)
        total += file.size
    return sorted(chosen, key=lambda file: file.version)


def remove_replaced(table: Path, keep_s: float) -> int:
    """Remove the files that compactions and retention replaced longer than `keep_s` ago. Returns how many.

    Those that a repair replaced stay: they may hold rows that nothing else has.
    """
    until_ms = (time.time() - keep_s) * 1000
    with commit_lock(table):
        replaced = read_history(table).files.replaced.values()
        due = [each for each in replaced if each.kind in Kind.REPLACING and 0 < each.at_ms <= until_ms]
        old = [path for path in (table / each.file.path for each in due) if path.is_file()]
        if not old:
            return 0
        refuse_damage(table.name, table)  # while the table is not sound, a repair may need them
        for path in old:
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        sync_folder(table)
    return len(old)


def _measure(spark: SparkSession, table: Path, files: list[TableFile]) -> Measurement:
    total = Measurement()
    for name, value in hash_files(spark, table, files).items():
        if isinstance(value, str):
            raise RecordsChanged(f"{name} in {str(table)!r} cannot be read: {value}. Nothing was committed.")
        total = total.plus(value)
    return total
