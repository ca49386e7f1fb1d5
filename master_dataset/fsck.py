"""Prove that a master table lost nothing, or name what it lost.

The quick check reads the log, the ledger and the sizes of files; it runs at each start of the archiver. The deep one
reads every row and compares its hash with the proofs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq

from master_dataset.commits import Commit, DataFile, Kind, Proof, live_files, read_commits, read_ledger
from master_dataset.coverage import Coverage, effective_proofs, follow
from master_dataset.cut import ranges
from master_dataset.errors import MasterDatasetError

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
    STRAY_FILE = "stray file"
    LOST = "lost offsets"


HARMLESS = (Trouble.STRAY_FILE, Trouble.LOST)
"""No fact is at risk: a crash leaves stray files, and lost offsets were accepted by a person."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and where. `version` is the commit it belongs to, if it belongs to one."""

    trouble: Trouble
    where: str
    text: str
    version: int | None = None

    @property
    def is_damage(self) -> bool:
        """Whether facts are missing, doubled or in danger."""
        return self.trouble not in HARMLESS


class TableDamaged(MasterDatasetError):
    """The quick check found damage: nothing may be appended before it is repaired."""

    def __init__(self, source: str, path: Path, damage: list[Finding]) -> None:
        shown = "\n".join(f"  {each.trouble}: {each.text}" for each in damage[:10])
        super().__init__(
            f"The master table of {source!r} in {str(path)!r} is damaged ({len(damage)} findings):\n{shown}\n"
            f"`tidemark master repair {source}` brings back what it can and names what it cannot."
        )
        self.damage = damage


def quick_check(table: Path) -> list[Finding]:
    """Everything that can be told from the log, the ledger and the folder. Reads no row and needs no Spark."""
    if not table.is_dir():
        return []
    commits, ledger = read_commits(table), read_ledger(table)
    return [
        *_check_commits(commits, ledger),
        *_check_chain(commits, ledger),
        *_check_files(table, commits),
        *_check_checkpoints(table),
    ]


def _check_commits(commits: list[Commit], ledger: dict[int, Proof]) -> Iterator[Finding]:
    there = {commit.version: commit for commit in commits}
    for version in range(max([*there, *ledger], default=-1) + 1):
        where, commit = f"{version:020}.json", there.get(version)
        if commit is None:
            known = f" It held {_held(ledger[version])}." if version in ledger else ""
            yield Finding(Trouble.MISSING_COMMIT, where, f"commit {version} is not there.{known}", version)
        elif commit.damage:
            trouble = Trouble.EMPTY_COMMIT if "empty" in commit.damage else Trouble.TORN_COMMIT
            known = f" It held {_held(ledger[version])}." if version in ledger else ""
            yield Finding(trouble, where, f"commit {version}: {commit.damage}.{known}", version)
        elif version in ledger and commit.proof != ledger[version] and not _is_void(commit):
            yield Finding(
                Trouble.ALTERED_COMMIT, where, f"commit {version} and the ledger do not say the same.", version
            )


def _check_chain(commits: list[Commit], ledger: dict[int, Proof]) -> Iterator[Finding]:
    proofs = effective_proofs(commits, ledger)
    found = follow(proofs)
    for gap in found.gaps:
        yield Finding(Trouble.GAP, str(gap), f"no commit holds {gap}.")
    for overlap in found.overlaps:
        yield Finding(Trouble.OVERLAP, str(overlap), f"two commits hold {overlap}.")
    for lost in found.lost:
        yield Finding(Trouble.LOST, str(lost), f"{lost} was lost, and that was accepted.")
    replaced = {version for proof in proofs.values() for version in proof.replaces}
    for commit in commits:
        if _is_void(commit) and commit.version not in replaced and commit.version in ledger:
            held = _held(ledger[commit.version])
            yield Finding(Trouble.GAP, f"{commit.version:020}.json", f"void: it held {held}", commit.version)


def _check_files(table: Path, commits: list[Commit]) -> Iterator[Finding]:
    live = live_files(commits)
    for file in live.values():
        path = table / file.path
        if not path.is_file():
            text = f"{file.path} of commit {file.version} is not there; it held {file.rows} rows."
            yield Finding(Trouble.MISSING_FILE, file.path, text, file.version)
        elif path.stat().st_size != file.size:
            text = f"{file.path} of commit {file.version} has {path.stat().st_size} bytes, not {file.size}."
            yield Finding(Trouble.TRUNCATED_FILE, file.path, text, file.version)
    for commit in commits:
        rows = sum(file.rows for file in commit.added)
        if commit.proof and commit.proof.kind in (Kind.APPEND, Kind.REPAIR) and rows != commit.proof.rows:
            text = f"commit {commit.version} names files with {rows} rows, its proof says {commit.proof.rows}."
            yield Finding(Trouble.WRONG_ROWS, f"{commit.version:020}.json", text, commit.version)
    known = {file.path for commit in commits for file in commit.added}
    for name in sorted(entry.name for entry in os.scandir(table) if entry.is_file()):
        if not name.startswith(".") and name not in known:
            yield Finding(Trouble.STRAY_FILE, name, f"{name} is named by no commit.")


def _check_checkpoints(table: Path) -> Iterator[Finding]:
    """Delta checkpoints are a cache of the log; a bad one makes the table unreadable until it is out of the way."""
    log = table / "_delta_log"
    if not log.is_dir():
        return
    names = sorted(entry.name for entry in os.scandir(log))
    for name in names:
        if CHECKPOINT_FILE.fullmatch(name):
            try:
                pq.read_table(log / name, columns=["protocol"])
            except (OSError, ValueError) as error:
                text = f"{name} cannot be read: {str(error).splitlines()[0][:100]}"
                yield Finding(Trouble.CORRUPT_CHECKPOINT, name, text)
    pointer = log / "_last_checkpoint"
    if pointer.is_file():
        try:
            version = int(json.loads(pointer.read_text(encoding="utf-8"))["version"])
        except (ValueError, KeyError, TypeError):
            yield Finding(Trouble.CORRUPT_CHECKPOINT, pointer.name, "_last_checkpoint cannot be read.")
            return
        if not any((found := CHECKPOINT_FILE.fullmatch(name)) and int(found[1]) == version for name in names):
            text = f"_last_checkpoint names version {version}, of which there is no checkpoint."
            yield Finding(Trouble.CORRUPT_CHECKPOINT, pointer.name, text)


# ---- deep --------------------------------------------------------------------


def deep_check(spark: SparkSession, table: Path) -> list[Finding]:
    """The quick check, and then every row: each commit's files hold the rows and the hash that its proof says."""
    findings = quick_check(table)
    if any(finding.is_damage for finding in findings):
        return findings
    commits = read_commits(table)
    proofs = effective_proofs(commits, read_ledger(table))
    live = live_files(commits)
    found = hash_files(spark, table, list(live.values()))
    return [*findings, *_compare(commits, proofs, live, found)]


class Measured(NamedTuple):
    """What a data file really holds."""

    rows: int = 0
    hash: int = 0
    parsed_hash: int = 0

    def plus(self, other: Measured) -> Measured:
        """Of both together."""
        return Measured(self.rows + other.rows, self.hash ^ other.hash, self.parsed_hash ^ other.parsed_hash)


def _compare(
    commits: list[Commit], proofs: dict[int, Proof], live: dict[str, DataFile], found: dict[str, Measured | str]
) -> Iterator[Finding]:
    for path, value in found.items():
        if isinstance(value, str):
            yield Finding(Trouble.TRUNCATED_FILE, path, f"{path} cannot be read: {value}", live[path].version)
    readable = {path: value for path, value in found.items() if not isinstance(value, str)}
    if len(readable) < len(found):
        return
    total, by_version = Measured(), dict.fromkeys(proofs, Measured())
    for path, value in readable.items():
        total = total.plus(value)
        by_version[live[path].version] = by_version.get(live[path].version, Measured()).plus(value)
    for commit in commits:
        is_whole = commit.added and all(file.path in live for file in commit.added)
        proof = proofs.get(commit.version)
        if is_whole and proof and proof.kind in (Kind.APPEND, Kind.REPAIR):
            yield from _differences(by_version[commit.version], proof, f"commit {commit.version}", commit.version)
    yield from _differences(total, follow(proofs), "the table", None)


def _differences(got: Measured, said: Proof | Coverage, whose: str, version: int | None) -> Iterator[Finding]:
    if (got.rows, got.hash) != (said.rows, said.hash):
        text = f"the files of {whose} hold {got.rows} rows, the proof says {said.rows}, or as many with other content."
        yield Finding(Trouble.WRONG_ROWS, whose, text, version)
    elif got.parsed_hash != said.parsed_hash:
        text = f"the parsed columns of {whose} are not what was written; the records themselves are."
        yield Finding(Trouble.WRONG_ROWS, whose, text, version)


def hash_files(spark: SparkSession, table: Path, files: list[DataFile]) -> dict[str, Measured | str]:
    """What each file holds as read from the file itself, or why it cannot be read."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    from master_dataset.table import measures

    if not files:
        return {}
    try:
        frame = spark.read.parquet(*(str(table / file.path) for file in files))
        rows = frame.groupBy(f.col("_metadata.file_name").alias("name")).agg(*measures()).collect()
        found = {row["name"]: Measured(row["rows"], row["hash"], row["parsed_hash"]) for row in rows}
        return {file.path: found.get(Path(file.path).name, Measured()) for file in files}
    except (PySparkException, Py4JJavaError) as error:
        if len(files) == 1:
            return {files[0].path: str(error).splitlines()[0][:200]}
    half = len(files) // 2  # one of them is bad: find it by halves
    return {**hash_files(spark, table, files[:half]), **hash_files(spark, table, files[half:])}


def _is_void(commit: Commit) -> bool:
    return commit.proof is not None and commit.proof.kind == Kind.VOID


def _held(proof: Proof) -> str:
    return f"{proof.rows} rows ({'; '.join(map(str, ranges(proof.start, proof.end)))})"
