"""Which changes of a reader schema read all records alike, which need the next version, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.settings import load_settings
from master_dataset.table.fields import SourceChanged, stored_fields
from master_dataset.table.paths import table_path
from master_dataset.table.readings import adopt, check_reading
from views.evolution import evolution
from views.source import Source

TIME = {"type": "long", "logicalType": "timestamp-micros"}
ROLES = [
    {"name": "event_id", "type": ["null", "string"], "default": None},
    {"name": "event_time", "type": ["null", TIME], "default": None},
]
KIND = {"type": "enum", "name": "Kind", "symbols": ["WEB", "SHOP"], "default": "WEB"}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
FIELDS = {
    "n": {"type": "int", "default": 0},
    "item": {"type": "string"},
    "kind": {"type": KIND},
    "price": {"type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
    "took": {"type": {"type": "int", "logicalType": "time-millis"}},
    "lines": {"type": {"type": "array", "items": LINE}, "default": []},
    "note": {"type": ["null", "string"], "default": None},
    "ratio": {"type": "double"},
}


def avro(version: int = 1, *, framing: str = "registry", text: str = "", **changed: Any) -> Source:
    """The source with some members of its reader schema in another way: None leaves a field out."""
    top = {name: changed.pop(name) for name in ("name", "aliases", "namespace", "doc") if name in changed}
    fields = {**FIELDS, **changed}
    rows = [*ROLES, *({"name": name, **field} for name, field in fields.items() if field is not None)]
    schema = {"type": "record", "name": "Order", **top, "fields": rows}
    return Source(
        "shop", format="avro", reader_schema=text or json.dumps(schema), framing=framing, version=version,
    )  # fmt: skip


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Kind { UNKNOWN = 0; WEB = 1; SHOP = 2; }
message Order {
  optional string event_id = 1;
  google.protobuf.Timestamp event_time = 2;
  int32 n = 3;
  string item = 4;
  string user = 5;
  Kind kind = 6;
  repeated Line lines = 7;
  message Line { string sku = 1; int64 count = 2; }
}
"""


def protobuf(*changed: tuple[str, str], version: int = 1, framing: str = "registry") -> Source:
    text = PROTO
    for before, after in changed:
        assert before in text
        text = text.replace(before, after)
    return Source("shop", format="protobuf", reader_schema=text, framing=framing, version=version)


JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "event_id": {"type": "string"},
        "event_time": {"type": "string", "format": "date-time"},
        "n": {"type": "integer"},
        "item": {"type": "string"},
    },
}


def json_schema(version: int = 1, *, framing: str = "registry", indent: int | None = None, **changed: Any) -> Source:
    properties = {name: each for name, each in {**JSON_SCHEMA["properties"], **changed}.items() if each}
    text = json.dumps({**JSON_SCHEMA, "properties": properties}, indent=indent)
    return Source("shop", format="json_schema", reader_schema=text, framing=framing, version=version)


# ---- the same version ----------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return table_path(load_settings(home=tmp_path), "shop")


def created(table: Path, source: Source) -> None:
    """A table as the archiver creates it for a source: its first commit, and its first reading."""
    (table / "_delta_log").mkdir(parents=True)
    fields = [{"name": each.name, "type": each.type.ddl()} for each in source.schema]
    schema = json.dumps({"fields": [{"name": "event", "type": {"type": "struct", "fields": fields}}]})
    (table / "_delta_log" / f"{0:020}.json").write_text(json.dumps({"metaData": {"schemaString": schema}}) + "\n")
    assert stored_fields(table)
    adopt(table, source)


def enum(**changed: Any) -> dict[str, Any]:
    return {"type": {**KIND, **changed}}


def fixed(size: int) -> dict[str, Any]:
    return {"type": {"type": "fixed", "name": "Hash", "size": size}}


def local(unit: str) -> dict[str, Any]:
    return {"type": {"type": "long", "logicalType": f"local-timestamp-{unit}"}}


OTHERWISE = [
    (avro(), avro(n={"type": "int", "default": 7}), "'n' has the default 7, and had the default 0"),
    (avro(), avro(kind=enum(default="SHOP")), "'kind' has the default symbol 'SHOP', and had 'WEB'"),
    (avro(), avro(item={"type": "string", "aliases": ["product"]}), r"'item' has the aliases \['product'\]"),
    (avro(), avro(aliases=["Sale"]), "the record is also of 'Sale'"),
    (avro(), avro(name="Sale"), "the record is no longer of 'Order'"),
    (avro(), avro(framing="none"), "the framing was 'registry' and is 'none'"),
    (avro(framing="none"), avro(framing="none", item=None, x={"type": "string"}), "'x' is new and has no default"),
    (avro(), avro(item={"type": "bytes"}), "'item' was string and is bytes as a text"),
    (avro(), avro(price={"type": "bytes"}), r"'price' was decimal\(8,2\) and is bytes as a text"),
    (avro(item=fixed(2)), avro(item=fixed(3)), "'item' was 2 bytes as a text and is 3 bytes as a text"),
    (avro(item=local("millis")), avro(), "'item' was local-timestamp-millis and is string"),
    (avro(item=local("millis")), avro(item=local("micros")), "millis and is local-timestamp-micros"),
    (protobuf(), protobuf(("string item", "bytes item")), "'item' was string and is bytes"),
    (protobuf(), protobuf(("item = 4", "item = 5"), ("user = 5", "user = 4")), "'user' had the number 5 and has 4"),
    (protobuf(), protobuf(("int32 n", "optional int32 n")), "'n' is null where it is absent, and was its default"),
    (protobuf(), protobuf(("SHOP", "STORE")), "'kind': the constant 2 was 'SHOP' and is 'STORE'"),
    (protobuf(), protobuf(framing="none"), "the framing was 'registry' and is 'none'"),
    (protobuf(), protobuf(("message Order", "message Sale")), "the message was 'Order' and is 'Sale'"),
    (json_schema(), json_schema(framing="none"), "the framing was 'registry' and is 'none'"),
    (json_schema(), json_schema(item={"type": "integer"}), "'item' was string and is bigint"),
]


@pytest.mark.parametrize(("before", "after", "message"), OTHERWISE)
def test_reader_schema_that_reads_otherwise_is_no_longer_the_same_version(
    table: Path, before: Source, after: Source, message: str
) -> None:
    created(table, before)
    with pytest.raises(SourceChanged, match=message):
        check_reading(table, after)


ALIKE = [
    (avro(), avro(text=json.dumps(json.loads(str(avro().reader_schema)), indent=3))),
    (avro(), avro(doc="Every order.", n={"type": "int", "default": 0, "doc": "How many."})),
    (avro(), avro(namespace="com.shop")),
    (avro(), avro(n={"type": "long", "default": 0})),
    (avro(), avro(kind=enum(symbols=["SHOP", "WEB"]))),
    (avro(), avro(ratio={"type": "float"})),
    (avro(item={"type": "bytes"}), avro(item={"type": "bytes", "doc": "What it is."})),
    (avro(item=local("micros")), avro(item={**local("micros"), "doc": "When it is."})),
    (avro(framing="none"), avro(framing="none", doc="Every order.")),
    (protobuf(), protobuf(("message Order {", "// Every order.\nmessage Order {\n\n"))),
    (protobuf(), protobuf(("int32 n", "int64 n"))),
    (protobuf(), protobuf(('syntax = "proto3";', 'syntax = "proto3";\npackage shop;'))),
    (json_schema(), json_schema(indent=2)),
    (json_schema(), json_schema(n={"type": "integer", "minimum": 3, "description": "How many."})),
]


@pytest.mark.parametrize(("before", "after"), ALIKE)
def test_reader_schema_that_reads_all_records_alike_is_the_same_version(
    table: Path, before: Source, after: Source
) -> None:
    created(table, before)
    assert before.reading != after.reading
    assert check_reading(table, after) == []
    assert before.meaning == after.meaning


def test_order_of_the_fields_counts_where_records_are_bare(table: Path) -> None:
    turned = {name: FIELDS[name] for name in reversed(FIELDS)}
    schema = {"type": "record", "name": "Order", "fields": [*ROLES, *({"name": n, **f} for n, f in turned.items())]}
    text = json.dumps(schema)
    assert not evolution(avro(), avro(text=text)).changes
    assert avro().meaning == avro(text=text).meaning
    created(table, avro(framing="none"))
    with pytest.raises(SourceChanged, match="its records have no frames, and the new reader schema would have"):
        check_reading(table, avro(framing="none", text=text))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (avro(), avro(item={"type": "bytes"}), "'item' was string and is bytes as a text, which does not read"),
        (avro(item={"type": "bytes"}), avro(), "'item' was bytes as a text and is string, which does not read"),
        (avro(), avro(price={"type": "bytes"}), "'price' was decimal(8,2) and is bytes as a text, which"),
        (avro(item=fixed(2)), avro(item=fixed(3)), "'item' was 2 bytes as a text and is 3 bytes as a text, which"),
        (avro(item=local("millis")), avro(), "'item' was local-timestamp-millis and is string, which does not read"),
        (avro(n=local("micros")), avro(), "'n' was local-timestamp-micros and is bigint, which does not read"),
        (protobuf(), protobuf(("string item", "bytes item")), "'item' was string and is bytes, which does"),
    ],
)
def test_reader_schema_that_writes_values_otherwise_could_not_follow(
    before: Source, after: Source, reason: str
) -> None:
    (found,) = evolution(before, after).refused
    assert found.startswith(reason)
