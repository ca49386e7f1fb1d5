"""A record as REST Proxy v3 writes it, and the line of the reply about it.

{"key": {"type": "STRING", "data": "u1"}, "value": {"type": "JSON", "data": {"n": 1}}}
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

from infra.times import iso_utc
from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.kafka_rest.messages import read_partition, read_timestamp_ms
from master_dataset.collector.outcomes import status_of
from master_dataset.collector.producer import Outcome, Refusal
from master_dataset.collector.reserved import check_header
from master_dataset.kafka.record import Headers, KafkaRecord
from views.strict_json import dump_json

MEMBERS = {"partition_id", "headers", "key", "value", "timestamp", "original_size"}
DATA_MEMBERS = {"type", "data"}
SCHEMA_MEMBERS = {"schema", "schema_id", "schema_version", "subject", "subject_name_strategy"}
TYPES = ("BINARY", "JSON", "STRING")
SCHEMA_TYPES = ("AVRO", "JSONSCHEMA", "PROTOBUF")


class V3Record(NamedTuple):
    """What is sent, and the types of key and value, which the reply repeats."""

    record: KafkaRecord
    key_type: str
    value_type: str


def read_v3_record(given: Any, topic: str) -> V3Record:
    """The record that a parsed object asks for. Raises the problem 422 for what it is not."""
    if unknown := given.keys() - MEMBERS:
        name = min(unknown)
        raise invalid_body(name, f"a record has no such member; there are {', '.join(sorted(MEMBERS))}")
    key, key_type = _data(given.get("key"), "key")
    value, value_type = _data(given.get("value"), "value")
    record = KafkaRecord(
        topic=topic,
        value=value,
        key=key,
        headers=_headers(given.get("headers")),
        timestamp_ms=read_timestamp_ms(given.get("timestamp"), "timestamp"),
        partition=read_partition(given.get("partition_id"), "partition_id"),
    )
    return V3Record(record, key_type, value_type)


def _data(given: Any, where: str) -> tuple[bytes | None, str]:
    """The bytes of a key or value and their type; nothing is null."""
    if given is None:
        return None, "EMPTY"
    if not isinstance(given, dict):
        raise invalid_body(where, 'an object like {"type": "JSON", "data": 1} is expected')
    kind = given.get("type")
    if kind in SCHEMA_TYPES or (kind is None and given.keys() & SCHEMA_MEMBERS):
        raise invalid_body(where, f"records with a schema are not taken here; the types are {', '.join(TYPES)}")
    if kind not in TYPES:
        raise invalid_body(f"{where}.type", f"the types are {', '.join(TYPES)}")
    if unknown := given.keys() - DATA_MEMBERS:
        raise invalid_body(f"{where}.{min(unknown)}", "there are type and data")
    data = given.get("data")
    if data is None:
        return None, kind
    if kind == "JSON":
        return dump_json(data), kind
    if not isinstance(data, str):
        raise invalid_body(f"{where}.data", f"data of the type {kind} is a string")
    return (data.encode() if kind == "STRING" else _from_base64(data, f"{where}.data")), kind


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
        headers.append((name, None if value is None else _from_base64(value, f"{where}.value")))
    return tuple(headers)


def _from_base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_body(where, "this is not base64") from None


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
        **_sizes({"key": (sent.key_type, sent.record.key), "value": (sent.value_type, sent.record.value)}),
    }


def error_line(status: int, detail: str) -> dict[str, Any]:
    """The reply about a record that was refused."""
    return {"error_code": status, "message": detail}


def _sizes(parts: Mapping[str, tuple[str, bytes | None]]) -> dict[str, Any]:
    return {name: {"type": kind, "size": len(data)} for name, (kind, data) in parts.items() if data is not None}
