"""The commits of a master table, read from the Delta log as plain files: no Spark, no trust.

A commit file that was read before and has the same size and times is not parsed again: `commit_cache` has its content.
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

COMMIT_FILE = re.compile(r"(\d{20})\.json")


class TableFile(NamedTuple):
    """A Parquet file as its commit describes it."""

    path: str
    size: int
    rows: int
    version: int


@dataclass(frozen=True)
class Commit:
    """One commit file. `damage` says what is wrong with it, or is empty; `stamp` is None if it was not read itself."""

    version: int
    proof: Proof | None = None
    added: tuple[TableFile, ...] = ()
    removed: tuple[str, ...] = ()
    damage: str = ""
    stamp: Stamp | None = field(default=None, compare=False)


def commit_file(table: Path, version: int) -> Path:
    """The file of a commit."""
    return table / "_delta_log" / f"{version:020}.json"


def read_commits(table: Path, *, afresh: bool = False) -> list[Commit]:
    """Every commit whose file is there, in order. A file that cannot be read is a commit with `damage`.

    A file that is as it was when we wrote and synced it is not read again, unless `afresh`: its size and times are
    compared, and so an emptied, torn or replaced one is noticed, but not a byte that the disk itself changed.
    """
    log = table / "_delta_log"
    if not log.is_dir():
        return []
    known = {} if afresh else read_entries(remembered_file(table))
    commits = []
    for file in sorted(os.scandir(log), key=lambda file: file.name):
        if found := COMMIT_FILE.fullmatch(file.name):
            entry = known.get(int(found[1]))
            is_known = entry is not None and entry.stamp == stamp_of(file.stat())
            commits.append(_from_entry(entry) if entry is not None and is_known else read_commit(Path(file.path)))
    return commits


def read_commit(path: Path) -> Commit:
    """One commit file."""
    version = int(path.stem)
    stamp = stamp_of(path.stat())  # before it is read: a change in between must show
    text = path.read_bytes()
    if not text.strip():
        return Commit(version, damage="it is empty", stamp=stamp)
    try:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        return _from_actions(version, actions, stamp)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Commit(version, damage=f"it is torn ({type(error).__name__}: {str(error)[:80]})", stamp=stamp)


def _from_actions(version: int, actions: list[dict[str, Any]], stamp: Stamp) -> Commit:
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
    return Commit(version, proof_from_json(info.get("userMetadata") or ""), tuple(added), removed, stamp=stamp)


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


def _entries(commits: Iterable[Commit]) -> Iterator[CachedCommit]:
    """The commits that were read from their own files and are sound."""
    for commit in commits:
        if commit.stamp is not None and commit.proof is not None and not commit.damage:
            added = [[file.path, file.size, file.rows] for file in commit.added]
            yield CachedCommit(commit.version, commit.stamp, [commit.proof.to_json(), added, list(commit.removed)])


def _from_entry(entry: CachedCommit) -> Commit:
    proof, added, removed = entry.content
    files = tuple(TableFile(path, size, rows, entry.version) for path, size, rows in added)
    return Commit(entry.version, proof_from_json(proof), files, tuple(removed))
