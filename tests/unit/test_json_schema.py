"""Which fields a source has by a JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from views.errors import SourceError
from views.source import Source

ROLES = {"event_id": {"type": "string"}, "event_time": {"type": ["null", "string"], "format": "date-time"}}


def schema(properties: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": "object", "properties": {**ROLES, **properties}, **more})


def field(given: Any, **more: Any) -> str:
    """The type of a field that is declared so."""
    declared = Source("orders", format="json_schema", reader_schema=schema({"f": given}, **more))
    return declared.schema[-1].type.ddl()


@pytest.mark.parametrize(
    ("given", "ddl"),
    [
        ({"type": "integer", "minimum": 3}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "email", "maxLength": 3}, "string"),
        ({"type": ["integer", "null"]}, "bigint"),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, "double"),
        ({"anyOf": [{"$ref": "#/$defs/Line"}, {"type": "null"}]}, "struct<`sku`:string,`n`:bigint>"),
        ({"allOf": [{"$ref": "#/definitions/a~1b%20c"}]}, "boolean"),
        ({"enum": ["a", "b"]}, "string"),
        ({"const": "a"}, "string"),
        ({"type": "array", "items": {"$ref": "#/$defs/Line"}}, "array<struct<`sku`:string,`n`:bigint>>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, "struct<`a`:string>"),
    ],
)
def test_a_schema_gives_the_types_of_fields(given: Any, ddl: str) -> None:
    line = {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}}
    assert field(given, **{"$defs": {"Line": line}, "definitions": {"a/b c": {"type": "boolean"}}}) == ddl


DOUBLING = {
    f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(20)
} | {"d20": {"type": "integer"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the schema is not JSON"),
        ("true", "the schema: true says no type"),
        ('{"type":"array","items":{"type":"string"}}', "an event is an object with properties"),
        (schema({"f": {}}), "f: {} has no one type"),
        (schema({"f": True}), "f: true says no type"),
        (schema({"f": {"type": ["string", "integer"]}}), 'f: {"type": ["string", "integer"]} has no one type'),
        (schema({"f": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}), "f: a choice of 2 types"),
        (schema({"f": {"oneOf": 3}}), "f: a choice of 0 types"),
        (schema({"f": {"type": "array"}}), 'f: {"type": "array"} has no one type'),
        (schema({"f": {"type": "object"}}), 'f: {"type": "object"} has no one type'),
        (schema({"f": {"type": "array", "items": {"$ref": "#/x"}}}), "f[]: the reference '#/x' leads nowhere"),
        (schema({"f": {"$ref": "other.json#/x"}}), "f: the reference 'other.json#/x' leads nowhere"),
        (schema({"f": {"$ref": "#"}}), "it is nested deeper than 64 levels, or contains itself"),
        (schema({"f": {"$ref": "#/$defs/d0"}}, **{"$defs": DOUBLING}), "it has more than 100,000 types where each"),
        (schema({"F": {"type": "string"}, "f": {"type": "string"}}), "several properties are called 'f'"),
        (schema({"a.b": {"type": "string"}}), "the property 'a.b' cannot be a field's name"),
        (schema({"_corrupt": {"type": "string"}}), "the property '_corrupt' cannot be a field's name"),
    ],
)
def test_a_schema_that_cannot_be_a_source_is_refused_with_the_path(text: str, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        Source("orders", format="json_schema", reader_schema=text)
    assert message in str(refused.value)
