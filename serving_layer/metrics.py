"""What the serving layer measures: how long answers take, which are degraded, how fresh the views are.

Several processes share one port, and Prometheus reaches any of them. So they write what they count into files of a
folder (prometheus-client's multiprocess mode, switched on by the environment), and whoever is asked adds all of it up.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from infra.metrics import PerSource, SourceMetrics, new_registry
from infra.process_status import ProcessStatus

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Read by prometheus-client when it is imported."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
OF_PROCESS = re.compile(r"_(\d+)\.db")

PER_SOURCE = (
    PerSource("run", "Number of the run that is served; 0: none yet.", lambda source, _now: source["run"]),
    PerSource(
        "batch_age_seconds",
        "Seconds since the run that is served was published.",
        lambda source, _now: source["batch_age_s"],
    ),
    PerSource("lag_events", "Events in Kafka that no answer holds yet.", lambda source, _now: source["lag_events"]),
    PerSource("lag_seconds", "How old the newest of what answers hold is.", lambda source, _now: source["lag_s"]),
    PerSource(
        "degraded",
        "1 where answers lack what came since the run: Redis does not answer, or has nothing.",
        lambda source, _now: float(source["degraded"]),
    ),
)


PER_VIEW = {
    "compared_groups": "Groups of the view that the last run compared with what the speed side had said of them.",
    "mismatched_groups": "Those of them that differed.",
    "unexplained_groups": "Those of them that differed, and not by copies after the horizon.",
    "set_aside": "1 where the speed side of the view is set aside: its answers are those of the batch view alone.",
}


class ViewMetrics(Collector):
    """What comparisons of the speed side with the batch side found, read when asked."""

    def __init__(self, views: Callable[[], Iterable[tuple[str, str, Mapping[str, float]]]]) -> None:
        """`views` gives source, view and its numbers, by the names of `PER_VIEW`."""
        self._views = views

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For the registry."""
        found = list(self._views())
        for name, help_ in PER_VIEW.items():
            family = GaugeMetricFamily(f"tidemark_serving_{name}", help_, labels=["source", "view"])
            for source, view, numbers in found:
                if name in numbers:
                    family.add_metric([source, view], numbers[name])
            yield family


class ServingMetrics:
    """Counted here, in this process."""

    def __init__(
        self,
        freshness: Callable[[], Mapping[str, Mapping[str, Any]]],
        own: CollectorRegistry | None = None,
        views: Callable[[], Iterable[tuple[str, str, Mapping[str, float]]]] = tuple,
    ) -> None:
        """`freshness` says of each source what `PER_SOURCE` tells, `views` of each view what `PER_VIEW` does."""
        self._views = ViewMetrics(views)
        self._own = own or new_registry("serving")
        self._freshness = SourceMetrics("tidemark_serving", PER_SOURCE, lambda: _status(freshness))
        self._seconds = Histogram(
            "tidemark_serving_answer_seconds",
            "How long answers took, by view and outcome: answered, not-modified, or the kind of the problem.",
            ["view", "outcome"],
            buckets=SECONDS,
            registry=self._own,
        )
        self._degraded = Counter(
            "tidemark_serving_degraded_answers", "Answers without the newest events.", ["view"], registry=self._own
        )
        self._in_flight = Gauge(
            "tidemark_serving_requests_in_flight",
            "Questions that are being answered.",
            multiprocess_mode="livesum",
            registry=self._own,
        )
        self.live = Gauge(
            "tidemark_serving_live_subscribers",
            "Live connections.",
            multiprocess_mode="livesum",
            registry=self._own,
        )

    @contextmanager
    def timing(self, views: list[str]) -> Iterator[dict[str, str]]:
        """Time an answer to questions about `views`. What is put into it as `outcome` becomes the label."""
        said = {"outcome": "failed"}
        began = time.perf_counter()
        self._in_flight.inc()
        try:
            yield said
        finally:
            self._in_flight.dec()
            seconds = time.perf_counter() - began
            for view in views:
                self._seconds.labels(view, said["outcome"]).observe(seconds)

    def count_degraded(self, view: str) -> None:
        """An answer that said so."""
        self._degraded.labels(view).inc()

    def registry(self) -> CollectorRegistry:
        """All there is to tell: of this process, or of all that share the folder; and how fresh the sources are."""
        if folder := os.environ.get(FOLDER_VARIABLE):
            _forget_dead(Path(folder))
            found = CollectorRegistry()
            found.register(multiprocess.MultiProcessCollector(None, folder))  # type: ignore[no-untyped-call]
        else:
            found = CollectorRegistry()
            found.register(self._own)
        found.register(self._freshness)
        found.register(self._views)
        return found


def _status(freshness: Callable[[], Mapping[str, Mapping[str, Any]]]) -> ProcessStatus:
    return ProcessStatus(time.time(), sources=freshness())


def _forget_dead(folder: Path) -> None:
    """What a process that is gone had in flight is not in flight any more."""
    for pid in {int(found[1]) for path in folder.glob("gauge_live*.db") if (found := OF_PROCESS.search(path.name))}:
        if not psutil.pid_exists(pid):
            multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
