"""Restore what a damaged master table lost: from Kafka, else from files that are still there; name what is gone.

The steps, in this order, each safe to repeat after a crash. Kafka is asked before the first one.

0. What is sealed in segments cannot be repaired here; a damaged segment stops the repair.
1. Files that confuse Delta (corrupt checkpoints, stray data files) are moved out of the table. A commit and its
   line of the ledger that differ are made to agree: whichever can be proved wins.
2. Delta's summaries of damaged commits are moved out too. Then a commit that is empty, torn or missing is replaced by a
   void one, so that Delta can read the table again.
3. A damaged compaction is undone, and later ones with it, while the files that they rewrote are still on the disk.
4. The rows of void commits and of damaged files are read again. One commit for each names what it replaces, and what
   nothing holds any more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.cut import OffsetRange, join, ranges
from master_dataset.kafka.positions import Positions, check_topic_id, logical_positions, read_positions
from master_dataset.table import coverage
from master_dataset.table.append import append, commit_lock
from master_dataset.table.checks.fsck import Measurement, TableFinding, Trouble, deep_check
from master_dataset.table.checks.promises import is_gone, promise_of, rows_of_compaction
from master_dataset.table.checks.salvage import (
    LOCATION,
    KafkaRows,
    first_of_each,
    measure,
    missing_offsets,
    outside,
    read_files,
    within,
)
from master_dataset.table.checks.void_commits import (
    DAMAGED_COMMITS,
    forget_summaries,
    restore_log,
    restore_proofs,
    take_out_strays,
    void_commits,
)
from master_dataset.table.coverage import effective_proofs, follow, replacements
from master_dataset.table.delta_log import Commit, TableFile, commit_text, live_files, read_commits, remembered_file
from master_dataset.table.history import read_history
from master_dataset.table.ledger import append_to_ledger, complete_ledger, read_ledger
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.segments import sealed_until
from views.source import Source

FROM_BACKUP = "bring the file of this commit back from a backup."
DAMAGED_FILES = (Trouble.MISSING_FILE, Trouble.TRUNCATED_FILE, Trouble.WRONG_ROWS)


@dataclass
class Report:
    """What a repair did."""

    moved: list[str] = field(default_factory=list)
    agreed: list[int] = field(default_factory=list)  # commits that differed from the ledger's line
    brought_back: list[str] = field(default_factory=list)  # sealed commits that Delta needs in its log again
    voided: list[int] = field(default_factory=list)
    restored_rows: int = 0
    lost: list[OffsetRange] = field(default_factory=list)
    remaining: list[TableFinding] = field(default_factory=list)


def repair(spark: SparkSession, settings: Settings, bootstrap: str, source: Source, table: Path) -> Report:
    """Repair everything that the deep check finds. The caller holds the archiver's lock."""
    report = Report()
    with commit_lock(table):
        # The cache may hold a commit as it was before the disk changed it: a repair reads the commits themselves.
        remembered_file(table).unlink(missing_ok=True)
        findings = deep_check(spark, table)
        if any(finding.trouble in (Trouble.DAMAGED_SEGMENT, Trouble.DAMAGED_HISTORY) for finding in findings):
            return Report(remaining=findings)
        if bad_past := before_retention(findings, coverage.of(table).removed.version):
            return Report(remaining=bad_past)
        kafka = KafkaRows(settings, bootstrap, source, table, None)
        if any(finding.is_damage and finding.trouble is not Trouble.CORRUPT_CHECKPOINT for finding in findings):
            base = coverage.of(table).offset_base
            positions = logical_positions(read_positions(settings, bootstrap, source), base)
            is_ours = base.is_of(positions.topic_id)
            kafka = KafkaRows(settings, bootstrap, source, table, positions if is_ours else None, base.base)
        report.moved = take_out_strays(table, findings)
        report.agreed = _make_agree(table, findings)
        if report.agreed:
            findings = deep_check(spark, table)
        # A file that is not there may be one whose name was changed in the commit: Delta's summary has the right one.
        doubtful = (*DAMAGED_COMMITS, Trouble.WRONG_ROWS, Trouble.MISSING_FILE)
        # What is sealed was compared with Delta's checkpoint.
        sealed = sealed_until(table)
        suspect = [f.version for f in findings if f.trouble in doubtful and f.version and f.version > sealed]
        if suspect:
            forget_summaries(table, min(suspect))  # first: beside a void commit nothing would show that they are wrong
        report.brought_back = restore_log(table)
        report.voided = void_commits(table, findings)
        reach("repair.after_void")
        _clear_cache(spark)
        if undo_compactions(spark, table, findings):
            reach("repair.after_take_back")
            findings = deep_check(spark, table)
        bad = _to_restore(table, findings)
        compacted = _compacted_to_restore(table, findings)
        alone = [[version] for version in bad if not any(version in versions for versions in compacted)]
        for versions in compacted + alone:
            _restore(spark, kafka, table, versions, bad, report)
            reach("repair.between")
        complete_ledger(table, read_history(table).in_log)
        _clear_cache(spark)
        damage = [finding for finding in deep_check(spark, table) if finding.is_damage]
        report.remaining += damage or _compare_with_delta(spark, table)
    return report


def before_retention(findings: Iterable[TableFinding], retained: int) -> list[TableFinding]:
    """The damaged commits up to the newest removal of old records: a void one would bring removed records back."""
    return [
        replace(finding, text=f"{finding.text} Old records were removed by commit {retained}: {FROM_BACKUP}")
        for finding in findings
        if finding.trouble in DAMAGED_COMMITS and finding.version is not None and finding.version <= retained
    ]


def accept_loss(spark: SparkSession, source: Source, table: Path, positions: Positions) -> list[OffsetRange]:
    """Record that the offsets between the table's end and Kafka's beginning are gone. Returns them."""
    held = coverage.of(table)
    positions = logical_positions(positions, held.offset_base)
    check_topic_id(source, positions.topic_id, held.topic_id)
    end = join(held.cut, positions.earliest) if held.cut else {}
    gone = list(ranges(held.cut, end))
    if gone:
        proof = Proof(Kind.LOST, source.topic, positions.topic_id, start=held.cut, end=end)
        with commit_lock(table):
            append(spark, table, None, proof)
    return gone


def _clear_cache(spark: SparkSession) -> None:
    """Delta keeps what it read of a log; ours was changed under it."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


# ---- step 1 ------------------------------------------------------------------


def _make_agree(table: Path, findings: Iterable[TableFinding]) -> list[int]:
    """End the differences between commits and ledger. Returns the versions.

    A line with its digest is right, and the commit gets its proof. A line of an older Tidemark has no digest; it is
    added again from the commit, if everything else that the deep check found is sound, that commit's rows included.
    """
    agreed = restore_proofs(table, findings)
    damage = [finding for finding in findings if finding.is_damage]
    if damage and all(f.trouble is Trouble.ALTERED_COMMIT and f.version is None for f in damage):
        wrong = {finding.where for finding in damage}
        proofs = {c.version: c.proof for c in read_commits(table) if c.proof and f"{c.version:020}.json" in wrong}
        append_to_ledger(table, proofs.items())
        agreed += proofs
    return agreed


# ---- step 3 ------------------------------------------------------------------


def undo_compactions(spark: SparkSession, table: Path, findings: Iterable[TableFinding]) -> bool:
    """Undo damaged compactions and those after them. Returns whether there were any, and it could be done."""
    ledger = read_ledger(table)
    commits = read_commits(table)
    undone = compactions_to_undo(commits, ledger, findings)
    if undone and min(undone) < coverage.of(table).removed.version:
        return False  # the files that it rewrote may hold records that were removed since
    live = live_files(commits)
    target = live_files(commit for commit in commits if commit.version not in undone)
    if not undone or not all((table / path).is_file() for path in target.keys() - live.keys()):
        return False  # what a compaction rewrote is removed after a time; its rows are restored like others
    lines = [_add_line(table, file) for path, file in target.items() if path not in live]
    proof = Proof(Kind.UNCOMPACT, replaces=tuple(sorted(undone)))
    append(spark, table, None, proof, instead_of=live.keys() - target.keys(), bring_back=lines)
    return True


def compactions_to_undo(
    commits: list[Commit], ledger: Mapping[int, Proof], findings: Iterable[TableFinding]
) -> set[int]:
    """The damaged compactions, and all later ones, because those may have rewritten what a damaged one wrote."""
    proofs = effective_proofs(commits, ledger)
    replaced = replacements(proofs)
    all_of_them = {version for version, proof in proofs.items() if proof.kind == Kind.COMPACT}
    bad = {commit.version for commit in commits if _is_void(commit)} - replaced.keys()
    for finding in findings:
        if finding.trouble in DAMAGED_FILES:
            # Files and proofs differ, and no commit is to blame: one that rewrote files lost some of its lines.
            bad |= {finding.version} if finding.version is not None else all_of_them - replaced.keys()
    bad &= all_of_them
    return {version for version in all_of_them if version >= min(bad)} if bad else set()


def _add_line(table: Path, file: TableFile) -> str:
    """The line by which a commit added a file."""
    for line in commit_text(table, file.version).splitlines():
        if unquote(json.loads(line).get("add", {}).get("path", "")) == file.path:
            return line
    raise ValueError(f"commit {file.version} does not add {file.path}")


# ---- step 4 ------------------------------------------------------------------


def _to_restore(table: Path, findings: Iterable[TableFinding]) -> list[int]:
    ledger = read_ledger(table)
    return commits_to_restore(read_commits(table), ledger, findings)


def commits_to_restore(
    commits: list[Commit], ledger: Mapping[int, Proof], findings: Iterable[TableFinding]
) -> list[int]:
    """The commits whose rows are not all there. If one was repaired before, its repair is meant."""
    proofs = effective_proofs(commits, ledger)
    replaced = replacements(proofs)
    damaged = {f.version for f in findings if f.trouble in DAMAGED_FILES and f.version is not None}
    void = {commit.version for commit in commits if _is_void(commit)}
    undone_at = max((version for version, proof in proofs.items() if proof.kind == Kind.UNCOMPACT), default=-1)
    # What such a repair found in compacted files went with the compaction.
    leaning = {
        version for version, proof in proofs.items() if proof.kept_rows and version < undone_at
    } - replaced.keys()
    targets = {replaced.get(version, version) for version in damaged | leaning} | (void - replaced.keys())
    gone = follow(proofs).removed.cut
    return sorted(
        version
        for version in targets
        if version not in proofs or (proofs[version].kind in Kind.COVERING and not is_gone(proofs[version], gone))
    )


def _compacted_to_restore(table: Path, findings: Iterable[TableFinding]) -> list[list[int]]:
    """Each damaged compaction that could not be undone, followed by the commits whose rows are in its files."""
    commits, proofs = read_commits(table), effective_proofs(read_commits(table), read_ledger(table))
    damaged = {f.version for f in findings if f.trouble in DAMAGED_FILES and f.version is not None}
    bad = sorted(version for version in damaged if version in proofs and proofs[version].kind == Kind.COMPACT)
    return [[version, *rows_of_compaction(version, commits, proofs)] for version in bad]


def _restore(
    spark: SparkSession, kafka: KafkaRows, table: Path, versions: list[int], bad: Collection[int], report: Report
) -> None:
    """Read the rows of one commit, or of a compaction with its commits, again, and commit them as a replacement."""
    ledger = read_ledger(table)
    commits = read_commits(table)
    proofs = effective_proofs(commits, ledger)
    version, expected = versions[0], promise_of(versions, proofs)
    start, end = expected.start, expected.end
    if not any(ranges(start, end)):
        return
    topic_id = follow(proofs).topic_id or (kafka.positions.topic_id if kafka.positions else "")
    # Of a rebase, the ledger's line still says which topic and bases came: those of today may be others.
    kind = Kind.LOST if expected.kind in Kind.WITHOUT_ROWS else Kind.REPAIR
    proof = Proof(kind, kafka.source.topic, topic_id, start, end, replaces=tuple(versions))
    if kind == Kind.LOST:
        append(spark, table, None, proof)
        return
    # Its own files leave, and those of commits that it replaced itself. Other files may hold some of its rows.
    replaced, live = replacements(proofs), live_files(commits)
    owners = {path: replaced.get(file.version, file.version) for path, file in live.items()}
    own = {path for path, owner in owners.items() if owner == version or (owner in versions and owner in bad)}
    good = [str(table / path) for path, owner in owners.items() if owner not in bad and owner != version]
    kept = within(spark.read.parquet(*good), start, end) if good else None
    old = {file.path for commit in commits for file in commit.added} - live.keys()
    rows = _rows(spark, kafka, table, proof, expected, own, old)
    if rows is not None:
        rows = rows if kept is None else rows.join(kept.select(*LOCATION), LOCATION, "left_anti")
        rows = rows.persist(StorageLevel.DISK_ONLY)  # what is counted here is what is written below
    there = measure(kept)
    both = there.plus(measure(rows))
    unproved = _is_unproved(version, proofs, both) if len(versions) == 1 else _is_other(expected, both)
    lost = _lost(kafka, proof, expected, both, [frame for frame in (rows, kept) if frame is not None])
    proof = replace(
        proof,
        lost=tuple(lost),
        unproved=unproved,
        kept_rows=there.rows,
        kept_hash=there.hash,
        kept_parsed_hash=there.parsed_hash,
    )
    done = append(spark, table, rows, proof, files=1, instead_of=own)
    report.restored_rows += done.proof.rows
    report.lost += lost
    if unproved:
        text = f"commit {version} was restored as commit {done.version}, but with other content than its proof has."
        report.remaining.append(TableFinding(Trouble.UNPROVED_ROWS, f"commit {version}", text, done.version))


def _is_other(expected: Proof, found: Measurement) -> bool:
    """Whether as many rows were restored as were proved, but others."""
    return expected.unproved or (found.rows == expected.rows and found.hash != expected.hash)


def _is_unproved(version: int, proofs: Mapping[int, Proof], found: Measurement) -> bool:
    """Whether as many rows were restored as were proved, but others. Each repair on the way proved the same rows."""
    replaced = replacements(proofs)
    promises = [proof for v, proof in proofs.items() if version in (v, replaced.get(v)) and not proof.unproved]
    expected = proofs.get(version)
    if expected is None or found.rows != expected.rows + expected.kept_rows:
        return expected is not None and expected.unproved
    return found.hash not in {proof.hash ^ proof.kept_hash for proof in promises}


def _rows(
    spark: SparkSession, kafka: KafkaRows, table: Path, proof: Proof, expected: Proof, own: set[str], old: set[str]
) -> DataFrame | None:
    """The rows of these offsets. Kafka wins; files are read only if Kafka has fewer than were proved."""
    records = kafka.read(spark, proof.start, proof.end)
    if records is not None and records.count() == expected.rows + expected.kept_rows > 0:
        return records
    frames = [*([records] if records is not None else []), *read_files(spark, table, own, old)]
    return first_of_each(frames, proof.start, proof.end)


def _lost(
    kafka: KafkaRows, proof: Proof, expected: Proof, found: Measurement, frames: list[DataFrame]
) -> list[OffsetRange]:
    """The offsets that nothing holds any more. A topic may have holes of its own; a count tells them from losses."""
    if expected.kind in Kind.COVERING and found.rows == expected.rows + expected.kept_rows:
        return list(expected.lost)
    missing = missing_offsets(frames, proof.start, proof.end)
    if expected.kind in Kind.COVERING:
        return missing
    return outside(missing, *kafka.window(proof.start, proof.end))


def _is_void(commit: Commit) -> bool:
    return commit.proof is not None and commit.proof.kind == Kind.VOID


# ---- the last check -----------------------------------------------------------------


def _compare_with_delta(spark: SparkSession, table: Path) -> list[TableFinding]:
    """Whether Delta, which reads the log its own way and its checkpoints first, sees the files that we see."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))
    theirs = {unquote(file.path()) for file in log.unsafeVolatileSnapshot().allFiles().collect()}
    ours = live_files(read_commits(table)).keys()
    return [
        TableFinding(
            Trouble.DELTA_DIFFERS, path, f"{path} is read by {'Delta' if path in theirs else 'Tidemark'} alone."
        )
        for path in sorted(theirs ^ ours)
    ]
