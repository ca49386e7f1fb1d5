"""Keep the archiver away from a table while a command has to write it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from master_dataset.table.append import TableBusy, archiver_lock, lock_holder

PATIENCE_S = 60.0


@contextmanager
def without_archiver(table: Path) -> Iterator[None]:
    """Hold the archiver's lock. A running archiver is asked to stop; the supervisor's next one waits its turn."""
    deadline = time.monotonic() + PATIENCE_S
    asked: set[int] = set()
    while True:
        try:
            with archiver_lock(table, "upkeep"):
                yield
                return
        except TableBusy:
            if time.monotonic() > deadline:
                raise
        holder = lock_holder(table)
        if holder is not None and holder not in asked:
            asked.add(holder)
            with suppress(ProcessLookupError):
                os.kill(holder, signal.SIGTERM)
        time.sleep(0.1)
