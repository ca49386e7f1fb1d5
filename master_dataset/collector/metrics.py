"""The collector's metrics: acknowledged and refused records of each topic, and unacknowledged bytes."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from master_dataset.collector.limits import Budget
from master_dataset.collector.outcomes import status_of
from master_dataset.collector.producer import Outcome, Refusal

INVALID = "invalid-event"


class CollectorMetrics:
    """Counted by request, not by event. A topic is only named once it was found to exist."""

    def __init__(self, registry: CollectorRegistry, budget: Budget) -> None:
        self._stored = Counter(
            "tidemark_collector_events", "Events and messages that Kafka acknowledged.", ["topic"], registry=registry
        )
        self._refused = Counter(
            "tidemark_collector_refused",
            "Events and messages that were not stored, or not certainly, by kind of problem.",
            ["topic", "kind"],
            registry=registry,
        )
        Gauge(
            "tidemark_collector_unacknowledged_bytes", "Bytes that the collector holds and Kafka has not acknowledged.",
            registry=registry,
        ).set_function(lambda: budget.held)  # fmt: skip

    def count(self, topics: Sequence[str] | str, outcomes: Sequence[Outcome]) -> None:
        """What became of records, each of its topic, or all of one."""
        refused = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Refusal)]
        if isinstance(topics, str):
            self._count_stored(topics, len(outcomes) - len(refused))
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

    def _count_stored(self, topic: str, count: int) -> None:
        if count:
            self._stored.labels(topic).inc(count)


def _kind(outcome: Outcome) -> str:
    return status_of(outcome)[1] if isinstance(outcome, Refusal) else ""
