"""Send records as they are, with key, value, headers and timestamp: all acknowledged, or an error."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.record import KafkaRecord
from master_dataset.kafka.topics import PARTITIONER

TIMEOUT_S = 60.0
GRACE_S = 5.0
"""How much longer than librdkafka itself we wait for its verdict."""
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


class _Delivered(NamedTuple):
    """What became of records."""

    acknowledged: int
    too_large: list[KafkaRecord]
    failures: list[str]


def send_records(config: dict[str, Any], records: Iterable[KafkaRecord]) -> int:
    """Send in order and return the count once every record is acknowledged by all replicas."""
    count, too_large = send_fitting(config, records)
    if too_large:
        raise MasterDatasetError(
            f"{len(too_large):,} records are larger than topic {too_large[0].topic!r} takes; {count:,} were sent. "
            "Raise its max.message.bytes."
        )
    return count


def send_fitting(config: dict[str, Any], records: Iterable[KafkaRecord]) -> tuple[int, list[KafkaRecord]]:
    """Send in order. Returns how many were acknowledged, and the records that are too large for their topic."""
    sent = _send(config, records)
    if len(sent.too_large) > 1 and not sent.failures:
        # A topic refuses a whole batch. Alone, some of them may fit.
        alone = _send({**config, "batch.num.messages": 1}, sent.too_large)
        sent = _Delivered(sent.acknowledged + alone.acknowledged, alone.too_large, alone.failures)
    if sent.failures:
        raise MasterDatasetError(f"{sent.failures[0]}. {sent.acknowledged:,} were sent.")
    return sent.acknowledged, sent.too_large


def _send(config: dict[str, Any], records: Iterable[KafkaRecord]) -> _Delivered:
    count = 0
    too_large: list[KafkaRecord] = []
    failures: list[str] = []

    def delivered(record: KafkaRecord, error: KafkaError | None, _message: Message | None = None) -> None:
        nonlocal count
        if error is None:
            count += 1
        elif error.code() in TOO_LARGE:
            too_large.append(record)
        else:
            failures.append(f"Records could not be sent to topic {record.topic!r}: {error.str()}")

    producer = Producer({**PRODUCER, **config})
    for record in records:
        if failures:
            break
        while True:
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
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
        failures.append(f"Records were not acknowledged within {TIMEOUT_S + GRACE_S:g} s")
    return _Delivered(count, too_large, failures)
