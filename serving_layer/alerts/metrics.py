"""What the alert process measures: open episodes, looks, messages that wait, matches of watches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from serving_layer.alerts.couriers import Courier
from serving_layer.alerts.evaluator import Evaluator
from serving_layer.alerts.feeds import Feeder
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.watches import Watcher


class AlertMetrics(Collector):
    """Reads what the threads know when it is asked."""

    def __init__(
        self, evaluators: Mapping[str, Evaluator], watchers: Sequence[Watcher], feeders: Mapping[str, Feeder],
        couriers: Sequence[Courier], journal: Journal,
    ) -> None:  # fmt: skip
        self._evaluators, self._watchers, self._feeders = evaluators, watchers, feeders
        self._couriers, self._journal = couriers, journal

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """For the registry."""
        open_ = GaugeMetricFamily("tidemark_alerts_open", "Episodes that are not over.", labels=["alert", "state"])
        counts: dict[tuple[str, str], int] = {}
        for episode in self._journal.episodes(is_open=True):
            place = episode.alert, str(episode.state)
            counts[place] = counts.get(place, 0) + 1
        for labels, count in counts.items():
            open_.add_metric(labels, count)
        yield open_
        waiting = GaugeMetricFamily("tidemark_alerts_waiting", "Messages that wait to be told.", labels=["target"])
        for courier in self._couriers:
            waiting.add_metric([courier.target], sum(each.target == courier.target for each in self._journal.outbox()))
        yield waiting
        yield _counter("looks", "Looks at alerts.", "source", {n: e.looks for n, e in self._evaluators.items()})
        yield _counter("sent", "Messages that were told.", "target", {c.target: c.sent for c in self._couriers})
        yield _counter("failed", "Tries to tell that failed.", "target", {c.target: c.failed for c in self._couriers})
        given_up = {c.target: c.given_up + self._journal.given_up[c.target] for c in self._couriers}
        yield _counter("given_up", "Messages that were never told.", "target", given_up)
        matched = {watcher.source.name: watcher.matched for watcher in self._watchers}
        yield _counter("watched", "Events that matched a watch.", "source", matched)
        skipped = {watcher.source.name: watcher.skipped for watcher in self._watchers}
        yield _counter("skipped", "Records that no watch could be asked about.", "source", skipped)
        yield _counter("fed", "Answers sent to feeds.", "feed", {n: f.sent for n, f in self._feeders.items()})


def _counter(name: str, help_: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    found = CounterMetricFamily(f"tidemark_alerts_{name}", help_, labels=[label])
    for key, value in values.items():
        found.add_metric([key], value)
    return found
