"""One Protobuf record -> the fields of an event, in Python: every layer, Spark's too, decodes with this."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from views.field_types import Field, FieldType
from views.formats.framing import NOT_FRAMED, described, split
from views.formats.protobuf_schema import (
    DURATION,
    JSON_VALUES,
    PROTO,
    TIMESTAMP,
    UNSIGNED_64,
    WRAPPERS,
    Indexes,
    ProtobufError,
    ProtobufReader,
    is_map,
    readable,
)
from views.formats.undecodable import Undecodable
from views.formats.writer_schemas import WriterSchemas
from views.types import EPOCH, LARGEST

MAX_INDEXES = 32
FIRST_MESSAGE: Indexes = (0,)
FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800
"""In which the year 1 begins and the year 9999 has ended."""
LONGEST_S = 315_576_000_000
"""A duration has at most so many seconds, which are 10,000 years."""
MAX_WHOLE = 2.0**53
"""Below it, every whole number is a double of its own."""
Writers = Mapping[bytes, dict[Indexes, str] | str | None]
"""By frame: for each message why it cannot be read (empty: it can); or why none can; None: unknown to the registry."""


class ProtobufDecoder:
    """Decodes the records of one source. Made once for many of them."""

    def __init__(self, reader: ProtobufReader, writers: Writers, *, is_framed: bool) -> None:
        self._writers, self._is_framed = writers, is_framed
        message = reader.widened()
        self._parse = message_factory.GetMessageClass(message).FromString
        self._present = _presenter(message, reader.fields)

    def decode(self, value: bytes, headers: Iterable[tuple[str, bytes | None]] = ()) -> dict[str, Any]:
        """The fields of an event. Undecodable says why there are none."""
        payload = self._payload(value, headers) if self._is_framed else value
        try:
            return self._present(self._parse(payload))
        except DecodeError:
            raise Undecodable("it is not what its schema says") from None
        except UnicodeDecodeError:
            raise Undecodable("a text is not UTF-8") from None

    def _payload(self, value: bytes, headers: Iterable[tuple[str, bytes | None]]) -> bytes:
        found = split(value, headers)
        if found is None:
            raise Undecodable(NOT_FRAMED)
        writer = self._writers.get(found.frame)
        if writer is None:
            raise Undecodable(f"{described(found.frame)} is unknown to the registry")
        if isinstance(writer, str):
            raise Undecodable(f"{described(found.frame)} cannot be read: {writer}")
        indexes, rest = read_indexes(found.more or found.payload)
        why = writer.get(indexes, f"it has no message {list(indexes)}")
        if why:
            raise Undecodable(f"{described(found.frame)} cannot be read: {why}")
        return found.payload if found.more else rest


def writers_of(reader: ProtobufReader, schemas: WriterSchemas) -> Writers:
    """What a decoder has to know of writer schemas."""
    found: dict[bytes, dict[Indexes, str] | str | None] = {}
    for frame, schema in schemas.items():
        if schema is None:
            found[frame] = None
        elif schema.type != reader.TYPE:
            found[frame] = f"it is of the type {schema.type}, and this source reads {reader.TYPE}"
        else:
            try:
                found[frame] = readable(reader, schema.text, schema.references)
            except ProtobufError as error:
                found[frame] = str(error)
    return found


def read_indexes(data: bytes) -> tuple[Indexes, bytes]:
    """Which message of its file a record is, and what follows: `00` is the first, `02 02` the second."""
    count, rest = _zigzag(data)
    if not count:
        return FIRST_MESSAGE, rest
    if not 0 < count <= MAX_INDEXES:
        raise Undecodable("it does not say which message it is")
    indexes = []
    for _ in range(count):
        index, rest = _zigzag(rest)
        indexes.append(index)
    return tuple(indexes), rest


def _zigzag(data: bytes) -> tuple[int, bytes]:
    number = 0
    for place, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), data[place + 1 :]
    raise Undecodable("it does not say which message it is")


# ---- from messages to the values of our types -------------------------


def _presenter(message: Any, fields: tuple[Field, ...]) -> Callable[[Any], dict[str, Any]]:
    pairs = zip(message.fields, fields, strict=True)
    parts = [(field.name, _of_field(field, ours.type), field.has_presence) for field, ours in pairs]

    def present(found: Any) -> dict[str, Any]:
        return {
            name: get(getattr(found, name)) if not has_presence or found.HasField(name) else None
            for name, get, has_presence in parts
        }

    return present


def _of_field(field: Any, type_: FieldType) -> Callable[[Any], Any]:
    if type_.element is None:
        return _of_single(field, type_)
    if is_map(field):
        entry = field.message_type.fields_by_name
        name = _same if entry["key"].type == PROTO.TYPE_STRING else _key
        part = _of_single(entry["value"], type_.element)
        return lambda values: {name(key): part(value) for key, value in values.items()}
    one = _of_single(field, type_.element)
    return lambda values: [one(each) for each in values]


def _of_single(field: Any, type_: FieldType) -> Callable[[Any], Any]:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == TIMESTAMP:
            return _timestamp
        if name == DURATION:
            return _microseconds
        if name in JSON_VALUES:
            json = {"Struct": _object, "ListValue": _list, "Value": _value}[name.rpartition(".")[2]]
            return lambda value: _text(json(value))
        if name in WRAPPERS:
            inner = _of_single(field.message_type.fields_by_name["value"], type_)
            return lambda wrapper: inner(wrapper.value)
        return _presenter(field.message_type, type_.fields)
    if field.type in (PROTO.TYPE_FLOAT, PROTO.TYPE_DOUBLE):
        return _finite
    if field.type == PROTO.TYPE_BYTES:
        return _base64
    if field.type == PROTO.TYPE_ENUM:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.type in UNSIGNED_64:
        return Decimal if type_.kind == "decimal" else _bigint
    return _same


def _same(value: Any) -> Any:
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise Undecodable("a number is not finite")
    return value


def _bigint(value: int) -> int:
    if value > LARGEST:
        raise Undecodable("a number is too large for a bigint")
    return value


def _timestamp(value: Any) -> datetime:
    if not (FIRST_SECOND <= value.seconds < END_SECOND and 0 <= value.nanos < 1_000_000_000):
        raise Undecodable("a time is not in the years 1 to 9999")
    return (EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)).astimezone(UTC)


def _microseconds(value: Any) -> int:
    """Of a duration; what is less than one is cut off, as it is from times."""
    seconds, nanos = value.seconds, value.nanos
    if abs(seconds) > LONGEST_S or abs(nanos) >= 1_000_000_000 or seconds * nanos < 0:
        raise Undecodable("a duration is not one of at most 10,000 years")
    return int(seconds * 1_000_000 + int(math.copysign(abs(nanos) // 1000, nanos)))


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _key(value: int | bool) -> str:
    """As JSON has it: `true`, `-7`."""
    return str(value).lower()


# ---- any JSON ---------------------------------------------------------


def _value(value: Any) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number = _finite(value.number_value)
            return int(number) if number.is_integer() and abs(number) <= MAX_WHOLE else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return _object(value.struct_value)
        case "list_value":
            return _list(value.list_value)
    return None


def _object(value: Any) -> dict[str, Any]:
    return {name: _value(each) for name, each in value.fields.items()}


def _list(value: Any) -> list[Any]:
    return [_value(each) for each in value.values]


def _text(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
