"""Avro records as every layer reads them: Spark's expression gives what the decoder in Python gives, whoever wrote."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from views.formats.avro_decoding import Undecodable, decode_framed
from views.formats.avro_schema import END
from views.formats.framing import HEADER, frame_of_id
from views.formats.writer_schemas import WriterSchema, WriterSchemas
from views.on_spark.events import event_ddl, with_event
from views.on_spark.framed_records import unknown_frames
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = (
    "topic string, partition int, offset bigint, timestamp timestamp, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
KAFKA_TIME = datetime(2026, 5, 1, tzinfo=UTC)


def record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    made = [{"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": made}


def optional(type_: Any) -> list[Any]:
    return ["null", type_]


def logical(type_: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": name, **more}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
ROLES = (("event_id", optional("string"), None), ("event_time", optional(MILLIS), None))
LINE = record("Line", ("sku", "string"), ("count", "int", 1), ("tags", {"type": "map", "values": "string"}, {}))
KIND = {"type": "enum", "name": "Kind", "symbols": ["WEB", "SHOP"], "default": "WEB"}
READER = record(
    "Order",
    *ROLES,
    ("customer", "string", "nobody"),
    ("kind", KIND, "WEB"),
    ("items", "int", 0),
    ("ratio", "float", 0.5),
    ("flag", "boolean", False),
    ("price", optional(logical("bytes", "decimal", precision=10, scale=2)), None),
    ("fee", logical("bytes", "decimal", precision=4, scale=2), "\u0001"),
    ("day", optional(logical("int", "date")), None),
    ("placed", optional(MICROS), None),
    ("session", optional(logical("string", "uuid")), None),
    ("lines", {"type": "array", "items": LINE}, []),
    ("counts", {"type": "map", "values": "int"}, {}),
    ("best", optional("Line"), None),
    ("weights", {"type": "array", "items": ["null", "float"]}, []),
)
SOURCE = Source("orders", format="avro", reader_schema=json.dumps(READER))


def encode(schema: Any, value: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return file.getvalue()


def writer(schema: Any) -> WriterSchema:
    return WriterSchema("AVRO", json.dumps(schema))


Headers = Sequence[tuple[str, bytes | None]]


def framed(spark: SparkSession, values: Sequence[bytes | None], headers: Sequence[Headers] = ()) -> DataFrame:
    """Records as Kafka gives them."""
    rows = []
    for number, value in enumerate(values):
        given = [(name, None if of is None else bytearray(of)) for name, of in headers[number]] if headers else None
        rows.append(("t", 1, number, KAFKA_TIME, None if value is None else bytearray(value), given))
    return spark.createDataFrame(rows, RECORDS)


def read(
    spark: SparkSession,
    values: Sequence[bytes | None],
    writers: WriterSchemas,
    source: Source = SOURCE,
    headers: Sequence[Headers] = (),
) -> list[Any]:
    found = with_event(framed(spark, values, headers), source, writers=writers)
    return sorted(found.collect(), key=lambda row: row["offset"])


def python(
    value: bytes, writers: WriterSchemas, headers: Headers = (), source: Source = SOURCE
) -> dict[str, Any] | str:
    try:
        return decode_framed(source.avro, writers, value, tuple(headers))
    except Undecodable as error:
        return str(error)


def plain(value: Any) -> Any:
    """As Spark gives it, in plain Python: rows as dicts, times in UTC."""
    if hasattr(value, "asDict"):
        return {name: plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return value


V1 = record("Order", ("event_id", "string"), ("event_time", MILLIS), ("customer", "string"), ("items", "int"))
V2 = record(
    "Order", ("event_time", MILLIS), ("event_id", optional("string")), ("items", "long"), ("ratio", "int"),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["WEB", "SHOP", "PHONE"]}), ("unknown", "bytes"),
    ("lines", {"type": "array", "items": record("Line", ("count", "int"), ("sku", "string"))}),
)  # fmt: skip
AT = datetime(2026, 5, 2, 12, 0, 0, 250_000, tzinfo=UTC)
FULL: dict[str, Any] = {
    "event_id": "a", "event_time": AT, "customer": "ünï", "kind": "SHOP", "items": -3, "ratio": 1.5, "flag": True,
    "price": Decimal("12.34"), "fee": Decimal("-1.00"), "day": date(2026, 2, 28),
    "placed": AT + timedelta(microseconds=1),
    "session": "3f2b8f0e-0000-4000-8000-000000000001", "lines": [{"sku": "x", "count": 2, "tags": {"k": "v"}}],
    "counts": {"a": 1}, "best": {"sku": "y", "count": 1, "tags": {}}, "weights": [None, 0.25],
}  # fmt: skip
WRITERS = {frame_of_id(1): writer(V1), frame_of_id(2): writer(V2), frame_of_id(3): writer(READER), frame_of_id(9): None}


def test_the_fields_of_the_reader_schema_are_wide_from_the_first_day() -> None:
    assert event_ddl(SOURCE).replace("`", "") == (
        "struct<event_id:string,event_time:timestamp,customer:string,kind:string,items:bigint,ratio:double,"
        "flag:boolean,price:decimal(10,2),fee:decimal(4,2),day:date,placed:timestamp,session:string,"
        "lines:array<struct<sku:string,count:bigint,tags:map<string,string>>>,counts:map<string,bigint>,"
        "best:struct<sku:string,count:bigint,tags:map<string,string>>,weights:array<double>>"
    )


def test_records_of_several_schemas_in_one_micro_batch_are_read_by_the_reader_schema(spark: SparkSession) -> None:
    first = {"event_id": "v1", "event_time": AT, "customer": "c", "items": 7}
    second = {
        "event_time": AT, "event_id": None, "items": 2**40, "ratio": 3, "kind": "PHONE", "unknown": b"\xff",
        "lines": [{"count": 4, "sku": "s"}],
    }  # fmt: skip
    values = [
        frame_of_id(1) + encode(V1, first), frame_of_id(2) + encode(V2, second), frame_of_id(3) + encode(READER, FULL),
    ]  # fmt: skip
    rows = read(spark, values, WRITERS)
    assert [row["invalid"] for row in rows] == [None, None, None]
    assert [(row["event_id"], row["event_time"].astimezone(UTC)) for row in rows] == [
        ("v1", AT), ("t/1/1", AT), ("a", AT),
    ]  # fmt: skip
    assert plain(rows[2]["event"]) == FULL
    defaults = {
        "customer": "nobody", "kind": "WEB", "items": 0, "ratio": 0.5, "flag": False, "price": None,
        "fee": Decimal("0.01"), "day": None, "placed": None, "session": None, "lines": [], "counts": {}, "best": None,
        "weights": [],
    }  # fmt: skip
    assert plain(rows[0]["event"]) == {**defaults, **first}
    lines = [{"count": 4, "sku": "s", "tags": {}}]
    assert plain(rows[1]["event"]) == {
        **defaults, "event_id": None, "event_time": AT, "items": 2**40, "ratio": 3.0, "lines": lines,
    }  # fmt: skip
    assert [plain(row["event"]) for row in rows] == [python(value, WRITERS) for value in values]


GOOD = encode(V1, {"event_id": "v1", "event_time": AT, "customer": "c", "items": 7})
OTHER = record("Refund", ("event_id", "string"))
MOVED = record("Order", ("event_id", "string"), ("event_time", MICROS))
NOTHINGS = record("Order", ("event_id", "string"), ("nothing", {"type": "array", "items": "null"}))
LIST = record("List", ("next", ["null", "List"]))
SYMBOLS = {"type": "enum", "name": "Kind", "symbols": ["WEB", "a-b"]}
HOSTILE: WriterSchemas = {
    **WRITERS, frame_of_id(4): writer(OTHER), frame_of_id(5): writer(MOVED), frame_of_id(6): writer(NOTHINGS),
    frame_of_id(7): writer(record("Order", ("customer", "bytes"))),
    frame_of_id(8): writer(record("Order", ("ratio", "double"))),
    frame_of_id(11): writer(record("Order", ("day", logical("int", "date")))),
    frame_of_id(12): writer(record("Order", ("placed", MICROS))),
    frame_of_id(13): writer(record("Order", ("fee", logical("bytes", "decimal", precision=9, scale=2)))),
    frame_of_id(14): writer(record("Order", ("weights", {"type": "array", "items": "double"}))),
    frame_of_id(15): writer(record("Order", ("event_id", "string"), ("more", LIST))),
    frame_of_id(16): writer(record("Order", ("event_id", "string"), ("more", record("X", ("x", "X"))))),
    frame_of_id(17): writer(record("Order", ("event_id", "string"), ("kind", SYMBOLS))),
    frame_of_id(18): writer(record("Order", ("event_id", "string"), ("kind", {**SYMBOLS, "symbols": ["A", "A"]}))),
}  # fmt: skip
INVALID: list[tuple[bytes | None, str]] = [
    (None, "no value (a tombstone)"),
    (b"", "not framed: it has neither a schema id before it nor one in its headers"),
    (b'{"event_id":"a"}', "not framed: it has neither a schema id before it nor one in its headers"),
    (b"\x00\x00\x00\x01", "not framed: it has neither a schema id before it nor one in its headers"),
    (b"\x01" + b"\x00" * 20, "not framed: it has neither a schema id before it nor one in its headers"),
    (frame_of_id(9) + GOOD, "schema id 9 is unknown to the registry"),
    (frame_of_id(1), "it is not what its schema says"),
    (frame_of_id(1) + GOOD[:-1], "it is not what its schema says"),
    (frame_of_id(1) + GOOD + b"\x00", "bytes follow the record"),
    (frame_of_id(1) + GOOD + END[:-1], "bytes follow the record"),
    (frame_of_id(1) + b"\xfe\xff\xff\xff\x0f" + GOOD, "it is not what its schema says"),
    (frame_of_id(1) + b"\xff" * 20, "it is not what its schema says"),
    (frame_of_id(4) + b"\x02a", "schema id 4 cannot be read: it is of 'Refund', and this source reads 'Order'"),
    (frame_of_id(5) + b"\x02a\x00",
     "schema id 5 cannot be read: event_time is timestamp-micros, and this source reads timestamp-millis"),
    (frame_of_id(6) + b"\x02a\x00",
     "schema id 6 cannot be read: it has arrays of elements without bytes: a short record could have any number"),
    (frame_of_id(7) + b"\x02\xff", "customer is not UTF-8"),
    (frame_of_id(7) + b"\x06\xed\xa0\x80", "customer is not UTF-8"),
    (frame_of_id(8) + b"\x00" * 6 + b"\xf0\x7f", "ratio is not a finite number"),
    (frame_of_id(8) + b"\x00" * 6 + b"\xf8\x7f", "ratio is not a finite number"),
    (frame_of_id(14) + b"\x02" + b"\x00" * 6 + b"\xf0\xff\x00", "weights is not a finite number"),
    (frame_of_id(11) + b"\xff\xff\xff\xff\x0f", "day is not in the years 1 to 9999"),
    (frame_of_id(12) + b"\xfe" + b"\xff" * 8 + b"\x01", "placed is not in the years 1 to 9999"),
    (frame_of_id(13) + b"\x06\x7f\xff\xff", "it is not what its schema says"),
    (frame_of_id(15) + b"\x02a" + b"\x02" * 5_000 + b"\x00",
     "schema id 15 cannot be read: it has the type 'List', which contains itself: a record could be of any depth"),
    (frame_of_id(16) + b"\x02a",
     "schema id 16 cannot be read: it has the type 'X', which contains itself: a record could be of any depth"),
    (frame_of_id(17) + b"\x02a\x00", "schema id 17 cannot be read: it is not Avro: Kind: \"a-b\" is no name. Use "
     "letters, digits and _, and begin with no digit"),
    (frame_of_id(18) + b"\x02a\x00", "schema id 18 cannot be read: it is not Avro: Kind: the enum has a symbol twice"),
]  # fmt: skip


def test_invalid_records_say_why_and_python_refuses_the_same(spark: SparkSession) -> None:
    rows = read(spark, [value for value, _ in INVALID], HOSTILE)
    assert [(value, row["invalid"]) for (value, _), row in zip(INVALID, rows, strict=True)] == INVALID
    assert {row["event"] for row in rows} == {None}
    assert [value for value, _ in INVALID if value is not None and not isinstance(python(value, HOSTILE), str)] == []


LOCAL, LOCAL_MILLIS = logical("long", "local-timestamp-micros"), logical("long", "local-timestamp-millis")
PART = record("Part", ("hash", {"type": "fixed", "name": "Hash", "size": 2}), ("at", LOCAL_MILLIS, 0))
PAGE = record(
    "Page",
    *ROLES,
    ("data", "bytes", "\u00ff"),
    ("local", optional(LOCAL), None),
    ("more", {"type": "array", "items": ["null", "bytes"]}, []),
    ("best", optional(PART), None),
    ("parts", {"type": "map", "values": "Part"}, {}),
    ("hash", "Hash", "\u0000\u00fe"),
    ("times", {"type": "array", "items": LOCAL_MILLIS}, []),
)
PAGES = Source("pages", format="avro", reader_schema=json.dumps(PAGE))


def test_bytes_and_local_times_are_texts(spark: SparkSession) -> None:
    assert event_ddl(PAGES).replace("`", "") == (
        "struct<event_id:string,event_time:timestamp,data:string,local:string,more:array<string>,"
        "best:struct<hash:string,at:string>,parts:map<string,struct<hash:string,at:string>>,hash:string,"
        "times:array<string>>"
    )
    raw_local = record("Page", ("local", "long"))
    writers = {
        frame_of_id(1): writer(PAGE), frame_of_id(2): writer(record("Page", ("event_id", "string"))),
        frame_of_id(3): writer(raw_local), frame_of_id(4): writer(record("Page", ("data", "string"))),
        frame_of_id(5): writer(record("Page", ("local", MICROS))),
        frame_of_id(6): writer(record("Page", ("hash", {"type": "fixed", "name": "Hash", "size": 3}))),
    }  # fmt: skip
    at = datetime(2026, 3, 29, 2, 30)
    part = {"hash": b"\xff\x00", "at": at}
    page = {
        "event_id": "a", "event_time": None, "data": bytes(range(256)), "local": at + timedelta(microseconds=7),
        "more": [b"", None, b"\xff"], "best": part, "parts": {"k": part}, "hash": b"ab",
        "times": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_000)],
    }  # fmt: skip
    beyond = [encode(raw_local, {"local": micros}) for micros in (253402300800000000, -62135596800000001, 2**63 - 1)]
    values = [
        frame_of_id(1) + encode(PAGE, page), frame_of_id(2) + b"\x02b", *(frame_of_id(3) + each for each in beyond),
        frame_of_id(4) + b"\x02b", frame_of_id(5) + b"\x02", frame_of_id(6) + b"abc", frame_of_id(1),
    ]  # fmt: skip
    rows = read(spark, values, writers, PAGES)
    beyond_years = "local is not in the years 1 to 9999"
    assert [row["invalid"] for row in rows] == [
        None, None, *[beyond_years] * 3, "schema id 4 cannot be read: data is string, and this source reads bytes",
        "schema id 5 cannot be read: local is timestamp-micros, and this source reads local-timestamp-micros",
        *["it is not what its schema says"] * 2,
    ]  # fmt: skip
    text = {"hash": "/wA=", "at": "2026-03-29T02:30:00.000000"}
    assert plain(rows[0]["event"]) == {
        "event_id": "a", "event_time": None, "data": b64encode(bytes(range(256))).decode(),
        "local": "2026-03-29T02:30:00.000007", "more": ["", None, "/w=="], "best": text, "parts": {"k": text},
        "hash": "YWI=", "times": ["0001-01-01T00:00:00.000000", "9999-12-31T23:59:59.999000"],
    }  # fmt: skip
    assert plain(rows[1]["event"]) == {
        "event_id": "b", "event_time": None, "data": "/w==", "local": None, "more": [], "best": None, "parts": {},
        "hash": "AP4=", "times": [],
    }  # fmt: skip
    found = [python(value, writers, source=PAGES) for value in values]
    assert found[:2] == [plain(row["event"]) for row in rows[:2]]
    assert all(isinstance(each, str) for each in found[2:])


def test_records_of_schemas_that_are_not_among_the_writers_are_found(spark: SparkSession) -> None:
    guid = b"\x01" + bytes(range(16))
    values = [frame_of_id(10) + GOOD, frame_of_id(1) + GOOD, frame_of_id(9) + GOOD, None, b"{}", GOOD]
    headers: list[Headers] = [[]] * 5 + [[(HEADER, guid)]]
    rows = read(spark, values, WRITERS, headers=headers)
    unknown = "schema id 10 is unknown to the registry"
    assert [rows[0]["invalid"], rows[1]["invalid"]] == [unknown, None]
    assert rows[5]["invalid"] == "schema 00010203-0405-0607-0809-0a0b0c0d0e0f is unknown to the registry"
    assert [python(rows[0]["value"], WRITERS), python(GOOD, WRITERS, headers[5])] == [unknown, rows[5]["invalid"]]
    assert unknown_frames(framed(spark, values, headers), WRITERS) == {frame_of_id(10), frame_of_id(9), guid}


def test_the_schema_may_be_named_in_a_header(spark: SparkSession) -> None:
    guid = b"\x01" + bytes(range(16))
    writers = {**WRITERS, guid: writer(V1)}
    sent: list[tuple[Headers, bytes]] = [
        ([(HEADER, guid)], GOOD),
        ([(HEADER, frame_of_id(9)), ("other", None), (HEADER, frame_of_id(1))], GOOD),
        ([("other", guid)], frame_of_id(1) + GOOD),
        ([(HEADER, b"\x01")], frame_of_id(1) + GOOD),
        ([(HEADER, None)], frame_of_id(1) + GOOD),
    ]
    rows = read(spark, [value for _, value in sent], writers, headers=[headers for headers, _ in sent])
    assert [row["event_id"] if row["invalid"] is None else row["invalid"] for row in rows] == [
        "v1", "v1", "v1", INVALID[1][1], INVALID[1][1],
    ]  # fmt: skip
    found = [python(value, writers, headers) for headers, value in sent]
    assert [each if isinstance(each, str) else each["event_id"] for each in found] == [
        "v1", "v1", "v1", INVALID[1][1], INVALID[1][1],
    ]  # fmt: skip


def test_records_without_frames_are_read_where_that_was_declared(spark: SparkSession) -> None:
    source = Source("bare", format="avro", reader_schema=json.dumps(V1 | {"name": "Order"}), framing="none")
    rows = read(spark, [GOOD, GOOD + b"\x00", GOOD[1:], None], {}, source)
    assert [row["invalid"] for row in rows][1:] != [None] * 3
    assert rows[0]["event"]["customer"] == "c"


# ---- laws --------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
MILLISECONDS = TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
DECIMALS = st.decimals(-99, 99, places=2)
BYTES = st.binary(max_size=3)

Choice = tuple[Any, Any]
"""A type that a writer may give a field, and its values."""
WRITTEN: dict[str, list[Choice]] = {
    "event_id": [("string", TEXTS), (optional("string"), st.none() | TEXTS)],
    "event_time": [(MILLIS, st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1), timezones=st.just(UTC)).map(
        lambda at: at.replace(microsecond=0)))],
    "customer": [("string", TEXTS), ("bytes", TEXTS.map(str.encode))],
    "kind": [({"type": "enum", "name": "Kind", "symbols": ["PHONE", "SHOP", "WEB"]},
              st.sampled_from(["PHONE", "SHOP", "WEB"]))],
    "items": [("int", INTS), ("long", LONGS)],
    "ratio": [("int", INTS), ("long", LONGS), ("float", FLOATS), ("double", DOUBLES)],
    "flag": [("boolean", st.booleans())],
    "price": [(optional(logical("bytes", "decimal", precision=10, scale=2)), st.none() | DECIMALS)],
    "fee": [(logical("bytes", "decimal", precision=4, scale=2), DECIMALS)],
    "day": [(logical("int", "date"), st.dates()), ([logical("int", "date"), "null"], st.none() | st.dates())],
    "placed": [(MICROS, TIMES), (optional(MICROS), st.none() | TIMES)],
    "session": [("string", TEXTS), ("null", st.none())],
    "lines": [({"type": "array", "items": record("Line", ("sku", "string"), ("count", "int"))},
               st.lists(st.fixed_dictionaries({"sku": TEXTS, "count": INTS}), max_size=3)),
              ({"type": "array",
                "items": record("Line", ("tags", {"type": "map", "values": "string"}), ("sku", "string"))},
               st.lists(st.fixed_dictionaries({"sku": TEXTS, "tags": st.dictionaries(TEXTS, TEXTS, max_size=2)})))],
    "counts": [({"type": "map", "values": "int"}, st.dictionaries(TEXTS, INTS, max_size=3)),
               ({"type": "map", "values": "long"}, st.dictionaries(TEXTS, LONGS, max_size=3))],
    "weights": [({"type": "array", "items": "float"}, st.lists(FLOATS, max_size=3)),
                ({"type": "array", "items": ["double", "null"]}, st.lists(st.none() | DOUBLES, max_size=3))],
    "more": [("string", TEXTS), ("bytes", BYTES), ({"type": "array", "items": record("Extra", ("a", "long"))},
                                                    st.lists(st.fixed_dictionaries({"a": LONGS}), max_size=2))],
}  # fmt: skip


@st.composite
def written_records(draw: st.DrawFn) -> tuple[Any, list[bytes]]:
    """A writer schema that the reader can read, and records of it."""
    names = draw(st.permutations(sorted(WRITTEN)))[: draw(st.integers(1, len(WRITTEN)))]
    chosen = {name: draw(st.sampled_from(WRITTEN[name])) for name in names}
    schema = record("Order", *((name, type_) for name, (type_, _) in chosen.items()))
    values = st.fixed_dictionaries({name: values for name, (_, values) in chosen.items()})
    return schema, [encode(schema, value) for value in draw(st.lists(values, min_size=1, max_size=8))]


@given(st.lists(written_records(), min_size=1, max_size=4), st.data())
@settings(
    max_examples=15, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
def test_spark_reads_what_any_writer_wrote_as_the_decoder_in_python_does(
    spark: SparkSession, written: list[tuple[Any, list[bytes]]], data: st.DataObject
) -> None:
    writers = {frame_of_id(number): writer(schema) for number, (schema, _) in enumerate(written)}
    values = [frame_of_id(number) + each for number, (_, records) in enumerate(written) for each in records]
    values += [value + data.draw(st.binary(min_size=1, max_size=9), label="more") for value in values[:3]]
    rows = read(spark, values, writers)
    found = [row["invalid"] or plain(row["event"]) for row in rows]
    expected = [python(value, writers) for value in values]
    for value, ours, theirs in zip(values, found, expected, strict=True):
        assert (ours == theirs) or (isinstance(ours, str) and isinstance(theirs, str)), value
    assert not any(isinstance(each, str) and "event_id is longer" not in each for each in found[: len(found) - 3])


HASHES = st.binary(min_size=2, max_size=2)
LOCAL_TIMES = st.datetimes()
PARTS = st.fixed_dictionaries({"hash": HASHES, "at": LOCAL_TIMES.map(lambda at: at.replace(microsecond=0))})
PAGE_VALUES = st.fixed_dictionaries({
    "event_id": st.none() | TEXTS, "event_time": st.none(), "data": BYTES, "local": st.none() | LOCAL_TIMES,
    "more": st.lists(st.none() | st.binary(max_size=100), max_size=3), "best": st.none() | PARTS,
    "parts": st.dictionaries(TEXTS, PARTS, max_size=2), "hash": HASHES,
    "times": st.lists(LOCAL_TIMES.map(lambda at: at.replace(microsecond=0)), max_size=2),
})  # fmt: skip


@given(st.lists(PAGE_VALUES, min_size=1, max_size=10))
@settings(
    max_examples=10, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
def test_spark_reads_bytes_and_local_times_as_the_decoder_in_python_does(
    spark: SparkSession, pages: list[dict[str, Any]]
) -> None:
    writers = {frame_of_id(1): writer(PAGE)}
    values = [frame_of_id(1) + encode(PAGE, page) for page in pages]
    rows = read(spark, values, writers, PAGES)
    assert [row["invalid"] for row in rows] == [None] * len(pages)
    assert [plain(row["event"]) for row in rows] == [python(value, writers, source=PAGES) for value in values]


@given(st.lists(written_records(), min_size=1, max_size=2), st.data())
@settings(
    max_examples=10, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
def test_broken_bytes_stop_nothing_and_no_record_is_missing(
    spark: SparkSession, written: list[tuple[Any, list[bytes]]], data: st.DataObject
) -> None:
    writers = {frame_of_id(number): writer(schema) for number, (schema, _) in enumerate(written)}
    good = [frame_of_id(number) + each for number, (_, records) in enumerate(written) for each in records]
    broken = data.draw(
        st.lists(st.binary(max_size=30) | st.binary(max_size=30).map(frame_of_id(0).__add__), max_size=20)
    )
    for value in good:
        place = data.draw(st.integers(0, len(value) - 1))
        flipped = value[:place] + bytes([value[place] ^ data.draw(st.integers(1, 255))]) + value[place + 1 :]
        broken += [value[:place], flipped]
    rows = read(spark, [*good, *broken], writers)
    assert [row["offset"] for row in rows] == list(range(len(good) + len(broken)))
    assert all((row["event"] is None) == (row["invalid"] is not None) for row in rows)
    assert [plain(row["event"]) for row in rows[: len(good)]] == [python(value, writers) for value in good]
    shorter = [row["invalid"] for row, value in zip(rows[len(good) :], broken, strict=True) if any(
        value != each and each.startswith(value) for each in good)]  # fmt: skip
    assert all(shorter), "a record that ends too early is invalid"
