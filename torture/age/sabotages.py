"""Ways to let an installation age badly, so that the verdict can be seen to fail.

Those that a setting can do are settings. `OLD_VERSION` together gives the behaviour of 0.1.0: no sealing, no merging of
small files, and a commit every 5 seconds instead of every minute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from master_dataset.archiver import upkeep
from master_dataset.table.sealing import Tidied, seal

SETTINGS: dict[str, dict[str, Any]] = {
    "no-compaction": {"master_compact_files": 0},
    "no-retiring": {"speed_grace_s": 1e12},
    "no-pruning": {"batch_keep_runs": 1_000_000},
}
TIDY = "tidy"
PATCHED = ("no-sealing", "no-trimming")
"""`no-trimming`: commits are sealed, but checkpoints and commits stay in Delta's log."""
MORE_COMMITS = "commit-often"
"""Twelve times as many commits of the archiver: every 5 s instead of every minute."""
NAMES = (*SETTINGS, *PATCHED, MORE_COMMITS)
OLD_VERSION = ("no-sealing", "no-compaction", MORE_COMMITS)


def settings_of(names: Collection[str]) -> dict[str, Any]:
    """The settings that these sabotages change."""
    return {key: value for name in names if name in SETTINGS for key, value in SETTINGS[name].items()}


@contextmanager
def patched(names: Collection[str]) -> Iterator[None]:
    """The upkeep of the master table without sealing or trimming, while the block runs."""
    before = vars(upkeep)[TIDY]
    if "no-sealing" in names:
        setattr(upkeep, TIDY, _no_tidy)
    elif "no-trimming" in names:
        setattr(upkeep, TIDY, _seal_only)
    try:
        yield
    finally:
        setattr(upkeep, TIDY, before)


def _no_tidy(_table: Path) -> Tidied:
    return Tidied()


def _seal_only(table: Path) -> Tidied:
    return Tidied(seal(table))
