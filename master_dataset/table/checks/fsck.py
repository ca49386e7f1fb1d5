"""Prove that a master table lost nothing, or name what it lost.

The quick check reads the log, the ledger and the sizes of files; it runs at each start of the archiver. Of sealed
commits it reads the summary. The deep one reads every segment and every row, and compares their hash with the proofs.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from master_dataset.cut import is_below, ranges
from master_dataset.errors import MasterDatasetError
from master_dataset.table.coverage import Coverage, effective_proofs, of_history, replacements
from master_dataset.table.delta_log import Commit, TableFile
from master_dataset.table.history import History, read_history
from master_dataset.table.ledger import read_ledger_file
from master_dataset.table.paths import own_folder
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.segments import Segment, SegmentDamaged, list_segments, read_segment, sealed_until
from master_dataset.table.summary import Files, read_summary, summed_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint(\..+)?\.parquet")


class Trouble(StrEnum):
    """What can be wrong with a table."""

    EMPTY_COMMIT = "empty commit"
    TORN_COMMIT = "torn commit"
    MISSING_COMMIT = "missing commit"
    ALTERED_COMMIT = "altered commit"
    GAP = "gap"
    OVERLAP = "overlap"
    MISSING_FILE = "missing file"
    TRUNCATED_FILE = "truncated file"
    WRONG_ROWS = "wrong rows"
    CORRUPT_CHECKPOINT = "corrupt checkpoint"
    MISSING_CHECKPOINT = "missing checkpoint"
    DAMAGED_SEGMENT = "damaged segment"
    DAMAGED_HISTORY = "damaged history"
    STRAY_FILE = "stray file"
    LOST = "lost offsets"
    UNPROVED_ROWS = "unproved rows"
    DELTA_DIFFERS = "Delta differs"
    UNRECORDED_REBASE = "unrecorded rebase"


HARMLESS = (
    Trouble.STRAY_FILE, Trouble.LOST, Trouble.UNPROVED_ROWS, Trouble.DAMAGED_HISTORY, Trouble.UNRECORDED_REBASE,
)  # fmt: skip
"""No record is at risk: a crash leaves stray files; what is lost or unproved is beyond repair, and recorded. Where the
record of a rebase is gone, the appends after it still say which topic they are from.

Where a segment is damaged that the summary has, all records are still proved, but together and not commit by commit.
"""


@dataclass(frozen=True)
class TableFinding:
    """One thing that is wrong, and where. `version` is the commit it belongs to, if it belongs to one."""

    trouble: Trouble
    where: str
    text: str
    version: int | None = None

    @property
    def is_damage(self) -> bool:
        """Whether records are missing, duplicated or in danger."""
        return self.trouble not in HARMLESS


WITH_FILES = (Kind.APPEND, Kind.REPAIR, Kind.COMPACT)
"""Commits whose proof counts the rows of the files that they add."""


class NoTable(MasterDatasetError):
    """A source has no master table: nothing of it was archived here."""

    def __init__(self, source: str, path: Path) -> None:
        super().__init__(
            f"Source {source!r} has no master table: {str(path)!r} holds none. The archiver creates it when it first "
            "runs (`tidemark up`); if it is elsewhere, set TIDEMARK_MASTER_DIR."
        )


class TableDamaged(MasterDatasetError):
    """The quick check found damage: nothing may be read or appended before it is repaired."""

    def __init__(self, source: str, path: Path, damage: list[TableFinding]) -> None:
        shown = "\n".join(f"  {each.trouble}: {each.text}" for each in damage[:10])
        super().__init__(
            f"The master table of {source!r} in {str(path)!r} is damaged ({len(damage)} findings):\n{shown}\n"
            f"`tidemark master repair {source}` restores what it can and names what it cannot."
        )
        self.damage = damage


def quick_check(table: Path) -> list[TableFinding]:
    """Everything that the log, the ledger and the folder reveal. Reads no row and needs no Spark.

    Commit files that have the size and the times that they had when they were read before are not read again, and of
    Delta's checkpoints only the newest is, the one that Delta reads. The deep check trusts neither.
    """
    return _check(table, afresh=False)


def refuse_damage(source: str, table: Path) -> None:
    """Raise TableDamaged if the quick check finds damage: Delta itself reads a damaged table as one with fewer rows."""
    damage = [finding for finding in quick_check(table) if finding.is_damage]
    if damage:
        raise TableDamaged(source, table, damage)


def check_readable(source: str, table: Path) -> None:
    """Raise TableDamaged or NoTable where a reader would get fewer records than were archived, and not notice."""
    refuse_damage(source, table)
    if not (table / "_delta_log" / f"{0:020}.json").is_file():
        raise NoTable(source, table)


def _check(table: Path, *, afresh: bool) -> list[TableFinding]:
    segments = [*_check_segments(table, all_of_them=afresh)]
    summary = read_summary(table, sealed_until(table))
    if segments and (summary is None or summary.last < summed_up(table)):
        return segments  # what else is wrong cannot be said
    try:
        history = read_history(table, afresh=afresh, whole=afresh and not segments)
        held, files = of_history(history), history.files
    except SegmentDamaged as damaged:
        return [TableFinding(Trouble.DAMAGED_SEGMENT, damaged.name, str(damaged))]
    replaced = replacements(effective_proofs(history.commits, history.ledger))
    findings = [
        *(replace(finding, trouble=Trouble.DAMAGED_HISTORY) for finding in segments),
        *_check_commits(table, history),
        *_check_chain(history.commits, history.ledger, held, replaced),
        *_check_files(table, history.commits, files, replaced),
        *check_checkpoints(table, all_of_them=afresh),
        *_check_beginning(table, history),
    ]
    if not any(finding.is_damage for finding in findings):
        findings += _check_total(files, held)
    return findings


def _check_segments(table: Path, *, all_of_them: bool) -> Iterator[TableFinding]:
    """Each segment follows the one before. Only the deep check reads them all, which takes its time in an old table."""
    begin, until = 0, summed_up(table)
    for segment in list_segments(table):
        if segment.first != begin:
            missing = Segment(begin, segment.first - 1).name
            text = f"no segment holds the commits {begin} to {segment.first - 1}; bring it back from a backup."
            yield TableFinding(Trouble.DAMAGED_SEGMENT, missing, text)
        begin = segment.last + 1
        try:
            size = (own_folder(table) / segment.name).stat().st_size
            if all_of_them or not size:
                read_segment(table, segment)
        except (SegmentDamaged, OSError) as error:
            yield TableFinding(Trouble.DAMAGED_SEGMENT, segment.name, str(error))
    if begin <= until:
        text = f"the commits {begin} to {until} were sealed, and no segment holds them; bring it back from a backup."
        yield TableFinding(Trouble.DAMAGED_SEGMENT, Segment(begin, until).name, text)


def _check_beginning(table: Path, history: History) -> Iterator[TableFinding]:
    """Delta begins at a checkpoint or at commit 0. Behind that, no commit may be missing."""
    if missing := missing_from_log(table, history.sealed):
        text = f"Delta cannot begin: there is no checkpoint, and {len(missing)} sealed commits are not in the log."
        yield TableFinding(Trouble.MISSING_CHECKPOINT, "_delta_log", text)


def missing_from_log(table: Path, sealed: int) -> list[int]:
    """The sealed commits that Delta needs and the log lacks: none, while there is a checkpoint above them."""
    log = table / "_delta_log"
    names = {entry.name for entry in os.scandir(log)} if log.is_dir() else set()
    begin = max((int(found[1]) + 1 for name in names if (found := CHECKPOINT_FILE.fullmatch(name))), default=0)
    return [version for version in range(begin, sealed + 1) if f"{version:020}.json" not in names]


def _check_commits(table: Path, history: History) -> Iterator[TableFinding]:
    there, ledger = {commit.version: commit for commit in history.commits}, history.ledger
    for version in range(history.first, max([*there, *ledger], default=-1) + 1):
        where, commit = f"{version:020}.json", there.get(version)
        if commit is None:
            known = f" It held {_held(ledger[version])}." if version in ledger else ""
            yield TableFinding(Trouble.MISSING_COMMIT, where, f"commit {version} is not there.{known}", version)
        elif commit.damage:
            trouble = Trouble.EMPTY_COMMIT if "empty" in commit.damage else Trouble.TORN_COMMIT
            known = f" It held {_held(ledger[version])}." if version in ledger else ""
            yield TableFinding(trouble, where, f"commit {version}: {commit.damage}.{known}", version)
        elif version in ledger and commit.proof != ledger[version] and not _is_void(commit):
            # Without a digest, the line of the ledger may be the one that was altered: no commit is to blame.
            text = f"commit {version} and the ledger differ."
            is_certain = version in read_ledger_file(table, digest_only=True)
            yield TableFinding(Trouble.ALTERED_COMMIT, where, text, version if is_certain else None)


def _check_chain(
    commits: list[Commit], ledger: dict[int, Proof], found: Coverage, replaced: Collection[int]
) -> Iterator[TableFinding]:
    for gap in found.gaps:
        yield TableFinding(Trouble.GAP, str(gap), f"no commit holds {gap}.")
    for overlap in found.overlaps:
        yield TableFinding(Trouble.OVERLAP, str(overlap), f"two commits hold {overlap}.")
    for lost in found.lost:
        yield TableFinding(Trouble.LOST, str(lost), f"{lost} was lost; the loss is recorded.")
    for version, rows in found.unproved.items():
        text = f"{rows} rows of commit {version} were saved from a changed file; they differ from their proof."
        yield TableFinding(Trouble.UNPROVED_ROWS, f"commit {version}", text, version)
    for version in found.unrecorded:
        text = f"commit {version} is from another topic, or has another base, than the commits before it say."
        yield TableFinding(Trouble.UNRECORDED_REBASE, f"commit {version}", text, version)
    for commit in commits:
        before = ledger.get(commit.version)
        if before and is_below(before.end, found.removed.cut):
            continue  # its records were removed since
        if _is_void(commit) and commit.version not in replaced and before and _held_records(before):
            text = f"commit {commit.version} is void; it held {_held(before)}."
            yield TableFinding(Trouble.GAP, f"{commit.version:020}.json", text, commit.version)


def _check_files(table: Path, commits: list[Commit], files: Files, replaced: Collection[int]) -> Iterator[TableFinding]:
    # Listed after the log was read: a file that is committed meanwhile is there, and may look like a stray one.
    there = {entry.name: entry for entry in os.scandir(table) if entry.is_file()} if table.is_dir() else {}
    for file in files.live.values():
        if file.path not in there:
            text = f"{file.path} of commit {file.version} is not there; it held {file.rows} rows."
            yield TableFinding(Trouble.MISSING_FILE, file.path, text, file.version)
        elif (size := there[file.path].stat().st_size) != file.size:
            text = f"{file.path} of commit {file.version} has {size} bytes, not {file.size}."
            yield TableFinding(Trouble.TRUNCATED_FILE, file.path, text, file.version)
    for commit in commits:
        rows, proof = sum(file.rows for file in commit.added), commit.proof
        # Its line may have been cut off behind the proof. Once a repair answers for its rows, that is history.
        if proof and proof.kind in WITH_FILES and rows != proof.rows and commit.version not in replaced:
            text = f"commit {commit.version} names files with {rows} rows, its proof has {proof.rows}."
            yield TableFinding(Trouble.WRONG_ROWS, f"{commit.version:020}.json", text, commit.version)
    known = files.known
    for name in sorted(there):
        if not name.startswith(".") and name not in known:
            yield TableFinding(Trouble.STRAY_FILE, name, f"{name} is named by no commit.")


def _check_total(files: Files, held: Coverage) -> Iterator[TableFinding]:
    """The files that a reader would read hold as many rows as the proofs say, by what the log says of the files."""
    rows, proved = sum(file.rows for file in files.live.values()), held.rows
    if rows != proved:
        yield TableFinding(
            Trouble.WRONG_ROWS, "the table", f"the table's files hold {rows} rows, the proofs have {proved}."
        )


def check_checkpoints(table: Path, *, all_of_them: bool, above: int = 0) -> Iterator[TableFinding]:
    """Delta checkpoints are a cache of the log; a bad one makes the table unreadable until it is out of the way.

    Delta reads the newest alone. Each is about as large as the whole table's list of files. Those of versions below
    `above` are left out.
    """
    log = table / "_delta_log"
    if not log.is_dir():
        return
    names = {entry.name: found for entry in os.scandir(log) if (found := CHECKPOINT_FILE.fullmatch(entry.name))}
    newest = max((int(found[1]) for found in names.values()), default=-1)
    for name in sorted(names):
        if int(names[name][1]) == newest or (all_of_them and int(names[name][1]) >= above):
            try:
                with pq.ParquetFile(log / name) as file:
                    deque(file.iter_batches(), maxlen=0)  # all of it: any page may be the bad one
            except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
                text = f"{name} cannot be read: {(str(error) or type(error).__name__).splitlines()[0][:100]}"
                yield TableFinding(Trouble.CORRUPT_CHECKPOINT, name, text)
    pointer = log / "_last_checkpoint"
    if pointer.is_file():
        try:
            version = int(json.loads(pointer.read_text(encoding="utf-8"))["version"])
        except (ValueError, KeyError, TypeError):
            yield TableFinding(Trouble.CORRUPT_CHECKPOINT, pointer.name, "_last_checkpoint cannot be read.")
            return
        if not any(int(found[1]) == version for found in names.values()):
            text = f"_last_checkpoint names version {version}, of which there is no checkpoint."
            yield TableFinding(Trouble.CORRUPT_CHECKPOINT, pointer.name, text)


# ---- deep --------------------------------------------------------------------


def deep_check(spark: SparkSession, table: Path) -> list[TableFinding]:
    """The quick check, and then every row: each commit's files hold the rows and the hash that its proof says."""
    findings = _check(table, afresh=True)
    troubles = {finding.trouble for finding in findings}
    if Trouble.DAMAGED_SEGMENT in troubles:
        return findings
    history = read_history(table, afresh=True, whole=Trouble.DAMAGED_HISTORY not in troubles)
    commits, live = history.commits, history.files.live
    bad = {finding.where for finding in findings}
    found = hash_files(spark, table, [file for file in live.values() if file.path not in bad])
    findings += _compare(commits, effective_proofs(commits, history.ledger), live, found)
    if not any(finding.is_damage for finding in findings):
        findings += _differences(_sum(found, live), of_history(history), "the table", None)
    return findings


class Measurement(NamedTuple):
    """What a data file really holds."""

    rows: int = 0
    hash: int = 0
    parsed_hash: int = 0

    def plus(self, other: Measurement) -> Measurement:
        """The measurement of both together."""
        return Measurement(self.rows + other.rows, self.hash ^ other.hash, self.parsed_hash ^ other.parsed_hash)


def _compare(
    commits: list[Commit], proofs: dict[int, Proof], live: dict[str, TableFile], found: dict[str, Measurement | str]
) -> Iterator[TableFinding]:
    for path, value in found.items():
        if isinstance(value, str):
            yield TableFinding(Trouble.TRUNCATED_FILE, path, f"{path} cannot be read: {value}", live[path].version)
    readable = {path for path, value in found.items() if not isinstance(value, str)}
    for commit in commits:
        names = [file.path for file in commit.added]
        proof = proofs.get(commit.version)
        if names and readable.issuperset(names) and proof and proof.kind in WITH_FILES:
            yield from _differences(_sum(found, names), proof, f"commit {commit.version}", commit.version)


def _sum(found: Mapping[str, Measurement | str], names: Collection[str]) -> Measurement:
    total = Measurement()
    for name in names:
        value = found[name]
        total = total.plus(value) if isinstance(value, Measurement) else total
    return total


def _differences(got: Measurement, proved: Proof | Coverage, whose: str, version: int | None) -> Iterator[TableFinding]:
    if (got.rows, got.hash) != (proved.rows, proved.hash):
        text = f"the files of {whose} hold {got.rows} rows, the proof has {proved.rows}, or the content differs."
        yield TableFinding(Trouble.WRONG_ROWS, whose, text, version)
    elif got.parsed_hash != proved.parsed_hash:
        text = f"the parsed columns of {whose} are not what was written; the records themselves are."
        yield TableFinding(Trouble.WRONG_ROWS, whose, text, version)


def hash_files(spark: SparkSession, table: Path, files: list[TableFile]) -> dict[str, Measurement | str]:
    """The measurement of each file, read from the file itself, or the reason why it cannot be read."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    from master_dataset.table.append import measures

    if not files:
        return {}
    try:
        frame = spark.read.parquet(*(str(table / file.path) for file in files))
        rows = frame.groupBy(f.col("_metadata.file_name").alias("name")).agg(*measures()).collect()
        found = {row["name"]: Measurement(row["rows"], row["hash"], row["parsed_hash"]) for row in rows}
        return {file.path: found.get(Path(file.path).name, Measurement()) for file in files}
    except (PySparkException, Py4JJavaError) as error:
        if len(files) == 1:
            return {files[0].path: str(error).splitlines()[0][:200]}
    half = len(files) // 2  # one of them is bad: bisect
    return {**hash_files(spark, table, files[:half]), **hash_files(spark, table, files[half:])}


def _is_void(commit: Commit) -> bool:
    return commit.proof is not None and commit.proof.kind == Kind.VOID


def _held_records(proof: Proof) -> bool:
    return proof.kind in Kind.COVERING and any(ranges(proof.start, proof.end))


def _held(proof: Proof) -> str:
    return f"{proof.rows} rows ({'; '.join(map(str, ranges(proof.start, proof.end)))})"
