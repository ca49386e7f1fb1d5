"""Aliases of an Avro reader schema: Spark applies them as the decoder in Python does, in writers of any namespace."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.spark.test_avro_records import ROLES, encode, plain, read, writer
from views.formats.avro_decoding import decode_framed
from views.formats.framing import frame_of_id
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Json = dict[str, Any]
B_FROM_A = {"name": "b", "type": "string", "aliases": ["a"], "default": "-"}


def field(name: str, type_: Any, **more: Any) -> Json:
    return {"name": name, "type": type_, **more}


def record(*fields: Json, name: str = "Order", **more: Any) -> Json:
    return {"type": "record", "name": name, **more, "fields": list(fields)}


def enum(name: str, **more: Any) -> Json:
    return {"type": "enum", "name": name, "symbols": ["A", "B"], **more}


def fixed(name: str, **more: Any) -> Json:
    return {"type": "fixed", "name": name, "size": 4, "logicalType": "decimal", "precision": 5, "scale": 2, **more}


def line(**more: Any) -> Json:
    """A record within the reader's, whose field had another name."""
    return record(field("q", "int", aliases=["p"], default=0), name="Line", **more)


def row(name: str = "Line") -> Json:
    """What producers had of it."""
    return record(field("p", "int"), name=name)


SHOP = {"namespace": "shop"}
CASES: list[tuple[Json, Json, Json, Json]] = [
    (record(B_FROM_A), record(field("a", "string")), {"a": "x"}, {"b": "x"}),
    (record(B_FROM_A), record(field("a", "string"), **SHOP), {"a": "x"}, {"b": "x"}),
    (record(B_FROM_A, aliases=["Sale"]), record(field("a", "string"), name="Sale"), {"a": "x"}, {"b": "x"}),
    (record(B_FROM_A, aliases=["Sale"]), record(field("a", "string"), name="Sale", **SHOP), {"a": "x"}, {"b": "x"}),
    (record(B_FROM_A), record(field("a", "string"), field("b", "string")), {"a": "x", "b": "y"}, {"b": "y"}),
    (
        record({**B_FROM_A, "aliases": ["a", "c"]}),
        record(field("c", "string"), field("a", "string"), **SHOP),
        {"a": "x", "c": "y"},
        {"b": "x"},
    ),
    (record(field("l", line())), record(field("l", row())), {"l": {"p": 4}}, {"l": {"q": 4}}),
    (record(field("l", line())), record(field("l", row()), **SHOP), {"l": {"p": 4}}, {"l": {"q": 4}}),
    (
        record(field("l", {"type": "array", "items": line(aliases=["Row"])})),
        record(field("l", {"type": "array", "items": row("Row")}), **SHOP),
        {"l": [{"p": 4}]},
        {"l": [{"q": 4}]},
    ),
    (
        record(field("l", ["null", line(aliases=["Row"])])),
        record(field("l", ["null", row("Row")]), **SHOP),
        {"l": {"p": 4}},
        {"l": {"q": 4}},
    ),
    (
        record(field("l", line()), field("m", ["null", "Line"], default=None)),
        record(field("l", row()), field("m", ["null", "Line"])),
        {"l": {"p": 1}, "m": {"p": 2}},
        {"l": {"q": 1}, "m": {"q": 2}},
    ),
    (
        record(field("l", line(aliases=["Row"])), field("m", ["null", "Line"], default=None)),
        record(field("l", row()), field("m", ["null", row("Row")])),
        {"l": {"p": 1}, "m": {"p": 2}},
        {"l": {"q": 1}, "m": {"q": 2}},
    ),
    (record(field("k", enum("Kind"))), record(field("k", enum("Kind")), **SHOP), {"k": "B"}, {"k": "B"}),
    (
        record(field("k", ["null", enum("Kind", aliases=["Sort"])])),
        record(field("k", ["null", enum("Sort")]), **SHOP),
        {"k": "B"},
        {"k": "B"},
    ),
    (
        record(field("k", fixed("Money", aliases=["Old"]))),
        record(field("k", fixed("Old")), **SHOP),
        {"k": Decimal("1.23")},
        {"k": Decimal("1.23")},
    ),
]


def test_what_was_renamed_is_read_in_writers_of_every_namespace(spark: SparkSession) -> None:
    for reader, wrote, value, expected in CASES:
        roles = [field(name, type_, default=default) for name, type_, default in ROLES]
        schema = {**reader, "fields": [*roles, *reader["fields"]]}
        source = Source("orders", format="avro", reader_schema=json.dumps(schema))
        writers, framed = {frame_of_id(1): writer(wrote)}, frame_of_id(1) + encode(wrote, value)
        event = {"event_id": None, "event_time": None, **expected}
        assert decode_framed(source.avro, writers, framed) == event
        (found,) = read(spark, [framed], writers, source)
        assert (found["invalid"], plain(found["event"])) == (None, event), (reader, wrote)
