"""Avro records -> the event struct, by Spark's own from_avro: one branch for each writer schema.

`views/formats/avro_schema.py` says what the envelope around each schema is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from views.field_types import Field, FieldType
from views.formats.avro_resolution import mismatch, wanted, written
from views.formats.avro_schema import END, LOCAL_TIMES, AvroReader, SchemaError
from views.formats.writer_schemas import WriterSchema, WriterSchemas
from views.on_spark.framed_records import FRAME, PAYLOAD, why_unframed, why_unreadable, with_payload

if TYPE_CHECKING:
    from views.source import Source

OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
DECODED = "_decoded"
BEFORE, AFTER = "-62135596800000000L", "253402300800000000L"
"""The microseconds in which the year 1 begins and the year 9999 has ended."""


def with_decoded(records: DataFrame, source: Source, writers: WriterSchemas) -> DataFrame:
    """Records with `_event` (null where there is none), and the columns that `why_undecodable` needs."""
    reader = source.avro
    split = with_payload(records, source)
    if source.is_framed:
        decoded = _by_frame(reader, writers)
    else:
        decoded = _from_avro("value", written(reader, reader.text), wanted(reader))
    return split.withColumn(DECODED, decoded).withColumn("_event", _whole(reader))


def why_undecodable(reason: Column, source: Source, writers: WriterSchemas) -> Column:
    """Add to the reasons why a record is invalid what concerns its frame, its schema and its bytes."""
    reason = why_unreadable(why_unframed(reason, source), source, writers, _unusable(source.avro, writers))
    end = f.col(f"{DECODED}.end")
    reason = reason.when(end.isNull(), "it is not what its schema says").when(
        end != f.lit(bytearray(END)), "bytes follow the record"
    )
    for field in _read_as(source.avro.reading).fields:
        if (wrong := _is_outside(field.type, f.col(f"{DECODED}.event.`{field.name}`"))) is not None:
            reason = reason.when(wrong, f"{field.name} {_bounds(field)}")
    return reason


def _whole(reader: AvroReader) -> Column:
    event = _presented(_read_as(reader.reading), f.col(f"{DECODED}.event"))
    return f.when(f.col(f"{DECODED}.end") == f.lit(bytearray(END)), event)


def _by_frame(reader: AvroReader, writers: WriterSchemas) -> Column:
    """One branch for each writer schema; those whose records have the same bytes share one."""
    unusable, frames = _unusable(reader, writers), dict[str, list[bytearray]]()
    for frame, writer in writers.items():
        if writer is not None and frame not in unusable:
            by = written(reader, writer.text, writer.references)
            frames.setdefault(by, []).append(bytearray(frame))
    to, found = wanted(reader), None
    for by, those in frames.items():
        is_one, decoded = f.col(FRAME).isin(those), _from_avro(PAYLOAD, by, to)
        found = f.when(is_one, decoded) if found is None else found.when(is_one, decoded)
    if found is not None:
        return found
    nothing = _read_as(reader.reading).ddl()
    return f.lit(None).cast(f"struct<event:{nothing},end:binary>")


def _from_avro(payload: str, by: str, to: str) -> Column:
    from pyspark.sql.avro.functions import from_avro

    return from_avro(f.concat(payload, f.lit(bytearray(END))), by, {**OPTIONS, "avroSchema": to})


def _unusable(reader: AvroReader, writers: WriterSchemas) -> dict[bytes, str]:
    """The frames whose records are all invalid although their schema is known, and why."""
    found = {frame: _why_unusable(reader, writer) for frame, writer in writers.items() if writer is not None}
    return {frame: why for frame, why in found.items() if why}


def _why_unusable(reader: AvroReader, writer: WriterSchema) -> str | None:
    if writer.type != reader.TYPE:
        return f"it is of the type {writer.type}, and this source reads {reader.TYPE}"
    try:
        return mismatch(reader, writer.text, writer.references)
    except SchemaError as error:
        return str(error)


# ---- what Spark reads, and an event has as a text --------------------

BINARY, LOCAL_TIME = "binary", "timestamp_ntz"
SCALARS = {"boolean": "boolean", "string": "string", "enum": "string", "double": "double", "int": "date"}
"""A type of a reading schema, as Spark reads it; an int is there only as a date."""


def _read_as(schema: Any) -> FieldType:
    """What from_avro gives for a reading schema: the type of an event but for binary, and times without a zone."""
    if isinstance(schema, list):
        return _read_as(next(each for each in schema if each != "null"))
    if isinstance(schema, str):
        return FieldType({"bytes": BINARY, "long": "bigint"}.get(schema) or SCALARS[schema])
    kind, logical = schema["type"], schema.get("logicalType")
    match kind:
        case "record":
            return FieldType("struct", fields=tuple(Field(e["name"], _read_as(e["type"])) for e in schema["fields"]))
        case "array":
            return FieldType("array", element=_read_as(schema["items"]))
        case "map":
            return FieldType("map", element=_read_as(schema["values"]))
        case "bytes" | "fixed" if logical == "decimal":
            return FieldType("decimal", precision=schema["precision"], scale=schema["scale"])
        case "bytes" | "fixed":
            return FieldType(BINARY)
        case "long":
            return FieldType(LOCAL_TIME if logical in LOCAL_TIMES else "timestamp")
    return FieldType(SCALARS[kind])


def _presented(type_: FieldType, value: Column) -> Column:
    """A value as an event has it: binary in base64, and a time without a zone as `2026-05-02T12:00:00.250000`."""
    if not set(_kinds(type_)) & {BINARY, LOCAL_TIME}:
        return value
    if type_.kind == "struct":
        parts = [_presented(each.type, value[each.name]).alias(each.name) for each in type_.fields]
        return f.when(value.isNotNull(), f.struct(*parts))
    if (element := type_.element) is None:
        if type_.kind == BINARY:
            return f.translate(f.base64(value), "\r\n", "")  # Spark breaks lines after 76 characters
        return f.date_format(value, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
    if type_.kind == "array":
        return f.transform(value, partial(_presented, element))
    return f.transform_values(value, lambda _, each: _presented(element, each))


# ---- what Avro can hold and an event cannot --------------------------


def _bounds(field: Field) -> str:
    kinds = set(_kinds(field.type))
    said = []
    if "string" in kinds:
        said.append("is not UTF-8")
    if "double" in kinds:
        said.append("is not a finite number")
    if kinds & {"date", "timestamp", LOCAL_TIME}:
        said.append("is not in the years 1 to 9999")
    return " or ".join(said)


def _kinds(type_: FieldType) -> Iterator[str]:
    yield type_.kind
    if type_.kind == "map":
        yield "string"
    if type_.element is not None:
        yield from _kinds(type_.element)
    for field in type_.fields:
        yield from _kinds(field.type)


def _is_outside(type_: FieldType, value: Column) -> Column | None:
    """Whether a value is or holds a text that is not UTF-8, a number that is not finite, or a time beyond 9999."""
    match type_.kind:
        case "string":
            return ~f.is_valid_utf8(value)
        case "double":
            return f.abs(value) >= float("inf")  # NaN is the largest
        case "date":
            return (f.year(value) > 9999) | (f.year(value) < 1)
        case "timestamp" | "timestamp_ntz":
            micros = f.unix_micros(value.cast("timestamp"))  # the session is in UTC
            return (micros < f.expr(BEFORE)) | (micros >= f.expr(AFTER))
        case "struct":
            inner = [_is_outside(field.type, value[field.name]) for field in type_.fields]
            found = [f.coalesce(each, f.lit(False)) for each in inner if each is not None]
            return reduce(Column.__or__, found) if found else None
        case "array" if type_.element is not None:
            return _any(type_.element, value)
        case "map" if type_.element is not None:
            keys = f.exists(f.map_keys(value), lambda key: ~f.is_valid_utf8(key))
            of_values = _any(type_.element, f.map_values(value))
            return keys if of_values is None else f.coalesce(keys, f.lit(False)) | f.coalesce(of_values, f.lit(False))
    return None


def _any(element: FieldType, values: Column) -> Column | None:
    if not set(_kinds(element)) & {"string", "double", "date", "timestamp", LOCAL_TIME}:
        return None

    def is_outside(value: Column) -> Column:
        wrong = _is_outside(element, value)
        return f.lit(False) if wrong is None else f.coalesce(wrong, f.lit(False))

    return f.exists(values, is_outside)
