"""Protobuf records -> the event struct: Spark has no decoder, so batches of records go through a Python worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from views.field_types import FieldType
from views.formats.protobuf_decoding import ProtobufDecoder, Writers, writers_of
from views.formats.protobuf_schema import ProtobufReader
from views.formats.undecodable import Undecodable
from views.formats.writer_schemas import WriterSchemas

if TYPE_CHECKING:
    from views.source import Source

WHY = "_why"
"""A column: why a record cannot be decoded, or null."""


def with_decoded(records: DataFrame, source: Source, writers: WriterSchemas) -> DataFrame:
    """Records with `_event` (null where there is none), and `_why`."""
    reader = source.protobuf
    ddl = f"_event {FieldType('struct', fields=reader.fields).ddl()}, {WHY} string"
    added = StructType.fromDDL(ddl)
    decode = _Decoding(reader, writers_of(reader, writers), added, is_framed=source.is_framed)
    fields: list[StructField] = [*records.schema.fields, *added.fields]  # type: ignore[attr-defined]
    return records.mapInArrow(decode, StructType(fields))


def why_undecodable(reason: Column) -> Column:
    """Add to the reasons why a record is invalid what the decoder says."""
    return reason.when(f.col(WHY).isNotNull(), f.col(WHY))


@dataclass
class _Decoding:
    """Runs in Spark's Python workers; descriptors are made there, because they cannot be sent."""

    reader: ProtobufReader
    writers: Writers
    added: Any
    is_framed: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = ProtobufDecoder(self.reader, self.writers, is_framed=self.is_framed)
        types = [to_arrow_type(each.dataType, timezone="UTC") for each in self.added.fields]
        for batch in batches:
            values = batch.column("value").to_pylist()
            headers = batch.column("headers").to_pylist() if "headers" in batch.schema.names else [None] * len(values)
            found = [_decoded(decoder, *each) for each in zip(values, headers, strict=True)]
            columns = [pa.array([each[place] for each in found], types[place]) for place in range(len(types))]
            names = [*batch.schema.names, *(each.name for each in self.added.fields)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names=names)


def _decoded(
    decoder: ProtobufDecoder, value: bytes | None, headers: list[dict[str, Any]] | None
) -> tuple[dict[str, Any] | None, str | None]:
    if value is None:
        return None, None
    try:
        return decoder.decode(value, [(each["key"], each["value"]) for each in headers or ()]), None
    except Undecodable as error:
        return None, str(error)
