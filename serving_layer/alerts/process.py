"""The alert process: threads for the alerts of each source, each feed, the watches, and each delivery target."""

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
from infra.lease import LeaseHeld, PosixLeases
from infra.process_status import ProcessStatus
from infra.processes import Worker, run_worker
from infra.settings import Settings
from infra.stack.addresses import addresses
from serving_layer.alerts.bound_watches import BoundWatches
from serving_layer.alerts.change_follower import ChangeFollower
from serving_layer.alerts.couriers import Courier, kafka_courier, webhook_courier
from serving_layer.alerts.evaluator import Evaluator, ended
from serving_layer.alerts.feeds import Feeder
from serving_layer.alerts.journal import Journal, open_journal
from serving_layer.alerts.memory import AlertMemory
from serving_layer.alerts.metrics import AlertMetrics
from serving_layer.alerts.notifier import Notifier
from serving_layer.alerts.output_topics import feed_topic
from serving_layer.alerts.watches import Watcher
from serving_layer.alerts.webhooks import Webhook, check_named, read_webhooks
from serving_layer.declared_now import DeclaredNow
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import execution_limits
from views.declarations import Declarations, declared_by

HEARTBEAT_S = 0.5
LEASE_TTL_S = 60.0
LASTING_S = 30.0
"""`tidemark status` shows errors that last longer than this."""


@dataclass
class AlertProcess:
    """Everything that runs in the process."""

    declarations: Declarations
    evaluators: dict[str, Evaluator] = field(default_factory=dict)
    feeders: dict[str, Feeder] = field(default_factory=dict)
    followers: list[ChangeFollower] = field(default_factory=list)
    watchers: list[Watcher] = field(default_factory=list)
    couriers: list[Courier] = field(default_factory=list)
    _failing_since: dict[str, float] = field(default_factory=dict)

    def threads(self) -> list[Callable[[], None]]:
        """The functions to run, each in a thread of its own. Each retries by itself after any error."""
        return [
            *(each.run for each in self.followers),
            *(each.run for each in self.watchers),
            *(each.run for each in self.couriers),
        ]

    def wake_couriers(self) -> None:
        """Deliver new notifications at once."""
        for courier in self.couriers:
            courier.wake_up.set()

    def status(self, now: float) -> ProcessStatus:
        """What `tidemark status` shows. Everything retries by itself; an error that lasts counts as a refusal."""
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
        memories = self._memories(name)
        waits = {each.name: each.error for each in self.followers if each.source == name}
        waits |= {f"watches:{name}": each.error for each in self.watchers if each.source.name == name}
        for each in self.watchers:
            if each.source.name == name:
                waits |= {f"watch {watch}": reason for watch, reason in each.bound.refused.items()}
        # An alert whose view joins at the next run has an error too, but nothing is wrong with it.
        behind = {f"alert {alert}": each.error if each.is_behind else "" for alert, each in memories.items()}
        lasting = [self._lasting(f"{name}/{what}: ", error, now) for what, error in {**waits, **behind}.items()]
        return {
            "refused": "; ".join(filter(None, lasting)),
            "waits": [error for error in waits.values() if error],
            "alerts": {alert: memory.error for alert, memory in memories.items() if memory.error},
        }

    def _lasting(self, what: str, error: str, now: float) -> str:
        """The error, if there has been one for long."""
        if not error:
            self._failing_since.pop(what, None)
            return ""
        return what + error if now - self._failing_since.setdefault(what, now) > LASTING_S else ""

    def _memories(self, name: str) -> dict[str, AlertMemory]:
        return dict(self.evaluators[name].memory) if name in self.evaluators else {}


def run_alerts(worker: Worker) -> None:
    """Run until a signal."""
    settings = worker.settings
    declarations = declared_by(settings)
    webhooks = read_webhooks(settings.alerts_webhooks_file)
    check_named(webhooks, declarations.alerts.values())
    with ExitStack() as held:
        journal = open_journal(settings)
        held.callback(journal.close)
        held.enter_context(_leased(journal.path.parent))
        engine = QueryEngine(settings, declarations, execution_limits(settings))
        held.callback(engine.close)
        process = _assemble(settings, declarations, webhooks, journal, engine, worker.stopping)
        threads = [threading.Thread(target=run, daemon=True) for run in process.threads()]
        for thread in threads:
            thread.start()
        metrics = AlertMetrics(process.evaluators, process.watchers, process.feeders, process.couriers, journal)
        try:
            with worker.metrics(settings.alerts_metrics_port, metrics):
                while not worker.wait(HEARTBEAT_S):
                    worker.write_status(process.status(time.time()))
        finally:
            worker.stop()
            for thread in threads:
                thread.join(settings.stop_timeout_s / 2)


def _assemble(
    settings: Settings, declarations: Declarations, webhooks: dict[str, Webhook], journal: Journal,
    engine: QueryEngine, stopping: threading.Event,
) -> AlertProcess:  # fmt: skip
    where = addresses(settings)
    declared_now = DeclaredNow(settings, declarations)
    notifier = Notifier(declarations, journal, tuple(webhooks))
    arm(journal, declarations, notifier, time.time())
    process = AlertProcess(declarations)
    process.couriers = [kafka_courier(settings, where.kafka, journal, stopping)]
    process.couriers += [webhook_courier(settings, hook, journal, stopping) for hook in webhooks.values()]

    def follow(name: str, source: str, consumer: Evaluator | Feeder) -> None:
        process.followers.append(ChangeFollower(name, source, consumer, journal, _redis(settings), stopping))

    for name, source in declarations.sources.items():
        evaluator = Evaluator(
            settings, declarations, name, engine, journal, notifier, on_notifications=process.wake_couriers
        )
        process.evaluators[name] = evaluator
        if declarations.alerts_of(name):
            follow(name, name, evaluator)
        for feed in declarations.feeds_of(name):
            feeder = Feeder(settings, feed, engine, journal, feed_topic(settings, where.kafka, feed))
            process.feeders[feed.name] = feeder
            follow(feeder.name, name, feeder)
        watches = tuple(each for each in declarations.watches.values() if each.source.name == name)
        if watches:
            bound = BoundWatches(settings, source, watches, declared_now)
            process.watchers.append(Watcher(settings, where.kafka, bound, _redis(settings), stopping))
    return process


def arm(journal: Journal, declarations: Declarations, notifier: Notifier, now: float) -> None:
    """Take the alerts as they are declared now. Open episodes of redefined or removed alerts are resolved."""
    hashes = {name: alert.hash for name, alert in declarations.alerts.items()}
    changed = journal.rules.changed(hashes)
    resolved = ended((episode for name in changed for episode in journal.episodes.all(name, is_open=True)), now)
    journal.arm(hashes, now, tuple(resolved), notifier.transitions(resolved))


def _redis(settings: Settings) -> Any:
    return redis_client(settings, addresses(settings).redis, timeout_s=5.0)


@contextmanager
def _leased(folder: Path) -> Iterator[None]:
    """Hold the lease: two processes with the same alerts would notify of everything twice."""
    leases = PosixLeases(folder)
    try:
        lease = leases.acquire("alerts", LEASE_TTL_S, doing="alerts")
    except LeaseHeld as held:
        message = f"The alerts of this home are evaluated by {held.holder or 'another process'}. Stop it first."
        raise HomeInUse(message) from None
    try:
        yield
    finally:
        leases.release(lease)


def main() -> int:
    """The program."""
    return run_worker("alerts", run_alerts)
