"""A schema and what it refers to become one text that a source reads by."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer

from tidemark.commands.self_contained_schema import self_contained
from views.formats.json_schema import json_schema_fields
from views.formats.protobuf_schema import protobuf_reader, readable
from views.source import Source

MAIN = """syntax = "proto3";
package shop;
import "lines/line.proto";
import "google/protobuf/timestamp.proto";
message Order {
  string event_id = 1;
  google.protobuf.Timestamp event_time = 2;
  repeated lines.Line lines = 3;
  map<string, lines.Line.Kind> kinds = 4;
  Local local = 5;
}
message Local { int64 a = 1; }
"""
LINE = """syntax = "proto3";
package lines;
import "money.proto";
message Line { string sku = 1; Money price = 2; enum Kind { NONE = 0; BOOK = 1; } Kind kind = 3; }
"""
MONEY = 'syntax = "proto3"; message Money { int64 cents = 1; }'
PROTO2 = MONEY.replace("proto3", "proto2").replace("int64", "optional int64")
FILES = (("money.proto", MONEY), ("lines/line.proto", LINE))


def typed(text: str) -> dict[str, str]:
    return {field.name: field.type.ddl().replace("`", "") for field in json_schema_fields(text)}


@pytest.mark.process
def test_files_of_protobuf_become_one_that_reads_what_they_write() -> None:
    text = self_contained("PROTOBUF", MAIN, FILES)
    reader = protobuf_reader(text)
    assert reader.message == "shop.Order"
    line = "struct<sku:string,price:struct<cents:bigint>,kind:string>"
    assert [field.type.ddl().replace("`", "") for field in reader.fields] == [
        "string", "timestamp", f"array<{line}>", "map<string,string>", "struct<a:bigint>",
    ]  # fmt: skip
    assert readable(reader, MAIN, FILES)[(0,)] == "", "the writer's schema is the one with references"


@pytest.mark.process
def test_files_that_cannot_be_one_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="two of its files have a type 'Local'"):
        self_contained("PROTOBUF", MAIN, (("lines/line.proto", f"{LINE} message Local {{}}"), ("money.proto", MONEY)))
    with pytest.raises(typer.BadParameter, match="another syntax"):
        self_contained("PROTOBUF", MAIN, (("money.proto", PROTO2), FILES[1]))
    with pytest.raises(typer.BadParameter, match="is not Protobuf"):
        self_contained("PROTOBUF", MAIN, (("other.proto", MONEY),))


ITEM: dict[str, Any] = {
    "$id": "https://example.com/item", "type": "object",
    "properties": {
        "id": {"type": "string"}, "price": {"$ref": "#/$defs/Money"}, "next": {"$ref": "money#/$defs/Cents"},
    },
    "$defs": {"Money": {"$ref": "money"}},
}  # fmt: skip
AMOUNT = {"type": "object", "properties": {"cents": {"$ref": "#/$defs/Cents"}}, "$defs": {"Cents": {"type": "integer"}}}
ORDER: dict[str, Any] = {
    "$id": "https://example.com/order", "type": "object",
    "properties": {
        "event_id": {"type": "string"}, "event_time": {"$ref": "#/$defs/Time"}, "item": {"$ref": "item"},
        "items": {"type": "array", "items": {"$ref": "https://example.com/item"}},
        "total": {"$ref": "https://example.com/money#/properties/cents"},
        "$ref": {"type": "string"},
    },
    "$defs": {"Time": {"type": "string", "format": "date-time"}},
}  # fmt: skip
REFERRED = (("https://example.com/money", json.dumps(AMOUNT)), ("https://example.com/item", json.dumps(ITEM)))


def test_what_a_json_schema_refers_to_becomes_its_definitions() -> None:
    item = "struct<id:string,price:struct<cents:bigint>,next:bigint>"
    text = self_contained("JSON", json.dumps(ORDER), REFERRED)
    assert typed(text) == {
        "event_id": "string", "event_time": "timestamp", "item": item, "items": f"array<{item}>", "total": "bigint",
        "$ref": "string",
    }  # fmt: skip
    assert Source("orders", format="json_schema", reader_schema=text).is_framed


def test_names_that_are_no_addresses_and_odd_ones_are_found() -> None:
    main = {
        "type": "object",
        "properties": {"a": {"$ref": "a~b/50%.json#/properties/x"}, "b": {"$ref": "#/properties/a"}},
    }
    other = {"properties": {"x": {"type": "boolean"}}}
    assert typed(self_contained("JSON", json.dumps(main), (("a~b/50%.json", json.dumps(other)),))) == {
        "a": "boolean", "b": "boolean",
    }  # fmt: skip


def test_a_definition_of_the_same_name_is_refused() -> None:
    main = {"$defs": {"x": {}}}
    with pytest.raises(typer.BadParameter, match=r"its \$defs has 'x'"):
        self_contained("JSON", json.dumps(main), (("x", "{}"),))
    with pytest.raises(typer.BadParameter, match="no JSON schema with members"):
        self_contained("JSON", json.dumps(main), (("y", "true"),))


def test_a_schema_that_refers_to_none_stays_as_it_is() -> None:
    assert self_contained("JSON", "{ }", ()) == "{ }"
    assert self_contained("AVRO", '"string"', (("a", "b"),)) == '"string"', "the registry resolves it"
