"""Send whole records, key, value, headers and time as they are, to a topic: all acknowledged, or an error."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.topics import PARTITIONER

TIMEOUT_S = 60.0
GRACE_S = 5.0
"""How much longer than librdkafka itself we wait for its verdict."""
NOW = 0
TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": PARTITIONER,
    "linger.ms": 5,
    "message.timeout.ms": int(TIMEOUT_S * 1000),
    "topic.metadata.propagation.max.ms": 3000,
    "message.max.bytes": 100_000_000,  # the topic decides; librdkafka's own limit is below what brokers take
    "queue.buffering.max.kbytes": 256 * 1024,
}


class Record(NamedTuple):
    """What is sent. A time of 0 stands for now."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = NOW


class _Sent(NamedTuple):
    """What became of records."""

    acknowledged: int
    too_large: list[Record]
    failures: list[KafkaError]


def record_of(row: dict[str, Any]) -> Record:
    """A row of a master table as the record that it was."""
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return Record(row["key"], row["value"], headers, milliseconds(row["timestamp"]))


def milliseconds(time: Any) -> int:
    """A time of a row as Kafka counts it; a record without one has none to keep."""
    return NOW if time is None else max(NOW, round(time.timestamp() * 1000))


def send_records(config: dict[str, Any], topic: str, records: Iterable[Record]) -> int:
    """Send in order and return the count once every record is acknowledged by all replicas."""
    count, too_large = send_fitting(config, topic, records)
    if too_large:
        raise MasterDatasetError(
            f"{len(too_large):,} records are larger than topic {topic!r} takes; {count:,} were sent. "
            "Raise its max.message.bytes."
        )
    return count


def send_fitting(config: dict[str, Any], topic: str, records: Iterable[Record]) -> tuple[int, list[Record]]:
    """The same, but returns those that are too large for the topic beside the count of those that were sent."""
    sent = _send(config, topic, records)
    if len(sent.too_large) > 1 and not sent.failures:
        # A topic refuses a whole batch. Alone, some of them may fit.
        alone = _send({**config, "batch.num.messages": 1}, topic, sent.too_large)
        sent = _Sent(sent.acknowledged + alone.acknowledged, alone.too_large, alone.failures)
    if sent.failures:
        raise MasterDatasetError(
            f"Records could not be sent to topic {topic!r}: {sent.failures[0].str()}. {sent.acknowledged:,} were sent."
        )
    return sent.acknowledged, sent.too_large


def _send(config: dict[str, Any], topic: str, records: Iterable[Record]) -> _Sent:
    count = 0
    too_large: list[Record] = []
    failures: list[KafkaError] = []

    def delivered(record: Record, error: KafkaError | None, _message: Message | None = None) -> None:
        nonlocal count
        if error is None:
            count += 1
        elif error.code() in TOO_LARGE:
            too_large.append(record)
        else:
            failures.append(error)

    producer = Producer({**PRODUCER, **config})
    for record in records:
        if failures:
            break
        while True:
            try:
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    timestamp=record.timestamp_ms,
                    on_delivery=partial(delivered, record),
                )
            except BufferError:
                producer.poll(0.1)  # the queue is full: wait until some are acknowledged
                continue
            except KafkaException as error:
                delivered(record, error.args[0])
            break
        producer.poll(0)
    if producer.flush(TIMEOUT_S + GRACE_S):
        failures.append(KafkaError(KafkaError._TIMED_OUT))
    return _Sent(count, too_large, failures)
