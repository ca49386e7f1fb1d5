"""Read a topic from a chosen offset on, or as a member of a group, until it ends or for as long as wished."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from master_dataset.kafka.errors import TopicError, translated

WAIT_S = 0.2
MAX_TAKEN = 500
COMMIT_EVERY_S = 5.0
SESSION_TIMEOUT_MS = 10_000
GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
PASSING = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE)
"""What librdkafka retries by itself."""
READER: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "session.timeout.ms": SESSION_TIMEOUT_MS,
}


class Reading(NamedTuple):
    """What is read. `until_end`: what is there now; `max_records`: None is no end."""

    topic: str
    isolation: str
    until_end: bool = False
    max_records: int | None = None


Show = Callable[[Message], None]


def read_from(config: Mapping[str, Any], reading: Reading, begin: Mapping[int, int], show: Show) -> None:
    """Show the records of these partitions from these offsets on."""
    settings = {"group.id": "tidemark-consume", "auto.offset.reset": "error", "isolation.level": reading.isolation}
    count, ended = 0, set[int | None]()
    with closing(Consumer({**config, **READER, **settings})) as consumer:
        consumer.assign([TopicPartition(reading.topic, number, offset) for number, offset in begin.items()])
        while not (reading.until_end and len(ended) == len(begin)) and count != reading.max_records:
            for message in _taken(consumer, reading, count):
                if message.error() is None:
                    show(message)
                    count += 1
                else:
                    ended.add(message.partition())


def read_as_group(config: Mapping[str, Any], reading: Reading, group: str, show: Show, *, from_beginning: bool) -> None:
    """Show the records that a group has not committed, as one of its members.

    A record is committed after it was shown, within a few seconds and at the end: a crash repeats some and loses none.
    """
    reset = "earliest" if from_beginning else "latest"
    settings = {"group.id": group, "auto.offset.reset": reset, "isolation.level": reading.isolation}
    count, ended, done = 0, set[int | None](), dict[int, int]()
    with closing(Consumer({**config, **READER, **settings})) as consumer:
        consumer.subscribe([reading.topic])
        next_commit_s = time.monotonic() + COMMIT_EVERY_S
        try:
            while count != reading.max_records:
                for message in _taken(consumer, reading, count):
                    if message.error() is not None:
                        ended.add(message.partition())
                        continue
                    ended.discard(message.partition())
                    show(message)
                    done[int(message.partition() or 0)] = int(message.offset() or 0) + 1
                    count += 1
                if time.monotonic() > next_commit_s:
                    _commit(consumer, reading.topic, done)
                    next_commit_s = time.monotonic() + COMMIT_EVERY_S
                assigned = {location.partition for location in consumer.assignment()}
                if reading.until_end and assigned and assigned <= ended:
                    return
        finally:
            _commit(consumer, reading.topic, done)


def _taken(consumer: Consumer, reading: Reading, count: int) -> list[Message]:
    """What came: records, no more than are still wanted, and the ends of partitions. Anything else is raised."""
    topic, left = reading.topic, MAX_TAKEN if reading.max_records is None else reading.max_records - count
    try:
        found = consumer.consume(min(MAX_TAKEN, left), WAIT_S)
    except KafkaException as error:
        raise translated(error, f"Topic {topic!r} could not be read") from None
    return [message for message in found if not _is_passing(message, topic)]


def _is_passing(message: Message, topic: str) -> bool:
    """Whether it is an error that passes by itself; another error is raised, except for the end of a partition."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return False
    if error.code() in GONE:
        raise TopicError(f"Topic {topic!r} could not be read: {error.str()}.")
    if error.code() not in PASSING:
        raise translated(KafkaException(error), f"Topic {topic!r} could not be read")
    return True


def _commit(consumer: Consumer, topic: str, done: dict[int, int]) -> None:
    if not done:
        return
    offsets = [TopicPartition(topic, number, offset) for number, offset in done.items()]
    try:
        committed = consumer.commit(offsets=offsets, asynchronous=False) or []
    except KafkaException as error:
        raise translated(error, "What was read could not be committed; it will be read again") from None
    if failed := [each.error for each in committed if each.error is not None]:
        raise TopicError(f"What was read could not be committed; it will be read again: {failed[0].str()}.")
    done.clear()
