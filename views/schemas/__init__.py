"""What the text of a schema means: parsed, written in one way, and compared with other versions of it."""

from __future__ import annotations

from collections.abc import Sequence

from views.schemas.avro import AvroSchema
from views.schemas.compatibility import LEVELS, check, incompatibilities
from views.schemas.json_schema import JsonSchema
from views.schemas.model import AVRO, JSON, PROTOBUF, TYPES, InvalidSchema, NamedSchema, ParsedSchema
from views.schemas.protobuf import ProtobufSchema

__all__ = [
    "AVRO",
    "JSON",
    "LEVELS",
    "PROTOBUF",
    "TYPES",
    "AvroSchema",
    "InvalidSchema",
    "JsonSchema",
    "NamedSchema",
    "ParsedSchema",
    "ProtobufSchema",
    "check",
    "incompatibilities",
    "parse",
]


def parse(type: str, text: str, references: Sequence[NamedSchema] = ()) -> ParsedSchema:
    """The schema that a text says. `references` are the schemas it refers to, each after those it refers to itself.

    InvalidSchema if the text is no schema of the type.
    """
    if type == AVRO:
        return AvroSchema(text, references)
    if type == JSON:
        return JsonSchema(text, references)
    if type == PROTOBUF:
        return ProtobufSchema(text, references)
    raise InvalidSchema(f"'{type}' is no type of schemas. Write one of {', '.join(TYPES)}.")
