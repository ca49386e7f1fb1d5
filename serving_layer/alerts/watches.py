"""Watches: read a source as it arrives, and store every event that matches a watch for subscribers.

    tidemark:{web}:watches              how far the source has been read, how many events each watch has matched, its
                                        condition, and why it is not evaluated, if it is not
    tidemark:{web}:watch:<name>         a stream: the newest matches

Matches, counts and offsets are written atomically, so a process that is killed neither stores nor counts a match twice.
Only valid events are evaluated, by the version of the source that is in force. Records of other formats than JSON are
decoded with the writer schemas that the layers noted, and wait with them for a registry that does not answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from redis import Redis
from redis.exceptions import RedisError

from infra.clients.kafka import librdkafka_config
from infra.settings import Settings
from master_dataset.cut import Cut, cut_from_json, cut_to_json, is_below, ranges
from master_dataset.errors import InvalidEvent, MasterDatasetError
from master_dataset.events.raw_records import RawRecord
from master_dataset.kafka.errors import translated
from master_dataset.kafka.offset_base import to_kafka
from master_dataset.kafka.positions import KafkaBehind, check_topic_id, logical_positions, read_positions
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from serving_layer.alerts.bound_watches import BoundWatches
from serving_layer.alerts.watch_events import match_json, record_of
from views.source import Source
from views.watch import Watch

BATCH_SIZE, POLL_S = 1_000, 0.1
MAX_MATCHES = 1_000
"""Retained for each watch, for subscribers that reconnect."""
RETRY_S = 1.0
LOOK_EVERY_S = 1.0
"""How often the version of the source is looked up."""
CUT = "cut"

log = structlog.get_logger()


@dataclass
class Watcher:
    """Reads one source for all its watches. `run` returns once `stopping` is set."""

    settings: Settings
    bootstrap: str
    bound: BoundWatches
    client: Redis
    stopping: threading.Event
    error: str = ""
    matched: int = 0
    read: int = 0
    skipped: int = 0
    """Valid records that no condition could evaluate."""
    cut: dict[int, int] = field(default_factory=dict)
    """In logical offsets, as Redis has it."""
    base: Cut = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """With the version that is in force."""
        return self.bound.source

    def run(self) -> None:
        """Read until `stopping`. After any error it resumes from Redis."""
        while not self.stopping.is_set():
            try:
                self._follow()
            except (RedisError, OSError, MasterDatasetError, KafkaException) as error:
                if self.error != str(error):
                    log.warning("retrying", watches_of=self.source.name, reason=str(error))
                self.error = str(error)
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
                log.exception("restarting", watches_of=self.source.name, reason=self.error)
            self.stopping.wait(RETRY_S)

    def _follow(self) -> None:
        self._look()
        self.cut = self._start_cut()
        consumer = Consumer(
            {
                **librdkafka_config(self.settings, self.bootstrap),
                "group.id": f"tidemark-watches-{self.source.name}",  # librdkafka wants one; nothing is committed to it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            consumer.assign(
                [TopicPartition(self.source.topic, *each) for each in to_kafka(self.base, self.cut).items()]
            )
            looked = time.monotonic()
            while not self.stopping.is_set():
                messages = consumer.consume(BATCH_SIZE, POLL_S)
                if messages:
                    self._process(messages)
                if time.monotonic() - looked >= LOOK_EVERY_S:
                    looked = time.monotonic()
                    self._look()
                self.error = ""
        finally:
            consumer.close()

    def _look(self) -> None:
        """Follow the version of the source. Readers of Redis see which conditions are evaluated."""
        if self.bound.look():
            status: Any = self.bound.status()
            self.client.hset(redis_names(self.source.name)[0], mapping=status)

    def _start_cut(self) -> dict[int, int]:
        """Where the last process stopped, or the oldest offset that Kafka still has; the first time the end.

        Refuses a topic that was made again, or lost its end, until a rebase says where its records begin.
        """
        held = coverage.of(table_path(self.settings, self.source.name))
        positions = logical_positions(read_positions(self.settings, self.bootstrap, self.source), held.offset_base)
        check_topic_id(self.source, positions.topic_id, held.topic_id)
        self.base = held.base
        stored: Any = self.client.hget(redis_names(self.source.name)[0], CUT)
        known = cut_from_json(json.loads(stored)) if stored else {}
        if held.topic_id and (behind := list(ranges(positions.latest, known))):
            raise KafkaBehind(self.source, behind)
        if not known or not is_below(known, positions.latest):
            # Now, not with the first records: what comes while we are stopped before them is not skipped.
            self.client.hset(redis_names(self.source.name)[0], CUT, json.dumps(cut_to_json(positions.latest)))
            return dict(positions.latest)
        return {
            partition: max(known.get(partition, 0), positions.earliest.get(partition, 0))
            for partition in positions.latest
        }

    def _process(self, messages: list[Message]) -> None:
        status, prefix = redis_names(self.source.name)
        records = list(self._records(messages))
        self.bound.reader.learn(records)
        with self.client.pipeline(transaction=True) as pipe:
            matched = 0
            cut = dict(self.cut)
            for record in records:
                cut[record.partition] = record.offset + 1
                for watch, body in self.matches(record):
                    pipe.xadd(prefix + watch.name, {"e": body}, maxlen=MAX_MATCHES, approximate=True)
                    pipe.hincrby(status, f"count:{watch.name}", 1)
                    matched += 1
            pipe.hset(status, mapping={CUT: json.dumps(cut_to_json(cut)), "at": str(time.time())})
            pipe.execute()
        self.cut, self.matched, self.read = cut, self.matched + matched, self.read + len(records)

    def _records(self, messages: Iterable[Message]) -> Iterator[RawRecord]:
        for message in messages:
            if (error := message.error()) is None:
                yield record_of(message, self.base.get(int(message.partition() or 0), 0))
            elif error.code() != KafkaError._PARTITION_EOF:
                raise translated(KafkaException(error), f"Topic {self.source.topic!r} cannot be read")

    def matches(self, record: RawRecord) -> list[tuple[Watch, bytes]]:
        """The watches that a record matches, with the JSON of the match. A bad record never blocks those behind it."""
        try:
            event = self.bound.reader.read(record)
            return [
                (watch, match_json(watch, record, event))
                for watch in self.bound.evaluated
                if watch.condition.evaluate(event.fields)
            ]
        except InvalidEvent:
            return []
        except (ArithmeticError, ValueError, TypeError, OSError) as error:  # a time out of range, for example
            self.skipped += 1
            log.warning("skipped", watches_of=self.source.name, partition=record.partition, offset=record.offset,
                        reason=f"{type(error).__name__}: {error}")  # fmt: skip
            return []


def redis_names(source: str) -> tuple[str, str]:
    """The name of the hash with counts and offsets, and the prefix of the names of the streams."""
    return f"tidemark:{{{source}}}:watches", f"tidemark:{{{source}}}:watch:"


class WatchState(NamedTuple):
    """What the process that evaluates a watch says of it."""

    matched: int = 0
    where: str | None = None
    """The condition that is evaluated; None: that process is older than this."""
    refused: str | None = None
    """Why it is not evaluated; None: it is."""


def read_states(client: Redis, source: str, names: Iterable[str]) -> dict[str, WatchState]:
    """The watches of a source."""
    stored: Any = client.hgetall(redis_names(source)[0])
    found = {name.decode(): value.decode() for name, value in stored.items()}
    return {
        name: WatchState(
            int(found.get(f"count:{name}", "0")), found.get(f"where:{name}"), found.get(f"refused:{name}") or None
        )
        for name in names
    }
