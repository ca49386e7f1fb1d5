"""One consumer that the collector keeps for a client: a member of a Kafka group, or a reader of given partitions."""

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
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from infra.rest.problems import Problem
from master_dataset.collector.kafka_rest.fetch import REBALANCES, kafka_problem
from master_dataset.collector.kafka_rest.records import as_json, size_of, take

ASSIGNMENT_TIMEOUT_S = 15.0
SEEK_TIMEOUT_S = 10.0
NO_RESET, NO_RESET_TIMEOUT_S = "error", 1.0
"""Where an instance may not reset, a partition without an offset is never read: there is no reason to wait long."""
KAFKA_TIMEOUT_S = 10.0
DEFAULT_ISOLATION = "read_committed"

Present = Callable[[Message], Any]
"""What is given of a message. Raises a problem for one that cannot be given as it was asked for."""

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
    proxied: Any = None  # what a client of REST Proxy v2 asked for when it made the instance
    owner: str = ""
    failure: KafkaError | None = None  # came together with records; the next call raises it
    uncommitted: dict[tuple[str, int], int] = field(default_factory=dict)
    sought: dict[tuple[str, int], int] = field(default_factory=dict)  # where nothing was read since
    lost: set[tuple[str, int]] = field(default_factory=set)  # partitions whose uncommitted records others read again
    taken: list[Any] = field(default_factory=list)  # what the running call was given by Kafka so far
    counting: threading.Lock = field(default_factory=threading.Lock)  # around changes of `uncommitted`
    used_at: float = field(default_factory=time.monotonic)
    is_closed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def consume(
        self,
        topics: tuple[str, ...],
        timeout_s: float,
        limit: int,
        *,
        auto_commit: bool,
        max_bytes: float = inf,
        min_bytes: int = 0,
        present: Present = as_json,
    ) -> list[Any]:
        """The next records of these topics; without topics, of the partitions that were assigned.

        With `auto_commit`, what the call before gave is committed first: it has arrived. It waits for `min_bytes`,
        until the timeout.
        """
        with _as_problems():
            if auto_commit:
                self.commit_held()
            if self.failure is not None:
                error, self.failure = self.failure, None
                raise KafkaException(error)
            if topics and topics != self.topics:
                self.consumer.subscribe(list(topics), on_revoke=self._on_revoke, on_lost=self._on_revoke)
                self.topics, self.is_joining = topics, True
            return self._read(timeout_s, limit, min(max_bytes, self.max_bytes), min_bytes, present)

    def _read(self, timeout_s: float, limit: int, max_bytes: float, min_bytes: int, present: Present) -> list[Any]:
        """Records that come together with an error are given, and the next call raises it.

        Raised at once, it would drop them: the consumer is past them already, and the next commit would skip them. So
        it is with a record that cannot be presented: the next call begins with it.
        """
        self.taken = []
        if self.is_joining:
            self._await_assignment(limit, max_bytes)
        deadline = time.monotonic() + timeout_s
        while not self.taken or sum(map(size_of, self.taken)) < min(min_bytes, max_bytes):
            take(self.consumer, limit, max_bytes, min(0.05, max(0.0, deadline - time.monotonic())), self.taken)
            if time.monotonic() >= deadline or len(self.taken) >= limit:
                break
            if any(message.error() is not None for message in self.taken):
                break
        found = [message.error() for message in self.taken]
        errors = [error for error in found if error is not None and not _is_passing(error)]
        messages = [message for message in self.taken if message.error() is None]
        if errors and not messages:
            raise KafkaException(errors[0])
        for message in messages:
            self.sought.pop((str(message.topic()), int(message.partition() or 0)), None)
        given = []
        for index, message in enumerate(messages):
            try:
                given.append(present(message))
            except Problem:
                self._go_back_to(messages[index:])
                if not given:
                    raise
                messages = messages[:index]
                break
        self.failure = errors[0] if errors else None
        with self.counting:
            for message in messages:
                location = str(message.topic()), int(message.partition() or 0)
                self.uncommitted[location] = int(message.offset() or 0) + 1
        return given

    def _go_back_to(self, messages: list[Message]) -> None:
        """Read these messages again."""
        first: dict[tuple[str, int], int] = {}
        for message in messages:
            first.setdefault((str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0))
        self._seek([TopicPartition(*location, offset) for location, offset in first.items()])

    def assign(self, locations: list[TopicPartition]) -> None:
        """Read these partitions from where the group has committed, and be no member of it."""
        with _as_problems():
            self.consumer.unsubscribe()
            self.consumer.assign(locations)
        self.topics, self.is_joining, self.failure = (), False, None
        with self.counting:
            self.uncommitted.clear()
            self.sought.clear()

    def unsubscribe(self) -> None:
        """Leave the group's topics, or give the assigned partitions back."""
        with _as_problems():
            self.consumer.unsubscribe()
            self.consumer.unassign()
        self.topics, self.is_joining, self.failure = (), False, None
        with self.counting:
            self.uncommitted.clear()
            self.sought.clear()

    def assigned(self) -> list[tuple[str, int]]:
        """The partitions that the instance reads now."""
        with _as_problems():
            return sorted((each.topic, each.partition) for each in self.consumer.assignment())

    def seek(self, locations: list[TopicPartition]) -> None:
        """Go on from these offsets. The problem 409 for a partition that the instance does not have."""
        self._check_assigned(locations)
        with _as_problems():
            self._seek(locations)
        self.failure = None
        with self.counting:
            for each in locations:  # what is committed next, like with Kafka's own consumers
                self.uncommitted[each.topic, each.partition] = each.offset

    def seek_to(self, locations: list[TopicPartition], *, end: bool) -> None:
        """Go to the beginning or the end of these partitions, as they are now."""
        self._check_assigned(locations)
        with _as_problems():
            found = [self.consumer.get_watermark_offsets(each, timeout=KAFKA_TIMEOUT_S) for each in locations]
        pairs = zip(locations, found, strict=True)
        self.seek([TopicPartition(each.topic, each.partition, offsets[end]) for each, offsets in pairs])

    def _check_assigned(self, locations: list[TopicPartition]) -> None:
        if others := {(each.topic, each.partition) for each in locations}.difference(self.assigned()):
            named = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(others)[:20])
            raise Problem(
                409,
                "not-assigned",
                f"The consumer instance {self.name!r} of group {self.group!r} does not have {named}. Assign it, or "
                "subscribe to its topic and read once: the group shares the partitions while its members read.",
            )

    def _seek(self, locations: list[TopicPartition]) -> None:
        """Read on from these offsets. A partition that was assigned just now takes a moment until it is read.

        One with no offset to begin at never is: nothing is committed, or Kafka has removed it, and the instance shall
        not reset. So what is not read in time is assigned again, with the offset.
        """
        may_not_reset = self.offset_reset == NO_RESET
        deadline = time.monotonic() + (NO_RESET_TIMEOUT_S if may_not_reset else SEEK_TIMEOUT_S)
        for each in locations:
            while not self._is_sought(each):
                if time.monotonic() > deadline:
                    if not may_not_reset:
                        self.consumer.seek(each)  # raises, unless it works by now
                        break
                    self.sought |= {(each.topic, each.partition): each.offset for each in locations}
                    self._assign_again()
                    return
                time.sleep(0.05)

    def _is_sought(self, location: TopicPartition) -> bool:
        """Read on from there; False where the partition is not read."""
        try:
            self.consumer.seek(location)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:
                return False
            raise
        self.sought[location.topic, location.partition] = location.offset
        return True

    def _assign_again(self) -> None:
        """The same partitions, each from where it is read next."""
        found = self.consumer.position(self.consumer.assignment())
        self.consumer.assign([
            TopicPartition(each.topic, each.partition, self.sought.get((each.topic, each.partition), each.offset))
            for each in found
        ])  # fmt: skip

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget the partitions that the group takes away; librdkafka says so while it is polled.

        Whoever gets them, this instance or another, begins where the group has committed. What was read there and not
        committed is read again, also what the running call has taken and not given yet.
        """
        revoked = {(each.topic, each.partition) for each in partitions}
        self.taken[:] = [each for each in self.taken if (each.topic(), each.partition()) not in revoked]
        with self.counting:
            self.lost |= {each for each in revoked if self.uncommitted.pop(each, None) is not None}
            for each in revoked:
                self.sought.pop(each, None)

    def _await_assignment(self, limit: int, max_bytes: float) -> None:
        """Joining a group takes a moment, and the client's timeout is for records, not for that."""
        deadline = time.monotonic() + ASSIGNMENT_TIMEOUT_S
        while not self.taken and not self.consumer.assignment() and time.monotonic() < deadline:
            take(self.consumer, limit, max_bytes, 0.05, self.taken)
            self.taken[:] = [message for message in self.taken if not _is_passing(message.error())]
        self.is_joining = False
        if not self.taken and not self.consumer.assignment():
            # In a group with more members than partitions, some get none: that is no error.
            log.info("no_assignment", group=self.group, instance=self.name, topics=self.topics)

    def commit_held(self) -> None:
        """Commit everything that was given; what was lost is read again by who has it now."""
        self._note_lost()
        try:
            self._commit(self._positions())
        except Problem as problem:
            if problem.kind != REBALANCES:  # whoever gets the partitions begins where the group has committed
                raise
        self.lost.clear()

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

    def _note_lost(self) -> None:
        if self.topics and not self.consumer.memberid():  # Kafka threw it out; librdkafka was not polled since
            with self.counting:
                self.lost |= self.uncommitted.keys()
                self.uncommitted.clear()

    def _check_lost(self) -> None:
        self._note_lost()
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
