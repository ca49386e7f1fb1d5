"""Retention: remove the oldest records of a master table, and record in it that they were removed.

All records below a cut go, and none above it. The cut lies between two commits, so that every commit is either whole or
removed whole: what was removed is proved by the commits themselves. Files that hold records on both sides are split
first, by a compaction. Then one commit takes the files below the cut out of the table. Its proof says how far, how many
rows of which content, of which days, and what stands for them in the batch views. The files are deleted later, like
those that a compaction replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from infra.failpoints import reach
from master_dataset.cut import Cut, cut_to_json, is_below, join, ranges
from master_dataset.dead_letters.sent import read_sent, sent_file
from master_dataset.errors import MasterDatasetError
from master_dataset.reading.read_spark import between
from master_dataset.table.append import Committed, append, commit_lock
from master_dataset.table.checks.fsck import Measurement, hash_files, refuse_damage
from master_dataset.table.coverage import all_proofs, follow, invalid_after, of_history, replacements
from master_dataset.table.delta_log import TableFile
from master_dataset.table.history import History, read_history
from master_dataset.table.proofs import Kind, Proof


class CannotRemove(MasterDatasetError):
    """What would be removed is not what the commits promise: everything stays."""


@dataclass(frozen=True)
class Removal:
    """What is to be removed: the records in [start, cut), all in Kafka before the day."""

    start: Cut
    cut: Cut
    day: str
    promised: Measurement
    last_repair: int | None = None
    """The newest repair when this was decided: a later one may change what there is."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not any(ranges(self.start, self.cut))


def choose_cut(proofs: Mapping[int, Proof], removed: Cut, limit: Cut, before: int | None = None) -> dict[int, int]:
    """The largest cut between two commits that is not above `limit`; `removed` where there is none above that.

    A repair may hold the offsets of several commits; it is not divided either. The commit `before` and later ones stay.
    """
    replaced = replacements(proofs)
    whole = [p for v, p in proofs.items() if p.kind in Kind.COVERING and v not in replaced]
    cut: dict[int, int] = {}
    found = [dict(removed)]
    for version in sorted(v for v in proofs if before is None or v < before):
        if proofs[version].kind in (Kind.APPEND, Kind.LOST):
            cut = join(cut, proofs[version].end)
            if not is_below(cut, limit):
                break
            if is_below(removed, cut):
                found.append(cut)
    return next((each for each in reversed(found) if all(_is_beside(each, p) for p in whole)), dict(removed))


def _is_beside(cut: Cut, proof: Proof) -> bool:
    """Whether a commit lies on one side of a cut as a whole."""
    spans = list(ranges(proof.start, proof.end))
    is_under = all(each.end_exclusive <= cut.get(each.partition, 0) for each in spans)
    return is_under or all(each.start >= cut.get(each.partition, 0) for each in spans)


def plan_removal(spark: SparkSession, table: Path, day: date, end: Cut) -> Removal:
    """What can be removed below the cut `end`, so that every record from the day (UTC) on stays."""
    history = read_history(table)
    held = of_history(history)
    limit = dict(end)
    for partition, offset in _first_since(spark, table, day).items():
        limit[partition] = min(offset, limit.get(partition, 0))
    removed = held.removed
    if not any(ranges(removed.cut, limit)):
        return Removal(removed.cut, removed.cut, str(day), Measurement(), held.last_repair)
    proofs = all_proofs(history)
    cut = choose_cut(proofs, removed.cut, limit, _first_unsent(table, history))
    below = follow({v: p for v, p in proofs.items() if p.kind in Kind.COVERING and is_below(p.end, cut)})
    promised = Measurement(
        below.rows - removed.rows, below.hash ^ removed.hash, below.parsed_hash ^ removed.parsed_hash
    )
    return Removal(removed.cut, cut, str(day), promised, held.last_repair)


def _first_unsent(table: Path, history: History) -> int | None:
    """The first commit with invalid records whose dead letters are still to be sent."""
    if not sent_file(table).is_file():
        return None
    return min(invalid_after(history, read_sent(table).version), default=None)


def _first_since(spark: SparkSession, table: Path, day: date) -> dict[int, int]:
    """The lowest offset of each partition with a record from the day (UTC) on. Delta skips files of older records."""
    rows = spark.read.format("delta").load(str(table))
    since = rows.where(f.col("timestamp") >= f.lit(f"{day}T00:00:00Z").cast("timestamp"))
    return {row[0]: row[1] for row in since.groupBy("partition").agg(f.min("offset")).collect()}


def remove(spark: SparkSession, table: Path, removal: Removal, foundation: str) -> Committed:
    """Take the records out of the table. What stands for them must be on the disk before.

    A crash before the commit leaves the table as it was, perhaps with other files; after it, the deletion is left. The
    archiver waits only while files are split and while the commit is made.
    """
    # Step 1. No file holds records on both sides. A crash leaves the same records in other files.
    sides = _sides(spark, table, removal.cut)
    if any(0 < each.below < each.file.rows for each in sides):
        _split(spark, table, removal.cut)
        reach("retain.after_split")
        sides = _sides(spark, table, removal.cut)
    # Step 2. What goes is what the commits promise, row by row.
    old = [each.file for each in sides if each.below]
    found = _measure(spark, table, old)
    if found != removal.promised or any(each.below != each.file.rows for each in sides if each.below):
        raise CannotRemove(
            f"The files of {str(table)!r} below {cut_to_json(removal.cut)} hold {found.rows} rows, the commits "
            f"promise {removal.promised.rows}, or the content differs. Nothing was removed; "
            f"`tidemark master fsck {table.name} --deep` says what is damaged."
        )
    # Step 3. The record of it, and the files out of the table, in one commit. The files are deleted later.
    with commit_lock(table):
        refuse_damage(table.name, table)
        history = read_history(table)
        held = of_history(history)
        is_same = (held.removed.cut, held.last_repair) == (dict(removal.start), removal.last_repair)
        if not is_same or not {file.path for file in old} <= history.files.live.keys():
            raise CannotRemove(
                f"The master table {str(table)!r} was repaired, or its files were merged, while this was prepared. "
                "Nothing was removed; try again."
            )
        proof = Proof(
            Kind.RETAIN,
            topic_id=held.topic_id,
            start=removal.start,
            end=removal.cut,
            rows=found.rows,
            hash=found.hash,
            parsed_hash=found.parsed_hash,
            day=removal.day,
            foundation=foundation,
        )
        return append(spark, table, None, proof, instead_of=[file.path for file in old])


class _Side(NamedTuple):
    """A file, and how many of its rows are below the cut."""

    file: TableFile
    below: int


def _sides(spark: SparkSession, table: Path, cut: Cut) -> list[_Side]:
    live = read_history(table).files.live
    if not live:
        return []
    rows = spark.read.parquet(*(str(table / path) for path in live)).select(
        f.col("_metadata.file_name").alias("name"), between({}, cut).alias("is_below")
    )
    found = {row[0]: row[1] for row in rows.groupBy("name").agg(f.count_if("is_below")).collect()}
    return [_Side(file, found.get(path, 0)) for path, file in live.items()]


def _split(spark: SparkSession, table: Path, cut: Cut) -> None:
    """Write the rows of files on both sides of the cut again: those below it into one file, the others into another."""
    with commit_lock(table):
        refuse_damage(table.name, table)
        files = [each.file for each in _sides(spark, table, cut) if 0 < each.below < each.file.rows]
        if not files:
            return
        before = _measure(spark, table, files)

        def check(names: list[str]) -> None:
            if _measure(spark, table, [TableFile(name, 0, 0, 0) for name in names]) != before:
                raise CannotRemove(
                    f"Splitting {len(files)} files of {str(table)!r} gave other rows. Nothing was committed; "
                    "`tidemark master fsck --deep` says whether the files are sound."
                )

        rows = spark.read.parquet(*(str(table / file.path) for file in files))
        # Each of the two tasks writes one file.
        split = rows.repartitionById(2, f.when(between({}, cut), 0).otherwise(1))
        append(spark, table, split, Proof(Kind.COMPACT), instead_of=[file.path for file in files], check=check)


def _measure(spark: SparkSession, table: Path, files: list[TableFile]) -> Measurement:
    total = Measurement()
    for name, value in hash_files(spark, table, files).items():
        if isinstance(value, str):
            raise CannotRemove(f"{name} in {str(table)!r} cannot be read: {value}. Nothing was removed.")
        total = total.plus(value)
    return total
