"""The rules of compatibility as a table: what was changed, the old schema, the new one, and who reads whom.

Sources: Avro's specification ("Schema Resolution"), Protobuf's language guides ("Updating A Message Type"), and the
rules that Confluent documents for its registry. Each row stands for two verdicts, BACKWARD and FORWARD; FULL is both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from views.schemas import AVRO, JSON, PROTOBUF

DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


@dataclass(frozen=True)
class Row:
    """A change; `backward`: the new schema reads the old one's data. `forward`: the old one reads the new one's."""

    type: str
    change: str
    old: str
    new: str
    backward: bool
    forward: bool

    def verdicts(self) -> Iterator[tuple[str, bool]]:
        yield "BACKWARD", self.backward
        yield "FORWARD", self.forward
        yield "FULL", self.backward and self.forward
        yield "NONE", True


YES, NO = True, False
BOTH, BACKWARD, FORWARD, NEITHER = (YES, YES), (YES, NO), (NO, YES), (NO, NO)


def record(*fields: Any, **members: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **members}


def field(name: str, type: Any, **members: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **members}


def enum(*symbols: str, **members: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **members}


def fixed(name: str, size: int, **members: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **members}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def map_of(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


A = field("a", "int")
LIST = record(A, field("next", ["null", "R"]))
LONG_LIST = record(field("a", "long"), field("next", ["null", "R"]))

AVRO_ROWS: list[tuple[str, Any, Any, tuple[bool, bool]]] = [
    ("nothing", "int", "int", BOTH),
    ("int to long", "int", "long", BACKWARD),
    ("int to float", "int", "float", BACKWARD),
    ("int to double", "int", "double", BACKWARD),
    ("long to float", "long", "float", BACKWARD),
    ("long to double", "long", "double", BACKWARD),
    ("float to double", "float", "double", BACKWARD),
    ("string to bytes", "string", "bytes", BOTH),
    ("int to string", "int", "string", NEITHER),
    ("boolean to int", "boolean", "int", NEITHER),
    ("null to int", "null", "int", NEITHER),
    ("bytes to fixed", "bytes", fixed("F", 4), NEITHER),
    ("type to array of it", "int", array("int"), NEITHER),
    ("array to map", array("int"), map_of("int"), NEITHER),
    ("wider items", array("int"), array("long"), BACKWARD),
    ("other items", array("int"), array("string"), NEITHER),
    ("wider values", map_of("int"), map_of("double"), BACKWARD),
    ("other values", map_of("int"), map_of("boolean"), NEITHER),
    ("field with default added", record(A), record(A, field("b", "int", default=0)), BOTH),
    ("field without default added", record(A), record(A, field("b", "int")), FORWARD),
    ("nullable field without default added", record(A), record(A, field("b", ["null", "int"])), FORWARD),
    ("nullable field with default added", record(A), record(A, field("b", ["null", "int"], default=None)), BOTH),
    ("field with default removed", record(A, field("b", "int", default=0)), record(A), BOTH),
    ("field without default removed", record(A, field("b", "int")), record(A), BACKWARD),
    ("default removed from a field", record(field("a", "int", default=1)), record(A), BOTH),
    ("default changed", record(field("a", "int", default=1)), record(field("a", "int", default=2)), BOTH),
    ("fields reordered", record(A, field("b", "string")), record(field("b", "string"), A), BOTH),
    ("field renamed", record(A), record(field("b", "int")), NEITHER),
    ("field renamed with an alias", record(A), record(field("b", "int", aliases=["a"])), BACKWARD),
    ("field renamed with a default", record(A), record(field("b", "int", default=0)), BACKWARD),
    (
        "alias matches a second field",
        record(A, field("b", "int")),
        record(field("a", "int", aliases=["b"])),
        NEITHER,
    ),
    ("field of another case", record(A), record(field("A", "int")), NEITHER),
    ("wider field", record(A), record(field("a", "long")), BACKWARD),
    ("field made nullable", record(A), record(field("a", ["null", "int"])), BACKWARD),
    ("record renamed", record(A), record(A, name="S"), NEITHER),
    ("record renamed with an alias", record(A), record(A, name="S", aliases=["R"]), BACKWARD),
    ("record in another namespace", record(A), record(A, namespace="x"), BOTH),
    (
        "alias in another namespace",
        record(A, namespace="x"),
        record(A, name="S", namespace="x", aliases=["y.R"]),
        NEITHER,
    ),
    ("full alias", record(A, namespace="x"), record(A, name="S", namespace="y", aliases=["x.R"]), BACKWARD),
    ("documentation added", record(A), record(field("a", "int", doc="d"), doc="d"), BOTH),
    ("property added", record(A), record(A, owner="me"), BOTH),
    ("order changed", record(A), record(field("a", "int", order="ignore")), BOTH),
    ("record to map", record(A), map_of("int"), NEITHER),
    ("recursive record", LIST, LIST, BOTH),
    ("wider field in a recursive record", LIST, LONG_LIST, BACKWARD),
    (
        "nested record gets a field",
        record(field("s", record(A, name="S"))),
        record(field("s", record(A, field("b", "int"), name="S"))),
        FORWARD,
    ),
    ("symbol added", enum("A"), enum("A", "B"), BACKWARD),
    ("symbol added with a default", enum("A", default="A"), enum("A", "B", default="A"), BOTH),
    ("symbol removed", enum("A", "B"), enum("A"), FORWARD),
    ("symbol removed with a default", enum("A", "B"), enum("A", default="A"), BOTH),
    ("symbols reordered", enum("A", "B"), enum("B", "A"), BOTH),
    ("enum renamed", enum("A"), enum("A", name="G"), NEITHER),
    ("enum renamed with an alias", enum("A"), enum("A", name="G", aliases=["E"]), BACKWARD),
    ("enum to string", enum("A"), "string", NEITHER),
    ("enum field with a default symbol added", record(A), record(A, field("e", enum("A", default="A"))), FORWARD),
    ("same size", fixed("F", 4), fixed("F", 4), BOTH),
    ("other size", fixed("F", 4), fixed("F", 5), NEITHER),
    ("fixed renamed", fixed("F", 4), fixed("G", 4), NEITHER),
    ("fixed renamed with an alias", fixed("F", 4), fixed("G", 4, aliases=["F"]), BACKWARD),
    ("type to union with it", "int", ["null", "int"], BACKWARD),
    ("type to union with a wider one", "int", ["null", "long"], BACKWARD),
    ("type to union without it", "int", ["null", "string"], NEITHER),
    ("branch added", ["null", "int"], ["null", "int", "string"], BACKWARD),
    ("branch removed", ["null", "int", "string"], ["null", "int"], FORWARD),
    ("branches reordered", ["null", "int"], ["int", "null"], BOTH),
    ("wider branch", ["null", "int"], ["null", "long"], BACKWARD),
    ("union of one to the type", ["int"], "int", BOTH),
    ("union of records: field added", ["null", record(A)], ["null", record(A, field("b", "int"))], FORWARD),
    ("logical type added", "long", {"type": "long", "logicalType": "timestamp-millis"}, BOTH),
    (
        "logical type changed",
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        BOTH,
    ),
    ("error to record", {**record(A), "type": "error"}, record(A), BOTH),
]


def object_of(properties: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    return {"type": "object", **({"properties": properties} if properties else {}), **members}


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
CLOSED = {"additionalProperties": False}

JSON_ROWS: list[tuple[str, Any, Any, tuple[bool, bool]]] = [
    ("nothing", STRING, STRING, BOTH),
    ("title", STRING, {**STRING, "title": "t", "description": "d", "default": "x", "examples": ["x"]}, BOTH),
    ("any value to one type", {}, STRING, FORWARD),
    ("true to no constraint", True, {}, BOTH),
    ("no value to one type", False, STRING, BACKWARD),
    ("integer to number", INTEGER, NUMBER, BACKWARD),
    ("string to number", STRING, NUMBER, NEITHER),
    ("type made nullable", STRING, {"type": ["string", "null"]}, BACKWARD),
    ("type removed from several", {"type": ["string", "integer"]}, STRING, FORWARD),
    ("types reordered", {"type": ["string", "null"]}, {"type": ["null", "string"]}, BOTH),
    ("minLength added", STRING, {**STRING, "minLength": 1}, FORWARD),
    ("minLength raised", {**STRING, "minLength": 1}, {**STRING, "minLength": 2}, FORWARD),
    ("maxLength lowered", {**STRING, "maxLength": 9}, {**STRING, "maxLength": 8}, FORWARD),
    ("maxLength removed", {**STRING, "maxLength": 9}, STRING, BACKWARD),
    ("pattern added", STRING, {**STRING, "pattern": "^a"}, FORWARD),
    ("pattern changed", {**STRING, "pattern": "^a"}, {**STRING, "pattern": "^b"}, NEITHER),
    ("format added", STRING, {**STRING, "format": "date-time"}, BOTH),
    ("minimum raised", {**NUMBER, "minimum": 1}, {**NUMBER, "minimum": 1.5}, FORWARD),
    ("minimum made exclusive", {**NUMBER, "minimum": 1}, {**NUMBER, "exclusiveMinimum": 1}, FORWARD),
    ("maximum removed", {**NUMBER, "maximum": 1}, NUMBER, BACKWARD),
    ("exclusiveMaximum lowered", {**NUMBER, "exclusiveMaximum": 2}, {**NUMBER, "exclusiveMaximum": 1}, FORWARD),
    ("multipleOf added", INTEGER, {**INTEGER, "multipleOf": 2}, FORWARD),
    ("multipleOf to a factor", {**INTEGER, "multipleOf": 4}, {**INTEGER, "multipleOf": 2}, BACKWARD),
    ("multipleOf to a stranger", {**INTEGER, "multipleOf": 2}, {**INTEGER, "multipleOf": 3}, NEITHER),
    ("enum extended", {"enum": ["a"]}, {"enum": ["a", "b"]}, BACKWARD),
    ("enum narrowed", {"enum": ["a", "b"]}, {"enum": ["a"]}, FORWARD),
    ("enum changed", {"enum": ["a", "b"]}, {"enum": ["a", "c"]}, NEITHER),
    ("enum removed", {**STRING, "enum": ["a"]}, STRING, BACKWARD),
    ("const to enum with it", {"const": 1}, {"enum": [1, 2]}, BACKWARD),
    ("const changed", {"const": 1}, {"const": 2}, NEITHER),
    ("optional property added to an open object", object_of(), object_of({"a": STRING}), FORWARD),
    ("property of any type added to an open object", object_of(), object_of({"a": {}}), BOTH),
    ("optional property added to a closed object", object_of(**CLOSED), object_of({"a": STRING}, **CLOSED), BACKWARD),
    ("property removed from an open object", object_of({"a": STRING}), object_of(), BACKWARD),
    ("property removed from a closed object", object_of({"a": STRING}, **CLOSED), object_of(**CLOSED), FORWARD),
    ("property of a closed object forbidden", object_of({"a": STRING}), object_of({"a": False}), FORWARD),
    ("object opened", object_of({"a": STRING}, **CLOSED), object_of({"a": STRING}), BACKWARD),
    ("object closed", object_of({"a": STRING}), object_of({"a": STRING}, **CLOSED), FORWARD),
    (
        "property added that additionalProperties covers",
        object_of(additionalProperties=STRING),
        object_of({"a": STRING}, additionalProperties=STRING),
        BOTH,
    ),
    (
        "property added that additionalProperties does not cover",
        object_of(additionalProperties=STRING),
        object_of({"a": INTEGER}, additionalProperties=STRING),
        NEITHER,
    ),
    (
        "property added that a pattern covers",
        object_of(patternProperties={"^i_": INTEGER}),
        object_of({"i_a": NUMBER}, patternProperties={"^i_": INTEGER}),
        BOTH,
    ),
    (
        "additionalProperties narrowed",
        object_of(additionalProperties=NUMBER),
        object_of(additionalProperties=INTEGER),
        FORWARD,
    ),
    ("patternProperties added", object_of(), object_of(patternProperties={"^i_": INTEGER}), FORWARD),
    ("required property added", object_of(), object_of({"a": STRING}, required=["a"]), FORWARD),
    ("property made required", object_of({"a": STRING}), object_of({"a": STRING}, required=["a"]), FORWARD),
    ("property no longer required", object_of({"a": STRING}, required=["a"]), object_of({"a": STRING}), BACKWARD),
    ("another property required", object_of(required=["a"]), object_of(required=["b"]), NEITHER),
    ("type of a property widened", object_of({"a": INTEGER}), object_of({"a": NUMBER}), BACKWARD),
    ("type of a property changed", object_of({"a": INTEGER}), object_of({"a": STRING}), NEITHER),
    ("properties reordered", object_of({"a": STRING, "b": INTEGER}), object_of({"b": INTEGER, "a": STRING}), BOTH),
    ("minProperties raised", object_of(minProperties=1), object_of(minProperties=2), FORWARD),
    ("maxProperties raised", object_of(maxProperties=1), object_of(maxProperties=2), BACKWARD),
    ("propertyNames added", object_of(), object_of(propertyNames={"maxLength": 3}), FORWARD),
    ("dependency added", object_of(), object_of(dependencies={"a": ["b"]}), FORWARD),
    ("dependency extended", object_of(dependencies={"a": ["b"]}), object_of(dependencies={"a": ["b", "c"]}), FORWARD),
    ("items widened", {"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER}, BACKWARD),
    (
        "items changed",
        {"type": "array", "items": INTEGER, "minItems": 1},
        {"type": "array", "items": STRING, "minItems": 1},
        NEITHER,
    ),
    ("tuple extended", {"type": "array", "items": [INTEGER]}, {"type": "array", "items": [INTEGER, STRING]}, FORWARD),
    (
        "tuple closed",
        {"type": "array", "items": [INTEGER]},
        {"type": "array", "items": [INTEGER], "additionalItems": False},
        FORWARD,
    ),
    ("minItems raised", {"type": "array", "minItems": 1}, {"type": "array", "minItems": 2}, FORWARD),
    ("maxItems removed", {"type": "array", "maxItems": 1}, {"type": "array"}, BACKWARD),
    ("uniqueItems added", {"type": "array"}, {"type": "array", "uniqueItems": True}, FORWARD),
    ("contains added", {"type": "array"}, {"type": "array", "contains": INTEGER}, FORWARD),
    ("anyOf extended", {"anyOf": [STRING]}, {"anyOf": [STRING, INTEGER]}, BACKWARD),
    ("anyOf narrowed", {"anyOf": [STRING, INTEGER]}, {"anyOf": [INTEGER]}, FORWARD),
    ("anyOf reordered", {"anyOf": [STRING, INTEGER]}, {"anyOf": [INTEGER, STRING]}, BOTH),
    ("type to anyOf with it", STRING, {"anyOf": [STRING, INTEGER]}, BACKWARD),
    ("oneOf extended", {"oneOf": [STRING]}, {"oneOf": [STRING, INTEGER]}, BACKWARD),
    ("oneOf extended by an overlap", {"oneOf": [INTEGER]}, {"oneOf": [INTEGER, NUMBER]}, NEITHER),
    ("oneOf to anyOf", {"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}, BOTH),
    ("allOf extended", {"allOf": [STRING]}, {"allOf": [STRING, {"maxLength": 3}]}, FORWARD),
    ("allOf folded", {"allOf": [STRING, {"maxLength": 3}]}, {**STRING, "maxLength": 3}, BOTH),
    ("not extended", {"not": STRING}, {"not": {"type": ["string", "integer"]}}, FORWARD),
    ("not removed", {"not": STRING}, {}, BACKWARD),
    ("definition moved inline", {"definitions": {"s": STRING}, "$ref": "#/definitions/s"}, STRING, BOTH),
    ("recursive schema", object_of({"n": {"$ref": "#"}}), object_of({"n": {"$ref": "#"}}, title="t"), BOTH),
    (
        "recursive property widened",
        object_of({"n": {"$ref": "#"}, "v": INTEGER}),
        object_of({"n": {"$ref": "#"}, "v": NUMBER}),
        BACKWARD,
    ),
    (
        "property added to a closed recursive object",
        object_of({"n": {"items": {"$ref": "#"}}}, **CLOSED),
        object_of({"n": {"items": {"$ref": "#"}}, "id": STRING}, **CLOSED),
        BACKWARD,
    ),
    (
        "recursive definition requires more",
        {"$ref": "#/definitions/t", "definitions": {"t": object_of({"l": {"$ref": "#/definitions/t"}})}},
        {
            "$ref": "#/definitions/t",
            "definitions": {"t": object_of({"l": {"$ref": "#/definitions/t"}}, required=["v"])},
        },
        FORWARD,
    ),
    (
        "recursive type changed far inside",
        object_of({"l": object_of({"n": {"$ref": "#"}, "v": INTEGER})}),
        object_of({"l": object_of({"n": {"$ref": "#"}, "v": STRING})}),
        NEITHER,
    ),
    ("draft changed", object_of({"a": INTEGER}), {"$schema": DRAFT_2020, **object_of({"a": INTEGER})}, BOTH),
    ("draft and type changed", object_of({"a": INTEGER}), {"$schema": DRAFT_2020, **object_of({"a": STRING})}, NEITHER),
    (
        "exclusive limit of draft 4 lowered",
        {"$schema": DRAFT_4, **NUMBER, "minimum": 2, "exclusiveMinimum": True},
        {"$schema": DRAFT_4, **NUMBER, "minimum": 1, "exclusiveMinimum": True},
        BACKWARD,
    ),
    (
        "prefixItems extended",
        {"$schema": DRAFT_2020, "type": "array", "prefixItems": [INTEGER]},
        {"$schema": DRAFT_2020, "type": "array", "prefixItems": [INTEGER, STRING]},
        FORWARD,
    ),
    (
        "dependentRequired added",
        {"$schema": DRAFT_2020, **object_of()},
        {"$schema": DRAFT_2020, **object_of(dependentRequired={"a": ["b"]})},
        FORWARD,
    ),
    (
        "unevaluatedProperties closed",
        {"$schema": DRAFT_2020, **object_of({"a": STRING})},
        {"$schema": DRAFT_2020, **object_of({"a": STRING}, unevaluatedProperties=False)},
        FORWARD,
    ),
]


def message(*members: str, name: str = "M") -> str:
    return f"message {name} {{ {' '.join(members)} }}"


def file(*parts: str, syntax: str = "proto3", package: str = "p") -> str:
    return f'syntax = "{syntax}"; package {package}; {" ".join(parts)}'


def fields(*members: str) -> str:
    return file(message(*members))


def fields2(*members: str) -> str:
    return file(message(*members), syntax="proto2")


ONE = "int32 a = 1;"
ENUM = "enum E { Z = 0; X = 1; }"
INNER = message(ONE, name="N")

PROTOBUF_ROWS: list[tuple[str, str, str, tuple[bool, bool]]] = [
    ("nothing", fields(ONE), fields(ONE), BOTH),
    ("comment", fields(ONE), "// c\n" + fields(ONE), BOTH),
    ("package changed", fields(ONE), file(message(ONE), package="q"), NEITHER),
    ("message added", fields(ONE), file(message(ONE), INNER), BACKWARD),
    ("message removed", file(message(ONE), INNER), fields(ONE), FORWARD),
    ("messages reordered", file(message(ONE), INNER), file(INNER, message(ONE)), BOTH),
    ("message renamed", fields(ONE), file(message(ONE, name="L")), NEITHER),
    ("nested message added", fields(ONE), fields(ONE, INNER), BACKWARD),
    ("nested message removed", fields(ONE, INNER), fields(ONE), FORWARD),
    ("field added", fields(ONE), fields(ONE, "string b = 2;"), BOTH),
    ("field removed", fields(ONE, "string b = 2;"), fields(ONE), BOTH),
    ("field removed and reserved", fields(ONE, "string b = 2;"), fields(ONE, "reserved 2;"), BOTH),
    ("field renamed", fields(ONE), fields("int32 b = 1;"), BOTH),
    ("number of a field changed", fields(ONE), fields("int32 a = 2;"), BOTH),
    ("fields reordered", fields(ONE, "string b = 2;"), fields("string b = 2;", ONE), BOTH),
    ("json_name changed", fields(ONE), fields('int32 a = 1 [json_name = "x"];'), BOTH),
    ("field deprecated", fields(ONE), fields("int32 a = 1 [deprecated = true];"), BOTH),
    ("int32 to int64", fields(ONE), fields("int64 a = 1;"), BOTH),
    ("int32 to uint64", fields(ONE), fields("uint64 a = 1;"), BOTH),
    ("int32 to bool", fields(ONE), fields("bool a = 1;"), BOTH),
    ("int32 to enum", file(message(ONE), ENUM), file(message("E a = 1;"), ENUM), BOTH),
    ("int32 to sint32", fields(ONE), fields("sint32 a = 1;"), NEITHER),
    ("sint32 to sint64", fields("sint32 a = 1;"), fields("sint64 a = 1;"), BOTH),
    ("int32 to fixed32", fields(ONE), fields("fixed32 a = 1;"), NEITHER),
    ("fixed32 to sfixed32", fields("fixed32 a = 1;"), fields("sfixed32 a = 1;"), BOTH),
    ("fixed64 to sfixed64", fields("fixed64 a = 1;"), fields("sfixed64 a = 1;"), BOTH),
    ("fixed32 to fixed64", fields("fixed32 a = 1;"), fields("fixed64 a = 1;"), NEITHER),
    ("float to double", fields("float a = 1;"), fields("double a = 1;"), NEITHER),
    ("float to fixed32", fields("float a = 1;"), fields("fixed32 a = 1;"), NEITHER),
    ("int32 to float", fields(ONE), fields("float a = 1;"), NEITHER),
    ("string to bytes", fields("string a = 1;"), fields("bytes a = 1;"), BOTH),
    ("string to int32", fields("string a = 1;"), fields(ONE), NEITHER),
    ("bytes to message", fields("bytes a = 1;", INNER), fields("N a = 1;", INNER), NEITHER),
    (
        "message to another",
        fields("N a = 1;", INNER, "message O {}"),
        fields("O a = 1;", INNER, "message O {}"),
        NEITHER,
    ),
    ("message to map", fields("N a = 1;", INNER), fields("map<string, int32> a = 1;", INNER), NEITHER),
    ("wider key of a map", fields("map<int32, bool> a = 1;"), fields("map<int64, bool> a = 1;"), BOTH),
    ("other key of a map", fields("map<int32, bool> a = 1;"), fields("map<string, bool> a = 1;"), NEITHER),
    ("other value of a map", fields("map<int32, bool> a = 1;"), fields("map<int32, string> a = 1;"), NEITHER),
    (
        "field of a message in a map",
        fields("map<int32, N> a = 1;", INNER),
        fields("map<int32, N> a = 1;", "message N { string a = 1; }"),
        NEITHER,
    ),
    (
        "field in a used message",
        file(message("N n = 1;"), INNER),
        file(message("N n = 1;"), "message N { float a = 1; }"),
        NEITHER,
    ),
    ("recursive message", fields("M m = 1;", ONE.replace("1", "2")), fields("M m = 1;", "int64 a = 2;"), BOTH),
    ("explicit presence", fields(ONE), fields("optional int32 a = 1;"), BOTH),
    ("number repeated", fields(ONE), fields("repeated int32 a = 1;"), NEITHER),
    ("optional number repeated", fields("optional int32 a = 1;"), fields("repeated int32 a = 1;"), NEITHER),
    ("enum repeated", file(message("E a = 1;"), ENUM), file(message("repeated E a = 1;"), ENUM), NEITHER),
    ("string repeated", fields("string a = 1;"), fields("repeated string a = 1;"), BOTH),
    ("message repeated", fields("N a = 1;", INNER), fields("repeated N a = 1;", INNER), BOTH),
    ("packing removed", fields("repeated int32 a = 1;"), fields("repeated int32 a = 1 [packed = false];"), BOTH),
    ("enum added", fields(ONE), file(message(ONE), ENUM), BOTH),
    ("enum removed", file(message(ONE), ENUM), fields(ONE), BOTH),
    (
        "constant added",
        file(message("E a = 1;"), ENUM),
        file(message("E a = 1;"), "enum E { Z = 0; X = 1; Y = 2; }"),
        BOTH,
    ),
    ("constant renamed", file(message("E a = 1;"), ENUM), file(message("E a = 1;"), "enum E { Z = 0; W = 1; }"), BOTH),
    (
        "enum to another",
        file(message("E a = 1;"), ENUM, "enum F { Q = 0; }"),
        file(message("F a = 1;"), ENUM, "enum F { Q = 0; }"),
        BOTH,
    ),
    ("oneof added", fields(ONE), fields(ONE, "oneof o { int32 b = 2; }"), BOTH),
    ("oneof removed", fields(ONE, "oneof o { int32 b = 2; }"), fields(ONE), BOTH),
    ("oneof renamed", fields("oneof o { int32 b = 2; }"), fields("oneof u { int32 b = 2; }"), BOTH),
    (
        "field added to a oneof",
        fields("oneof o { int32 a = 1; }"),
        fields("oneof o { int32 a = 1; int32 b = 2; }"),
        BACKWARD,
    ),
    (
        "field removed from a oneof",
        fields("oneof o { int32 a = 1; int32 b = 2; }"),
        fields("oneof o { int32 a = 1; }"),
        FORWARD,
    ),
    ("one field moved into a new oneof", fields(ONE), fields("oneof o { int32 a = 1; }"), BOTH),
    (
        "two fields moved into a new oneof",
        fields(ONE, "int32 b = 2;"),
        fields("oneof o { int32 a = 1; int32 b = 2; }"),
        FORWARD,
    ),
    (
        "field moved into an existing oneof",
        fields(ONE, "oneof o { int32 b = 2; }"),
        fields("oneof o { int32 a = 1; int32 b = 2; }"),
        FORWARD,
    ),
    (
        "two oneofs joined",
        fields("oneof o { int32 a = 1; } oneof u { int32 b = 2; }"),
        fields("oneof o { int32 a = 1; int32 b = 2; }"),
        FORWARD,
    ),
    (
        "type of a oneof's field changed",
        fields("oneof o { int32 a = 1; }"),
        fields("oneof o { string a = 1; }"),
        NEITHER,
    ),
    ("service added", fields(ONE), file(message(ONE), "service S { rpc R (M) returns (M); }"), BOTH),
    ("option added", fields(ONE), file('option java_package = "x";', message(ONE)), BOTH),
    (
        "proto2: required field added",
        fields2("optional int32 a = 1;"),
        fields2("optional int32 a = 1;", "required int32 b = 2;"),
        NEITHER,
    ),
    (
        "proto2: optional to required number",
        fields2("optional int32 a = 1;"),
        fields2("required int32 a = 1;"),
        NEITHER,
    ),
    (
        "proto2: optional to required text",
        fields2("optional string a = 1;"),
        fields2("required string a = 1;"),
        FORWARD,
    ),
    ("proto2: default changed", fields2("optional int32 a = 1;"), fields2("optional int32 a = 1 [default = 3];"), BOTH),
    (
        "proto2: group to message",
        fields2("optional group G = 1 {}"),
        fields2("optional G g = 1; message G {}"),
        NEITHER,
    ),
    (
        "proto2: field of a group changed",
        fields2("optional group G = 1 { optional int32 a = 1; }"),
        fields2("optional group G = 1 { optional string a = 1; }"),
        NEITHER,
    ),
    ("proto2 to proto3", fields2("optional int32 a = 1;"), fields("optional int32 a = 1;"), BOTH),
    (
        "import of a well-known type",
        fields(ONE),
        file('import "google/protobuf/any.proto";', message(ONE, "google.protobuf.Any b = 2;")),
        BOTH,
    ),
]

ROWS: list[Row] = [
    *(Row(AVRO, change, json.dumps(old), json.dumps(new), *verdicts) for change, old, new, verdicts in AVRO_ROWS),
    *(Row(JSON, change, json.dumps(old), json.dumps(new), *verdicts) for change, old, new, verdicts in JSON_ROWS),
    *(Row(PROTOBUF, change, old, new, *verdicts) for change, old, new, verdicts in PROTOBUF_ROWS),
]
