"""Translate declarations into Spark expressions: how every layer reads a record.

Every layer reads a record through `with_event`, so they can never disagree on whether it is valid or what it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from views.field_types import Field, FieldType
from views.formats.writer_schemas import NO_WRITER_SCHEMAS, WriterSchemas
from views.on_spark import avro_records, enveloped_records, framed_records, protobuf_records
from views.on_spark.decimal_texts import bounded
from views.on_spark.projection import declared_event, missing_required
from views.reading import is_as_it_comes, wire_fields
from views.source import Source

CORRUPT, WRAPPER = "_corrupt", "_event"
JSON_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
}
EARLIEST, LATEST = "1970-01-01T00:00:00Z", "2200-01-01T00:00:00Z"
"""Event times lie in [EARLIEST, LATEST). A number of milliseconds, read as seconds, does not."""
LONGEST_ID = 512
NO_VALUE = "no value (a tombstone)"
NO_FIELD = Field("_", FieldType("string"))
LAST_YEAR = 9999
"""Dates and times go from the year 1 to this one: what Python, SQL and JSON can write."""


def with_event(
    records: DataFrame, source: Source, *, reasons: bool = True, writers: WriterSchemas = NO_WRITER_SCHEMAS
) -> DataFrame:
    """Records of Kafka -> the same with `event_id`, `event_time`, `invalid` (why, or null) and `event` (null then).

    `{"event_id": "a", "properties": {"ms": 5}}` -> event_id a, event_time = the record's timestamp, event = the struct.
    An event without an id gets `topic/partition/offset`, one without a time the record's timestamp. Without `reasons`,
    `invalid` does not say what is wrong with a record that is no such JSON: most of the expression is for that.
    A framed record whose schema is not among `writers` is invalid: see `framed_records`. What may be in an envelope is
    taken out of it first: see `enveloped_records`.
    """
    if source.format == "avro":
        unfinished = avro_records.with_decoded(records, source, writers)
        why = avro_records.why_undecodable(_no_value(), source, writers)
    elif source.format == "protobuf":
        unfinished = protobuf_records.with_decoded(records, source, writers)
        why = protobuf_records.why_undecodable(framed_records.why_too_early(_no_value(), source, writers))
    else:
        unfinished = _with_json(records, source)
        why = _why_not_json(
            framed_records.why_unframed(_no_content() if source.envelope else _no_value(), source),
            _why_corrupt(source) if reasons else f.lit("corrupt"),
        )
    parsed = unfinished.withColumn("invalid", _why_invalid(source, why))
    is_valid = f.col("invalid").isNull()
    made_id = f.concat_ws("/", "topic", f.col("partition").cast("string"), f.col("offset").cast("string"))
    given_id = f.nullif(f.col(f"_event.`{source.id_field}`"), f.lit(""))
    given_time = f.col(f"_event.`{source.time_field}`")
    return (
        parsed.withColumn("event_id", f.coalesce(f.when(is_valid, given_id), made_id))
        .withColumn("event_time", f.coalesce(f.when(is_valid, given_time), "timestamp"))
        .withColumn("event", f.when(is_valid, _declared(source)))
        .drop("_text", "_parsed", "_event", avro_records.DECODED, protobuf_records.WHY)
        .drop(framed_records.FRAME, framed_records.PAYLOAD, enveloped_records.CONTENT, enveloped_records.WHY)
    )


def event_ddl(source: Source) -> str:
    """The type of the `event` column: `struct<event_id:string,...>`."""
    return FieldType("struct", fields=source.schema).ddl()


def _with_json(records: DataFrame, source: Source) -> DataFrame:
    """Records with their text parsed: `_event` is the first value of it."""
    if source.envelope:
        payload, text = enveloped_records.with_content(records, source), enveloped_records.CONTENT
    else:
        payload = framed_records.with_payload(records, source)
        text = framed_records.PAYLOAD if source.is_framed else "value"
    return (
        payload.withColumn("_text", f.col(text).cast("string"))
        .withColumn("_parsed", _parse(source))
        .withColumn("_event", f.get(f.col(f"_parsed.{WRAPPER}"), f.lit(0)))
    )


def _declared(source: Source) -> Column:
    """The event as it is declared, of the fields as they came."""
    came = f.col("_event")
    return came if is_as_it_comes(source.schema) else declared_event(source.schema, came, f.col("_text"))


def _parse(source: Source) -> Column:
    """Parse `{"_event": [<text>]}` with all fields that may come, each under its own name.

    Of the bare text from_json reads the first value and drops the rest unseen; wrapped, a second value is a second
    element, and anything else that follows is not JSON.
    """
    wrapped = f.concat(f.lit(f'{{"{WRAPPER}":['), f.col("_text"), f.lit("]}"))
    event = FieldType("struct", fields=wire_fields(source.schema))
    return _from_json(wrapped, Field(WRAPPER, FieldType("array", element=event)))


def _from_json(text: Column, field: Field) -> Column:
    """A struct with the one field of the first value in a text, and with CORRUPT, null where it could be read."""
    return f.from_json(bounded(text, (field,)), f"`{field.name}` {field.type.ddl()}, {CORRUPT} string", JSON_OPTIONS)


def _no_value() -> Column:
    """The first thing that may be wrong with a record of any format."""
    return f.when(f.col("value").isNull(), NO_VALUE)


def _no_content() -> Column:
    """The same for a record that may be in an envelope: a CloudEvent without data has no value."""
    wrong = f.when(f.col(enveloped_records.WHY).isNotNull(), f.col(enveloped_records.WHY))
    return wrong.when(f.col(enveloped_records.CONTENT).isNull(), NO_VALUE)


def _why_not_json(reason: Column, why_corrupt: Column) -> Column:
    """Add to the reasons why a record is invalid those of JSON. Cheap checks first."""
    text = f.col("_text")
    has_surrogate = f.contains(text, f.lit("\\ud")) | f.contains(text, f.lit("\\uD"))
    return (
        reason.when(~f.is_valid_utf8(text), "not UTF-8")
        .when(f.col(f"_parsed.{CORRUPT}").isNotNull(), why_corrupt)
        .when(f.size(f"_parsed.{WRAPPER}") > 1, "more than one JSON value")
        .when(f.col("_event").isNull(), "empty")
        # Java replaces half a surrogate pair by '?': two ids could become one.
        .when(has_surrogate & f.try_parse_json(text).isNull(), "half a surrogate pair, or a repeated key")
    )


def _why_invalid(source: Source, reason: Column) -> Column:
    """One expression: the first thing that is wrong with a record, or null. `reason` has what is said of its format."""
    id_given, time_given = f.col(f"_event.`{source.id_field}`"), f.col(f"_event.`{source.time_field}`")
    reason = (
        reason.when(f.length(id_given) > LONGEST_ID, f"{source.id_field} is longer than {LONGEST_ID} characters")
        .when(
            (time_given < f.lit(EARLIEST).cast("timestamp")) | (time_given >= f.lit(LATEST).cast("timestamp")),
            f"{source.time_field} is not between {EARLIEST[:10]} and {LATEST[:10]}",
        )
        .when(
            time_given.isNull()
            & ~f.col("timestamp").between(f.lit(EARLIEST).cast("timestamp"), f.lit(LATEST).cast("timestamp")),
            f"no {source.time_field}, and Kafka's timestamp is not between {EARLIEST[:10]} and {LATEST[:10]}",
        )
    )
    wire = wire_fields(source.schema)
    for path, column in _times(wire, "", "_event"):
        reason = reason.when(f.year(column) > LAST_YEAR, f"{path} is after the year {LAST_YEAR}").when(
            f.year(column) < 1, f"{path} is before the year 1"
        )
    for path, too_large in _too_large(wire, "", "_event"):
        reason = reason.when(too_large, f"{path} is too large for its type")
    for path, is_missing in missing_required(source.schema, f.col("_event"), f.col("_text")):
        reason = reason.when(is_missing, f"{path} is required, and absent or null")
    return reason


def _why_corrupt(source: Source) -> Column:
    """For the few that are corrupt: not JSON, not one object, or the first field whose value has another type."""
    text = f.col("_text")
    reason = f.when(f.try_parse_json(text).isNull(), "not JSON").when(
        ~f.schema_of_variant(f.try_parse_json(text)).startswith("OBJECT"), "not a JSON object"
    )
    for path, part, kind in _parts(wire_fields(source.schema)):
        reason = reason.when(_from_json(text, part)[CORRUPT].isNotNull(), f"{path} is not {kind}")
    return reason.otherwise("more than one JSON value")


def _parts(fields: tuple[Field, ...]) -> Iterator[tuple[str, Field, str]]:
    """Each field: its path, an event's only field with this field alone in it, and its type.

    `properties struct<ms:double>` -> ("properties", properties struct<`_`:string>, "an object"),
    ("properties.ms", properties struct<`ms`:double>, "double")
    """
    for field in fields:
        if field.type.kind == "struct":
            yield field.name, Field(field.name, FieldType("struct", fields=(NO_FIELD,))), "an object"
        else:
            yield field.name, field, field.type.ddl().replace("`", "")
        for path, part, kind in _parts(field.type.fields):
            yield f"{field.name}.{path}", Field(field.name, FieldType("struct", fields=(part,))), kind


def _times(fields: tuple[Field, ...], above: str, column: str) -> Iterator[tuple[str, Column]]:
    """The dates and timestamps that a view can reach by name, with their paths."""
    for field in fields:
        path, at = f"{above}{field.name}", f"{column}.`{field.name}`"
        if field.type.kind == "struct":
            yield from _times(field.type.fields, f"{path}.", at)
        elif field.type.kind in ("date", "timestamp"):
            yield path, f.col(at)


def _too_large(fields: tuple[Field, ...], above: str, column: str) -> Iterator[tuple[str, Column]]:
    """Paths of floats and doubles, and whether one is infinite: JSON can write numbers that they cannot hold.

    `ms double, weights array<float>` -> ("ms", abs(ms) = Infinity), ("weights[]", exists(weights, abs(it) = Infinity))
    """
    for field in fields:
        path, at = f"{above}{field.name}", f"{column}.`{field.name}`"
        if field.type.kind == "struct":
            yield from _too_large(field.type.fields, f"{path}.", at)
        elif _has_floats(field.type):
            inside = "[]" if field.type.element else ""
            yield f"{path}{inside}", _is_infinite(field.type, f.col(at))


def _is_infinite(type_: FieldType, value: Column) -> Column:
    """Whether a value of a type that has floats is or holds an infinite number.

    The functions on arrays run outside of Spark's generated code: only the sources that need them pay for them.
    """
    if type_.element is not None:
        element = type_.element
        values = f.map_values(value) if type_.kind == "map" else value
        return f.exists(values, lambda one: _is_infinite(element, one))
    if type_.kind == "struct":
        with_floats = [field for field in type_.fields if _has_floats(field.type)]
        return reduce(or_, [_is_infinite(field.type, value[field.name]) for field in with_floats])
    return f.abs(value) == float("inf")


def _has_floats(type_: FieldType) -> bool:
    inner = [type_.element] if type_.element else [field.type for field in type_.fields]
    return type_.kind in ("float", "double") or any(map(_has_floats, inner))
