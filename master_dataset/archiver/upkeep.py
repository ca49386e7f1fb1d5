"""The upkeep of master tables beside the archiver: seal old commits, merge small files, remove replaced and stray ones.

It runs in a thread of the archiver and takes turns with its commits. Whatever fails is logged and tried again; the
archiving itself goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from infra.settings import Settings
from master_dataset.table.append import commit_lock
from master_dataset.table.compaction import compact_once, remove_replaced
from master_dataset.table.sealing import tidy
from master_dataset.table.stray_files import remove_strays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_S = 60.0
STOP_S = 10.0
"""How long the archiver waits for a step to end when it stops. A step that is cut off leaves at most stray files, which
a later round removes."""

log = structlog.get_logger()


class Upkeep:
    """The upkeep of the tables that `find_tables` gives: those that are archived now."""

    def __init__(self, settings: Settings, spark: SparkSession, find_tables: Callable[[], Iterable[Path]]) -> None:
        self.settings = settings
        self.spark = spark
        self.find_tables = find_tables
        self.stopping = threading.Event()
        self.reasons: dict[Path, str] = {}
        """Why the upkeep of a table failed the last time: each reason is logged once."""
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that is being done."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self.stopping.wait(EVERY_S):
            for table in self.find_tables():
                if not self.stopping.is_set():
                    self.attend(table)

    def attend(self, table: Path) -> None:
        """Do what is due for one table."""
        try:
            with commit_lock(table):
                tidied = tidy(table)
            merged = self._merge(table)
            keep_s = self.settings.master_keep_replaced_hours * 3600
            replaced, strays = remove_replaced(table, keep_s), remove_strays(table, keep_s)
        except Exception as error:  # whatever it is, the records are safe, and archiving must go on
            if self.reasons.get(table) != str(error):
                log.warning("upkeep_failed", source=table.name, reason=str(error))
            self.reasons[table] = str(error)
            return
        self.reasons.pop(table, None)
        done = {"log_files": tidied.removed, "merged": merged, "replaced": replaced, "strays": strays}
        if any(done.values()):
            log.info("tidied", source=table.name, **done)

    def _merge(self, table: Path) -> int:
        """Merge small files once there are enough; a step at a time, so that the archiver is not held up."""
        enough, merged = self.settings.master_compact_files, 0
        while enough and not self.stopping.is_set():
            step = compact_once(
                self.spark, table, large_bytes=self.settings.master_file_mb * 2**20, min_files=max(2, enough)
            )
            merged += step
            if not step:
                break
        return merged
