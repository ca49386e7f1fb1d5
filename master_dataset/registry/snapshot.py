"""The registry as it is now: `_schemas`, read once from its beginning to its end, by those who do not follow it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from master_dataset.registry.errors import UnreadableTopic
from master_dataset.registry.records import Record
from master_dataset.registry.state import State, fold
from master_dataset.registry.topic import AWAY, BATCH, SCHEMAS_TOPIC, TIMEOUT_S, decoded, open_consumer

POLL_S = 0.2


def read_state(config: dict[str, Any], topic: str = SCHEMAS_TOPIC) -> State:
    """The state after all records that are committed now. UnreadableTopic where not all of them can be read.

    Nothing is created: a topic that is missing is unreadable.
    """
    consumer = open_consumer(config, topic)
    try:
        return fold(_records(consumer, topic))
    except KafkaException as error:
        raise UnreadableTopic(f"Topic {topic!r} cannot be read: {error.args[0].str()}.") from None
    finally:
        consumer.close()


def _records(consumer: Consumer, topic: str) -> Iterator[Record]:
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
                if (record := decoded(message)) is not None:
                    yield record
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.code() not in AWAY:
                raise KafkaException(error)
    raise UnreadableTopic(f"Topic {topic!r} cannot be read: Kafka sent nothing for {TIMEOUT_S:g} s.")
