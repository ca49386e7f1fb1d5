"""Protobuf records as every layer reads them, whichever message of whichever schema wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import message_factory
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.spark.test_avro_records import KAFKA_TIME, Headers, framed, plain
from views.errors import SourceError
from views.formats.framing import HEADER, NOT_FRAMED, frame_of_id
from views.formats.protobuf_decoding import ProtobufDecoder, read_indexes, writers_of
from views.formats.protobuf_schema import compiled, pool_of
from views.formats.undecodable import Undecodable
from views.formats.writer_schemas import WriterSchema, WriterSchemas
from views.on_spark.events import event_ddl, with_event
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAD = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";'
READER = (
    HEAD
    + """
package shop;
message Order {
  string event_id = 1;
  google.protobuf.Timestamp event_time = 2;
  int32 items = 3;
  optional int64 cents = 4;
  uint32 small = 5;
  uint64 large = 6;
  float ratio = 7;
  Kind kind = 8;
  repeated Line lines = 9;
  map<string, Line> best = 10;
  oneof payment { string card = 11; bool cash = 12; }
  google.protobuf.Int64Value points = 13;
  repeated double weights = 14;
  map<string, int32> counts = 15;
  Line first = 16;
}
message Line { string sku = 1; sint32 count = 2; }
enum Kind { NONE = 0; WEB = 1; }
"""
)
SOURCE = Source("orders", format="protobuf", reader_schema=READER)
WIDER = (
    HEAD
    + """
package other;
message Refund { string event_id = 1; }
message Outer { message Order { string event_id = 1; } }
message Order {
  string event_id = 1; int64 items = 3; uint64 small = 5; int32 kind = 8; string unknown = 99;
  repeated Line lines = 9;
}
message Line { string sku = 1; sint64 count = 2; double more = 3; }
"""
)
CHANGED = 'syntax = "proto3"; message Order { Line first = 16; } message Line { int32 count = 2; }'
IMPORTING = (
    'syntax = "proto3"; import "lines/line.proto"; message Order { string event_id = 1; lines.Line first = 16; }'
)
LINE = 'syntax = "proto3"; package lines; message Line { string sku = 1; }'
GUID = b"\x01" + bytes(range(16))
SCHEMAS: WriterSchemas = {
    frame_of_id(1): WriterSchema("PROTOBUF", READER),
    frame_of_id(2): WriterSchema("PROTOBUF", WIDER),
    frame_of_id(3): WriterSchema("PROTOBUF", CHANGED),
    frame_of_id(4): WriterSchema("AVRO", '"string"'),
    frame_of_id(5): WriterSchema("PROTOBUF", "message {"),
    frame_of_id(6): WriterSchema("PROTOBUF", IMPORTING, (("lines/line.proto", LINE),)),
    frame_of_id(9): None,
    GUID: WriterSchema("PROTOBUF", WIDER),
}
DECODER = ProtobufDecoder(SOURCE.protobuf, writers_of(SOURCE.protobuf, SCHEMAS), is_framed=True)


def message(text: str, name: str, references: tuple[tuple[str, str], ...] = (), **fields: Any) -> bytes:
    made = message_factory.GetMessageClass(pool_of(compiled(text, references)).FindMessageTypeByName(name))
    return bytes(made(**fields).SerializeToString())


def read(
    spark: SparkSession, values: Sequence[bytes | None], headers: Sequence[Headers] = (), source: Source = SOURCE
) -> list[Any]:
    found = with_event(framed(spark, values, headers), source, writers=SCHEMAS)
    return sorted(found.collect(), key=lambda row: row["offset"])


def python(value: bytes, headers: Headers = ()) -> dict[str, Any] | str:
    try:
        return DECODER.decode(value, headers)
    except Undecodable as error:
        return str(error)


def test_the_fields_of_the_reader_schema_are_wide_from_the_first_day() -> None:
    assert event_ddl(SOURCE).replace("`", "") == (
        "struct<event_id:string,event_time:timestamp,items:bigint,cents:bigint,small:bigint,large:decimal(20,0),"
        "ratio:double,kind:string,lines:array<struct<sku:string,count:bigint>>,"
        "best:map<string,struct<sku:string,count:bigint>>,card:string,cash:boolean,points:bigint,"
        "weights:array<double>,counts:map<string,bigint>,first:struct<sku:string,count:bigint>>"
    )


NOTHING: dict[str, Any] = {
    "event_id": "", "event_time": None, "items": 0, "cents": None, "small": 0, "large": Decimal(0), "ratio": 0.0,
    "kind": "NONE", "lines": [], "best": {}, "card": None, "cash": None, "points": None, "weights": [], "counts": {},
    "first": None,
}  # fmt: skip
AT = datetime(2026, 5, 2, 12, 0, 0, 250_000, tzinfo=UTC)
FULL = message(
    READER, "shop.Order", event_id="a", event_time=AT, items=-3, cents=0, small=2**32 - 1, large=2**64 - 1, ratio=1.5,
    kind=7, lines=[{"sku": "x", "count": -2}], best={"k": {"sku": "ünï"}}, cash=False, points={}, weights=[0.5],
    counts={"a": -1}, first={},
)  # fmt: skip


def test_records_of_several_schemas_are_read_by_the_reader_schema(spark: SparkSession) -> None:
    wide = message(WIDER, "other.Order", event_id="w", items=2**40, small=2**40, kind=1, unknown="x",
                   lines=[{"count": 2**40, "more": 1}])  # fmt: skip
    imported = message(IMPORTING, "Order", (("lines/line.proto", LINE),), event_id="i", first={"sku": "s"})
    values = [
        frame_of_id(1) + b"\x00" + FULL, frame_of_id(1) + b"\x02\x00" + FULL, frame_of_id(2) + b"\x02\x04" + wide, wide,
        frame_of_id(6) + b"\x00" + imported, frame_of_id(1) + b"\x00",
    ]  # fmt: skip
    headers: list[Headers] = [[(HEADER, GUID + b"\x02\x04")] if place == 3 else [] for place in range(len(values))]
    rows = read(spark, values, headers)
    assert [row["invalid"] for row in rows] == [None] * len(values)
    first = {
        "event_id": "a", "event_time": AT, "items": -3, "cents": 0, "small": 2**32 - 1, "large": Decimal(2**64 - 1),
        "ratio": 1.5, "kind": "7", "lines": [{"sku": "x", "count": -2}], "best": {"k": {"sku": "ünï", "count": 0}},
        "card": None, "cash": False, "points": 0, "weights": [0.5], "counts": {"a": -1},
        "first": {"sku": "", "count": 0},
    }  # fmt: skip
    second = {**NOTHING, "event_id": "w", "items": 2**40, "small": 2**40, "kind": "WEB",
              "lines": [{"sku": "", "count": 2**40}]}  # fmt: skip
    third = {**NOTHING, "event_id": "i", "first": {"sku": "s", "count": 0}}
    found = [plain(row["event"]) for row in rows]
    assert found == [first, first, second, second, third, NOTHING]
    assert found == [python(value, of) for value, of in zip(values, headers, strict=True)]
    assert [row["event_id"] for row in rows] == ["a", "a", "w", "w", "i", "t/1/5"]
    assert [row["event_time"].astimezone(UTC) for row in rows] == [AT, AT, *[KAFKA_TIME] * 4]


VALUES = """syntax = "proto3"; import "google/protobuf/duration.proto"; import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
message Page {
  google.protobuf.Timestamp event_time = 8;
  string event_id = 1; bytes data = 2; repeated bytes more = 3; google.protobuf.Duration took = 4;
  google.protobuf.Struct labels = 5; map<int32, google.protobuf.Duration> laps = 6; map<bool, bytes> parts = 7;
}"""


def test_bytes_durations_any_json_and_keys_of_other_types_are_read(spark: SparkSession) -> None:
    source = Source("pages", format="protobuf", reader_schema=VALUES, framing="none")
    assert event_ddl(source).replace("`", "") == (
        "struct<event_time:timestamp,event_id:string,data:string,more:array<string>,took:bigint,labels:string,"
        "laps:map<string,bigint>,parts:map<string,string>>"
    )
    page = message(
        VALUES, "Page", event_id="a", data=b"\xff\x00", more=[b"", b"\x00"], took={"seconds": -1, "nanos": -999},
        labels={"b": 1.5, "a": [None, 7, "ü"]}, laps={-7: {"nanos": 1000}}, parts={True: b"x"},
    )  # fmt: skip
    broken = message(VALUES, "Page", event_id="b", took={"seconds": 1, "nanos": -1})
    rows = read(spark, [page, broken, b""], source=source)
    assert [row["invalid"] for row in rows] == [None, "a duration is not one of at most 10,000 years", None]
    assert plain(rows[0]["event"]) == {
        "event_time": None, "event_id": "a", "data": "/wA=", "more": ["", "AA=="], "took": -1_000_000,
        "labels": '{"a":[null,7,"ü"],"b":1.5}', "laps": {"-7": 1}, "parts": {"true": "eA=="},
    }  # fmt: skip
    assert plain(rows[0]["event"]) == ProtobufDecoder(source.protobuf, {}, is_framed=False).decode(page)
    assert plain(rows[2]["event"]) == {
        "event_time": None, "event_id": "", "data": "", "more": [], "took": None, "labels": None, "laps": {},
        "parts": {},
    }  # fmt: skip


INVALID: list[tuple[bytes | None, str]] = [
    (None, "no value (a tombstone)"),
    (b"", NOT_FRAMED),
    (FULL, NOT_FRAMED),
    (frame_of_id(1), "it does not say which message it is"),
    (frame_of_id(1) + b"\x02", "it does not say which message it is"),
    (frame_of_id(1) + b"\x01\x00", "it does not say which message it is"),
    (frame_of_id(1) + b"\xff" * 12, "it does not say which message it is"),
    (frame_of_id(1) + b"\x02\x08" + FULL, "schema id 1 cannot be read: it has no message [4]"),
    (frame_of_id(1) + b"\x02\x02" + FULL, "schema id 1 cannot be read: it is of 'Line', and this source reads 'Order'"),
    (frame_of_id(2) + b"\x00", "schema id 2 cannot be read: it is of 'Refund', and this source reads 'Order'"),
    (frame_of_id(2) + b"\x04\x02\x00",
     "schema id 2 cannot be read: it is of 'Outer.Order', and this source reads 'Order'"),
    (frame_of_id(3) + b"\x00", "schema id 3 cannot be read: first.count is int32, and this source reads sint32"),
    (frame_of_id(4) + b"\x00", "schema id 4 cannot be read: it is of the type AVRO, and this source reads PROTOBUF"),
    (frame_of_id(9) + b"\x00", "schema id 9 is unknown to the registry"),
    (frame_of_id(7) + b"\x00", "schema id 7 is unknown to the registry"),
    (frame_of_id(1) + b"\x00" + FULL[:-1], "it is not what its schema says"),
    (frame_of_id(1) + b"\x00" + FULL + b"\x0f", "it is not what its schema says"),
    (frame_of_id(1) + b"\x00\x0a\x02\xff\xfe", "it is not what its schema says"),
    (frame_of_id(1) + b"\x00\x3d\x00\x00\x80\x7f", "a number is not finite"),
    (frame_of_id(1) + b"\x00\x28" + b"\xff" * 9 + b"\x01", "a number is too large for a bigint"),
    (frame_of_id(1) + b"\x00\x12\x0b\x08" + b"\xff" * 8 + b"\x7f\x10", "it is not what its schema says"),
    (frame_of_id(1) + b"\x00\x12\x0a\x08" + b"\xff" * 8 + b"\x7f", "a time is not in the years 1 to 9999"),
]  # fmt: skip


def test_invalid_records_say_why(spark: SparkSession) -> None:
    rows = read(spark, [value for value, _ in INVALID])
    assert [(value, row["invalid"]) for (value, _), row in zip(INVALID, rows, strict=True)] == INVALID
    assert {row["event"] for row in rows} == {None}
    (row,) = read(spark, [frame_of_id(5) + b"\x00"])
    assert row["invalid"].startswith(
        "schema id 5 cannot be read: the schema is not Protobuf: tidemark_schema.proto:1:9:"
    )


def test_records_without_frames_are_read_where_that_was_declared(spark: SparkSession) -> None:
    source = Source("orders", format="protobuf", reader_schema=READER, framing="none")
    rows = read(spark, [FULL, b"", b"\xff", None], source=source)
    assert [row["invalid"] for row in rows] == [None, None, "it is not what its schema says", "no value (a tombstone)"]
    assert [row["event_id"] for row in rows[:2]] == ["a", "t/1/1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("message", "the schema is not Protobuf"),
        ('syntax = "proto3";', "an event is a message; the reader schema has none"),
        ('syntax = "proto3"; import "/etc/passwd";', "the schema is not Protobuf"),
        ('syntax = "proto3"; import "google/protobuf/empty.proto"; message A { google.protobuf.Empty b = 1; }',
         "b: the type google.protobuf.Empty is not supported in a source. L"),
        ('syntax = "proto3"; message A { B b = 1; } message B { repeated A a = 1; }', "'A' contains itself"),
        ('syntax = "proto3"; message A { B b = 1; } message B {}', "b: a message without fields"),
        ('syntax = "proto3"; import "google/protobuf/any.proto"; message A { google.protobuf.Any b = 1; }',
         "b: the type google.protobuf.Any is not supported"),
        ('syntax = "proto2"; message A { optional string _corrupt = 1; }', "the field name '_corrupt' is reserved"),
        ('syntax = "proto3"; message A { string b = 1; string B = 2; }', "several fields are called 'b'"),
        ('syntax = "proto3"; message A { string b = 1; }', "id_field is 'event_id', which is not among its fields"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_a_source_is_refused_with_the_path(text: str, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        Source("orders", format="protobuf", reader_schema=text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("data", "indexes"), [(b"\x00a", (0,)), (b"\x02\x02a", (1,)), (b"\x04\x00\x00a", (0, 0)), (b"\x02\x80\x01a", (64,))]
)
def test_the_message_is_named_by_its_indexes(data: bytes, indexes: tuple[int, ...]) -> None:
    assert read_indexes(data) == (indexes, b"a")


def test_references_that_leave_the_folder_are_refused() -> None:
    schemas = {GUID: WriterSchema("PROTOBUF", READER, (("../../evil.proto", "x"),))}
    assert writers_of(SOURCE.protobuf, schemas) == {GUID: "the reference '../../evil.proto' is no relative path."}
    schemas = {GUID: WriterSchema("PROTOBUF", READER, (("a", "x"), ("a/b", "x")))}
    assert writers_of(SOURCE.protobuf, schemas) == {GUID: "the reference 'a/b' cannot be the path of a file."}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LINES = st.fixed_dictionaries({}, optional={"sku": TEXTS, "count": st.integers(-(2**31), 2**31 - 1)})
ORDERS = st.fixed_dictionaries({}, optional={
    "event_id": TEXTS, "items": st.integers(-(2**31), 2**31 - 1), "cents": st.integers(-(2**63), 2**63 - 1),
    "large": st.integers(0, 2**64 - 1), "ratio": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "event_time": st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1)), "kind": st.integers(0, 3),
    "lines": st.lists(LINES, max_size=3), "best": st.dictionaries(TEXTS, LINES, max_size=2), "card": TEXTS,
    "weights": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3), "first": LINES,
})  # fmt: skip


@given(st.lists(ORDERS, min_size=1, max_size=8), st.data())
@settings(
    max_examples=10, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
def test_spark_says_of_any_bytes_what_the_decoder_says(
    spark: SparkSession, orders: list[dict[str, Any]], data: st.DataObject
) -> None:
    good = [frame_of_id(1) + b"\x00" + message(READER, "shop.Order", **order) for order in orders]
    broken = data.draw(st.lists(st.binary(max_size=20).map((frame_of_id(1) + b"\x00").__add__), max_size=10))
    for value in good:
        place = data.draw(st.integers(0, len(value) - 1))
        broken += [value[:place], value[:place] + bytes([data.draw(st.integers(0, 255))]) + value[place + 1 :]]
    rows = read(spark, [*good, *broken])
    assert len(rows) == len(good) + len(broken)
    for value, row in zip([*good, *broken], rows, strict=True):
        expected = python(value)
        if row["invalid"] is None:
            assert plain(row["event"]) == expected, value
        else:
            assert row["invalid"] == expected or row["invalid"].startswith("event_time "), value
    for order, row in zip(orders, rows[: len(good)], strict=True):
        assert row["invalid"] is None
        assert plain(row["event"])["event_id"] == order.get("event_id", "")
        assert plain(row["event"])["large"] == order.get("large", 0)
