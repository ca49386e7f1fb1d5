"""A record as Kafka delivered it -> the fields of its event by any reading of its source, without Spark.

JSON is judged by the collector's checks, which are stricter than Spark's. The other formats have the decoders of
`views/formats`, which give what Spark's expressions give; what those judge after decoding is judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from master_dataset.errors import InvalidEvent
from master_dataset.events.field_checks import END_TIME_EXCLUSIVE, FIRST_TIME, MAX_ID_CHARACTERS
from master_dataset.events.strict_json import parse_json
from master_dataset.events.validator import compile_validator
from views.formats.framing import NOT_FRAMED, described, split
from views.formats.undecodable import Undecodable
from views.formats.writer_schemas import NO_WRITER_SCHEMAS, WriterSchema, WriterSchemas
from views.reading import typed_event
from views.source import Source

Headers = tuple[tuple[str, bytes | None], ...]


class RawRecord(NamedTuple):
    """What decides what a record says. `offset` is the logical one, `timestamp_ms` Kafka's."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes | None
    headers: Headers = ()


Decode = Callable[[bytes, Headers], dict[str, Any]]
"""A value and its headers -> the fields of an event. InvalidEvent or Undecodable says why there are none."""


class RecordReader:
    """Reads the records of a source as it is declared. Made once for many of them."""

    def __init__(self, source: Source, writers: WriterSchemas = NO_WRITER_SCHEMAS) -> None:
        self.source = source
        self._decode = DECODERS[source.format](source, writers)
        late = {frame: dict(writer.since) for frame, writer in writers.items() if writer is not None and writer.since}
        self._late = late if source.needs_writer_schemas else {}
        """Schemas that are known from a cut on only: their frames and cuts."""

    def read(self, record: RawRecord) -> dict[str, Any]:
        """All declared fields of the event. InvalidEvent says why there is none."""
        if record.value is None:
            raise InvalidEvent("", "it has no value (a tombstone)")
        try:
            self._check_schema(record, record.value)
            fields = self._decode(record.value, record.headers)
        except Undecodable as error:
            raise InvalidEvent("", str(error)) from None
        self._check_roles(fields, record)
        return fields

    def _check_schema(self, record: RawRecord, value: bytes) -> None:
        """As views/on_spark/framed_records.py: below its cut a schema is as unknown as it was."""
        found = split(value, record.headers) if self._late else None
        if found is not None and record.offset < self._late.get(found.frame, {}).get(record.partition, 0):
            raise Undecodable(f"{described(found.frame)} is unknown to the registry")

    def _check_roles(self, fields: dict[str, Any], record: RawRecord) -> None:
        event_id, at = fields[self.source.id_field], fields[self.source.time_field]
        at_s = record.timestamp_ms / 1000 if at is None else at.timestamp()
        if event_id is not None and len(event_id) > MAX_ID_CHARACTERS:
            raise InvalidEvent(self.source.id_field, f"it is longer than {MAX_ID_CHARACTERS} characters")
        if not FIRST_TIME.timestamp() <= at_s < END_TIME_EXCLUSIVE.timestamp():
            raise InvalidEvent(self.source.time_field, "an event's time lies in 1970 to 2199")


def _of_json(source: Source, writers: WriterSchemas) -> Decode:
    del writers  # JSON says by itself what it is
    validate, schema = compile_validator(source), source.schema

    def decode(value: bytes, headers: Headers) -> dict[str, Any]:
        if source.is_framed:
            found = split(value, headers)
            if found is None:
                raise Undecodable(NOT_FRAMED)
            value = found.payload
        event: Any = parse_json(value)
        validate(event)
        return typed_event(schema, event)

    return decode


def _of_avro(source: Source, writers: WriterSchemas) -> Decode:
    from views.formats import avro_decoding

    reader = source.avro
    if not source.is_framed:
        bare = avro_decoding.decoder(reader, WriterSchema(reader.TYPE, reader.text))
        return lambda value, _headers: bare(value)
    decoders: dict[bytes, avro_decoding.Decode] = {}
    return lambda value, headers: avro_decoding.decode_framed(reader, writers, value, headers, decoders)


def _of_protobuf(source: Source, writers: WriterSchemas) -> Decode:
    from views.formats.protobuf_decoding import ProtobufDecoder, writers_of

    reader = source.protobuf
    return ProtobufDecoder(reader, writers_of(reader, writers), is_framed=source.is_framed).decode


DECODERS: dict[str, Callable[[Source, WriterSchemas], Decode]] = {
    "json": _of_json,
    "json_schema": _of_json,
    "avro": _of_avro,
    "protobuf": _of_protobuf,
}
