"""One Avro record -> the fields of an event, in Python: what Spark's expression in `views/on_spark` gives, too."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro

from views.formats.avro_resolution import mismatch, wanted, written
from views.formats.avro_schema import END, LOCAL_TIMES, AvroReader, SchemaError
from views.formats.framing import NOT_FRAMED, described, split
from views.formats.undecodable import Undecodable
from views.formats.writer_schemas import WriterSchema, WriterSchemas
from views.types import EPOCH, EXACT

FIRST_DAY = date(1970, 1, 1)
MICROSECONDS = {"timestamp-millis": 1000, "timestamp-micros": 1}
Decode = Callable[[bytes], dict[str, Any]]


def decoder(reader: AvroReader, writer: WriterSchema) -> Decode:
    """A function from the bytes that a writer made to the fields of an event. SchemaError: it can read nothing."""
    if writer.type != reader.TYPE:
        raise SchemaError(f"it is of the type {writer.type}, and this source reads {reader.TYPE}")
    if reason := mismatch(reader, writer.text, writer.references):
        raise SchemaError(reason)
    try:
        by = fastavro.parse_schema(json.loads(written(reader, writer.text, writer.references)))
        to = fastavro.parse_schema(_without_logical_types(json.loads(wanted(reader))))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SchemaError(f"it is not Avro: {error}") from None
    present = _presenter(reader.reading)

    def decode(payload: bytes) -> dict[str, Any]:
        try:
            found: Any = fastavro.schemaless_reader(io.BytesIO(payload + END), by, to)
        except Exception as error:  # whatever fastavro makes of bytes that are not Avro
            raise Undecodable(f"it is not what its schema says: {error}") from None
        if found["end"] != END:
            raise Undecodable("bytes follow the record")
        fields: dict[str, Any] = present(found["event"])
        return fields

    return decode


def decode_framed(
    reader: AvroReader,
    writers: WriterSchemas,
    value: bytes,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    decoders: dict[bytes, Decode] | None = None,
) -> dict[str, Any]:
    """A framed record as fields of an event. Undecodable says why not."""
    found = split(value, headers)
    if found is None:
        raise Undecodable(NOT_FRAMED)
    known = {} if decoders is None else decoders
    if found.frame not in known:
        writer = writers.get(found.frame)
        if writer is None:
            raise Undecodable(f"{described(found.frame)} is unknown to the registry")
        try:
            known[found.frame] = decoder(reader, writer)
        except SchemaError as error:
            raise Undecodable(f"{described(found.frame)} cannot be read: {error}") from None
    return known[found.frame](found.payload)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name == "default" else _without_logical_types(value)
        for name, value in schema.items()
        if name not in ("logicalType", "precision", "scale")
    }


# ---- from what fastavro gives to the values of our types --------------


def _presenter(schema: Any) -> Callable[[Any], Any]:
    if isinstance(schema, list):
        present = _presenter(next(each for each in schema if each != "null"))
        return lambda value: None if value is None else present(value)
    if isinstance(schema, str):
        return {"double": _finite, "bytes": _base64}.get(schema, _same)
    return _of_type(schema)


def _of_type(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    logical = schema.get("logicalType")
    match schema["type"]:
        case "record":
            fields = [(each["name"], _presenter(each["type"]), each.get("default")) for each in schema["fields"]]
            return lambda value: {name: present(value.get(name, default)) for name, present, default in fields}
        case "array":
            item = _presenter(schema["items"])
            return lambda value: [item(each) for each in value]
        case "map":
            part = _presenter(schema["values"])
            return lambda value: {key: part(each) for key, each in value.items()}
    if logical == "date":
        return _date
    if logical == "decimal":
        precision, scale = schema["precision"], schema["scale"]
        return lambda value: _decimal(value, precision, scale)
    if schema["type"] in ("bytes", "fixed"):
        return _base64
    if logical in LOCAL_TIMES:
        unit = 1 if logical == "local-timestamp-micros" else 1000
        return lambda value: _timestamp(value * unit).replace(tzinfo=None).isoformat(timespec="microseconds")
    if logical in MICROSECONDS:
        factor = MICROSECONDS[logical]
        return lambda value: _timestamp(value * factor)
    return _same


def _same(value: Any) -> Any:
    return value


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise Undecodable("a number is not finite")
    return float(value)


def _date(value: int) -> date:
    try:
        return FIRST_DAY + timedelta(days=value)
    except OverflowError:
        raise Undecodable("a date is not in the years 1 to 9999") from None


def _timestamp(micros: int) -> datetime:
    try:
        return (EPOCH + timedelta(microseconds=micros)).astimezone(UTC)
    except OverflowError:
        raise Undecodable("a time is not in the years 1 to 9999") from None


def _bytes(value: bytes | str) -> bytes:
    return value.encode("latin-1") if isinstance(value, str) else value  # a default is a text of such characters


def _base64(value: bytes | str) -> str:
    return base64.b64encode(_bytes(value)).decode()


def _decimal(value: bytes | str, precision: int, scale: int) -> Decimal:
    data = _bytes(value)
    unscaled = int.from_bytes(data, "big", signed=True)
    if not data or abs(unscaled) >= 10**precision:
        raise Undecodable(f"a number has more than {precision} digits")
    return Decimal(unscaled).scaleb(-scale, context=EXACT)
