"""The clock of an ageing installation: it runs like the real one, but skips a day from night to night.

Python's `time.time` and `time.time_ns` give it, in this process; Delta has it by its own injected clock, and files get
its time as the time of their last change. Durations are measured by `time.monotonic`, which stays right.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

DAY_S = 86_400


class SimulatedClock:
    """Runs like the real clock, but ahead of it by as many days as were skipped."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self._real = time.time
        self._ahead_s = ahead_s
        self._real_until = self._real()
        self._for_delta: Any = None

    def now(self) -> float:
        """Seconds since 1970."""
        return self._real() + self._ahead_s

    @property
    def ahead_s(self) -> float:
        """By how many seconds it is ahead of the real clock."""
        return self._ahead_s

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Everything in this process reads this clock while the block runs."""
        before = time.time, time.time_ns
        time.time, time.time_ns = self.now, lambda: int(self.now() * 1e9)
        try:
            yield
        finally:
            time.time, time.time_ns = before

    def skip_day(self) -> None:
        """The next night, at the same time of the day."""
        self._ahead_s += DAY_S - (self._real() - self._real_until)
        self._real_until = self._real()
        if self._for_delta is not None:
            self._for_delta.setTime(int(self.now() * 1000))

    def give_to_delta(self, spark: SparkSession, table: Path) -> None:
        """Let Delta read this clock for a table from now on."""
        jvm: Any = spark._jvm
        if self._for_delta is None:
            self._for_delta = jvm.org.apache.spark.util.ManualClock(int(self.now() * 1000))
        logs = jvm.org.apache.spark.sql.delta.DeltaLog
        path = jvm.org.apache.hadoop.fs.Path(str(table))
        session = spark._jsparkSession
        if logs.forTable(session, path).clock().getClass().getSimpleName() != "ManualClock":
            logs.invalidateCache(session, path)
            logs.forTable(session, path, self._for_delta)

    def date_files(self, folder: Path) -> None:
        """Give the files that were written since the last time the time of this clock: the kernel has the real one."""
        now, real = self.now(), self._real() + 1
        for root, _, names in os.walk(folder):
            for path in (Path(root, name) for name in names):
                with suppress(FileNotFoundError):  # Redis and Spark replace files of theirs
                    if path.stat().st_mtime <= real:
                        os.utime(path, (now, now))
