"""The commits of a master table, read from the Delta log as plain files: no Spark, no trust.

A commit file that was read before and has the same size and times is not parsed again: `commit_cache` has its content.
Old commits are sealed in segments, and their files may be gone from the log.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from master_dataset.table.commit_cache import CachedCommit, Stamp, add_entries, read_entries, stamp_of
from master_dataset.table.paths import own_folder
from master_dataset.table.proofs import Proof, proof_from_json
from master_dataset.table.segments import NOTHING, sealed_commit, sealed_commits, sealed_until

COMMIT_FILE = re.compile(r"(\d{20})\.json")
CONTENT_MEMBERS = 4
"""Proof, added files, removed files, time. Entries of 0.1.0 have no time."""


class TableFile(NamedTuple):
    """A Parquet file as its commit describes it."""

    path: str
    size: int
    rows: int
    version: int


@dataclass(frozen=True)
class Commit:
    """One commit. `damage` says what is wrong with it, or is empty; `stamp` is None if its file was not read itself.

    `at_ms` is when it was made, by the clock of that time.
    """

    version: int
    proof: Proof | None = None
    added: tuple[TableFile, ...] = ()
    removed: tuple[str, ...] = ()
    damage: str = ""
    at_ms: int = 0
    stamp: Stamp | None = field(default=None, compare=False)


def commit_file(table: Path, version: int) -> Path:
    """The file of a commit."""
    return table / "_delta_log" / f"{version:020}.json"


def read_commits(table: Path, *, afresh: bool = False) -> list[Commit]:
    """Every commit, in order: the sealed ones, then those in the log. It takes as long as the table is old.

    What is asked often is asked of `history`, which reads the newest ones alone.
    """
    sealed = [*read_sealed(table)]
    return [*sealed, *read_log(table, after=sealed[-1].version if sealed else NOTHING, afresh=afresh)]


def read_sealed(table: Path, after: int = NOTHING) -> Iterator[Commit]:
    """The sealed commits above a version, in order."""
    for sealed in sealed_commits(table, after):
        yield parse_commit(sealed.version, sealed.text.encode(), None)


def read_log(table: Path, *, after: int = NOTHING, afresh: bool = False) -> list[Commit]:
    """The commits above a version whose files are in the log, in order.

    A file that cannot be read is a commit with `damage`. A file that is as it was when we wrote and synced it is not
    read again, unless `afresh`: its size and times are compared, and so an emptied, torn or replaced one is noticed,
    but not a byte that the disk itself changed.
    """
    log = table / "_delta_log"
    if not log.is_dir():
        return []
    known = {} if afresh else read_entries(remembered_file(table))
    commits = []
    for file in sorted(os.scandir(log), key=lambda file: file.name):
        if (found := COMMIT_FILE.fullmatch(file.name)) and int(found[1]) > after:
            entry = known.get(int(found[1]))
            commits.append(_from_entry(entry) if entry and _is_current(entry, file) else read_commit(Path(file.path)))
    return commits


def read_commit(path: Path) -> Commit:
    """One commit file."""
    stamp = stamp_of(path.stat())  # before it is read: a change in between must show
    return parse_commit(int(path.stem), path.read_bytes(), stamp)


def parse_commit(version: int, text: bytes, stamp: Stamp | None) -> Commit:
    """The commit that a file of this text is."""
    if not text.strip():
        return Commit(version, damage="it is empty", stamp=stamp)
    try:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        return _from_actions(version, actions, stamp)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Commit(version, damage=f"it is torn ({type(error).__name__}: {str(error)[:80]})", stamp=stamp)


def commit_text(table: Path, version: int) -> str:
    """The text of a commit's file, from the log or as it was sealed."""
    if version > sealed_until(table):
        return commit_file(table, version).read_text(encoding="utf-8")
    sealed = sealed_commit(table, version)
    if sealed is None:
        raise ValueError(f"commit {version} is neither in the log nor sealed")
    return sealed.text


def _from_actions(version: int, actions: list[dict[str, Any]], stamp: Stamp | None) -> Commit:
    info = next((action["commitInfo"] for action in actions if "commitInfo" in action), None)
    if info is None:
        raise ValueError("it has no commitInfo")
    added = []
    for action in actions:
        if "add" in action:
            add = action["add"]
            stats = json.loads(add.get("stats") or "{}")
            added.append(TableFile(unquote(add["path"]), add["size"], stats.get("numRecords", -1), version))
    removed = tuple(unquote(action["remove"]["path"]) for action in actions if "remove" in action)
    proof, at_ms = proof_from_json(info.get("userMetadata") or ""), int(info.get("timestamp") or 0)
    return Commit(version, proof, tuple(added), removed, at_ms=at_ms, stamp=stamp)


def live_files(commits: Iterable[Commit]) -> dict[str, TableFile]:
    """The data files of the newest version, by path. One that came back belongs to the commit that first added it."""
    known: dict[str, TableFile] = {}
    live: dict[str, TableFile] = {}
    for commit in commits:
        for path in commit.removed:
            live.pop(path, None)
        live |= {file.path: known.setdefault(file.path, file) for file in commit.added}
    return live


# ---- the cache ----------------------------------------------


def remembered_file(table: Path) -> Path:
    """The cache file. It may be deleted at any time."""
    return own_folder(table) / "commits.remembered"


def remember(table: Path, commits: Collection[Commit]) -> None:
    """Cache these commits, so that the next reader need not parse their files.

    They must be synced: a power cut may still damage an unsynced file without a change of its size or times.
    """
    entries = list(_entries(commits))
    if 2 * len(entries) > len(commits):  # most were missing, or outdated since a backup was restored
        remembered_file(table).unlink(missing_ok=True)
    if entries:
        add_entries(remembered_file(table), entries)


def remember_newest(table: Path, version: int) -> None:
    """Cache the commit that was just written."""
    commit = read_commit(commit_file(table, version))
    add_entries(remembered_file(table), _entries([commit]))


def remember_only(table: Path, after: int) -> None:
    """Drop the entries of sealed commits: their files are not read any more. A crash leaves no cache, or all of it."""
    path = remembered_file(table)
    kept = [entry for version, entry in read_entries(path).items() if version > after]
    path.unlink(missing_ok=True)
    add_entries(path, kept)


def _entries(commits: Iterable[Commit]) -> Iterator[CachedCommit]:
    """The commits that were read from their own files and are sound."""
    for commit in commits:
        if commit.stamp is not None and commit.proof is not None and not commit.damage:
            added = [[file.path, file.size, file.rows] for file in commit.added]
            content = [commit.proof.to_json(), added, list(commit.removed), commit.at_ms]
            yield CachedCommit(commit.version, commit.stamp, content)


def _from_entry(entry: CachedCommit) -> Commit:
    proof, added, removed, at_ms = entry.content
    files = tuple(TableFile(path, size, rows, entry.version) for path, size, rows in added)
    return Commit(entry.version, proof_from_json(proof), files, tuple(removed), at_ms=at_ms)


def _is_current(entry: CachedCommit, file: os.DirEntry[str]) -> bool:
    """Whether an entry is of the file as it is, and has what this version of Tidemark puts into one."""
    return len(entry.content) == CONTENT_MEMBERS and entry.stamp == stamp_of(file.stat())
