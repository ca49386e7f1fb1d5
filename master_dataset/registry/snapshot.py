"""The registry as it is now: `_schemas`, read once from its beginning to its end, by those who do not follow it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from master_dataset.registry.errors import UnreadableTopic
from master_dataset.registry.state import State, fold
from master_dataset.registry.topic import AWAY, BATCH, SCHEMAS_TOPIC, TIMEOUT_S, decoded, open_consumer

POLL_S = 0.2


def read_state(config: dict[str, Any], topic: str = SCHEMAS_TOPIC) -> State:
    """The state after all records that are committed now. UnreadableTopic where not all of them can be read.

    Nothing is created: a topic that is missing is unreadable.
    """
    return fold(record for message in _read(config, topic) if (record := decoded(message)) is not None)


def read_records(config: dict[str, Any], topic: str = SCHEMAS_TOPIC) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of all records that are committed now, in the order of their offsets. UnreadableTopic as above."""
    return ((message.key() or b"", message.value()) for message in _read(config, topic))


def _read(config: dict[str, Any], topic: str) -> Iterator[Message]:
    consumer = open_consumer(config, topic)
    try:
        yield from _messages(consumer, topic)
    except KafkaException as error:
        raise UnreadableTopic(f"Topic {topic!r} cannot be read: {error.args[0].str()}.") from None
    finally:
        consumer.close()


def _messages(consumer: Consumer, topic: str) -> Iterator[Message]:
    described = consumer.list_topics(topic, TIMEOUT_S).topics[topic]
    if described.error is not None:
        raise KafkaException(described.error)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        first = consumer.poll(POLL_S)
        for message in () if first is None else (first, *consumer.consume(BATCH, 0)):
            error = message.error()
            if error is None:
                deadline = time.monotonic() + TIMEOUT_S
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.code() not in AWAY:
                raise KafkaException(error)
    raise UnreadableTopic(f"Topic {topic!r} cannot be read: Kafka sent nothing for {TIMEOUT_S:g} s.")
