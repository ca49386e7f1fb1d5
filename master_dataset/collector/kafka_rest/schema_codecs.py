"""From JSON to the bytes that a schema says, and back: Avro, JSON Schema, Protobuf."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from typing import Any

import fastavro
from google.protobuf import json_format, message_factory

from master_dataset.errors import InvalidEvent
from views.formats.avro_writer import plain_writer
from views.formats.protobuf_decoding import FIRST_MESSAGE, read_indexes
from views.formats.protobuf_schema import Indexes, compiled, pool_of
from views.schemas import AVRO, JSON, PROTOBUF, JsonSchema, NamedSchema
from views.schemas.json_extent import MAX_STEPS, steps
from views.strict_json import dump_json, parse_json

References = tuple[tuple[str, str], ...]
LOGICAL = ("logicalType", "precision", "scale")
MAX_SHOWN = 300
MAX_WORK = 300_000_000
"""Bytes of a value times the steps of its JSON schema: a second or so."""
MAX_EXPLAINED_WORK = 200_000


class Misfit(ValueError):
    """Data that does not fit a schema; the text says why."""


class Codec(ABC):
    """One schema. Used by several threads."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """The bytes of a value in JSON, without a frame. Misfit where it does not fit."""

    @abstractmethod
    def decode(self, payload: bytes) -> Any:
        """The value in JSON. ValueError for bytes that are something else."""


def codec_of(type: str, text: str, references: References) -> Codec:
    """The codec of a schema. DeclarationError or ValueError for one that cannot be used. It may take seconds."""
    if type == AVRO:
        return AvroCodec(text, references)
    if type == JSON:
        return JsonCodec(text, references)
    return ProtobufCodec(text, references)


def record_name(type: str, text: str, references: References) -> str:
    """The name of the record that a schema describes, for subjects that are called so."""
    if type == PROTOBUF:
        return str(ProtobufCodec(text, references).messages[FIRST_MESSAGE].full_name)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    name = content.get("name" if type == AVRO else "title") if isinstance(content, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError("it has none")
    space = content.get("namespace") if type == AVRO and "." not in name else None
    return f"{space}.{name}" if space else name


class AvroCodec(Codec):
    """Avro's own JSON: `{"string": "x"}` in a union, bytes as a text of so many characters, a date as its days."""

    def __init__(self, text: str, references: References) -> None:
        try:
            self._schema = fastavro.parse_schema(_without_logical_types(plain_writer(text, references)))
        except (fastavro.schema.SchemaParseException, KeyError, TypeError) as error:
            raise ValueError(f"it is not Avro: {error}") from None

    def encode(self, value: Any) -> bytes:
        """Checked against the schema in all its parts: fastavro alone would write 1 for true."""
        out = io.BytesIO()
        try:
            found: Any = next(iter(fastavro.json_reader(io.StringIO(dump_json(value).decode()), self._schema)))
            fastavro.validate(found, self._schema, strict=True)
            fastavro.schemaless_writer(out, self._schema, found, strict=True)
        except Exception as error:  # whatever fastavro makes of JSON that is not Avro's
            raise Misfit(_shown(error)) from None
        return out.getvalue()

    def decode(self, payload: bytes) -> Any:
        """Of one record and nothing behind it."""
        data, text = io.BytesIO(payload), io.StringIO()
        try:
            found = fastavro.schemaless_reader(data, self._schema, None)
            fastavro.json_writer(text, self._schema, [found])
        except Exception as error:  # whatever fastavro makes of bytes that are not Avro
            raise ValueError(f"it is not what its schema says: {_shown(error)}") from None
        if data.read(1):
            raise ValueError("bytes follow it")
        return json.loads(text.getvalue())


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name == "default" else _without_logical_types(value)
        for name, value in schema.items()
        if name not in LOGICAL
    }


class JsonCodec(Codec):
    """JSON that its schema takes. A validator cannot be interrupted, so its work is bounded."""

    def __init__(self, text: str, references: References) -> None:
        schema = JsonSchema(text, [NamedSchema(*each) for each in references])
        self._validator, self._steps = schema.validator, steps(schema.document)
        if self._steps >= MAX_STEPS:
            raise ValueError(
                f"it evaluates {MAX_STEPS:,} schemas or more for one part of a value, or they are nested too "
                "deeply; definitions that use the next one twice double it each time"
            )

    def encode(self, value: Any) -> bytes:
        """Compact JSON."""
        data = dump_json(value)
        work = len(data) * self._steps
        if work > MAX_WORK:
            raise Misfit(f"it has {len(data)} bytes, and this schema takes {MAX_WORK // self._steps} at most")
        try:
            if self._validator.is_valid(value):
                return data
            if work <= MAX_EXPLAINED_WORK:
                self._validator.validate(value)  # says where and why, which takes far longer
        except Exception as error:  # a value that does not fit, or one that the validator cannot look at
            raise Misfit(_shown(error)) from None
        raise Misfit("it is not valid; it is too large to find out where")

    def decode(self, payload: bytes) -> Any:
        """As it was written: it is not checked again."""
        try:
            return parse_json(payload)
        except InvalidEvent as error:
            raise ValueError(f"it is not JSON: {error.reason}") from None


class ProtobufCodec(Codec):
    """Protobuf's own JSON, of the first message of a schema; any of its messages is decoded."""

    def __init__(self, text: str, references: References) -> None:
        files = compiled(text, references)
        file = pool_of(files).FindFileByName(files.file[-1].name)
        self.messages: dict[Indexes, Any] = {}
        named = [file.message_types_by_name[each.name] for each in files.file[-1].message_type]
        self._collect(named, ())
        if not self.messages:
            raise ValueError("it has no message")

    def _collect(self, messages: list[Any], above: Indexes) -> None:
        for number, message in enumerate(messages):
            self.messages[(*above, number)] = message
            self._collect(list(message.nested_types), (*above, number))

    def encode(self, value: Any) -> bytes:
        """`00` says that it is the first message."""
        message = message_factory.GetMessageClass(self.messages[FIRST_MESSAGE])()
        try:
            json_format.ParseDict(value, message)
            return b"\x00" + bytes(message.SerializeToString(deterministic=True))
        except Exception as error:  # ParseError, and what it lets through for data that is no object
            raise Misfit(_shown(error)) from None

    def decode(self, payload: bytes) -> Any:
        """With all fields that have a default."""
        try:
            indexes, rest = read_indexes(payload)
            message = message_factory.GetMessageClass(self.messages[indexes]).FromString(rest)
            return json_format.MessageToDict(
                message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        except Exception as error:  # whatever Protobuf makes of bytes or values that have no JSON, such as of an Any
            raise ValueError(f"it is not what its schema says: {_shown(error)}") from None


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
