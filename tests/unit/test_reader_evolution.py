"""Which changes of a reader schema read all records alike, which need the next version, and which are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.settings import load_settings
from master_dataset.table.fields import SourceChanged, stored_fields
from master_dataset.table.paths import own_folder, table_path
from master_dataset.table.readings import adopt, check_reading, is_of_first_reading, reading_in_force
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


# ---- the next version ----------------------------------------------------------


def field(type_: Any, **more: Any) -> dict[str, Any]:
    return {"type": type_, **more}


def decimal(precision: int, scale: int = 2) -> dict[str, Any]:
    return field({"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale})


def line(*changed: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The field `lines`, with further fields in its record."""
    record = {**LINE, "fields": [*LINE["fields"], *changed], **more}  # type: ignore[list-item]
    return field({"type": "array", "items": record}, default=[])


UNSIGNED = ("int32 n = 3", "uint32 n = 3")
ALLOWED = [
    (avro(), avro(2, x=field("string", default="")), ["'x' (string) is new"]),
    (avro(), avro(2, note=None), ["'note' is no longer declared"]),
    (avro(), avro(2, price=decimal(12)), ["'price' was decimal(8,2) and is decimal(12,2)"]),
    (avro(), avro(2, item=field(["null", "string"])), ["'item' may be null now"]),
    (avro(), avro(2, item=field("string", default="?")), ["'item' has the default '?', and had no default"]),
    (
        avro(),
        avro(2, note=None, remark=field(["null", "string"], default=None, aliases=["note"])),
        ["'remark' is the new name of 'note'"],
    ),
    (avro(), avro(2, name="Sale", aliases=["Order"]), ["the record is also of 'Sale'"]),
    (
        avro(),
        avro(2, kind=enum(symbols=["WEB"])),
        ["'kind' has no longer the symbols ['SHOP']: they are read as 'WEB'"],
    ),
    (avro(), avro(2, lines=line({"name": "n", "type": "int", "default": 1})), ["'lines[].n' (bigint) is new"]),
    (avro(), avro(2, took=field("int")), ["'took' was time-millis and is bigint"]),
    (
        avro(framing="none"),
        avro(2, framing="none", item=field("string", aliases=["it"])),
        ["'item' has the aliases ['it']"],
    ),
    (protobuf(), protobuf(("string user = 5;", ""), version=2), ["'user' is no longer declared"]),
    (
        protobuf(),
        protobuf(("Kind kind = 6;", "Kind kind = 6; string note = 8;"), version=2),
        ["'note' (string) is new"],
    ),
    (protobuf(), protobuf(("user = 5", "customer = 5"), version=2), ["'customer' is the new name of 'user'"]),
    (
        protobuf(),
        protobuf(("int32 n", "optional int32 n"), version=2),
        ["'n' is null where it is absent, and was its default"],
    ),
    (
        protobuf(UNSIGNED),
        protobuf((UNSIGNED[0], "uint64 n = 3"), version=2),
        ["'n' was uint32 and is uint64: a decimal(20,0) in place of a bigint"],
    ),
    (
        protobuf(),
        protobuf(("int64 count = 2;", "int64 count = 2; bool gift = 3;"), version=2),
        ["'lines[].gift' (bool) is new"],
    ),
    (json_schema(), json_schema(2, x={"type": "string"}), ["'x' (string) is new"]),
    (json_schema(), json_schema(2, item=None), ["'item' is no longer declared"]),
    (json_schema(), json_schema(2), ["nothing but the version"]),
]


@pytest.mark.parametrize(("before", "after", "changes"), ALLOWED)
def test_next_version_may_read_more_than_the_one_before(
    table: Path, before: Source, after: Source, changes: list[str]
) -> None:
    created(table, before)
    assert check_reading(table, after) == changes
    assert adopt(table, after) == after
    assert reading_in_force(table, before).reading == after.reading
    assert not is_of_first_reading(table, after)
    assert check_reading(table, after) == []


REFUSED = [
    (avro(), avro(2, x=field("string")), "'x' is new and has no default"),
    (avro(), avro(2, item=field("int")), "'item' was string and is bigint, which does not read every value"),
    (avro(), avro(2, n=field("double", default=0.0)), "'n' was bigint and is double, which does not read every value"),
    (avro(), avro(2, note=field("string", default="")), "'note' may not be null any more"),
    (avro(), avro(2, price=decimal(7)), r"'price' was decimal\(8,2\) and is decimal\(7,2\), which does not hold"),
    (avro(), avro(2, price=decimal(9, 3)), "Avro reads no other scale or size"),
    (avro(), avro(2, n=field("int")), "'n' has no default any more"),
    (avro(), avro(2, kind=field({**KIND, "name": "Sort"})), "'kind' is no longer of 'Kind'"),
    (avro(), avro(2, took=field({"type": "int", "logicalType": "date"})), "'took' was time-millis and is date"),
    (avro(), avro(2, ITEM=field("string", aliases=["item"]), item=None), "'ITEM' differs from 'item' by case only"),
    (
        avro(),
        avro(2, note=field(["null", "string"], default=None, aliases=["item"])),
        "'item' is a name of 'item', 'note'",
    ),
    (avro(framing="none"), avro(2, framing="none", x=field("int", default=0)), "its records have no frames"),
    (
        avro(),
        avro(2, framing="none"),
        "the framing was 'registry' and is 'none': records of both would be in one topic",
    ),
    (protobuf(), protobuf(("user = 5", "user = 9"), version=2), "'user' had the number 5 and has 9"),
    (protobuf(), protobuf(("int32 n", "string n"), version=2), "'n' was int64 and is string"),
    (protobuf(), protobuf(("int32 n", "sint32 n"), version=2), "'n' was int64 and is sint64"),
    (protobuf(), protobuf(("user = 5", "USER = 5"), version=2), "'USER' differs from 'user' by case only"),
    (protobuf(("int32 n", "uint64 n")), protobuf(UNSIGNED, version=2), "'n' was uint64 and is uint32"),
    (protobuf(), protobuf(("WEB = 1; SHOP = 2", "WEB = 2; SHOP = 1"), version=2), "the constant 'WEB' was 1 and is 2"),
    (json_schema(), json_schema(2, n={"type": "number"}), "'n' was bigint and is double"),
    (json_schema(), json_schema(2, item={"type": "boolean"}), "'item' was string and is boolean"),
    (json_schema(), json_schema(2, item=None, ITEM={"type": "string"}), "'ITEM' differs from 'item' by case only"),
]


@pytest.mark.parametrize(("before", "after", "message"), REFUSED)
def test_next_version_that_would_lose_or_change_what_was_read_is_refused(
    table: Path, before: Source, after: Source, message: str
) -> None:
    created(table, before)
    with pytest.raises(SourceChanged, match=message):
        adopt(table, after)
    assert reading_in_force(table, before).version == 1


JSON = Source("shop", version=2, fields="event_id string, event_time timestamp, n int, item string")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (avro(), JSON),
        (replace(JSON, version=1), avro(2)),
        (json_schema(), protobuf(version=2)),
        (avro(), protobuf(version=2)),
        (replace(JSON, version=1), json_schema(2)),
    ],
)
def test_source_never_goes_on_with_another_format(table: Path, before: Source, after: Source) -> None:
    created(table, before)
    said = f"the format was '{before.format}' and is '{after.format}': records of both would be in one topic"
    with pytest.raises(SourceChanged, match=f"{said}.* declare a source with another name and topic"):
        adopt(table, after)


CHAINS = [
    (
        [avro(), avro(2, item=None), avro(3, item=field("int", default=0))],
        r"'item' was string and is bigint, .* \(compared with version 1\)",
    ),
    (
        [avro(), avro(2, item=None), avro(3, item=None, product=field("int", default=0, aliases=["item"]))],
        r"'product' was string and is bigint, .* \(compared with version 1\)",
    ),
    (
        [
            avro(),
            avro(2, item=None, product=field("string", aliases=["item"])),
            avro(3, item=field("string", default=""), product=field("string", aliases=["item"])),
        ],
        "'item' is a name of 'item', 'product'",
    ),
    (
        [
            protobuf(),
            protobuf(("string user = 5;", ""), version=2),
            protobuf(("string user = 5;", "int64 size = 5;"), version=3),
        ],
        r"'size' was string and is int64, .* \(compared with version 1\)",
    ),
    (
        [json_schema(), json_schema(2, item=None), json_schema(3, item={"type": "integer"})],
        "'item' was string in version 1 and is bigint",
    ),
]


@pytest.mark.parametrize(("versions", "message"), CHAINS)
def test_third_version_is_compared_with_the_first_whose_records_it_reads_again(
    table: Path, versions: list[Source], message: str
) -> None:
    first, second, third = versions
    created(table, first)
    adopt(table, second)
    with pytest.raises(SourceChanged, match=message):
        adopt(table, third)
    assert reading_in_force(table, first).reading == second.reading


def test_what_was_removed_may_come_back_as_it_was(table: Path) -> None:
    created(table, avro())
    adopt(table, avro(2, item=None))
    with pytest.raises(SourceChanged, match="'item' is new and has no default"):
        adopt(table, avro(3))
    again = avro(3, item=field("string", default=""))
    assert adopt(table, again) == again


def test_version_that_says_something_else_names_the_next_one(table: Path) -> None:
    created(table, avro())
    with pytest.raises(SourceChanged, match=r"'x' \(string\) is new\. Declare it with version=2, or undo the change"):
        check_reading(table, avro(x=field("string", default="")))


def test_names_of_bare_avro_records_are_by_position(table: Path) -> None:
    """Two fields of one type that change places are other bytes, however alike the schemas look."""
    one, two = ({"name": name, "type": "string"} for name in ("one", "two"))
    texts = [
        json.dumps({"type": "record", "name": "Order", "fields": [*ROLES, *each]}) for each in ((one, two), (two, one))
    ]
    sources = [avro(framing="none", text=text) for text in texts]
    created(table, sources[0])
    with pytest.raises(SourceChanged, match="its records have no frames"):
        check_reading(table, sources[1])


def test_table_that_does_not_say_what_its_first_schema_was_goes_on_with_that_alone(table: Path) -> None:
    created(table, avro())
    for reading in (own_folder(table) / "readings").iterdir():
        reading.unlink()
    assert check_reading(table, avro()) == []
    with pytest.raises(SourceChanged, match="nothing says what version 1 was"):
        check_reading(table, avro(2, x=field("string", default="")))
