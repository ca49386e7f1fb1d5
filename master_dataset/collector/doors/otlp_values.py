"""Log records of OTLP, read from Protobuf or JSON alike."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, partial
from hashlib import blake2b
from typing import Any

from google.protobuf.message import DecodeError

from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.doors.otlp_messages import ExportLogsServiceRequest
from master_dataset.errors import InvalidEvent
from views.strict_json import dump_json

MAX_DEPTH = 32
MAX_VALUES = 10_000
"""Attributes of one record or resource, with all that is in them."""
SEVERITIES = {
    f"SEVERITY_NUMBER_{name}{number or ''}": first + number - (number > 0)
    for first, name in ((1, "TRACE"), (5, "DEBUG"), (9, "INFO"), (13, "WARN"), (17, "ERROR"), (21, "FATAL"))
    for number in (0, 2, 3, 4)
} | {"SEVERITY_NUMBER_UNSPECIFIED": 0}
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_UINT64 = 2**64

Attributes = dict[str, Any]


@dataclass(frozen=True)
class Shared:
    """What many records have in common, with its size and hash as JSON: taken once, and not for each record."""

    values: dict[str, Any]
    size: int
    digest: bytes

    @classmethod
    def of(cls, values: dict[str, Any], where: str, max_size: int) -> Shared:
        """InvalidEvent, with `where` it is, if it is larger than an event may be."""
        text = text_of(values)
        if len(text) > max_size:
            raise InvalidEvent(
                where, f"it has {len(text)} bytes; at most {max_size} are taken (collector_max_event_kb)"
            )
        return cls(values, len(text), hash_of(text))


@dataclass(frozen=True)
class Origin:
    """What the records of one instrumentation scope have in common: attributes, and the scope as OTLP names it."""

    resource: Shared
    scope: Shared

    @property
    def size(self) -> int:
        """Its bytes as JSON."""
        return self.resource.size + self.scope.size


@dataclass(frozen=True)
class LogRecord:
    """A record with the names of OTLP; ids are hexadecimal. 0 and "" say that there is none."""

    time_unix_nano: int = 0
    observed_time_unix_nano: int = 0
    severity_number: int = 0
    severity_text: str = ""
    body: Any = None
    attributes: Attributes = field(default_factory=dict)
    dropped_attributes_count: int = 0
    flags: int = 0
    trace_id: str = ""
    span_id: str = ""
    event_name: str = ""


Found = tuple[Origin, LogRecord] | InvalidEvent


def text_of(value: object) -> bytes:
    """A value as JSON, or InvalidEvent."""
    try:
        return dump_json(value)
    except (TypeError, ValueError):  # orjson: a text that is no UTF-8, or too deep
        raise InvalidEvent("", "it cannot be written as JSON") from None


def hash_of(text: bytes) -> bytes:
    """16 bytes that no two texts share."""
    return blake2b(text, digest_size=16).digest()


def records_in_protobuf(body: bytes, max_size: int) -> Iterator[Found]:
    """The records of an ExportLogsServiceRequest. A record, a resource or a scope has at most `max_size` bytes."""
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError:
        raise invalid_body("", "this is no ExportLogsServiceRequest of OTLP", status=400) from None
    for resource_logs in request.resource_logs:
        read_resource = _once(partial(_protobuf_resource, resource_logs.resource, max_size))
        for scope_logs in resource_logs.scope_logs:
            if scope_logs.log_records:
                origin = _origin(read_resource(), partial(_protobuf_scope, scope_logs.scope, max_size))
                for record in scope_logs.log_records:
                    yield _with(origin, partial(_protobuf_record, record, max_size))


def records_in_json(value: object, max_size: int) -> Iterator[Found]:
    """The same from JSON, parsed."""
    if type(value) is not dict:
        raise invalid_body("", "this should be a JSON object", status=400)
    for resource_logs in _objects(value, "resourceLogs"):
        read_resource = _once(partial(_json_resource, _object(resource_logs, "resource"), max_size))
        for scope_logs in _objects(resource_logs, "scopeLogs"):
            scope = _object(scope_logs, "scope")
            if records := _objects(scope_logs, "logRecords"):
                origin = _origin(read_resource(), partial(_json_scope, scope, max_size))
                for record in records:
                    yield _with(origin, partial(_json_record, record))


def _once(read: Callable[[], Shared]) -> Callable[[], Shared | InvalidEvent]:
    """Reads when it is asked for first: a resource may be large, and have thousands of scopes, or none with records."""
    return cache(partial(_or_invalid, read))


def _origin(resource: Shared | InvalidEvent, read_scope: Callable[[], Shared]) -> Origin | InvalidEvent:
    if isinstance(resource, InvalidEvent):
        return resource
    scope = _or_invalid(read_scope)
    return scope if isinstance(scope, InvalidEvent) else Origin(resource, scope)


def _or_invalid(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except InvalidEvent as error:
        return error


def _with(origin: Origin | InvalidEvent, read: Callable[[], LogRecord]) -> Found:
    if isinstance(origin, InvalidEvent):
        return origin
    record = _or_invalid(read)
    return record if isinstance(record, InvalidEvent) else (origin, record)


# ---- values of any type ------------------------------------------------------


class _Count:
    """Bounds how much one record may hold."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def add(self, where: str, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise InvalidEvent(where, f"it has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise InvalidEvent(where, f"it is nested deeper than {MAX_DEPTH} levels")


def _body(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except InvalidEvent as error:
        raise InvalidEvent("body", error.reason) from None


def _double(value: float) -> float | str:
    """JSON has no NaN and no infinity: they become texts."""
    return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")


def _protobuf_resource(resource: Any, max_size: int) -> Shared:
    return Shared.of(_protobuf_attributes(resource.attributes), "resource", max_size)


def _protobuf_scope(scope: Any, max_size: int) -> Shared:
    return _scope(scope.name, scope.version, _protobuf_attributes(scope.attributes), max_size)


def _scope(name: str, version: str, attributes: Attributes, max_size: int) -> Shared:
    return Shared.of({"name": name, "version": version, "attributes": attributes}, "scope", max_size)


def _protobuf_attributes(pairs: Iterable[Any]) -> Attributes:
    return _protobuf_pairs(pairs, _Count(), 1)


def _protobuf_pairs(pairs: Iterable[Any], count: _Count, depth: int) -> Attributes:
    return {pair.key: _protobuf_value(pair.value, count, depth) for pair in pairs}


def _protobuf_value(value: Any, count: _Count, depth: int) -> Any:
    count.add("attributes", depth)
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(value, kind)
    match kind:
        case "array_value":
            return [_protobuf_value(part, count, depth + 1) for part in found.values]
        case "kvlist_value":
            return _protobuf_pairs(found.values, count, depth + 1)
        case "bytes_value":
            return base64.b64encode(found).decode()
        case "double_value":
            return _double(found)
    return found


def _protobuf_record(record: Any, max_size: int) -> LogRecord:
    if record.ByteSize() > max_size:
        raise InvalidEvent("", f"it has {record.ByteSize()} bytes; at most {max_size} are taken")
    return LogRecord(
        time_unix_nano=record.time_unix_nano,
        observed_time_unix_nano=record.observed_time_unix_nano,
        severity_number=record.severity_number,
        severity_text=record.severity_text,
        body=_body(partial(_protobuf_value, record.body, _Count(), 1)),
        attributes=_protobuf_attributes(record.attributes),
        dropped_attributes_count=record.dropped_attributes_count,
        flags=record.flags,
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex(),
        event_name=record.event_name,
    )


# ---- JSON --------------------------------------------------------------------


def _json_resource(resource: dict[str, Any], max_size: int) -> Shared:
    return Shared.of(_json_attributes(resource), "resource", max_size)


def _json_scope(scope: dict[str, Any], max_size: int) -> Shared:
    return _scope(_text(scope, "name"), _text(scope, "version"), _json_attributes(scope), max_size)


def _json_attributes(holder: dict[str, Any]) -> Attributes:
    return _json_pairs(holder.get("attributes"), _Count(), 1)


def _json_pairs(pairs: object, count: _Count, depth: int) -> Attributes:
    if pairs is None:
        return {}
    if type(pairs) is not list:
        raise InvalidEvent("attributes", "this should be an array of keys with values")
    found: Attributes = {}
    for pair in pairs:
        if type(pair) is not dict or type(pair.get("key")) is not str:
            raise InvalidEvent("attributes", 'an attribute is like {"key": "a", "value": {"stringValue": "b"}}')
        found[pair["key"]] = _json_value(pair.get("value"), count, depth)
    return found


def _json_value(value: object, count: _Count, depth: int) -> Any:
    count.add("attributes", depth)
    if value is None or value == {}:
        return None
    if type(value) is not dict or len(value) != 1:
        raise InvalidEvent("attributes", 'a value is like {"stringValue": "b"}')
    ((kind, found),) = value.items()
    match kind:
        case "stringValue" if type(found) is str:
            return found
        case "boolValue" if type(found) is bool:
            return found
        case "intValue":
            return _integer(found, kind, -(2**63), 2**63)
        case "doubleValue" if type(found) in (int, float, Decimal):
            return _double(float(found))
        case "doubleValue" if found in ("NaN", "Infinity", "-Infinity"):
            return found
        case "arrayValue" if type(found) is dict and type(found.get("values", [])) is list:
            return [_json_value(part, count, depth + 1) for part in found.get("values", [])]
        case "kvlistValue" if type(found) is dict:
            return _json_pairs(found.get("values"), count, depth + 1)
        case "bytesValue" if type(found) is str and _is_base64(found):
            return found
    raise InvalidEvent("attributes", f"this is no value of OTLP: {kind[:40]}")


def _json_record(record: dict[str, Any]) -> LogRecord:
    severity = record.get("severityNumber")
    return LogRecord(
        time_unix_nano=_integer(record.get("timeUnixNano"), "timeUnixNano", 0, _UINT64),
        observed_time_unix_nano=_integer(record.get("observedTimeUnixNano"), "observedTimeUnixNano", 0, _UINT64),
        severity_number=(
            SEVERITIES[severity]
            if isinstance(severity, str) and severity in SEVERITIES
            else _integer(severity, "severityNumber", -(2**31), 2**31)
        ),
        severity_text=_text(record, "severityText"),
        body=_body(partial(_json_value, record.get("body"), _Count(), 1)),
        attributes=_json_attributes(record),
        dropped_attributes_count=_integer(record.get("droppedAttributesCount"), "droppedAttributesCount", 0, 2**32),
        flags=_integer(record.get("flags"), "flags", 0, 2**32),
        trace_id=_hex(record, "traceId"),
        span_id=_hex(record, "spanId"),
        event_name=_text(record, "eventName"),
    )


def _objects(holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = holder.get(name)
    if found is None:
        return []
    if type(found) is not list or not all(type(each) is dict for each in found):
        raise invalid_body(name, "this should be an array of objects", status=400)
    return found


def _object(holder: dict[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name)
    if found is not None and type(found) is not dict:
        raise invalid_body(name, "this should be an object", status=400)
    return found or {}


def _text(holder: dict[str, Any], name: str) -> str:
    found = holder.get(name)
    if found is not None and type(found) is not str:
        raise InvalidEvent(name, "this should be a string")
    return found or ""


def _hex(holder: dict[str, Any], name: str) -> str:
    found = _text(holder, name)
    if not _HEX.fullmatch(found):
        raise InvalidEvent(name, "this should be hexadecimal")
    return found.lower()


def _integer(found: object, where: str, lowest: int, end: int) -> int:
    """A number, or a text of digits: JSON of Protobuf writes 64 bits so."""
    if found is None:
        return 0
    if type(found) is str and len(found) < 24 and re.fullmatch(r"-?[0-9]+", found):
        found = int(found)
    if type(found) is not int or not lowest <= found < end:
        raise InvalidEvent(where, f"this should be a whole number from {lowest} to {end - 1}")
    return found


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
