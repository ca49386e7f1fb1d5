"""A record as REST Proxy v3 writes it, and the line of the reply about it.

{"key": {"type": "STRING", "data": "u1"}, "value": {"type": "JSON", "data": {"n": 1}}}
"""

from __future__ import annotations

from typing import Any, NamedTuple

from infra.times import iso_utc
from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.kafka_rest.messages import read_partition, read_timestamp_ms
from master_dataset.collector.kafka_rest.v3_data import Encoded, V3Data, from_base64, read_v3_data
from master_dataset.collector.outcomes import status_of
from master_dataset.collector.producer import Outcome, Refusal
from master_dataset.collector.reserved import check_header
from master_dataset.kafka.record import Headers, KafkaRecord

MEMBERS = {"partition_id", "headers", "key", "value", "timestamp", "original_size"}


class V3Request(NamedTuple):
    """A record as a client wrote it."""

    topic: str
    key: V3Data | None
    value: V3Data | None
    headers: Headers
    timestamp_ms: int
    partition: int


class V3Record(NamedTuple):
    """What is sent, and what the reply says of its key and value."""

    record: KafkaRecord
    parts: dict[str, dict[str, Any]]


def read_v3_record(given: Any, topic: str) -> V3Request:
    """The record that a parsed object asks for. Raises the problem 422 for what it is not."""
    if unknown := given.keys() - MEMBERS:
        name = min(unknown)
        raise invalid_body(name, f"a record has no such member; there are {', '.join(sorted(MEMBERS))}")
    return V3Request(
        topic,
        read_v3_data(given.get("key"), topic, "key"),
        read_v3_data(given.get("value"), topic, "value"),
        _headers(given.get("headers")),
        read_timestamp_ms(given.get("timestamp"), "timestamp"),
        read_partition(given.get("partition_id"), "partition_id"),
    )


def v3_record(request: V3Request, key: Encoded, value: Encoded) -> V3Record:
    """The record, when its key and value are encoded."""
    record = KafkaRecord(
        topic=request.topic,
        value=value.data,
        key=key.data,
        headers=request.headers,
        timestamp_ms=request.timestamp_ms,
        partition=request.partition,
    )
    parts = {"key": key.members, "value": value.members}
    return V3Record(record, {name: members for name, members in parts.items() if members is not None})


def _headers(given: Any) -> Headers:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise invalid_body("headers", 'headers are an array like [{"name": "trace", "value": "YWJj"}]')
    headers: list[tuple[str, bytes | None]] = []
    for index, header in enumerate(given):
        where = f"headers[{index}]"
        name = header.get("name") if isinstance(header, dict) else None
        if not isinstance(name, str) or header.keys() - {"name", "value"} or "\0" in name:
            raise invalid_body(where, 'a header is an object like {"name": "trace", "value": "YWJj"}')
        check_header(name, where)
        value = header.get("value")
        if value is not None and not isinstance(value, str):
            raise invalid_body(f"{where}.value", "the value of a header is base64")
        headers.append((name, None if value is None else from_base64(value, f"{where}.value")))
    return tuple(headers)


def stored_line(cluster: str, sent: V3Record, outcome: Outcome) -> dict[str, Any]:
    """The reply about one record: where it is, or why it is not stored, or not certainly."""
    if isinstance(outcome, Refusal):
        status, _kind = status_of(outcome)
        return error_line(status, outcome.text)
    return {
        "error_code": 200,
        "cluster_id": cluster,
        "topic_name": sent.record.topic,
        "partition_id": outcome.partition,
        "offset": outcome.offset,
        "timestamp": iso_utc(outcome.timestamp_ms / 1000),
        **sent.parts,
    }


def error_line(status: int, detail: str) -> dict[str, Any]:
    """The reply about a record that was refused."""
    return {"error_code": status, "message": detail}
