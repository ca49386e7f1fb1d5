"""A message of the produce API, checked: `{partition?, timestamp?, key?, value, headers?: [{key, value}]}`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.reserved import check_header
from master_dataset.kafka.record import ANY_PARTITION, NOW, Headers, KafkaRecord
from views.strict_json import dump_json

MEMBERS = {"topic", "partition", "timestamp", "key", "value", "headers"}
MAX_PARTITION = 2**31 - 1
END_TIMESTAMP_MS = 253_402_300_800_000  # the year 10000


def stored_bytes(value: object) -> bytes:
    """A string as its UTF-8 bytes, everything else as its compact JSON."""
    return value.encode() if isinstance(value, str) else dump_json(value)


def read_messages(body: Any, topic: str | None, key: bytes | None = None) -> list[KafkaRecord]:
    """The records that a parsed body asks for: one message or an array.

    `topic` is the path's, if it has one; `key` is for messages that name none.
    """
    if isinstance(body, list):
        return [_read(message, f"[{index}]", topic, key) for index, message in enumerate(body)]
    return [_read(body, "", topic, key)]


def _read(message: Any, where: str, path_topic: str | None, path_key: bytes | None) -> KafkaRecord:
    if type(message) is not dict:
        raise invalid_body(where, 'a message is an object like {"value": "hello"}')
    if unknown := message.keys() - MEMBERS:
        name = min(unknown)
        raise invalid_body(_under(where, name), f"a message has no such member; there are {', '.join(sorted(MEMBERS))}")
    if "value" not in message:
        raise invalid_body(where, "a message needs a value")
    key = message.get("key")
    return KafkaRecord(
        topic=_topic(message.get("topic"), where, path_topic),
        value=stored_bytes(message["value"]),
        key=path_key if key is None else stored_bytes(key),
        partition=read_partition(message.get("partition"), _under(where, "partition")),
        timestamp_ms=read_timestamp_ms(message.get("timestamp"), _under(where, "timestamp")),
        headers=_headers(message.get("headers"), where),
    )


def _topic(given: object, where: str, path_topic: str | None) -> str:
    if given is None:
        if path_topic is None:
            raise invalid_body(where, "a message needs a topic, here or in the path (/produce/{topic})")
        return path_topic
    if not isinstance(given, str) or not given:
        raise invalid_body(_under(where, "topic"), "a topic is a string")
    if path_topic is not None and given != path_topic:
        raise invalid_body(_under(where, "topic"), f"the path names the topic {path_topic!r}, this is {given!r}")
    return given


def read_partition(given: object, where: str) -> int:
    """The partition of a record, or any. `where` is the member."""
    if given is None:
        return ANY_PARTITION
    if type(given) is not int or not 0 <= given <= MAX_PARTITION:
        raise invalid_body(where, "a partition is a whole number from 0 on")
    return given


def read_timestamp_ms(given: object, where: str) -> int:
    """The timestamp of a record, or that of its arrival. `where` is the member."""
    if given is None:
        return NOW
    milliseconds = _read_milliseconds(given)
    if not 0 < milliseconds < END_TIMESTAMP_MS:
        reason = "a timestamp is milliseconds since 1970, more than 0, or an ISO-8601 string"
        raise invalid_body(where, reason)
    return milliseconds


def _read_milliseconds(given: object) -> int:
    """-1 for what is no time."""
    if type(given) is int:
        return given
    try:
        moment = datetime.fromisoformat(given) if type(given) is str else None
        if moment is None:
            return -1
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return -1


def _headers(given: object, where: str) -> Headers:
    if given is None:
        return ()
    path = _under(where, "headers")
    if type(given) is not list:
        raise invalid_body(path, 'headers are an array like [{"key": "trace", "value": "abc"}]')
    headers: list[tuple[str, bytes | None]] = []
    for index, header in enumerate(given):
        if (
            type(header) is not dict
            or type(header.get("key")) is not str
            or "value" not in header
            or len(header) != 2
            or "\0" in header["key"]
        ):
            raise invalid_body(f"{path}[{index}]", 'a header is an object like {"key": "trace", "value": "abc"}')
        check_header(header["key"], f"{path}[{index}]")
        value = header["value"]
        headers.append((header["key"], None if value is None else stored_bytes(value)))
    return tuple(headers)


def _under(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
