"""The fields that a source has by a JSON Schema.

Only types are taken from it. Limits, patterns, required members and the like are for producers, whose serializers check
them: what breaks them is an event all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import unquote

from views.errors import DeclarationError
from views.field_types import RESERVED_NAMES, UNUSABLE_IN_NAMES, Field, FieldType

MAX_DEPTH = 64
MAX_TEXT = 4_000_000
MAX_TYPES = 100_000
"""Where each definition is written out wherever it is used."""
FORMATS = {"date-time": "timestamp", "date": "date"}
TYPES = {"integer": "bigint", "number": "double", "boolean": "boolean"}
REMEDY = "Leave it out of the reader schema: a member that it does not describe is skipped."


class JsonSchemaError(DeclarationError):
    """A schema that is none, or that a source cannot have."""


def json_schema_fields(text: str) -> tuple[Field, ...]:
    """The fields of the objects that a schema describes. JsonSchemaError names the path of what cannot be a field."""
    if len(text) > MAX_TEXT:
        raise JsonSchemaError(f"the schema has {len(text):,} characters; at most {MAX_TEXT:,} are taken.")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JsonSchemaError(f"the schema is not JSON: {error}") from None
    found = _type(schema, _Root(schema), "", 0)
    if found.kind != "struct":
        raise JsonSchemaError("an event is an object with properties; the reader schema describes something else.")
    return found.fields


@dataclass(frozen=True)
class _Root:
    """What references lead into, and the number of types that were read so far."""

    content: Any
    types: Iterator[int] = field(default_factory=count)


def _type(schema: Any, root: _Root, path: str, depth: int) -> FieldType:
    where = path or "the schema"
    if next(root.types) >= MAX_TYPES:
        raise JsonSchemaError(f"it has more than {MAX_TYPES:,} types where each definition is written out.")
    if depth > MAX_DEPTH:
        raise JsonSchemaError(f"{where}: it is nested deeper than {MAX_DEPTH} levels, or contains itself.")
    if not isinstance(schema, dict):
        raise JsonSchemaError(f"{where}: {json.dumps(schema)[:60]} says no type. {REMEDY}")
    if "$ref" in schema:
        return _type(_referred(schema["$ref"], root, where), root, path, depth + 1)
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return _only(schema[word], root, path, depth)
    if "allOf" in schema and isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1:
        return _type(schema["allOf"][0], root, path, depth + 1)
    match _kind(schema):
        case "string":
            return FieldType(FORMATS.get(str(schema.get("format")), "string"))
        case "integer" | "number" | "boolean" as kind:
            return FieldType(TYPES[kind])
        case "array" if isinstance(schema.get("items"), dict):
            return FieldType("array", element=_type(schema["items"], root, f"{path}[]", depth + 1))
        case "object" if isinstance(schema.get("properties"), dict) and schema["properties"]:
            return FieldType("struct", fields=_fields(schema["properties"], root, path, depth))
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return FieldType("map", element=_type(schema["additionalProperties"], root, f"{path}[]", depth + 1))
    said = json.dumps({name: schema[name] for name in ("type", "enum", "items", "allOf") if name in schema})[:80]
    raise JsonSchemaError(f"{where}: {said} has no one type that a field can have. {REMEDY}")


def _kind(schema: dict[str, Any]) -> str | None:
    """The type that is not null."""
    kind = schema.get("type")
    if isinstance(kind, list):
        rest = [each for each in kind if each != "null"]
        return rest[0] if len(rest) == 1 and isinstance(rest[0], str) else None
    if isinstance(kind, str):
        return kind
    if kind is None and "properties" in schema:
        return "object"
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if kind is None and isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        return "string"
    return None


def _only(choices: Any, root: _Root, path: str, depth: int) -> FieldType:
    """Of several schemas the one beside null."""
    rest = (
        [each for each in choices if each not in ({"type": "null"}, {"const": None})]
        if isinstance(choices, list)
        else []
    )
    if len(rest) != 1:
        raise JsonSchemaError(f"{path or 'the schema'}: a choice of {len(rest)} types is no type of a field. {REMEDY}")
    return _type(rest[0], root, path, depth + 1)


def _referred(reference: Any, root: _Root, where: str) -> Any:
    """`#/definitions/Line` -> that part of the schema."""
    found = root.content
    if isinstance(reference, str) and reference.startswith("#"):
        for part in reference[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, dict):
            return found
    raise JsonSchemaError(
        f"{where}: the reference {str(reference)[:100]!r} leads nowhere in this schema. Write what it refers to into "
        "the schema, under $defs."
    )


def _fields(properties: dict[str, Any], root: _Root, above: str, depth: int) -> tuple[Field, ...]:
    lower = [name.lower() for name in properties]
    if twice := sorted({name for name in lower if lower.count(name) > 1}):
        raise JsonSchemaError(
            f"{above or 'the schema'}: several properties are called {twice[0]!r} (Spark ignores case). {REMEDY}"
        )
    for name in properties:
        is_reserved = not above and name.lower() in RESERVED_NAMES
        if not name or is_reserved or any(character in UNUSABLE_IN_NAMES for character in name):
            raise JsonSchemaError(f"{above or 'the schema'}: the property {name!r} cannot be a field's name. {REMEDY}")
    return tuple(
        Field(name, _type(each, root, f"{above}.{name}".lstrip("."), depth + 1)) for name, each in properties.items()
    )
