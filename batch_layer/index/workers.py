"""Do the work of building an index in Spark's Python workers: several processes, on disks that they share with us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hand_off.errors import BatchError


@dataclass(frozen=True)
class SparkWorkers:
    """Like `map`. `context` is the SparkContext."""

    context: Any

    def __call__(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        """Do the work for each task; what it refuses to do is raised here as it was there."""
        done = self.context.parallelize(tasks, len(tasks)).map(partial(_tried, work)).collect()
        for problem in (problem for _, problem in done if problem):
            raise BatchError(problem)
        return [result for result, _ in done]


def _tried(work: Callable[[Any], Any], task: Any) -> tuple[Any, str]:
    try:
        return work(task), ""
    except BatchError as error:  # Spark would make another error of it, and try again
        return None, str(error)
