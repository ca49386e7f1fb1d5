"""Kafka topics that the alert process writes: `tidemark.alerts` and the topics of feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.send import PRODUCER
from master_dataset.kafka.topics import TopicPlan, apply_topics, topic_configs
from views.declarations import ALERTS_TOPIC
from views.feed import Feed

ALERTS_RETENTION_HOURS = 7 * 24
FLUSH_TIMEOUT_S = 20.0
OWN_OPTIONS = {"linger.ms": 1, "message.timeout.ms": 15_000}

log = structlog.get_logger()


class MessageTooLarge(MasterDatasetError):
    """Kafka does not accept a message of this size, now or later."""


class OutputRecord(NamedTuple):
    """A record to send. `delivery` becomes a header of that name."""

    key: bytes
    value: bytes
    delivery: str


class OutputTopic:
    """A topic that is created when the first record is sent. Used by one thread."""

    def __init__(self, settings: Settings, bootstrap: str, plan: TopicPlan) -> None:
        self._settings, self._bootstrap = settings, bootstrap
        self._plan = plan
        self._producer: Producer | None = None
        self.skipped = 0
        """Records that were too large."""

    def send(self, records: Iterable[OutputRecord]) -> int:
        """Send records in order. Returns how many were acknowledged; those that are too large are skipped."""
        to_send = list(records)
        too_large = send_in_parts(self._send, to_send)
        for record in too_large:
            size = len(record.key) + len(record.value)
            log.error("record_too_large", topic=self._plan.name, delivery=record.delivery, bytes=size)
        self.skipped += len(too_large)
        return len(to_send) - len(too_large)

    def _send(self, records: Sequence[OutputRecord]) -> None:
        if self._producer is None:
            with KafkaAdmin(self._settings, self._bootstrap) as admin:
                apply_topics(admin, [self._plan])
            connection = librdkafka_config(self._settings, self._bootstrap)
            self._producer = Producer({**PRODUCER, **connection, **OWN_OPTIONS})
        failures: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            self._produce(record, on_delivery)
        remaining = self._producer.flush(FLUSH_TIMEOUT_S)
        if failures or remaining:
            self._producer = None  # what it still holds must not arrive after what is sent again
            reason = failures[0].str() if failures else "no acknowledgement"
            is_too_large = any(each.code() == KafkaError.MSG_SIZE_TOO_LARGE for each in failures)
            error_class = MessageTooLarge if is_too_large else MasterDatasetError
            raise error_class(f"Topic {self._plan.name!r} did not accept records: {reason}.")

    def _produce(self, record: OutputRecord, on_delivery: Callable[..., None]) -> None:
        headers: list[tuple[str, str | bytes | None]] = [("delivery", record.delivery.encode())]
        while self._producer is not None:
            try:
                self._producer.produce(
                    self._plan.name, record.value, record.key, headers=headers, on_delivery=on_delivery
                )
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                on_delivery(error.args[0], None)
                return
            else:
                return


def send_in_parts(
    send: Callable[[Sequence[OutputRecord]], None], records: Sequence[OutputRecord]
) -> list[OutputRecord]:
    """Send records in order. Returns those that are too large by themselves: retrying them would never succeed."""
    try:
        send(records)
    except MessageTooLarge:
        if len(records) == 1:
            return list(records)
        middle = len(records) // 2
        return send_in_parts(send, records[:middle]) + send_in_parts(send, records[middle:])
    return []


def alerts_topic(settings: Settings, bootstrap: str) -> OutputTopic:
    """The topic of notifications: one partition, so that they are in order."""
    configs: Any = topic_configs(ALERTS_RETENTION_HOURS, None, compacted=False)
    return OutputTopic(settings, bootstrap, TopicPlan(ALERTS_TOPIC, 1, configs))


def feed_topic(settings: Settings, bootstrap: str, feed: Feed) -> OutputTopic:
    """The topic of a feed, compacted: Kafka retains the newest record of each key."""
    configs: Any = topic_configs(None, None, compacted=True)
    return OutputTopic(settings, bootstrap, TopicPlan(feed.topic, feed.view.source.partitions, configs))
