"""The metrics of the alert process: open episodes, evaluations, deliveries, matches of watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from serving_layer.alerts.couriers import Courier
from serving_layer.alerts.evaluator import Evaluator
from serving_layer.alerts.feeds import Feeder
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.watches import Watcher


class AlertMetrics(Collector):
    """Reads the counters of the threads at each scrape."""

    def __init__(
        self, evaluators: Mapping[str, Evaluator], watchers: Sequence[Watcher], feeders: Mapping[str, Feeder],
        couriers: Sequence[Courier], journal: Journal,
    ) -> None:  # fmt: skip
        self._evaluators, self._watchers, self._feeders = evaluators, watchers, feeders
        self._couriers, self._journal = couriers, journal

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All metrics."""
        episodes = GaugeMetricFamily("tidemark_alerts_open", "Open episodes.", labels=["alert", "state"])
        open_episodes = self._journal.episodes.all(is_open=True)
        for labels, count in Counter((each.alert, str(each.state)) for each in open_episodes).items():
            episodes.add_metric(labels, count)
        yield episodes
        waiting = GaugeMetricFamily(
            "tidemark_alerts_waiting", "Notifications that wait for delivery.", labels=["target"]
        )
        by_target = Counter(each.target for each in self._journal.outbox.all())
        for courier in self._couriers:
            waiting.add_metric([courier.target], by_target[courier.target])
        yield waiting
        evaluations = {name: evaluator.evaluations for name, evaluator in self._evaluators.items()}
        yield _counter("looks", "Evaluations of alerts.", "source", evaluations)
        yield _counter("sent", "Notifications delivered.", "target", {c.target: c.sent for c in self._couriers})
        yield _counter("failed", "Deliveries that failed.", "target", {c.target: c.failed for c in self._couriers})
        given_up = {c.target: c.given_up + self._journal.outbox.given_up[c.target] for c in self._couriers}
        yield _counter("given_up", "Notifications that were given up.", "target", given_up)
        matched = {watcher.source.name: watcher.matched for watcher in self._watchers}
        yield _counter("watched", "Events that matched a watch.", "source", matched)
        skipped = {watcher.source.name: watcher.skipped for watcher in self._watchers}
        yield _counter("skipped", "Records that no watch could evaluate.", "source", skipped)
        yield _counter("fed", "Answers sent to feeds.", "feed", {n: f.sent for n, f in self._feeders.items()})


def _counter(name: str, help_: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"tidemark_alerts_{name}", help_, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
