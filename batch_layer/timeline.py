"""The timeline of a run: how long each of its phases took, and how many Spark jobs it needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hand_off.manifests import Phase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def no_jobs() -> int:
    """Before there is a session."""
    return 0


@dataclass
class Timeline:
    """Collects phases. Those of a view have its name in front: `page_hits: index`."""

    jobs: Callable[[], int] = no_jobs
    """How many Spark jobs there were so far."""
    phases: list[Phase] = field(default_factory=list)

    def count_jobs_of(self, spark: SparkSession) -> None:
        """Count the jobs of a session from now on. Nobody else uses it meanwhile."""
        scheduler = spark.sparkContext._jsc.sc().dagScheduler()
        self.jobs = lambda: int(scheduler.numTotalJobs())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block, also where it fails."""
        begin, jobs = time.monotonic(), self.jobs()
        try:
            yield
        finally:
            self.phases.append(Phase(name, round(time.monotonic() - begin, 3), self.jobs() - jobs))
