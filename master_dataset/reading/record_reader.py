"""Read records of any format in Python, as the layers read them: for processes without a JVM.

JSON is judged by the collector's checks, which are stricter than Spark's in a few cases. Avro and Protobuf are decoded
by `views/formats`, which laws hold to Spark's expressions, with the writer schemas noted beside the master table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from master_dataset.errors import InvalidEvent
from master_dataset.events.field_checks import END_TIME_EXCLUSIVE, FIRST_TIME, MAX_ID_CHARACTERS
from master_dataset.events.json_records import compile_reader
from master_dataset.events.validator import compile_validator
from master_dataset.writer_schemas.noted import NotedSchemas
from views.formats.cloudevents_in_kafka import Headers
from views.formats.framing import NOT_FRAMED, described, split
from views.formats.undecodable import Undecodable
from views.formats.writer_schemas import NO_WRITER_SCHEMAS, WriterSchema, WriterSchemas
from views.reading import typed_event
from views.source import Source
from views.strict_json import parse_json
from views.types import EPOCH


class Record(NamedTuple):
    """A record of Kafka. `offset` is the logical one."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ReadEvent(NamedTuple):
    """A valid event: as JSON shows it, and the typed fields that expressions see, with its id and time."""

    shown: dict[str, Any]
    fields: dict[str, Any]


class RecordReader:
    """Reads the records of one source. `learn` comes before `read`, for all records that are to be read."""

    def __init__(self, source: Source, noted: NotedSchemas) -> None:
        self.source = source
        self._noted, self._writers = noted, NO_WRITER_SCHEMAS
        self._decode = _decoder(source, NO_WRITER_SCHEMAS)

    def learn(self, records: Iterable[Record]) -> None:
        """Look up the writer schemas of records, as the layers do: RegistryAway where they have to wait."""
        if not self.source.needs_writer_schemas:
            return
        frames = {framed.frame for each in records if each.value is not None and (framed := _split(each)) is not None}
        unknown = frames - self._writers.keys()
        if not unknown:
            return
        if new := self._noted.without_answer(unknown):
            self._noted.resolve(new)
        writers = self._noted.known()
        if writers != self._writers:
            self._writers, self._decode = writers, _decoder(self.source, writers)

    def read(self, record: Record) -> ReadEvent:
        """The event of a record; InvalidEvent where it is none."""
        if record.value is None and not self.source.envelope:
            raise InvalidEvent("", "no value (a tombstone)")
        self._check_since(record)
        try:
            shown, fields = self._decode(record)
        except Undecodable as error:
            raise InvalidEvent("", str(error)) from None
        fields[self.source.id_field] = self._id(fields, record)
        fields[self.source.time_field] = self._time(fields, record)
        return ReadEvent(shown, fields)

    def _check_since(self, record: Record) -> None:
        """A schema that was found late is known from a cut on."""
        framed = _split(record) if self.source.needs_writer_schemas else None
        writer = self._writers.get(framed.frame) if framed is not None else None
        for partition, offset in writer.since if writer is not None else ():
            if framed is not None and record.partition == partition and record.offset < offset:
                raise InvalidEvent("", f"{described(framed.frame)} is unknown to the registry")

    def _id(self, fields: dict[str, Any], record: Record) -> str:
        given = fields[self.source.id_field]
        if not given:
            return f"{record.topic}/{record.partition}/{record.offset}"
        if len(given) > MAX_ID_CHARACTERS:
            raise InvalidEvent(self.source.id_field, f"it is longer than {MAX_ID_CHARACTERS} characters")
        return str(given)

    def _time(self, fields: dict[str, Any], record: Record) -> datetime:
        given = fields[self.source.time_field]
        moment: datetime = EPOCH + timedelta(milliseconds=record.timestamp_ms) if given is None else given
        if not FIRST_TIME <= moment < END_TIME_EXCLUSIVE:
            raise InvalidEvent(self.source.time_field, "it is not between 1970 and 2199")
        return moment


Decoded = tuple[dict[str, Any], dict[str, Any]]


def _split(record: Record) -> Any:
    return split(record.value or b"", record.headers)


def _decoder(source: Source, writers: WriterSchemas) -> Callable[[Record], Decoded]:
    """How the records of a source become what is shown, and typed fields. Decided once for a set of writer schemas."""
    match source.format:
        case "avro":
            decode = _avro(source, writers)
        case "protobuf":
            decode = _protobuf(source, writers)
        case _:
            read = _json_schema(source) if source.format == "json_schema" else compile_reader(source)
            return lambda record: _with_types(source, read(record.value, record.headers))

    def decode_record(record: Record) -> Decoded:
        fields = decode(record.value or b"", record.headers)
        return _shown(fields), fields

    return decode_record


def _avro(source: Source, writers: WriterSchemas) -> Callable[[bytes, Any], dict[str, Any]]:
    from views.formats.avro_decoding import Decode, decode_framed, decoder  # most sources need no such library

    if source.is_framed:
        decoders: dict[bytes, Decode] = {}
        return lambda value, headers: decode_framed(source.avro, writers, value, tuple(headers), decoders)
    decode = decoder(source.avro, WriterSchema("AVRO", source.avro.text))
    return lambda value, _headers: decode(value)


def _protobuf(source: Source, writers: WriterSchemas) -> Callable[[bytes, Any], dict[str, Any]]:
    from views.formats.protobuf_decoding import ProtobufDecoder, writers_of

    known = writers_of(source.protobuf, writers)
    return ProtobufDecoder(source.protobuf, known, is_framed=source.is_framed).decode


def _json_schema(source: Source) -> Callable[[bytes | None, Headers], dict[str, Any]]:
    validate = compile_validator(source)

    def read(value: bytes | None, headers: Headers) -> dict[str, Any]:
        payload = value or b""
        if source.is_framed:
            framed = split(payload, headers)
            if framed is None:
                raise Undecodable(NOT_FRAMED)
            payload = framed.payload
        event: dict[str, Any] = parse_json(payload)
        validate(event)
        return event

    return read


def _with_types(source: Source, event: dict[str, Any]) -> Decoded:
    return event, typed_event(source.schema, event)


def _shown(value: Any) -> Any:
    """Decoded values as JSON has them; decimals as text, as answers give them."""
    match value:
        case dict():
            return {name: _shown(each) for name, each in value.items()}
        case list():
            return [_shown(each) for each in value]
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
    return value
