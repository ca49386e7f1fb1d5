"""Tell how far a Spark job is, while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

Report = Callable[[str, int, int], None]
EVERY_S = 0.5


def quiet(_stage: str, _done: int, _total: int) -> None:
    """Report nothing."""


@contextmanager
def reported(spark: SparkSession, report: Report, stage: str, rows: int) -> Iterator[None]:
    """Report `stage` while the block runs: how many of its `rows` are done, by the share of Spark's tasks that are."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            report(stage, round(rows * _share(spark)), rows)

    report(stage, 0, rows)
    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    report(stage, rows, rows)


def _share(spark: SparkSession) -> float:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    tasks = sum(stage.numTasks for stage in known)
    return sum(stage.numCompletedTasks for stage in known) / tasks if tasks else 0.0
