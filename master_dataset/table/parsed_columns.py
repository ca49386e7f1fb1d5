"""The parsed columns of a master table: those of its first reading, as far as a later one has them.

`event_id`, `event_time` and `invalid` are always what the reading in force says. `event` keeps the columns that the
table was created with, so that files of all ages have the same ones: a field that was added is not among them, one that
is no longer declared is null, and one that was widened is null where its value does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from master_dataset.table.readings import first_reading, reading_in_force
from views.field_types import Field, FieldType
from views.formats.writer_schemas import NO_WRITER_SCHEMAS, WriterSchemas
from views.on_spark.events import with_event
from views.source import Source


def with_parsed_columns(
    records: DataFrame, table: Path, source: Source, writers: WriterSchemas = NO_WRITER_SCHEMAS
) -> DataFrame:
    """Records of Kafka -> the same with the parsed columns of the table, judged by the reading in force."""
    now, first = reading_in_force(table, source), first_reading(table, source)
    read = with_event(records, now, writers=writers)
    if now.version == first.version:
        return read
    kept = _struct(now.schema, first.schema, f.col("event"))
    return read.withColumn("event", f.when(f.col("event").isNotNull(), kept))


def _struct(now: tuple[Field, ...], first: Iterable[Field], event: Column) -> Column:
    declared = {field.name: field for field in now}
    return f.struct(*(_kept(declared.get(field.name), field, event).alias(field.name) for field in first))


def _kept(now: Field | None, first: Field, event: Column) -> Column:
    nothing = f.lit(None).cast(first.type.ddl())
    if now is None:
        return nothing
    value = event.getField(first.name)
    if now.type == first.type:
        return value
    if first.type.kind == now.type.kind == "struct":
        return f.when(value.isNotNull(), _struct(now.type.fields, first.type.fields, value)).otherwise(nothing)
    if _has_parts(first.type):
        return nothing
    narrow = value.try_cast(first.type.ddl())
    return f.when(narrow.cast(now.type.ddl()) == value, narrow).otherwise(nothing)


def _has_parts(type_: FieldType) -> bool:
    return type_.element is not None or bool(type_.fields)
