"""A record as Kafka delivered it -> the fields of its event by any reading of its source, without Spark.

JSON is judged by the collector's checks, which are stricter than Spark's in a few cases. The other formats have the
decoders of `views/formats`, which give what Spark's expressions give; what those judge after decoding is judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from master_dataset.errors import InvalidEvent
from master_dataset.events.field_checks import END_TIME_EXCLUSIVE, FIRST_TIME, MAX_ID_CHARACTERS
from master_dataset.events.json_records import compile_reader
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


class Decoded(NamedTuple):
    """An event: its declared fields, and the JSON that was sent; None where that was another format."""

    fields: dict[str, Any]
    sent: dict[str, Any] | None = None


Decode = Callable[[bytes | None, Headers], Decoded]
"""A value and its headers -> an event. InvalidEvent or Undecodable says why there is none."""


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
        return self.decode(record).fields

    def decode(self, record: RawRecord) -> Decoded:
        """The same, with the JSON that was sent."""
        if record.value is None and not self.source.envelope:
            raise InvalidEvent("", "no value (a tombstone)")
        try:
            self._check_schema(record)
            decoded = self._decode(record.value, record.headers)
        except Undecodable as error:
            raise InvalidEvent("", str(error)) from None
        self._check_roles(decoded.fields, record)
        return decoded

    def _check_schema(self, record: RawRecord) -> None:
        """As views/on_spark/framed_records.py: below its cut a schema is as unknown as it was."""
        found = split(record.value or b"", record.headers) if self._late else None
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
    read, schema = compile_reader(source), source.schema

    def decode(value: bytes | None, headers: Headers) -> Decoded:
        if source.is_framed:
            found = split(value or b"", headers)
            if found is None:
                raise Undecodable(NOT_FRAMED)
            value = found.payload
        event = read(value, headers)
        return Decoded(typed_event(schema, event), event)

    return decode


def _of_avro(source: Source, writers: WriterSchemas) -> Decode:
    from views.formats import avro_decoding

    reader = source.avro
    if not source.is_framed:
        bare = avro_decoding.decoder(reader, WriterSchema(reader.TYPE, reader.text))
        return lambda value, _headers: Decoded(bare(value or b""))
    decoders: dict[bytes, avro_decoding.Decode] = {}
    return lambda value, headers: Decoded(avro_decoding.decode_framed(reader, writers, value or b"", headers, decoders))


def _of_protobuf(source: Source, writers: WriterSchemas) -> Decode:
    from views.formats.protobuf_decoding import ProtobufDecoder, writers_of

    reader = source.protobuf
    decode = ProtobufDecoder(reader, writers_of(reader, writers), is_framed=source.is_framed).decode
    return lambda value, headers: Decoded(decode(value or b"", headers))


DECODERS: dict[str, Callable[[Source, WriterSchemas], Decode]] = {
    "json": _of_json,
    "json_schema": _of_json,
    "avro": _of_avro,
    "protobuf": _of_protobuf,
}
