"""Send events to Kafka with acks=all and an idempotent producer, never more in flight than fits the bound."""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings
from master_dataset.errors import InvalidEvent
from master_dataset.importer.errors import BrokerUnavailable
from master_dataset.kafka.errors import KafkaUnreachable
from master_dataset.kafka.topics import PARTITIONER, apply_topics, plan_topics
from views.source import Source

MAX_IN_FLIGHT_MESSAGES = 50_000
MAX_IN_FLIGHT_KB = 32 * 1024
POLL_EVERY = 1024

_silent = logging.Logger("librdkafka", level=logging.CRITICAL + 1)  # our own errors say what it would print


def ensure_topic(settings: Settings, bootstrap: str, source: Source, wait_s: float) -> None:
    """Wait for the broker, and create the source's topics where they are missing."""
    try:
        with KafkaAdmin(settings, bootstrap, wait_s) as admin:
            apply_topics(admin, plan_topics([source], settings.dead_letter_retention_days))
    except KafkaUnreachable as error:
        raise BrokerUnavailable(
            f"Kafka at {bootstrap} did not answer within {wait_s:g} s, so nothing was sent. {error} "
            "See `tidemark status`; start Kafka with `tidemark up --detach`; then run the same command again."
        ) from None


class Sender:
    """Sends to one topic. Only after `settle` returned is anything known to be stored."""

    def __init__(self, settings: Settings, bootstrap: str, topic: str, wait_s: float) -> None:
        self._topic = topic
        self._bootstrap = bootstrap
        self._wait_s = wait_s
        self._last_problem = ""
        self._failure: KafkaError | None = None
        self._unpolled = 0
        self._producer = Producer(
            {
                **librdkafka_config(settings, bootstrap),
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": PARTITIONER,
                "compression.type": "lz4",
                "linger.ms": 20,
                "batch.size": 1 << 20,
                "queue.buffering.max.messages": MAX_IN_FLIGHT_MESSAGES,
                "queue.buffering.max.kbytes": MAX_IN_FLIGHT_KB,
                "message.timeout.ms": int(wait_s * 1000),
                # A call for each delivered message would cost more than producing it: only failures are reported,
                # and `settle` waits until nothing is in flight.
                "delivery.report.only.error": True,
                "on_delivery": self._note_delivery,
                "error_cb": self._note_problem,
            },
            logger=_silent,
        )

    def send(self, key: bytes, value: bytes) -> None:
        """Hand one message over. Waits while too much is in flight; InvalidEvent if Kafka would not take its size."""
        self._unpolled += 1
        if self._unpolled >= POLL_EVERY:
            self._unpolled = 0
            self._producer.poll(0)
            self._check_failure()
        try:
            self._producer.produce(self._topic, value, key)
        except BufferError:
            self._wait_for_room(key, value)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise InvalidEvent(
                    "", f"as an event it is larger than Kafka takes; it has {len(value)} bytes"
                ) from None
            raise self._unavailable(error.args[0].str()) from None

    def settle(self) -> None:
        """Return when everything that was sent is acknowledged by all in-sync replicas; else BrokerUnavailable."""
        # Each message fails by itself after wait_s, so this ends; the extra seconds are for the last report.
        left = self._producer.flush(self._wait_s + 5)
        self._check_failure()
        if left:
            raise self._unavailable(f"{left} messages were not acknowledged")

    def abandon(self) -> None:
        """Drop what was not sent yet, so that the process ends without delay."""
        self._producer.purge(blocking=False)
        self._producer.flush(1)

    def _wait_for_room(self, key: bytes, value: bytes) -> None:
        deadline = time.monotonic() + self._wait_s + 5
        while True:
            self._producer.poll(0.05)
            self._check_failure()
            try:
                self._producer.produce(self._topic, value, key)
            except BufferError:
                if time.monotonic() > deadline:
                    raise self._unavailable("nothing was acknowledged for that long") from None
            else:
                return

    def _note_delivery(self, error: KafkaError | None, _message: Any) -> None:
        self._failure = self._failure or error

    def _note_problem(self, error: KafkaError) -> None:
        self._last_problem = error.str()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._unavailable(self._failure.str())

    def _unavailable(self, what: str) -> BrokerUnavailable:
        seen = f" ({self._last_problem})" if self._last_problem and self._last_problem != what else ""
        return BrokerUnavailable(
            f"Kafka at {self._bootstrap} did not take the events for topic {self._topic!r} within {self._wait_s:g} s: "
            f"{what}{seen}. See `tidemark status`; then run the same command again: it continues where it stopped."
        )
