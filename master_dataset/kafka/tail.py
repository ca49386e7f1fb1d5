"""Read topics from chosen offsets on, or as a member of a group, until they end or for as long as wished."""

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
LOOK_EVERY_S = 2.0
"""How often the topics are looked up that a pattern matches."""
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


Location = tuple[str, int]
"""A topic and a partition of it."""


class Reading(NamedTuple):
    """What is read. `until_end`: what is there now; `max_records`: None is no end.

    `look` gives the topics to read as they are now, where a pattern says which.
    """

    topics: tuple[str, ...]
    isolation: str
    until_end: bool = False
    max_records: int | None = None
    look: Callable[[], tuple[str, ...]] | None = None


Show = Callable[[Message], None]


def read_from(
    config: Mapping[str, Any],
    reading: Reading,
    begin: Mapping[Location, int],
    show: Show,
    begin_of: Callable[[str], Mapping[Location, int]] | None = None,
) -> None:
    """Show the records of these partitions from these offsets on. `begin_of`: where a topic begins that came later."""
    settings = {"group.id": "tidemark-consume", "auto.offset.reset": "error", "isolation.level": reading.isolation}
    count, ended, next_offsets = 0, set[Location](), dict(begin)
    looking = _Looking(reading)
    with closing(Consumer({**config, **READER, **settings})) as consumer:
        _assign(consumer, next_offsets)
        while not (reading.until_end and ended >= begin.keys()) and count != reading.max_records:
            for message in _taken(consumer, reading, count):
                location, offset = _location(message)
                if message.error() is None:
                    show(message)
                    next_offsets[location] = offset + 1
                    count += 1
                else:
                    ended.add(location)
            if begin_of is not None and (more := looking.changed()):
                for topic in more.difference(each for each, _ in next_offsets):
                    next_offsets |= begin_of(topic)
                _assign(consumer, next_offsets)


def read_as_group(config: Mapping[str, Any], reading: Reading, group: str, show: Show, *, from_beginning: bool) -> None:
    """Show the records that a group has not committed, as one of its members.

    A record is committed after it was shown, within a few seconds and at the end: a crash repeats some and loses none.
    """
    reset = "earliest" if from_beginning else "latest"
    settings = {"group.id": group, "auto.offset.reset": reset, "isolation.level": reading.isolation}
    count, ended, done = 0, set[Location](), dict[Location, int]()
    looking = _Looking(reading)

    def subscribe(topics: list[str]) -> None:
        # When the group shares out its partitions again, it takes commits of what it takes away until this returns.
        consumer.subscribe(topics, on_revoke=lambda *_: _commit(consumer, done), on_lost=lambda *_: done.clear())

    with closing(Consumer({**config, **READER, **settings})) as consumer:
        if reading.topics:
            subscribe(list(reading.topics))
        next_commit_s = time.monotonic() + COMMIT_EVERY_S
        try:
            while count != reading.max_records and not (reading.until_end and not reading.topics):
                for message in _taken(consumer, reading, count):
                    location, offset = _location(message)
                    if message.error() is not None:
                        ended.add(location)
                        continue
                    ended.discard(location)
                    show(message)
                    done[location] = offset + 1
                    count += 1
                if time.monotonic() > next_commit_s:
                    _commit(consumer, done)
                    next_commit_s = time.monotonic() + COMMIT_EVERY_S
                assigned = {(each.topic, each.partition) for each in consumer.assignment()}
                if reading.until_end and assigned and assigned <= ended:
                    return
                if now := looking.changed():
                    subscribe(sorted(now))
        finally:
            _commit(consumer, done)


class _Looking:
    """Looks now and then which topics a pattern matches."""

    def __init__(self, reading: Reading) -> None:
        self._look, self._known = reading.look, set(reading.topics)
        self._next_s = time.monotonic() + LOOK_EVERY_S

    def changed(self) -> set[str]:
        """The topics, if they are others than at the last look."""
        if self._look is None or time.monotonic() < self._next_s:
            return set()
        self._next_s = time.monotonic() + LOOK_EVERY_S
        found = set(self._look())
        if found == self._known:
            return set()
        self._known = found
        return found


def _assign(consumer: Consumer, offsets: Mapping[Location, int]) -> None:
    consumer.assign([TopicPartition(*location, offset) for location, offset in offsets.items()])


def _location(message: Message) -> tuple[Location, int]:
    return (str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0)


def _taken(consumer: Consumer, reading: Reading, count: int) -> list[Message]:
    """What came: records, no more than are still wanted, and the ends of partitions. Anything else is raised."""
    left = MAX_TAKEN if reading.max_records is None else reading.max_records - count
    try:
        found = consumer.consume(min(MAX_TAKEN, left), WAIT_S)
    except KafkaException as error:
        raise translated(error, f"{', '.join(map(repr, reading.topics))} could not be read") from None
    return [message for message in found if not _is_passing(message)]


def _is_passing(message: Message) -> bool:
    """Whether it is an error that passes by itself; another error is raised, except for the end of a partition."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return False
    if error.code() in GONE:
        raise TopicError(f"Topic {message.topic()!r} could not be read: {error.str()}.")
    if error.code() not in PASSING:
        raise translated(KafkaException(error), f"Topic {message.topic()!r} could not be read")
    return True


def _commit(consumer: Consumer, done: dict[Location, int]) -> None:
    if not done:
        return
    offsets = [TopicPartition(*location, offset) for location, offset in done.items()]
    try:
        committed = consumer.commit(offsets=offsets, asynchronous=False) or []
    except KafkaException as error:
        raise translated(error, "What was read could not be committed; it will be read again") from None
    if failed := [each.error for each in committed if each.error is not None]:
        raise TopicError(f"What was read could not be committed; it will be read again: {failed[0].str()}.")
    done.clear()
