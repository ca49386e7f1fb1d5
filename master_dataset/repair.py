"""Bring back what a damaged master table lost: from Kafka, else from files that are still there; name what is gone.

The steps, in this order, each safe to repeat after a crash:

1. Files that only confuse (corrupt Delta checkpoints, stray data files) are moved out of the table.
2. A commit that is empty, torn or missing is replaced by a void one, so that Delta can read the table again.
3. Its rows, and those of damaged data files, are read again and committed by one commit that names what it replaces.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from infra.settings import Settings
from infra.spark import kafka_source_options
from master_dataset.commits import (
    Commit,
    Kind,
    Proof,
    append_to_ledger,
    live_files,
    missing_from_ledger,
    own_folder,
    read_commits,
    read_ledger,
)
from master_dataset.coverage import effective_proofs, follow
from master_dataset.cut import Cut, OffsetRange, cut_to_json, join, ranges
from master_dataset.errors import MasterDatasetError
from master_dataset.fsck import Finding, Trouble, deep_check, hash_files, quick_check
from master_dataset.kafka_positions import Positions, read_positions
from master_dataset.table import append, commit_lock, sync_file, sync_folder
from views.on_spark import with_event
from views.source import Source

DAMAGED_COMMITS = (Trouble.EMPTY_COMMIT, Trouble.TORN_COMMIT, Trouble.MISSING_COMMIT)
DAMAGED_FILES = (Trouble.MISSING_FILE, Trouble.TRUNCATED_FILE, Trouble.WRONG_ROWS)


@dataclass
class Report:
    """What a repair did."""

    moved: list[str] = field(default_factory=list)
    voided: list[int] = field(default_factory=list)
    restored_rows: int = 0
    lost: list[OffsetRange] = field(default_factory=list)
    remaining: list[Finding] = field(default_factory=list)


def repair(spark: SparkSession, settings: Settings, bootstrap: str, source: Source, table: Path) -> Report:
    """Repair everything that the deep check finds. The caller holds the archiver's lock."""
    report = Report()
    findings = quick_check(table)
    with commit_lock(table):
        _move_aside(table, findings, report)
        _void_commits(table, findings, report)
    damaged = _damaged_versions(spark, table)
    if damaged or report.voided:
        positions = read_positions(settings, bootstrap, source)
        with commit_lock(table):
            _restore(spark, settings, bootstrap, source, table, damaged, positions, report)
    append_to_ledger(table, missing_from_ledger(read_commits(table), read_ledger(table)))
    report.remaining = [finding for finding in deep_check(spark, table) if finding.is_damage]
    return report


def accept_loss(spark: SparkSession, source: Source, table: Path, positions: Positions) -> list[OffsetRange]:
    """Record that the offsets between the table's end and Kafka's beginning are gone. Returns them."""
    held = follow(effective_proofs(read_commits(table), read_ledger(table)))
    end = join(held.cut, {p: positions.earliest.get(p, 0) for p in held.cut})
    gone = list(ranges(held.cut, end))
    if gone:
        proof = Proof(Kind.LOST, source.topic, positions.topic_id, start=held.cut, end=end)
        with commit_lock(table):
            append(spark, table, None, proof)
    return gone


# ---- step 1 ------------------------------------------------------------------


def _move_aside(table: Path, findings: Iterable[Finding], report: Report) -> None:
    for finding in findings:
        if finding.trouble is Trouble.STRAY_FILE:
            _take_out(table, table / finding.where, report)
        elif finding.trouble is Trouble.CORRUPT_CHECKPOINT:
            _take_out(table, table / "_delta_log" / finding.where, report)
            _take_out(table, table / "_delta_log" / "_last_checkpoint", report)


def _take_out(table: Path, path: Path, report: Report | None = None) -> None:
    """Move a file and Hadoop's checksum of it beside the table. Nothing is deleted."""
    target = own_folder(table) / "taken_out" / time.strftime("%Y%m%dT%H%M%S")
    for each in (path, path.with_name(f".{path.name}.crc")):
        if each.is_file():
            target.mkdir(parents=True, exist_ok=True)
            shutil.move(each, target / each.name)
    if report is not None:
        report.moved.append(path.name)


# ---- step 2 ------------------------------------------------------------------


def _void_commits(table: Path, findings: Iterable[Finding], report: Report) -> None:
    log = table / "_delta_log"
    for finding in findings:
        if finding.trouble not in DAMAGED_COMMITS or finding.version is None:
            continue
        if finding.version == 0:
            raise MasterDatasetError(
                f"Commit 0 of {str(table)!r}, which defines the table, is damaged. Move the folder away; the archiver "
                f"makes a new one from what Kafka still holds, and the data files stay in the old one."
            )
        path = log / f"{finding.version:020}.json"
        _take_out(table, path)
        info = {
            "timestamp": round(time.time() * 1000),
            "operation": "TIDEMARK VOID",
            "operationParameters": {},
            "userMetadata": Proof(Kind.VOID).to_json(),
        }
        partial = log / f".{path.name}.partial"
        partial.write_text(json.dumps({"commitInfo": info}) + "\n", encoding="utf-8")
        sync_file(partial)
        partial.rename(path)
        report.voided.append(finding.version)
    if report.voided:
        # Delta's summaries of the versions from here on describe a table with those commits in it.
        for summary in log.glob("*.crc"):
            if summary.stem.isdigit() and int(summary.stem) >= min(report.voided):
                _take_out(table, summary)
        sync_folder(log)


# ---- step 3 ------------------------------------------------------------------


def _damaged_versions(spark: SparkSession, table: Path) -> dict[int, set[str]]:
    """The commits whose rows are not all there -> those of their files that are still live, good and bad."""
    commits = read_commits(table)
    live = live_files(commits)
    bad = {
        finding.version for finding in deep_check(spark, table) if finding.trouble in DAMAGED_FILES and finding.version
    }
    return {version: {file.path for file in live.values() if file.version == version} for version in sorted(bad)}


def _restore(
    spark: SparkSession,
    settings: Settings,
    bootstrap: str,
    source: Source,
    table: Path,
    damaged: dict[int, set[str]],
    positions: Positions,
    report: Report,
) -> None:
    commits, ledger = read_commits(table), read_ledger(table)
    proofs = effective_proofs(commits, ledger)
    replaced = {version for proof in proofs.values() for version in proof.replaces}
    voided = [c.version for c in commits if c.proof and c.proof.kind == Kind.VOID and c.version not in replaced]
    for version in sorted({*damaged, *voided}):
        start, end = _span(version, proofs, commits)
        if not list(ranges(start, end)):
            continue
        files = damaged.get(version, set())
        salvaged = _readable(spark, table, files)
        rows = _union([_from_kafka(spark, settings, bootstrap, source, start, end, positions), *salvaged])
        rows = _within(rows, start, end).dropDuplicates(["partition", "offset"])
        proof = Proof(Kind.REPAIR, source.topic, positions.topic_id, start=start, end=end, replaces=(version,))
        done = append(spark, table, rows, proof, files=1, instead_of=files)
        report.restored_rows += done.proof.rows
        expected = proofs.get(version)
        if expected is None or (expected.rows, expected.hash) != (done.proof.rows, done.proof.hash):
            report.lost += _missing_offsets(spark, table, start, end, expected)


def _span(version: int, proofs: dict[int, Proof], commits: list[Commit]) -> tuple[Cut, Cut]:
    """The offsets of a commit: by its own proof or the ledger's copy, else between its neighbours."""
    if version in proofs:
        return proofs[version].start, proofs[version].end
    before = follow({v: proof for v, proof in proofs.items() if v < version}).cut
    later = [proof for v, proof in sorted(proofs.items()) if v > version and proof.kind == Kind.APPEND]
    return before, dict(later[0].start) if later else before


def _from_kafka(
    spark: SparkSession,
    settings: Settings,
    bootstrap: str,
    source: Source,
    start: Cut,
    end: Cut,
    positions: Positions,
) -> DataFrame:
    """What Kafka still holds of these offsets."""
    first = {p: min(max(start.get(p, 0), positions.earliest.get(p, 0)), end[p]) for p in end}
    last = {p: max(first[p], min(end[p], positions.latest.get(p, 0))) for p in end}
    records = (
        spark.read.format("kafka")
        .options(**kafka_source_options(settings, bootstrap))
        .options(
            subscribe=source.topic,
            startingOffsets=json.dumps({source.topic: cut_to_json(first)}),
            endingOffsets=json.dumps({source.topic: cut_to_json(last)}),
            includeHeaders="true",
        )
        .load()
    )
    return with_event(records, source)


def _readable(spark: SparkSession, table: Path, files: set[str]) -> list[DataFrame]:
    """The good ones among a damaged commit's files, and everything readable that was taken out before."""
    from master_dataset.commits import DataFile

    there = [DataFile(name, 0, 0, 0) for name in files if (table / name).is_file()]
    good = [name for name, value in hash_files(spark, table, there).items() if not isinstance(value, str)]
    aside = own_folder(table) / "taken_out"
    spare = [DataFile(str(path.relative_to(table.parent)), 0, 0, 0) for path in aside.glob("*/part-*.parquet")]
    also = [n for n, value in hash_files(spark, table.parent, spare).items() if not isinstance(value, str)]
    return [
        *(spark.read.parquet(str(table / name)) for name in good),
        *(spark.read.parquet(str(table.parent / name)) for name in also),
    ]


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionByName(right.select(*left.columns)), frames)


def _within(rows: DataFrame, start: Cut, end: Cut) -> DataFrame:
    wanted = [
        (f.col("partition") == each.partition) & f.col("offset").between(each.start, each.end_exclusive - 1)
        for each in ranges(start, end)
    ]
    return rows.where(reduce(lambda left, right: left | right, wanted))


def _missing_offsets(
    spark: SparkSession, table: Path, start: Cut, end: Cut, expected: Proof | None
) -> list[OffsetRange]:
    """Offsets between the cuts that no row has. A topic may have holes by itself: with a count, those are known."""
    rows = _within(spark.read.format("delta").load(str(table)), start, end)
    have = {(row["partition"], row["offset"]) for row in rows.select("partition", "offset").collect()}
    if expected is not None and len(have) == expected.rows:
        return []
    lost: list[OffsetRange] = []
    for each in ranges(start, end):
        for offset in range(each.start, each.end_exclusive):
            if (each.partition, offset) in have:
                continue
            if lost and lost[-1].partition == each.partition and lost[-1].end_exclusive == offset:
                lost[-1] = lost[-1]._replace(end_exclusive=offset + 1)
            else:
                lost.append(OffsetRange(each.partition, offset, offset + 1))
    return lost
