"""Send what waits in the outbox: to Kafka, and to each webhook for itself. At least once, in order, with patience."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from infra.backoff import pause_after
from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.send import PRODUCER
from master_dataset.kafka.topics import TopicPlan, apply_topics, topic_configs
from serving_layer.alerts.journal import Journal, Telling
from serving_layer.alerts.payloads import KAFKA, WEBHOOK
from serving_layer.alerts.webhooks import NotDelivered, Webhook, deliver
from views.declarations import ALERTS_TOPIC

AT_ONCE = 500
LOOK_S = 0.5
"""Between two looks at the outbox, unless somebody says that there is news."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
RETENTION_HOURS = 7 * 24
FLUSH_S = 20.0

log = structlog.get_logger()


@dataclass
class Courier:
    """Carries the messages of one target. `send` raises NotDelivered, or a MasterDatasetError of Kafka's."""

    target: str
    journal: Journal
    send: Callable[[list[Telling]], None]
    stopping: threading.Event
    at_once: int = 1
    give_up_s: float = float("inf")
    sent: int = 0
    failed: int = 0
    given_up: int = 0
    error: str = ""
    news: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until told to stop."""
        while not self.stopping.is_set():
            try:
                while not self.stopping.is_set() and self.carry():
                    pass
            except Exception as error:  # the disk, say: what is in the outbox is still there
                self.error = str(error)
                log.exception("not_carried", target=self.target)
            self.news.wait(LOOK_S)
            self.news.clear()

    def carry(self) -> bool:
        """Send what is due. Whether there may be more."""
        due = self.journal.due(self.target, time.time(), self.at_once)
        if not due:
            return False
        try:
            self.send(due)
        except (NotDelivered, MasterDatasetError) as error:
            self._put_off(due[0], str(error))
            return False
        # A crash here sends them once more: their deliveries have the same names.
        self.journal.delivered([each.seq for each in due])
        self.sent += len(due)
        self.error = ""
        return True

    def _put_off(self, first: Telling, why: str) -> None:
        """The first one waits, and all behind it: they are told in order."""
        self.failed += 1
        if self.error != why:
            log.warning("not_delivered", target=self.target, delivery=first.delivery, why=why)
        self.error = why
        if time.time() - first.since > self.give_up_s:
            self.given_up += 1
            log.error("given_up", target=self.target, delivery=first.delivery, why=why)
            self.journal.delivered([first.seq])
            self.error = ""
            return
        longest = LONGEST_PAUSE_S if self.target != KAFKA else 5.0
        pause_s = pause_after(first.tries + 1, FIRST_PAUSE_S, longest) * random.uniform(0.75, 1.0)  # noqa: S311
        self.journal.failed(first.seq, time.time() + pause_s, why)


def kafka_courier(settings: Settings, bootstrap: str, journal: Journal, stopping: threading.Event) -> Courier:
    """Into the topic `tidemark.alerts`, keyed by alert and key."""
    topic = alerts_topic(settings, bootstrap)

    def send(due: list[Telling]) -> None:
        topic.send([(each.key.encode(), each.body.encode(), each.delivery) for each in due])
        courier.given_up = topic.skipped

    courier = Courier(KAFKA, journal, send, stopping, at_once=AT_ONCE)
    return courier


def alerts_topic(settings: Settings, bootstrap: str) -> WrittenTopic:
    """Where alerts are told: one partition, so that they are in order."""
    configs = topic_configs(RETENTION_HOURS, None, compacted=False)
    return WrittenTopic(settings, bootstrap, TopicPlan(ALERTS_TOPIC, 1, configs))


class MessageTooLarge(MasterDatasetError):
    """Kafka takes no message of this size, now or later."""


Parcel = tuple[bytes, bytes, str]
"""A key, a value and the name of the delivery."""


def send_in_parts(send: Callable[[Sequence[Parcel]], None], messages: Sequence[Parcel]) -> list[Parcel]:
    """Send messages in order. Returns those that are too large by themselves: sent again they would be so for ever."""
    try:
        send(messages)
    except MessageTooLarge:
        if len(messages) == 1:
            return list(messages)
        middle = len(messages) // 2
        return send_in_parts(send, messages[:middle]) + send_in_parts(send, messages[middle:])
    return []


class WrittenTopic:
    """A topic that we write: made when it is first needed. Used by one thread."""

    def __init__(self, settings: Settings, bootstrap: str, plan: TopicPlan) -> None:
        self._config = {
            **PRODUCER,
            **librdkafka_config(settings, bootstrap),
            "linger.ms": 1,
            "message.timeout.ms": 15_000,
        }
        self._settings, self._bootstrap = settings, bootstrap
        self._plan = plan
        self._producer: Producer | None = None
        self.skipped = 0
        """Messages that were too large."""

    def send(self, messages: Iterable[Parcel]) -> int:
        """Messages in order. Returns how many were acknowledged; those that are too large are skipped, and counted."""
        found = list(messages)
        too_large = send_in_parts(self._send, found)
        for key, value, delivery in too_large:
            log.error("too_large", topic=self._plan.name, delivery=delivery, bytes=len(key) + len(value))
        self.skipped += len(too_large)
        return len(found) - len(too_large)

    def _send(self, messages: Sequence[Parcel]) -> None:
        if self._producer is None:
            with KafkaAdmin(self._settings, self._bootstrap) as admin:
                apply_topics(admin, [self._plan])
            self._producer = Producer(self._config)
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        for key, value, delivery in messages:
            self._produce(key, value, delivery, delivered)
        left = self._producer.flush(FLUSH_S)
        if failures or left:
            self._producer = None  # what it still holds must not come after what is sent again
            why = failures[0].str() if failures else "no acknowledgement"
            is_too_large = any(each.code() == KafkaError.MSG_SIZE_TOO_LARGE for each in failures)
            kind = MessageTooLarge if is_too_large else MasterDatasetError
            raise kind(f"Topic {self._plan.name!r} did not take what was sent: {why}.")

    def _produce(self, key: bytes, value: bytes, delivery: str, delivered: Callable[..., None]) -> None:
        headers: list[tuple[str, str | bytes | None]] = [("delivery", delivery.encode())]
        while self._producer is not None:
            try:
                self._producer.produce(self._plan.name, value, key, headers=headers, on_delivery=delivered)
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                delivered(error.args[0], None)
                return
            else:
                return


def webhook_courier(settings: Settings, hook: Webhook, journal: Journal, stopping: threading.Event) -> Courier:
    """To one webhook, one after the other."""

    def send(due: list[Telling]) -> None:
        for each in due:
            deliver(
                hook, each.delivery, each.body.encode(), timeout_s=settings.alerts_webhooks_timeout_s,
                allow_private=settings.alerts_webhooks_private,
            )  # fmt: skip

    give_up_s = settings.alerts_webhooks_give_up_s
    return Courier(WEBHOOK + hook.name, journal, send, stopping, give_up_s=give_up_s)
