"""The scheduler's metrics: how old the newest run of each source is, whether one is overdue, and what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from infra.metrics import PerSource, SourceMetrics
from infra.process_status import ProcessStatus

PER_SOURCE = (
    PerSource("run", "Number of the newest published run; 0: there is none.", lambda source, _now: source["run"]),
    PerSource(
        "run_age_seconds",
        "Seconds since the newest published run was started: events that came later are not in the batch views.",
        lambda source, now: None if source["data_from"] is None else now - source["data_from"],
    ),
    PerSource(
        "run_duration_seconds", "How long the newest published run took.", lambda source, _now: source["seconds"]
    ),
    PerSource(
        "overdue_seconds",
        "Seconds since the run was due that is missing; 0: none is, or it may still be at work.",
        lambda source, _now: source["overdue_s"],
    ),
    PerSource(
        "failed_runs",
        "Runs that failed since the last one that succeeded; 0: the last one succeeded.",
        lambda source, _now: source["failed_runs"],
    ),
    PerSource(
        "last_success_timestamp_seconds",
        "When the newest run was published, in seconds since 1970.",
        lambda source, _now: source["published"],
    ),
    PerSource(
        "backlog_events",
        "Events that the speed layer is behind, as the scheduler sees it.",
        lambda source, _now: source["backlog"]["behind"],
    ),
    PerSource(
        "overtaking",
        "1 where a run overtakes the speed layer, or is about to.",
        lambda source, _now: float(source["backlog"]["action"] in ("wait", "overtake")),
    ),
    PerSource(
        "trouble",
        "1 where `tidemark status` has something to say of the source: an overdue or failed run, a damaged publish "
        "log.",
        lambda source, _now: float(bool(source["trouble"])),
    ),
    PerSource(
        "behind_offsets",
        "Offsets that are archived and in no published run, by the archiver's last word.",
        lambda source, _now: source["behind"],
    ),
)


class ScheduleMetrics(SourceMetrics):
    """The scheduler's status, and how often it failed."""

    def __init__(self, status: Callable[[], ProcessStatus]) -> None:
        super().__init__("tidemark_batch", PER_SOURCE, status)

    def _families(self, status: ProcessStatus) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        yield from super()._families(status)
        last, next_try = status.details["last"], status.details["next_try"]
        tries = last["tries"] if last and next_try else 0
        yield GaugeMetricFamily("tidemark_batch_failed_tries", "How often the runs that are due have failed.", tries)
