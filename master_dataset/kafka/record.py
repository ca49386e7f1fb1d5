"""A record for Kafka: the one type that the collector, dead letters and replays send."""

from __future__ import annotations

from typing import Any, NamedTuple

ANY_PARTITION = -1
NOW = 0
"""The timestamp of a record that gets the time at which it is sent."""
Headers = tuple[tuple[str, bytes | None], ...]


class KafkaRecord(NamedTuple):
    """What is sent, and where. The key chooses the partition unless one is given."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = NOW
    partition: int = ANY_PARTITION

    @property
    def size(self) -> int:
        """Its bytes in Kafka, without what Kafka adds."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers


def record_of(row: dict[str, Any], topic: str) -> KafkaRecord:
    """A row of a master table as the record that it was, addressed to `topic`."""
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return KafkaRecord(topic, row["value"], row["key"], headers, timestamp_ms(row["timestamp"]))


def timestamp_ms(time: Any) -> int:
    """The timestamp of a row in Kafka's milliseconds; `NOW` where it has none."""
    return NOW if time is None else max(NOW, round(time.timestamp() * 1000))
