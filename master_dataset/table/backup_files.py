"""The files of a master table that a backup needs: the table at one committed version, and what we keep beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from infra.settings import Settings
from master_dataset.cut import cut_to_json
from master_dataset.table.append import commit_lock
from master_dataset.table.checks.fsck import refuse_damage
from master_dataset.table.coverage import of_history
from master_dataset.table.delta_log import remembered_file
from master_dataset.table.history import History, read_history
from master_dataset.table.paths import own_folder
from master_dataset.table.proofs import Kind

Add = Callable[[Path, bool], None]
"""Takes a file, and whether files of that name never change. FileNotFoundError where it is gone."""


def master_folder(settings: Settings) -> Path:
    """Where the tables of all sources are."""
    return settings.master_dir or settings.home / "master"


def all_tables(settings: Settings) -> list[Path]:
    """The tables of every source, declared or not any more."""
    return sorted(log.parent for log in master_folder(settings).glob("*/_delta_log") if log.is_dir())


def back_up(table: Path, add: Add) -> dict[str, Any]:
    """Give every file of the newest version to `add`, and say how far the table goes. The archiver goes on meanwhile.

    It waits only for the second look, which finds what was committed during the first.
    """
    for path in [*_data_files(read_history(table)), *_segments(table)]:
        with suppress(FileNotFoundError):  # merged and removed meanwhile; the second look finds the file that has it
            add(path, True)
    with commit_lock(table):
        refuse_damage(table.name, table)
        history = read_history(table)
        for path in [*_data_files(history), *_segments(table)]:
            add(path, True)
        for path in _log_files(table, history.newest):
            add(path, path.suffix == ".json")
        for path in _own_files(table):
            add(path, False)
        held = of_history(history)
    return {
        "master_version": history.newest,
        "master_cut": cut_to_json(held.cut),
        "topic_id": held.topic_id,
        **({"foundation": held.removed.foundation} if held.removed.cut else {}),
    }


def _data_files(history: History) -> Iterator[Path]:
    """The live ones, and those that a repair replaced: they may hold rows that nothing else has."""
    yield from (history.table / name for name in history.files.live)
    for name, each in history.files.replaced.items():
        if each.kind not in Kind.REPLACING and (history.table / name).is_file():
            yield history.table / name


def _segments(table: Path) -> list[Path]:
    return sorted(path for path in (own_folder(table) / "segments").glob("*") if not path.name.startswith("."))


def _log_files(table: Path, newest: int) -> Iterator[Path]:
    for path in sorted((table / "_delta_log").iterdir()):
        number = path.name.partition(".")[0]
        is_of_version = number.isdecimal() and int(number) <= newest
        if path.is_file() and (is_of_version or path.name == "_last_checkpoint"):
            yield path


def _own_files(table: Path) -> Iterator[Path]:
    """All but segments, locks, caches and what a crash left."""
    folder = own_folder(table)
    for place, _folders, names in os.walk(folder):
        for path in (Path(place, name) for name in sorted(names)):
            is_ours = not path.name.startswith(".") and path.suffix not in (".lock", ".number", ".partial")
            if is_ours and path != remembered_file(table) and path.parent != folder / "segments":
                yield path
