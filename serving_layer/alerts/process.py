"""The alert process: a thread for the alerts of each source, for each feed, the watches, and each way to tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.clients.redis import redis_client
from infra.errors import HomeInUse
from infra.locks import LockHeld, hold
from infra.process_status import ProcessStatus
from infra.processes import Worker, run_worker
from infra.settings import Settings
from infra.stack.addresses import addresses
from serving_layer.alerts.change_follower import Follower
from serving_layer.alerts.couriers import Courier, kafka_courier, webhook_courier
from serving_layer.alerts.evaluator import Evaluator, ended
from serving_layer.alerts.feeds import Feeder, feed_topic
from serving_layer.alerts.journal import Journal, Position, open_journal
from serving_layer.alerts.metrics import AlertMetrics
from serving_layer.alerts.watches import Watcher
from serving_layer.alerts.webhooks import Webhook, check_named, read_webhooks
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import execution_limits
from views.declarations import Declarations, declared_by

HEARTBEAT_S = 0.5
LONG_S = 30.0
"""What does not go for so long is told by `tidemark status`."""


@dataclass
class Kept:
    """Everything that runs in the process."""

    settings: Settings
    declarations: Declarations
    journal: Journal
    stopping: threading.Event
    evaluators: dict[str, Evaluator] = field(default_factory=dict)
    feeders: dict[str, Feeder] = field(default_factory=dict)
    followers: list[Follower] = field(default_factory=list)
    watchers: list[Watcher] = field(default_factory=list)
    couriers: list[Courier] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)
    """Since when something does not go."""

    def threads(self) -> list[Callable[[], None]]:
        """What is to run, each in a thread of its own."""
        return [
            *(each.run for each in self.followers),
            *(each.run for each in self.watchers),
            *(each.run for each in self.couriers),
        ]

    def status(self, now: float) -> ProcessStatus:
        """What `tidemark status` reads. Everything goes on by itself; what does not for long is called refused."""
        sources = {name: self._source(name, now) for name in self.declarations.sources}
        couriers = {
            each.target: {
                "sent": each.sent,
                "error": each.error,
                "refused": self._lasting(f"{each.target}: ", each.error, now),
            }
            for each in self.couriers
        }
        return ProcessStatus(now, sources=sources, couriers=couriers)

    def _source(self, name: str, now: float) -> dict[str, Any]:
        alerts = {alert: memory.error for alert, memory in self._memories(name) if memory.error}
        waits = {each.name: each.error for each in self.followers if each.source == name}
        waits |= {f"watches:{name}": each.error for each in self.watchers if each.source.name == name}
        # An alert whose view joins at the next run waits too, but nothing is amiss with it.
        behind = {f"alert {alert}": memory.error * memory.is_behind for alert, memory in self._memories(name)}
        refused = [self._lasting(f"{name}/{what}: ", error, now) for what, error in {**waits, **behind}.items()]
        waiting = [error for error in waits.values() if error]
        return {"refused": "; ".join(filter(None, refused)), "waits": waiting, "alerts": alerts}

    def _lasting(self, what: str, error: str, now: float) -> str:
        """What does not go and why, where that has been so for long."""
        if not error:
            self._since.pop(what, None)
            return ""
        return what + error if now - self._since.setdefault(what, now) > LONG_S else ""

    def _memories(self, name: str) -> Iterator[tuple[str, Any]]:
        if name in self.evaluators:
            yield from list(self.evaluators[name].memory.items())  # its thread may add some


def run_alerts(worker: Worker) -> None:
    """Until a signal ends it. Every thread goes on by itself after whatever went wrong with it."""
    settings = worker.settings
    declarations = declared_by(settings)
    webhooks = read_webhooks(settings.alerts_webhooks_file)
    check_named(webhooks, declarations.alerts.values())
    with ExitStack() as held:
        journal = open_journal(settings)
        held.callback(journal.close)
        held.enter_context(_alone(journal.path.with_name("lock")))
        engine = QueryEngine(settings, declarations, execution_limits(settings))
        held.callback(engine.close)
        kept = _kept(settings, declarations, webhooks, journal, engine, worker.stopping)
        threads = [threading.Thread(target=run, daemon=True) for run in kept.threads()]
        for thread in threads:
            thread.start()
        metrics = AlertMetrics(kept.evaluators, kept.watchers, kept.feeders, kept.couriers, journal)
        try:
            with worker.metrics(settings.alerts_metrics_port, metrics):
                while not worker.wait(HEARTBEAT_S):
                    worker.write_status(kept.status(time.time()))
        finally:
            worker.stop()
            for thread in threads:
                thread.join(settings.stop_timeout_s / 2)


def _kept(
    settings: Settings, declarations: Declarations, webhooks: dict[str, Webhook], journal: Journal,
    engine: QueryEngine, stopping: threading.Event,
) -> Kept:  # fmt: skip
    where = addresses(settings)
    kept = Kept(settings, declarations, journal, stopping)
    kept.couriers = [kafka_courier(settings, where.kafka, journal, stopping)]
    kept.couriers += [webhook_courier(settings, hook, journal, stopping) for hook in webhooks.values()]

    def on_told() -> None:
        for courier in kept.couriers:
            courier.news.set()

    for name, source in declarations.sources.items():
        evaluator = Evaluator(
            settings, declarations, name, engine, journal, tuple(webhooks), on_told
        )  # fmt: skip
        kept.evaluators[name] = evaluator
        if declarations.alerts_of(name):
            kept.followers.append(Follower(name, name, evaluator, journal, _redis(settings), stopping))
        for feed in declarations.feeds_of(name):
            feeder = Feeder(settings, feed, engine, journal, feed_topic(settings, where.kafka, feed))
            kept.feeders[feed.name] = feeder
            kept.followers.append(Follower(feeder.name, name, feeder, journal, _redis(settings), stopping))
        watches = tuple(each for each in declarations.watches.values() if each.source.name == name)
        if watches:
            kept.watchers.append(Watcher(settings, where.kafka, source, watches, _redis(settings), stopping))
    arm(journal, declarations, kept.evaluators, time.time())
    return kept


def arm(journal: Journal, declarations: Declarations, evaluators: dict[str, Evaluator], now: float) -> None:
    """Take the alerts as they are declared now. What is open of others, or of what they were before, is over."""
    hashes = {name: alert.hash for name, alert in declarations.alerts.items()}
    other = journal.differing(hashes)
    over = ended((episode for name in other for episode in journal.episodes(name, is_open=True)), now)
    telling = next(iter(evaluators.values()))
    look = telling.look_of(Position({}, 0.0), now, over)
    journal.arm(hashes, now, look._replace(changed=tuple(over)))


def _redis(settings: Settings) -> Any:
    return redis_client(settings, addresses(settings).redis, timeout_s=5.0)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two processes that look at the same alerts would tell everything twice."""
    try:
        with hold(path, wait_s=0):
            yield
    except LockHeld:
        raise HomeInUse(f"Another process looks at the alerts of this home: it holds {path}.") from None


def main() -> int:
    """The program."""
    return run_worker("alerts", run_alerts)
