"""Records that are read from Kafka: no more at once than an answer may hold, and as JSON."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Message

from master_dataset.events.json_bytes import text_or_base64


def take(
    consumer: Consumer, limit: int, max_bytes: float, wait_s: float, into: list[Message] | None = None
) -> list[Message]:
    """What comes within `wait_s`: at most `limit` messages, and none more once they have `max_bytes`.

    One by one, because what a consumer gave it does not give again: a batch could be of any size. `into` is the list
    that it is added to, within the same bounds; a callback of the consumer may remove some of it.
    """
    found: list[Message] = [] if into is None else into
    size, deadline = sum(map(size_of, found)), time.monotonic() + wait_s
    while len(found) < limit and size < max_bytes:
        got = consumer.consume(1, max(0.0, deadline - time.monotonic()))
        if not got:
            break
        found += got
        size += sum(map(size_of, got))
    return found


def size_of(message: Message) -> int:
    """The bytes of a message's key, value and headers; an error has none."""
    if message.error() is not None:
        return 0
    return sum(len(part or b"") for part in (message.key(), message.value(), *_flat(message)))


def _flat(message: Message) -> list[Any]:
    return [part for pair in _headers(message) for part in pair]


def _headers(message: Message) -> list[tuple[str, Any]]:
    headers = message.headers() or []
    return list(headers.items() if isinstance(headers, dict) else headers)


def as_json(message: Message) -> dict[str, Any]:
    """Text where the bytes are UTF-8; else the same member with `_base64` after its name."""
    found: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
    }
    found |= text_or_base64("key", message.key())
    found |= text_or_base64("value", message.value())
    found["headers"] = [{"key": name, **text_or_base64("value", value)} for name, value in _headers(message)]
    return found
