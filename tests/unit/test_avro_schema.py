"""Which Avro schemas a source may have, what fields they give, and which writers cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.rest.problems import Problem
from master_dataset.collector.events import check_takes_json
from master_dataset.importer.detect import make_reader
from master_dataset.importer.errors import UnusableInput
from master_dataset.importer.formats import Options
from views.errors import SourceError
from views.formats.avro_resolution import mismatch
from views.formats.avro_schema import SchemaError, avro_reader
from views.formats.avro_writer import plain_writer
from views.formats.framing import Framed, described, frame_of_id, split
from views.source import Source

TIME = {"type": "long", "logicalType": "timestamp-millis"}
ROLES: list[dict[str, Any]] = [
    {"name": "event_id", "type": ["null", "string"], "default": None},
    {"name": "event_time", "type": ["null", TIME], "default": None},
]


def schema(*types: Any, **more: Any) -> str:
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    return json.dumps({"type": "record", "name": "Order", "fields": [*ROLES, *fields], **more})


def record(name: str, *types: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields, **more}


def test_a_reader_schema_gives_the_fields(tmp_path: Path) -> None:
    path = tmp_path / "orders.avsc"
    path.write_text(schema("int", ["float", "null"]))
    declared = Source("orders", format="avro", reader_schema=path)
    assert declared == Source("orders", format="avro", reader_schema=path.read_text())
    assert [(each.name, each.type.ddl()) for each in declared.schema] == [
        ("event_id", "string"), ("event_time", "timestamp"), ("f0", "bigint"), ("f1", "double"),
    ]  # fmt: skip
    assert declared.is_framed
    as_json = declared.as_json()
    assert (as_json.format, as_json.schema, as_json.is_framed) == ("json", declared.schema, False)
    assert as_json.as_json() is as_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the schema is not JSON"),
        ("[" * 2000 + "]" * 2000, "the schema is not JSON"),
        ('"string"', "an event is a record"),
        ("[]", "an event is a record"),
        ('{"type":"record","name":"a"}', "a record needs fields"),
        ('{"type":"record","fields":[]}', "a record needs a name"),
        ('{"type":"record","name":"a","fields":[{"name":"b"}]}', "each field of a record needs a name and a type"),
        ('{"type":"record","name":"a","fields":[3]}', "a record needs fields"),
        (schema(["int", "string"]), "f0: a union of"),
        (schema(["null"]), "f0: a union of"),
        (schema({"type": "long", "logicalType": "local-timestamp-nanos"}),
         "f0: the type long (local-timestamp-nanos) is not supported in a source. Leave it out of the reader schema"),
        (schema(record("A", {"type": "array", "items": {"type": "bytes", "logicalType": "big-decimal"}})),
         "f0.f0[]: the type bytes (big-decimal)"),
        (schema({"type": "fixed", "name": "d", "size": 12, "logicalType": "duration"}), "f0: the type fixed (dur"),
        (schema({"type": "bytes", "logicalType": "decimal", "precision": 39}), "f0: a decimal(39,0) is none"),
        (schema({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 4}), "f0: a decimal(3,4) is none"),
        (schema("Unknown"), "f0: the type 'Unknown' is not defined"),
        (schema({"type": "array", "items": "Order"}), "f0[]: 'Order' contains itself"),
        (schema(record("A")), "f0: a record without fields"),
        (schema(record("A", "int"), record("A", "long")), "'A' is defined twice"),
        (schema(record("T0", "int"), *(record(f"T{n + 1}", f"T{n}", f"T{n}") for n in range(20))),
         "it has more than 100,000 types where each named type is written out"),
        (schema({"type": "enum", "name": "E", "symbols": []}), "f0: an enum needs symbols"),
        (schema({"type": "array"}), "f0: an array needs items"),
        (json.dumps({"type": "record", "name": "a", "fields": [*ROLES, {"name": "EVENT_ID", "type": "int"}]}),
         "event_id: several fields have this name"),
        (json.dumps({"type": "record", "name": "a", "fields": [*ROLES, {"name": "_corrupt", "type": "int"}]}),
         "the field name '_corrupt' is reserved"),
        (json.dumps(record("a", "string")), "id_field is 'event_id', which is not among its fields ['f0']. Name an"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_a_source_is_refused_with_the_path(text: str, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        Source("orders", format="avro", reader_schema=text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "avro"}, "format='avro' needs reader_schema"),
        ({"format": "avro", "reader_schema": schema(), "fields": "a int"}, "leave fields out"),
        ({"format": "avro", "reader_schema": schema(), "framing": "some"}, "there are: registry, none"),
        ({"format": "avro", "reader_schema": Path("a.avsc")}, "Write Path(__file__).with_name('a.avsc')"),
        ({"format": "avro", "reader_schema": Path("/nowhere/a.avsc")}, "cannot be read: No such file"),
        ({"fields": "event_id string, event_time timestamp", "framing": "none"}, "are for the other formats"),
        ({"fields": "event_id string, event_time timestamp", "reader_schema": "{}"}, "are for the other formats"),
    ],
)
def test_what_does_not_belong_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as refused:
        Source("orders", **settings)
    assert message in str(refused.value)


def test_what_reads_or_writes_json_alone_refuses_other_sources() -> None:
    avro = Source("orders", format="avro", reader_schema=schema())
    with pytest.raises(UnusableInput, match="an import writes JSON"):
        make_reader(avro, Options(), b"{}", "a.ndjson")
    with pytest.raises(Problem, match="sent here is stored as JSON") as refused:
        check_takes_json(avro)
    assert (refused.value.status, refused.value.kind) == (415, "other-format")
    check_takes_json(avro.as_json())


READER = avro_reader(
    schema(TIME, {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, ["null", record("A", "int")],
           {"type": "map", "values": {"type": "array", "items": TIME}}, aliases=["old.Bestellung"])
)  # fmt: skip
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


@pytest.mark.parametrize(
    ("writer", "why"),
    [
        (schema(TIME), None),
        (schema("long"), None),
        (schema("long", name="x.y.Order"), None),
        (schema("long", name="Bestellung"), None),
        (schema("long", name="Refund"), "it is of 'Refund', and this source reads 'Order'"),
        ('"string"', "it is no record"),
        (schema(MICROS), "f0 is timestamp-micros, and this source reads timestamp-millis"),
        (schema(["null", "int", MICROS]), "f0 is timestamp-micros, and this source reads timestamp-millis"),
        (schema({"type": "int", "logicalType": "date"}), "f0 is date, and this source reads timestamp-millis"),
        (schema(TIME, {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}), None),
        (schema(TIME, {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}),
         "f1 is decimal(9,3), and this source reads decimal(9,2)"),
        (schema(TIME, "bytes", record("n.A", "long")), None),
        (schema(TIME, "bytes", record("B", "long")), "f2 is of 'B', and this source reads 'A'"),
        (schema(TIME, "bytes", "null", {"type": "map", "values": {"type": "array", "items": MICROS}}),
         "f3[][] is timestamp-micros, and this source reads timestamp-millis"),
    ],
)  # fmt: skip
def test_a_writer_that_means_something_else_is_found(writer: str, why: str | None) -> None:
    assert mismatch(READER, writer) == why


def test_a_text_is_not_read_as_bytes() -> None:
    """Whether it is UTF-8 would be seen by one decoder and not by the other."""
    reader = avro_reader(schema(["null", "bytes"]))
    assert mismatch(reader, schema("string")) == "f0 is string, and this source reads bytes"
    assert mismatch(reader, schema(["null", "bytes"])) is None


def test_writers_that_differ_in_what_bytes_do_not_depend_on_are_the_same() -> None:
    plain = plain_writer(schema("int", TIME))
    assert plain_writer(schema("int", "long", doc="of orders", aliases=["Bestellung"])) == plain
    assert plain_writer(schema("int", {"type": "long"})) == plain
    assert plain_writer(schema("long", "long")) != plain


def test_references_stand_where_they_are_needed_first() -> None:
    money = json.dumps(record("shop.Money", "int"))
    line = json.dumps(record("shop.Line", "Money", "Money"))
    found = plain_writer(schema("shop.Line", "shop.Money"), (("money", money), ("line", line)))
    assert found == plain_writer(schema(record("shop.Line", record("shop.Money", "int"), "shop.Money"), "shop.Money"))
    with pytest.raises(SchemaError, match=r"the type 'shop\.Line' is not defined"):
        plain_writer(schema("shop.Line"))


@pytest.mark.parametrize(
    ("value", "headers", "found"),
    [
        (b"\x00\x00\x00\x00\x07ab", (), Framed(frame_of_id(7), b"ab")),
        (b"\x00\x00\x00\x00\x07", (), Framed(frame_of_id(7), b"")),
        (b"\x00\x00\x00\x07", (), None),
        (b"\x01\x00\x00\x00\x07", (), None),
        (b"ab", (("__value_schema_id", b"\x01" + b"g" * 16),), Framed(b"\x01" + b"g" * 16, b"ab")),
        (b"ab", (("__value_schema_id", b"\x01" + b"g" * 15),), None),
        (b"\x00\x00\x00\x00\x07", (("__value_schema_id", None),), None),
        (b"\x00\x00\x00\x00\x07", (("__key_schema_id", b"\x01" + b"g" * 16),), Framed(frame_of_id(7), b"")),
    ],
)
def test_a_frame_is_split_off(value: bytes, headers: tuple[Any, ...], found: Framed | None) -> None:
    assert split(value, headers) == found


def test_frames_are_named_as_people_name_schemas() -> None:
    assert described(frame_of_id(2**32 - 1)) == "schema id 4294967295"
    assert described(b"\x01" + bytes(range(16))) == "schema 00010203-0405-0607-0809-0a0b0c0d0e0f"


ENUM = {"type": "enum", "name": "K", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("type_", "default", "why"),
    [
        ("int", "abc", 'Order.x: the default "abc" is no int'),
        ("int", 2**40, "Order.x: the default 1099511627776 is no int"),
        ({**ENUM, "default": "C"}, "A", 'K: the default "C" is none of the symbols'),
        (ENUM, "C", r"x: the default 'C' is none of its symbols \['A', 'B'\]"),
        (["null", ENUM], "C", "x: the default 'C' is none of its symbols"),
        (record("Line", "int"), {}, "Order.x: the default {} is no record Line"),
    ],
)
def test_default_that_is_no_value_of_its_type_is_refused(type_: Any, default: Any, why: str) -> None:
    """Spark would refuse it when the first record comes, after the version was adopted."""
    text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "x", "type": type_, "default": default}]})
    with pytest.raises(SchemaError, match=why):
        avro_reader(text)
