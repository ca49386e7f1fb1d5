"""A request to the archiver: commit what Kafka holds now, because somebody waits for it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from master_dataset.table.paths import own_folder


def request_file(table: Path) -> Path:
    """The file whose change asks for a commit."""
    return own_folder(table) / "commit.wanted"


def ask_for_commit(table: Path) -> None:
    """Ask the archiver to commit instead of waiting for more records. Returns at once.

    Without an archiver nothing happens. Whoever may not write beside the table waits for the next commit.
    """
    path = request_file(table)
    with suppress(OSError):
        path.touch()
        os.utime(path)
