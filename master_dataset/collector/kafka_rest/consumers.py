"""Consumer instances that the collector keeps for its clients, each a member of a Kafka consumer group."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from infra.rest.problems import Problem
from infra.threads import P, T, Threads
from master_dataset.collector.kafka_rest.fetch import kafka_problem
from master_dataset.collector.kafka_rest.records import as_json, take

ASSIGNMENT_TIMEOUT_S = 15.0
SWEEP_EVERY_S = 5.0
DEFAULT_RESET = "earliest"
DEFAULT_ISOLATION = "read_committed"

log = structlog.get_logger()


@dataclass
class Instance:
    """One consumer. Its lock keeps two requests from using it at once."""

    group: str
    name: str
    offset_reset: str
    consumer: Consumer
    max_bytes: float = inf  # of the records of one answer; one record is always given
    isolation: str = DEFAULT_ISOLATION
    topics: tuple[str, ...] = ()
    is_joining: bool = False
    failure: KafkaError | None = None  # came together with records; the next call raises it
    uncommitted: dict[tuple[str, int], int] = field(default_factory=dict)
    lost: set[tuple[str, int]] = field(default_factory=set)  # partitions whose uncommitted records others read again
    taken: list[Any] = field(default_factory=list)  # what the running call was given by Kafka so far
    counting: threading.Lock = field(default_factory=threading.Lock)  # around changes of `uncommitted`
    used_at: float = field(default_factory=time.monotonic)
    is_closed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def consume(self, topics: tuple[str, ...], timeout_s: float, limit: int, *, auto_commit: bool) -> list[Any]:
        """The next records. With `auto_commit`, what the call before gave is committed first: it has arrived.

        Records that came together with an error are given, and the next call raises it. Raised at once, it would drop
        them: the consumer is past them already, and the next commit would skip them.
        """
        with _as_problems():
            if auto_commit:
                self._commit(self._positions())
                self.lost.clear()  # who asks for more has no use for it: it is read again
            if self.failure is not None:
                error, self.failure = self.failure, None
                raise KafkaException(error)
            if topics != self.topics:
                self.consumer.subscribe(list(topics), on_revoke=self._on_revoke, on_lost=self._on_revoke)
                self.topics, self.is_joining = topics, True
            messages = self._await_assignment(limit) if self.is_joining else []
            deadline = time.monotonic() + timeout_s
            while not messages:
                wait_s = min(0.05, max(0.0, deadline - time.monotonic()))
                messages = self._take(limit, wait_s)
                if time.monotonic() >= deadline:
                    break
            found = [message.error() for message in messages]
            errors = [error for error in found if error is not None and not _is_passing(error)]
            messages = [message for message in messages if message.error() is None]
            if errors and not messages:
                raise KafkaException(errors[0])
            self.failure = errors[0] if errors else None
            with self.counting:
                for message in messages:
                    location = str(message.topic()), int(message.partition() or 0)
                    self.uncommitted[location] = int(message.offset() or 0) + 1
            return [as_json(message) for message in messages]

    def _take(self, limit: int, wait_s: float) -> list[Any]:
        self.taken = []
        return take(self.consumer, limit, self.max_bytes, wait_s, self.taken)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget the partitions that the group takes away; librdkafka says so while it is polled.

        Whoever gets them, this instance or another, begins where the group has committed. What was read there and not
        committed is read again, also what the running call has taken and not given yet.
        """
        revoked = {(each.topic, each.partition) for each in partitions}
        self.taken[:] = [each for each in self.taken if (each.topic(), each.partition()) not in revoked]
        with self.counting:
            self.lost |= {each for each in revoked if self.uncommitted.pop(each, None) is not None}

    def _await_assignment(self, limit: int) -> list[Any]:
        """Joining a group takes a moment, and the client's timeout is for records, not for that."""
        deadline = time.monotonic() + ASSIGNMENT_TIMEOUT_S
        messages: list[Any] = []
        while not messages and not self.consumer.assignment() and time.monotonic() < deadline:
            messages = [message for message in self._take(limit, 0.05) if not _is_passing(message.error())]
        self.is_joining = False
        if not messages and not self.consumer.assignment():
            # In a group with more members than partitions, some get none: that is no error.
            log.info("no_assignment", group=self.group, instance=self.name, topics=self.topics)
        return messages

    def commit(self, locations: list[TopicPartition] | None = None) -> list[dict[str, Any]]:
        """Commit these offsets; without any, those after everything that was given so far.

        The problem 409, and nothing is committed, if the group took a partition of those away since.
        """
        return self._commit(self.next_locations() if locations is None else locations)

    def _commit(self, locations: list[TopicPartition]) -> list[dict[str, Any]]:
        if not locations:
            return []
        with _as_problems():
            done = self.consumer.commit(offsets=locations, asynchronous=False) or []
            for location in done:
                if location.error is not None:
                    raise KafkaException(location.error)
        with self.counting:
            for location in done:
                self.uncommitted.pop((location.topic, location.partition), None)
        return [_as_json(location) for location in done]

    def next_locations(self) -> list[TopicPartition]:
        """The offsets after everything that was given and not committed.

        The problem 409, once, if the group took one of these partitions away since: another member may be further.
        """
        self._check_lost()
        return self._positions()

    def offsets_to_send(self, given: list[TopicPartition] | None) -> tuple[Any, list[TopicPartition]]:
        """What a transaction needs to commit these offsets, or those after everything that was given.

        The problem 409 for partitions that the instance does not have, or had to give away since it read there.
        """
        with _as_problems():
            metadata = self.consumer.consumer_group_metadata()  # from here on, Kafka refuses what another member has
            self._check_lost()
            if given is None:
                return metadata, self._positions()
            held = {(each.topic, each.partition) for each in self.consumer.assignment()}
        if others := {(each.topic, each.partition) for each in given} - held:
            raise self._has_lost(others)
        return metadata, given

    def _positions(self) -> list[TopicPartition]:
        return [TopicPartition(*location, offset) for location, offset in list(self.uncommitted.items())]

    def _check_lost(self) -> None:
        if not self.consumer.memberid():  # Kafka threw it out, and librdkafka has not been polled since
            with self.counting:
                self.lost |= self.uncommitted.keys()
                self.uncommitted.clear()
        if self.lost:
            lost, self.lost = self.lost, set()
            raise self._has_lost(lost)

    def settle(self, committed: Iterable[tuple[tuple[str, int], int]]) -> None:
        """Forget these offsets, unless more was given meanwhile."""
        with self.counting:
            for location, offset in committed:
                if self.uncommitted.get(location) == offset:
                    del self.uncommitted[location]

    def _has_lost(self, lost: set[tuple[str, int]]) -> Problem:
        named = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(lost)[:20])
        return Problem(
            409,
            "partitions-lost",
            f"The group {self.group!r} took {named} away from its instance {self.name!r}. Nothing was committed. What "
            "the instance read there and did not commit is read again, by the members that have these partitions now: "
            "drop what was made of it.",
        )

    def committed(self, locations: list[TopicPartition]) -> list[dict[str, Any]]:
        """What the group has committed; an offset of null where it has not."""
        with _as_problems():
            return [_as_json(location) for location in self.consumer.committed(locations, timeout=10)]

    def describe(self) -> dict[str, Any]:
        """For `/consumers`."""
        held: dict[str, list[int]] = {topic: [] for topic in self.topics}
        for location in self.consumer.assignment():
            held.setdefault(location.topic, []).append(location.partition)
        topics = [{"topic": topic, "partitions": sorted(numbers)} for topic, numbers in held.items()]
        idle_s = round(time.monotonic() - self.used_at, 1)
        return {
            "name": self.name,
            "topics": topics,
            "auto_offset_reset": self.offset_reset,
            "isolation": self.isolation,
            "idle_seconds": idle_s,
        }


class Consumers:
    """All instances by (group, name). Unused ones are closed after a while."""

    def __init__(self, config: dict[str, Any], max_instances: int, idle_s: float, max_bytes: float = inf) -> None:
        self._max_bytes = max_bytes
        self._config = config
        self._limit = max_instances
        self._idle_s = idle_s
        self._instances: dict[tuple[str, str], Instance] = {}
        self._closing = 0  # deleted, but still a member of its group until Kafka has let it go
        self.threads = Threads("consume", max(1, max_instances))  # an instance uses one at a time: none waits

    def get(self, group: str, name: str, offset_reset: str | None = None, isolation: str | None = None) -> Instance:
        """The instance, created where there is none yet. Another offset reset or isolation is the problem 409."""
        instance = self._instances.get((group, name))
        if instance is not None and offset_reset not in (None, instance.offset_reset):
            raise Problem(
                409,
                "offset-reset-differs",
                f"The consumer instance {name!r} of group {group!r} was created with Kafka-Auto-Offset-Reset "
                f"{_named(instance.offset_reset)!r}; {_named(offset_reset)!r} was asked for. Leave the header out, or "
                "delete the instance with /delete-consumer/{group}/{instance}: the next /consume creates it again.",
            )
        if instance is not None and isolation not in (None, instance.isolation):
            raise Problem(
                409,
                "isolation-differs",
                f"The consumer instance {name!r} of group {group!r} was created with isolation={instance.isolation}; "
                f"{isolation} was asked for. Leave it out, or delete the instance with "
                "/delete-consumer/{group}/{instance}: the next /consume creates it again.",
            )
        if instance is None:
            offset_reset, isolation = offset_reset or DEFAULT_RESET, isolation or DEFAULT_ISOLATION
            if len(self._instances) + self._closing >= self._limit:
                raise Problem(
                    429,
                    "too-many-consumers",
                    f"The collector keeps {self._limit} consumer instances already (collector_max_consumers), of which "
                    f"{self._closing} are being closed. Delete one with /delete-consumer/{{group}}/{{instance}}, or "
                    "wait until an unused one is closed.",
                    retry_after_s=1 if self._closing else int(self._idle_s) + 1,
                )
            consumer = self._consumer(group, name, offset_reset, isolation)
            instance = Instance(group, name, offset_reset, consumer, self._max_bytes, isolation)
            self._instances[group, name] = instance
        instance.used_at = time.monotonic()
        return instance

    def known(self, group: str, name: str) -> Instance:
        """The instance, or the problem 404."""
        if (group, name) not in self._instances:
            raise Problem(
                404,
                "unknown-consumer",
                f"There is no consumer instance {name[:100]!r} in group {group[:100]!r}. /consume creates it.",
            )
        return self.get(group, name)

    async def committed(self, group: str, name: str, locations: list[TopicPartition]) -> list[dict[str, Any]]:
        """What a group has committed, asked through the instance if there is one. Only /consume creates instances."""
        if (group, name) in self._instances:
            instance = self.get(group, name)
            return await self.use(instance, instance.committed, locations)
        return await self.threads.run(self._committed, group, name, locations)

    def _committed(self, group: str, name: str, locations: list[TopicPartition]) -> list[dict[str, Any]]:
        consumer = self._consumer(group, name, DEFAULT_RESET, DEFAULT_ISOLATION)
        try:
            return Instance(group, name, DEFAULT_RESET, consumer).committed(locations)
        finally:
            consumer.close()

    def group_metadata(self, group: str) -> Any:
        """What a transaction needs to commit offsets of a group for nobody who is a member. Waits: use a thread."""
        consumer = self._consumer(group, "transaction", DEFAULT_RESET, DEFAULT_ISOLATION)
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    async def use(self, instance: Instance, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run `work`, a method of the instance, exclusively. If it was deleted meanwhile: the problem 409."""
        async with instance.lock:
            if instance.is_closed:
                raise Problem(
                    409,
                    "consumer-deleted",
                    f"The consumer instance {instance.name!r} of group {instance.group!r} was deleted while this "
                    "request waited for it. Nothing was read or committed; the next /consume creates a new one.",
                )
            return await self.threads.run(work, *arguments, **named)

    def topics_of(self, group: str, name: str) -> set[str]:
        """The topics that an instance reads, or has read and not committed; none where there is no instance."""
        instance = self._instances.get((group, name))
        return set() if instance is None else {*instance.topics, *(topic for topic, _ in list(instance.uncommitted))}

    def by_group(self, may_see: Callable[[str], bool]) -> list[dict[str, Any]]:
        """For `/consumers`: the instances of which the key may see every topic."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for (group, name), instance in sorted(self._instances.items()):
            if all(map(may_see, self.topics_of(group, name))):
                groups.setdefault(group, []).append(instance.describe())
        return [{"name": group, "instances": instances} for group, instances in groups.items()]

    async def delete(self, group: str, name: str) -> None:
        """Let the instance leave its group. What it did not commit is read again by others."""
        instance = self.known(group, name)
        self._instances.pop((group, name), None)
        self._closing += 1
        try:
            async with instance.lock:
                instance.is_closed = True
                await self.threads.run(instance.consumer.close)
        finally:
            self._closing -= 1

    async def sweep(self) -> None:
        """Close unused instances, until it is cancelled."""
        while True:
            await asyncio.sleep(min(SWEEP_EVERY_S, self._idle_s))
            for key, instance in list(self._instances.items()):
                if time.monotonic() - instance.used_at > self._idle_s and not instance.lock.locked():
                    log.info("closed_idle_consumer", group=key[0], instance=key[1])
                    await self.delete(*key)

    async def close(self) -> None:
        """Close every instance."""
        await asyncio.gather(*(self.delete(*key) for key in list(self._instances)))

    def _consumer(self, group: str, name: str, offset_reset: str, isolation: str) -> Consumer:
        return Consumer(
            {
                **self._config,
                "group.id": group,
                "client.id": name,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": offset_reset,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 100,
                # Between two requests a client may take its time; after this one it is closed anyway.
                "max.poll.interval.ms": int(self._idle_s * 1000) + 60_000,
                "session.timeout.ms": 10_000,
                "queued.max.messages.kbytes": 4096,
            }
        )


def _named(offset_reset: str | None) -> str:
    """As the header says it."""
    return "none" if offset_reset == "error" else str(offset_reset)


def _is_passing(error: KafkaError | None) -> bool:
    """Whether librdkafka retries by itself."""
    return error is not None and error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)


def _as_json(location: TopicPartition) -> dict[str, Any]:
    return {
        "topic": location.topic,
        "partition": location.partition,
        "offset": location.offset if location.offset >= 0 else None,
    }


@contextmanager
def _as_problems() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise kafka_problem(error) from None
