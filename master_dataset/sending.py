"""Send whole records, key, value and headers as they are, to a topic: all acknowledged, or an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from master_dataset.errors import MasterDatasetError

TIMEOUT_S = 60.0


class Record(NamedTuple):
    """What is sent."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def send_records(config: dict[str, Any], topic: str, records: Iterable[Record]) -> int:
    """Send in order and return the count once every record is acknowledged by all replicas."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({**config, "acks": "all", "enable.idempotence": True, "linger.ms": 5})
    count = 0
    for record in records:
        while True:
            try:
                producer.produce(topic, record.value, record.key, headers=list(record.headers), on_delivery=delivered)
            except BufferError:
                producer.poll(0.1)  # the queue is full: wait until some are acknowledged
            else:
                break
        count += 1
        producer.poll(0)
    left = producer.flush(TIMEOUT_S)
    if left or failures:
        why = str(failures[0]) if failures else f"{left} are not acknowledged after {TIMEOUT_S:g} s"
        raise MasterDatasetError(f"Records could not be sent to topic {topic!r}: {why}.")
    return count
