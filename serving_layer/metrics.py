"""Metrics of the serving layer: the duration of queries, degraded answers, the freshness of sources.

Several processes share one port, and Prometheus reaches any of them. So they write their counters into files of one
folder (the multiprocess mode of prometheus-client, switched on by the environment), and the one that is asked adds up.
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
    PerSource("run", "Number of the served run; 0 if there is none yet.", lambda source, _now: source["run"]),
    PerSource(
        "batch_age_seconds",
        "Seconds since the served run was published.",
        lambda source, _now: source["batch_age_s"],
    ),
    PerSource("lag_events", "Events in Kafka that are not in answers yet.", lambda source, _now: source["lag_events"]),
    PerSource("lag_seconds", "How far answers are behind Kafka, in seconds.", lambda source, _now: source["lag_s"]),
    PerSource(
        "degraded",
        "1 if answers lack the events since the run: Redis does not reply or holds no speed views, or a rollback.",
        lambda source, _now: float(source["degraded"]),
    ),
)


PER_VIEW = {
    "compared_groups": "Groups of the speed view that the last comparison checked against the batch view.",
    "mismatched_groups": "Checked groups that differed.",
    "unexplained_groups": "Checked groups that differed, and not because of duplicates after the horizon.",
    "set_aside": "1 if the speed view is quarantined: answers are those of the batch view alone.",
}


class ViewMetrics(Collector):
    """Results of the comparisons of speed views with batch views, read on each scrape."""

    def __init__(self, views: Callable[[], Iterable[tuple[str, str, Mapping[str, float]]]]) -> None:
        """`views` gives source, view and its numbers, by the names of `PER_VIEW`."""
        self._views = views

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry."""
        found = list(self._views())
        for name, help_ in PER_VIEW.items():
            family = GaugeMetricFamily(f"tidemark_serving_{name}", help_, labels=["source", "view"])
            for source, view, numbers in found:
                if name in numbers:
                    family.add_metric([source, view], numbers[name])
            yield family


class ServingMetrics:
    """The metrics of this process, and of all that share its folder."""

    def __init__(
        self,
        freshness: Callable[[], Mapping[str, Mapping[str, Any]]],
        own: CollectorRegistry | None = None,
        views: Callable[[], Iterable[tuple[str, str, Mapping[str, float]]]] = tuple,
    ) -> None:
        """`freshness` gives the values of `PER_SOURCE` by source, `views` those of `PER_VIEW`."""
        self._views = ViewMetrics(views)
        self._own = own or new_registry("serving")
        self._freshness = SourceMetrics("tidemark_serving", PER_SOURCE, lambda: _status(freshness))
        self._seconds = Histogram(
            "tidemark_serving_answer_seconds",
            "Duration of queries by view and outcome: answered, not-modified, or the kind of problem.",
            ["view", "outcome"],
            buckets=SECONDS,
            registry=self._own,
        )
        self._by_labels: dict[tuple[str, str], Histogram] = {}
        self._by_status: dict[int, Counter] = {}
        self._degraded = Counter(
            "tidemark_serving_degraded_answers",
            "Degraded answers: they lack the newest events.",
            ["view"],
            registry=self._own,
        )
        self._responses = Counter(
            "tidemark_serving_responses", "Responses by HTTP status.", ["status"], registry=self._own
        )
        self._in_flight = Gauge(
            "tidemark_serving_requests_in_flight",
            "Queries in execution.",
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
        """Time the queries of one request. The caller puts the label into the mapping as `outcome`."""
        labels = {"outcome": "failed"}
        began = self.begin_query()
        try:
            yield labels
        finally:
            self.end_query(began, views, labels["outcome"])

    def begin_query(self) -> float:
        """One more query is in execution. Returns when it began, for `end_query`."""
        self._in_flight.inc()
        return time.perf_counter()

    def end_query(self, began: float, views: Iterable[str], outcome: str) -> None:
        """It has ended, for each of these views with this outcome."""
        self._in_flight.dec()
        seconds = time.perf_counter() - began
        for view in views:
            self._observed(view, outcome).observe(seconds)

    def _observed(self, view: str, outcome: str) -> Histogram:
        """The histogram with these labels. prometheus-client takes a lock and checks the labels each time."""
        found = self._by_labels.get((view, outcome))
        if found is None:
            found = self._by_labels[view, outcome] = self._seconds.labels(view, outcome)
        return found

    def count_degraded(self, view: str) -> None:
        """Count a degraded answer of a view."""
        self._degraded.labels(view).inc()

    def count_response(self, status: int) -> None:
        """One more response."""
        found = self._by_status.get(status)
        if found is None:
            found = self._by_status[status] = self._responses.labels(str(status))
        found.inc()

    def registry(self) -> CollectorRegistry:
        """All metrics: of this process, or of all that share the folder; and the freshness of sources and views."""
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
    """Remove the gauges of processes that have ended: their queries are no longer in execution."""
    for pid in {int(found[1]) for path in folder.glob("gauge_live*.db") if (found := OF_PROCESS.search(path.name))}:
        if not psutil.pid_exists(pid):
            multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
