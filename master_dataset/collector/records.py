"""A record that was read from Kafka, as JSON."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message

from master_dataset.json_bytes import text_or_base64


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
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    found["headers"] = [{"key": name, **text_or_base64("value", value)} for name, value in pairs]
    return found
