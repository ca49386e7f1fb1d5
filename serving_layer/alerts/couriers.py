"""Couriers deliver the outbox: to Kafka, and to each webhook separately. At least once, in order, with retries."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from infra.backoff import pause_after
from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.notifications import KAFKA, WEBHOOK
from serving_layer.alerts.output_topics import OutputRecord, alerts_topic
from serving_layer.alerts.tables.outbox import WaitingNotification
from serving_layer.alerts.webhooks import NotDelivered, Webhook, deliver

KAFKA_BATCH = 500
POLL_S = 0.5
"""Between two reads of the outbox, unless someone signals new notifications."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 300.0
MAX_KAFKA_PAUSE_S = 5.0

log = structlog.get_logger()


@dataclass
class Courier:
    """Delivers the notifications of one target. `send` raises NotDelivered, or a MasterDatasetError for Kafka."""

    target: str
    journal: Journal
    send: Callable[[list[WaitingNotification]], None]
    stopping: threading.Event
    batch_size: int = 1
    give_up_s: float = float("inf")
    sent: int = 0
    failed: int = 0
    given_up: int = 0
    error: str = ""
    wake_up: threading.Event = field(default_factory=threading.Event)
    """Set when there are new notifications."""

    def run(self) -> None:
        """Deliver until `stopping`."""
        while not self.stopping.is_set():
            try:
                while not self.stopping.is_set() and self.deliver_due():
                    pass
            except Exception as error:  # the disk, for example: the outbox still has the notifications
                self.error = str(error)
                log.exception("delivery_failed", target=self.target)
            self.wake_up.wait(POLL_S)
            self.wake_up.clear()

    def deliver_due(self) -> bool:
        """Deliver the notifications that are due. Returns whether there may be more."""
        due = self.journal.outbox.due(self.target, time.time(), self.batch_size)
        if not due:
            return False
        try:
            self.send(due)
        except (NotDelivered, MasterDatasetError) as error:
            self._postpone(due[0], str(error))
            return False
        # A crash here sends them again, under the same delivery names.
        self.journal.outbox.remove([each.seq for each in due])
        self.sent += len(due)
        self.error = ""
        return True

    def _postpone(self, first: WaitingNotification, reason: str) -> None:
        """Let the first notification wait, and with it all behind it: they are delivered in order."""
        self.failed += 1
        if self.error != reason:
            log.warning("retrying", target=self.target, delivery=first.delivery, reason=reason)
        self.error = reason
        if time.time() - first.since > self.give_up_s:
            self.given_up += 1
            log.error("given_up", target=self.target, delivery=first.delivery, reason=reason)
            self.journal.outbox.remove([first.seq])
            self.error = ""
            return
        max_pause_s = MAX_PAUSE_S if self.target != KAFKA else MAX_KAFKA_PAUSE_S
        pause_s = pause_after(first.tries + 1, FIRST_PAUSE_S, max_pause_s) * random.uniform(0.75, 1.0)  # noqa: S311
        self.journal.outbox.postpone(first.seq, time.time() + pause_s, reason)


def kafka_courier(settings: Settings, bootstrap: str, journal: Journal, stopping: threading.Event) -> Courier:
    """The courier to the topic `tidemark.alerts`. Records are keyed by alert and key."""
    topic = alerts_topic(settings, bootstrap)

    def send(due: list[WaitingNotification]) -> None:
        topic.send([OutputRecord(each.key.encode(), each.body.encode(), each.delivery) for each in due])
        courier.given_up = topic.skipped

    courier = Courier(KAFKA, journal, send, stopping, batch_size=KAFKA_BATCH)
    return courier


def webhook_courier(settings: Settings, hook: Webhook, journal: Journal, stopping: threading.Event) -> Courier:
    """The courier to one webhook, one request after the other."""

    def send(due: list[WaitingNotification]) -> None:
        for each in due:
            deliver(
                hook, each.delivery, each.body.encode(), timeout_s=settings.alerts_webhooks_timeout_s,
                allow_private=settings.alerts_webhooks_private,
            )  # fmt: skip

    give_up_s = settings.alerts_webhooks_give_up_s
    return Courier(WEBHOOK + hook.name, journal, send, stopping, give_up_s=give_up_s)
