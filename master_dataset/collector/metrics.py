"""The collector's metrics: acknowledged and refused records of each topic, and unacknowledged bytes."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from master_dataset.collector.free_disk import FreeDisk
from master_dataset.collector.limits import Budget
from master_dataset.collector.outcomes import status_of
from master_dataset.collector.producer import Outcome, Refusal

INVALID = "invalid-event"


class CollectorMetrics:
    """Counted by request, not by event. A topic is only named once it was found to exist."""

    def __init__(self, registry: CollectorRegistry, budget: Budget, disk: FreeDisk) -> None:
        self._stored = Counter(
            "tidemark_collector_events", "Events and messages that Kafka acknowledged.", ["topic"], registry=registry
        )
        self._refused = Counter(
            "tidemark_collector_refused",
            "Events and messages that were not stored, or not certainly, by kind of problem.",
            ["topic", "kind"],
            registry=registry,
        )
        self._responses = Counter(
            "tidemark_collector_responses", "Responses by HTTP status.", ["status"], registry=registry
        )
        # `labels` looks for the counter of a label each time, with a lock.
        self._stored_of: dict[str, Counter] = {}
        self._responses_of: dict[int, Counter] = {}
        Gauge(
            "tidemark_collector_unacknowledged_bytes",
            "Bytes of bodies, parsed JSON and events that Kafka has not acknowledged.",
            registry=registry,
        ).set_function(lambda: budget.held)  # fmt: skip
        registry.register(_DiskMetrics(disk))

    def count(self, topics: Sequence[str] | str, outcomes: Sequence[Outcome]) -> None:
        """What became of records, each of its topic, or all of one."""
        refused = [index for index, outcome in enumerate(outcomes) if type(outcome) is Refusal]
        if isinstance(topics, str):
            self._count_stored(topics, len(outcomes) - len(refused))
            if not refused:
                return
            kinds: Iterable[tuple[str, str]] = ((topics, _kind(outcomes[index])) for index in refused)
        else:
            tally = Tally(topics)
            tally.subtract(topics[index] for index in refused)
            for topic, count in tally.items():
                self._count_stored(topic, count)
            kinds = ((topics[index], _kind(outcomes[index])) for index in refused)
        for (topic, kind), count in Tally(kinds).items():
            self._refused.labels(topic, kind).inc(count)

    def count_invalid(self, topic: str, count: int) -> None:
        """Events that were not valid."""
        if count:
            self._refused.labels(topic, INVALID).inc(count)

    def count_response(self, status: int) -> None:
        """One more response."""
        counter = self._responses_of.get(status)
        if counter is None:
            counter = self._responses_of[status] = self._responses.labels(str(status))
        counter.inc()

    def _count_stored(self, topic: str, count: int) -> None:
        if count:
            counter = self._stored_of.get(topic)
            if counter is None:
                counter = self._stored_of[topic] = self._stored.labels(topic)
            counter.inc(count)


class _DiskMetrics(Collector):
    def __init__(self, disk: FreeDisk) -> None:
        self._disk = disk

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What the last look found; the registry calls it at each scrape."""
        free = GaugeMetricFamily(
            "tidemark_collector_disk_free_bytes", "Free bytes where events are stored.", labels=["disk"]
        )
        low = GaugeMetricFamily(
            "tidemark_collector_disk_low",
            "1 while events are refused because the disk is almost full.",
            labels=["disk"],
        )
        for disk, size in list(self._disk.free.items()):
            free.add_metric([disk], size)
            low.add_metric([disk], float(disk in self._disk.low))
        yield from (free, low)


def _kind(outcome: Outcome) -> str:
    return status_of(outcome)[1] if isinstance(outcome, Refusal) else ""
