"""Stream search: read a source as it arrives, and put every event that matches a watch where subscribers find it.

    tidemark:{web}:watches              how far we have read, and how many events each watch has matched
    tidemark:{web}:watch:<name>         a stream: the newest matches

Matches, counts and offsets change in one step, so that a process that is killed neither shows nor counts one twice.
Only valid events are looked at, by the collector's own checks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import orjson
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from redis import Redis
from redis.exceptions import RedisError

from infra.clients.kafka import librdkafka_config
from infra.settings import Settings
from master_dataset.cut import Cut, cut_from_json, cut_to_json, is_below
from master_dataset.errors import InvalidEvent, MasterDatasetError
from master_dataset.events.envelope import compile_validator, parse_json
from master_dataset.events.strict_json import dump_decimal
from master_dataset.kafka.errors import translated
from master_dataset.kafka.positions import read_positions
from serving_layer.alerts.payloads import iso
from views.field_types import Field, FieldType
from views.source import Source
from views.watch import Watch

AT_ONCE, WAIT_S = 1_000, 0.1
MOST_MATCHES = 1_000
"""Kept of each watch, for subscribers that come back."""
MOST_BYTES = 16_384
"""Of an event that is shown whole."""
PAUSE_S = 1.0
DECIMALS = Context(prec=76)
"""Room for every decimal(38, ...); Python's own has 28 digits."""
CUT = "cut"

log = structlog.get_logger()


@dataclass
class Watcher:
    """The watches of one source. `run` returns when `stopping` is set."""

    settings: Settings
    bootstrap: str
    source: Source
    watches: tuple[Watch, ...]
    client: Redis
    stopping: threading.Event
    error: str = ""
    matched: int = 0
    read: int = 0
    skipped: int = 0
    """Records that are valid, but that no condition could be asked about."""
    cut: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        """Read on, and begin again after whatever went wrong."""
        while not self.stopping.is_set():
            try:
                self._follow()
            except (RedisError, OSError, MasterDatasetError, KafkaException) as error:
                if self.error != str(error):
                    log.warning("waits", watch_of=self.source.name, why=str(error))
                self.error = str(error)
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
                log.exception("begins_again", watch_of=self.source.name)
            self.stopping.wait(PAUSE_S)

    def _follow(self) -> None:
        self.cut = self._begin()
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
            consumer.assign([TopicPartition(self.source.topic, *place) for place in self.cut.items()])
            validate = compile_validator(self.source)
            while not self.stopping.is_set():
                messages = consumer.consume(AT_ONCE, WAIT_S)
                if messages:
                    self._take(messages, validate)
                self.error = ""
        finally:
            consumer.close()

    def _begin(self) -> dict[int, int]:
        """Where we left off, unless Kafka has no longer what comes next; the first time at its end."""
        positions = read_positions(self.settings, self.bootstrap, self.source)
        kept: Any = self.client.hget(names(self.source.name)[0], CUT)
        known = cut_from_json(json.loads(kept)) if kept else {}
        if not known or not is_below(known, positions.latest):
            return dict(positions.latest)
        return {
            partition: max(known.get(partition, 0), positions.earliest.get(partition, 0))
            for partition in positions.latest
        }

    def _take(self, messages: list[Message], validate: Any) -> None:
        status, prefix = names(self.source.name)
        with self.client.pipeline(transaction=True) as pipe:
            matched = 0
            cut = dict(self.cut)
            for message in messages:
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        continue
                    raise translated(KafkaException(error), f"Topic {self.source.topic!r} cannot be read")
                partition, offset = int(message.partition() or 0), int(message.offset() or 0)
                cut[partition] = offset + 1
                for watch, body in self.matches(message, validate):
                    pipe.xadd(prefix + watch.name, {"e": body}, maxlen=MOST_MATCHES, approximate=True)
                    pipe.hincrby(status, f"count:{watch.name}", 1)
                    matched += 1
            pipe.hset(status, mapping={CUT: json.dumps(cut_to_json(cut)), "at": str(time.time())})
            pipe.execute()
        self.cut, self.matched, self.read = cut, self.matched + matched, self.read + len(messages)

    def matches(self, message: Message, validate: Any) -> list[tuple[Watch, bytes]]:
        """The watches that a record matches, with what is shown. One record never holds up those behind it."""
        try:
            found = read_event(self.source, message, validate)
            return [
                (watch, _shown(watch, self.source, message, *found))
                for watch in self.watches
                if found is not None and watch.condition.evaluate(found[1])
            ]
        except (ArithmeticError, ValueError, TypeError, OSError) as error:  # an absurd time, say
            self.skipped += 1
            log.warning("skipped", watch_of=self.source.name, partition=message.partition(), offset=message.offset(),
                        why=f"{type(error).__name__}: {error}")  # fmt: skip
            return []


def names(source: str) -> tuple[str, str]:
    """Of the hash with counts and offsets, and what the names of the streams begin with."""
    return f"tidemark:{{{source}}}:watches", f"tidemark:{{{source}}}:watch:"


def read_event(source: Source, message: Message, validate: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """A record as its JSON and as the fields that expressions look at; None where it is no valid event."""
    value: Any = message.value()
    try:
        event = parse_json(value or b"")
        validate(event)
    except InvalidEvent:
        return None
    row = _struct(source.schema, event)
    if row.get(source.id_field) is None:
        row[source.id_field] = f"{message.topic()}/{message.partition()}/{message.offset()}"
    if row.get(source.time_field) is None:
        row[source.time_field] = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    return event, row


def _shown(watch: Watch, source: Source, message: Message, event: dict[str, Any], row: dict[str, Any]) -> bytes:
    at: Any = row[source.time_field]
    value: Any = message.value()
    is_large = len(value) > MOST_BYTES
    shown = {
        "watch": watch.name,
        "source": source.name,
        "partition": message.partition(),
        "offset": message.offset(),
        "event_id": row[source.id_field],
        "event_time": iso(at.timestamp()),
        "event": None if is_large else event,
        "too_large": is_large,
    }
    return orjson.dumps(shown, dump_decimal)


def _struct(fields: Iterable[Field], value: dict[str, Any]) -> dict[str, Any]:
    return {each.name: _typed(each.type, value.get(each.name)) for each in fields}


def _typed(kind: FieldType, value: Any) -> Any:
    """A value of JSON, which is valid, as Spark has it."""
    if value is None:
        return None
    match kind.kind:
        case "struct":
            return _struct(kind.fields, value)
        case "array" if kind.element:
            return [_typed(kind.element, each) for each in value]
        case "map" if kind.element:
            return {key: _typed(kind.element, each) for key, each in value.items()}
        case "double" | "float":
            return float(value)
        case "decimal":
            return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), context=DECIMALS)
        case "timestamp":
            at = datetime.fromisoformat(value)
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        case "date":
            return date.fromisoformat(value)
    return value


def counts(client: Redis, source: str) -> dict[str, int]:
    """How many events each watch of a source has matched."""
    found: Any = client.hgetall(names(source)[0])
    return {
        name.decode().removeprefix("count:"): int(count) for name, count in found.items() if name.startswith(b"count:")
    }


def watched_cut(client: Redis, source: str) -> Cut:
    """Up to where the watches of a source have read."""
    kept: Any = client.hget(names(source)[0], CUT)
    return cut_from_json(json.loads(kept)) if kept else {}
