"""The scheduler's metrics: how old the newest run of each source is, whether one is overdue, and what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class Gauge(NamedTuple):
    """One number of each source; None where the source has none."""

    name: str
    help: str
    value: Callable[[Mapping[str, Any], float], float | None]


PER_SOURCE = (
    Gauge("run", "Number of the newest published run; 0: there is none.", lambda source, _now: source["run"]),
    Gauge(
        "run_age_seconds",
        "Seconds since the newest published run was started: events that came later are not in the batch views.",
        lambda source, now: None if source["data_from"] is None else now - source["data_from"],
    ),
    Gauge("run_duration_seconds", "How long the newest published run took.", lambda source, _now: source["seconds"]),
    Gauge(
        "overdue_seconds",
        "Seconds since the run was due that is missing; 0: none is, or it may still be at work.",
        lambda source, _now: source["overdue_s"],
    ),
    Gauge(
        "trouble",
        "1 where `tidemark status` has something to say of the source: an overdue run, a damaged publish log.",
        lambda source, _now: float(bool(source["trouble"])),
    ),
    Gauge(
        "behind_offsets",
        "Offsets that are archived and in no published run, by the archiver's last word.",
        lambda source, _now: source["behind"],
    ),
)


class ScheduleMetrics(Collector):
    """Reads the scheduler's status when asked, so that the numbers are those of this moment."""

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For the registry."""
        status = self._status()
        for gauge in PER_SOURCE:
            family = GaugeMetricFamily(f"tidemark_batch_{gauge.name}", gauge.help, labels=["source"])
            for name, source in status["sources"].items():
                if (value := gauge.value(source, status["at"])) is not None:
                    family.add_metric([name], value)
            yield family
        tries = status["last"]["tries"] if status["last"] and status["next_try"] else 0
        yield GaugeMetricFamily("tidemark_batch_failed_tries", "How often the runs that are due have failed.", tries)
