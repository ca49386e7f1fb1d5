"""The speed layer's metrics: how far each source is behind, how long micro-batches take, and what Redis holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from infra.metrics import PerSource, SourceMetrics
from infra.process_status import ProcessStatus

PER_SOURCE = (
    PerSource(
        "behind_events", "Events in Kafka that are not applied yet.", lambda source, _now: source["behind_events"]
    ),
    PerSource(
        "behind_seconds",
        "Age of the newest applied event while others wait; 0: none does.",
        lambda source, _now: source["behind_s"],
    ),
    PerSource("events", "Events counted since the start.", lambda source, _now: source["events"], is_counter=True),
    PerSource(
        "copies",
        "Events dropped since the start: their id was counted.",
        lambda source, _now: source["copies"],
        is_counter=True,
    ),
    PerSource(
        "micro_batches", "Micro-batches since the start.", lambda source, _now: source["micro_batches"], is_counter=True
    ),
    PerSource(
        "micro_batch_seconds",
        "What all micro-batches took, from where Spark hands one over until Redis has it.",
        lambda source, _now: source["micro_batches_s"],
        is_counter=True,
    ),
    PerSource("last_micro_batch_seconds", "What the last one took.", lambda source, _now: source["last_micro_batch_s"]),
    PerSource("states", "States in Redis, of all generations.", lambda source, _now: source["states"]),
    PerSource("state_bytes", "About what they take of its memory.", lambda source, _now: source["state_bytes"]),
    PerSource(
        "redis_used_bytes",
        "Memory that Redis has in use, for all sources together.",
        lambda source, _now: source["redis_used_bytes"],
    ),
    PerSource(
        "redis_max_bytes",
        "Memory that Redis may use; left out if there is no maximum.",
        lambda source, _now: source["redis_max_bytes"],
    ),
    PerSource("starts", "How often its query was started.", lambda source, _now: source["starts"], is_counter=True),
    PerSource("refused", "1 where the source cannot go on now.", lambda source, _now: float(bool(source["refused"]))),
)


PER_VIEW = {
    "groups": "Groups of the view in Redis, of all generations.",
    "largest_bucket_groups": "Groups in that bucket of the view that has most. It grows where keys are without end.",
}


class SpeedMetrics(SourceMetrics):
    """The numbers of each source, and those of each of its views."""

    def _families(self, status: ProcessStatus) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        yield from super()._families(status)
        for name, help_ in PER_VIEW.items():
            family = GaugeMetricFamily(f"tidemark_speed_{name}", help_, labels=["source", "view"])
            for source, numbers in status.sources.items():
                for view, count in numbers[name].items():
                    family.add_metric([source, view], count)
            yield family


def speed_metrics(say: Callable[[], Mapping[str, Mapping[str, Any]]]) -> SpeedMetrics:
    """What the writers report of their sources."""
    return SpeedMetrics("tidemark_speed", PER_SOURCE, lambda: ProcessStatus(time.time(), sources=say()))
