"""Remove stray files: data files that a cut-off append or compaction left, and that no commit names."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from infra.disk import sync_folder
from infra.failpoints import reach
from master_dataset.table.append import commit_lock
from master_dataset.table.checks.fsck import TableDamaged, Trouble, quick_check
from master_dataset.table.history import read_history

DATA_FILE = re.compile(r"part-[\w.-]+\.parquet")
"""What Delta calls the files that it writes. Other files in the folder are somebody else's."""
MIN_AGE_S = 3600.0
"""Younger files always stay. Commits are made under `commit_lock`, but a JVM outlives a killed process for a moment."""


def remove_strays(table: Path, keep_s: float) -> int:
    """Remove the stray files that were last written longer than `keep_s` ago. Returns how many.

    While the table is not sound, all of them stay: a commit that cannot be read may name them.
    """
    until = time.time() - max(keep_s, MIN_AGE_S)
    with commit_lock(table):
        written = {entry.name for entry in os.scandir(table) if _is_old_data_file(entry, until)}
        strays = sorted(written - read_history(table).files.known) if written else []
        if not strays:
            return 0
        _refuse_unsound(table)
        for name in strays:
            reach("strays.before_remove")
            (table / name).unlink(missing_ok=True)
            (table / f".{name}.crc").unlink(missing_ok=True)
        sync_folder(table)
    return len(strays)


def _is_old_data_file(entry: os.DirEntry[str], until: float) -> bool:
    return DATA_FILE.fullmatch(entry.name) is not None and entry.is_file() and entry.stat().st_mtime <= until


def _refuse_unsound(table: Path) -> None:
    findings = quick_check(table)
    if bad := [each for each in findings if each.is_damage or each.trouble is Trouble.DAMAGED_HISTORY]:
        raise TableDamaged(table.name, table, bad)
