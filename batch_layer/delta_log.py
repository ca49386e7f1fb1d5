"""The log of a view's Delta table, read as plain files without Spark: whether it is whole, and which run it shows."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hand_off.errors import BatchError

RUN_TAG = "tidemark.run"
"""Under this name, each commit that brings a table to a run has the run's number."""
COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
"""Of one file, of several that each say how many there are, or with a name of its own."""


@dataclass
class TableLog:
    """What a log says at its newest version."""

    version: int = -1
    checkpoint: int | None = None
    """The version of the newest complete checkpoint."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The data files by path, each as the action `add` has it."""
    metadata: dict[str, Any] = field(default_factory=dict)

    def apply(self, actions: Iterable[dict[str, Any]]) -> None:
        """Take the actions of a commit or of a checkpoint."""
        for action in actions:
            if add := action.get("add"):
                self.files[add["path"]] = add
            if remove := action.get("remove"):
                self.files.pop(remove["path"], None)
            self.metadata = action.get("metaData") or self.metadata


def read_log(table: Path) -> TableLog:
    """The newest version of a log in which `damage_of_log` finds nothing."""
    log = log_folder(table)
    names = sorted(file.name for file in os.scandir(log))
    found = TableLog()
    if newest := _newest_checkpoint(names):
        found.version = found.checkpoint = newest[0]
        found.apply(action for name in newest[1] for action in _checkpointed(log / name))
    for name in names:
        if (commit := COMMIT.fullmatch(name)) and int(commit[1]) > found.version:
            found.apply(_actions(log / name))
            found.version = int(commit[1])
    return found


def _checkpointed(path: Path) -> Iterator[dict[str, Any]]:
    """The files and the metadata in a file of a checkpoint. Delta has maps there as lists of pairs."""
    from pyarrow.parquet import read_table

    if path.suffix == ".json":
        raise BatchError(f"The checkpoint {str(path)!r} is of a kind that Tidemark does not write.")
    for action in read_table(path, columns=["add", "metaData"]).to_pylist():
        if add := action["add"]:
            yield {"add": {**add, "partitionValues": dict(add["partitionValues"])}}
        if metadata := action["metaData"]:
            made_of = {**metadata["format"], "options": dict(metadata["format"]["options"] or ())}
            yield {"metaData": {**metadata, "format": made_of, "configuration": dict(metadata["configuration"] or ())}}


def log_folder(table: Path) -> Path:
    """Where a Delta table has its log."""
    return table / "_delta_log"


def damage_of_log(table: Path) -> str:
    """Why the log of a table does not give its newest version; empty where it does.

    A log begins with version 0 or, once Delta has removed old commits, with a checkpoint. From there on no commit may
    be missing.
    """
    log = log_folder(table)
    if not log.is_dir():
        return "there is no log"
    names = sorted(file.name for file in os.scandir(log))
    commits = {int(found[1]): log / name for name in names if (found := COMMIT.fullmatch(name))}
    begin, damage = _checkpoint(log, names)
    if damage:
        return damage
    if begin is None and not commits:
        return "it has neither a commit nor a checkpoint"
    first = 0 if begin is None else begin + 1
    for version in range(first, max(commits, default=first - 1) + 1):
        if version not in commits:
            return f"commit {version} is missing"
        try:
            _actions(commits[version])
        except ValueError as error:
            return f"commit {version} cannot be read ({error})"
    return ""


def exposed_run(table: Path) -> int | None:
    """The run whose files other engines find in a table; None before the first.

    It may be older than the last published one: a crash after the flip leaves the table behind until the next run.
    """
    for commit in sorted(log_folder(table).glob("*.json"), reverse=True):
        if COMMIT.fullmatch(commit.name) and (run := _run_of(commit)) is not None:
            return run
    return None


def _checkpoint(log: Path, names: list[str]) -> tuple[int | None, str]:
    """The version of the newest complete checkpoint, and why that cannot be read."""
    from pyarrow.parquet import read_metadata

    newest = _newest_checkpoint(names)
    if newest is None:
        return None, ""
    version, files = newest
    for name in files:
        try:
            if name.endswith(".parquet"):
                read_metadata(log / name)
            else:
                _actions(log / name)
        except (ValueError, OSError) as error:
            return version, f"checkpoint {version} cannot be read ({str(error).splitlines()[0]})"
    return version, ""


def _newest_checkpoint(names: list[str]) -> tuple[int, list[str]] | None:
    """The version and the files of the newest checkpoint that is complete."""
    parts: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for name in names:
        if found := CHECKPOINT.fullmatch(name):
            parts[int(found[1]), found[2] or ""].append(name)
    complete = [(version, found) for (version, of), found in parts.items() if len(found) == int(of or len(found))]
    return max(complete, default=None)


def _run_of(commit: Path) -> int | None:
    try:
        found = [action["commitInfo"].get("tags", {}) for action in _actions(commit) if "commitInfo" in action]
        return next((int(tags[RUN_TAG]) for tags in found if RUN_TAG in tags), None)
    except (ValueError, TypeError, AttributeError) as error:
        raise BatchError(
            f"{str(commit)!r} cannot be read ({error}), so it is not known which files other engines still need. "
            "`tidemark batch run` replaces the log of a view's current table. If this is the table of an older version "
            f"of a view, delete {str(commit.parent)!r}: its data files stay."
        ) from None


def _actions(commit: Path) -> list[dict[str, Any]]:
    """The actions of a commit; ValueError where it has none or is torn."""
    try:
        actions = [dict(json.loads(line)) for line in commit.read_bytes().splitlines() if line.strip()]
    except TypeError as error:
        raise ValueError(error) from None
    if not actions:
        raise ValueError("it is empty")
    return actions
