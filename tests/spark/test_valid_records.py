"""Which records are valid, and what they say: the one expression that every layer reads records through."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import compile_validator, parse_json
from views.field_types import Field
from views.on_spark.events import with_event
from views.reading import typed_event
from views.sample_events import generate
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = Source(
    "everything",
    fields="""
        event_id string, event_time timestamp, user_id string,
        properties struct<url: string, status: int, ms: double, bytes: bigint, inner: struct<deep: smallint>>,
        day date, counts map<string, int>, numbers array<int>, price decimal(10,2), flag boolean, ratio float,
        weights array<float>, shares map<string, double>,
        track array<struct<at: double, tags: map<string, array<float>>>>,
        deal struct<fee: decimal(38,18), fees: map<string, array<struct<net: decimal(5,1)>>>>
    """,
)
KAFKA_TIME = datetime(2026, 5, 1, tzinfo=UTC)

VALID: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"event_id":"a","properties":{"ms":1.5}}', {"event_id": "a", "properties": {"ms": 1.5}}),
    (b"{}", {}),
    (b'{"properties":null}', {}),
    (b' {"flag":true} \n', {"flag": True}),
    (b'{"event_id":5}', {"event_id": "5"}),
    (b'{"event_id":"a","event_id":"b"}', {"event_id": "b"}),  # of a repeated key the last counts
    (b'{"unknown":{"x":[1,2]},"flag":false}', {"flag": False}),
    (b'{"price":1.234}', {"price": 1.23}),  # rounded to the declared scale
    (b'{"price":"1.50"}', {"price": 1.5}),  # as answers write decimals
    (b'{"event_id":"\\ud83d\\ude00"}', {"event_id": "\U0001f600"}),
    (b'{"event_id":"\\\\ud800"}', {"event_id": "\\ud800"}),
    ('{"event_id":"ünï"}'.encode(), {"event_id": "ünï"}),
    (b'{"counts":{"a":1},"numbers":[1,null,3]}', {"counts": {"a": 1}, "numbers": [1, None, 3]}),
    (b'{"day":"2026-02-28"}', {"day": "2026-02-28"}),
    (b'{"weights":[],"shares":{},"track":[]}', {"weights": [], "shares": {}, "track": []}),
    (b'{"weights":[null,3e38],"shares":{"a":1e308}}', {"weights": [None, 3e38], "shares": {"a": 1e308}}),
    (b'{"track":[{"at":1.5,"tags":{"a":[0.5]}}]}', {"track": [{"at": 1.5, "tags": {"a": [0.5]}}]}),
    # Exponents that are taken as they are, and those that would be too long were they a decimal's.
    (b'{"price":1e3,"user_id":"71e12345"}', {"price": 1000, "user_id": "71e12345"}),
    (b'{"price":"1e3","user_id":"71e1234567890"}', {"price": 1000, "user_id": "71e1234567890"}),
    (b'{"price":1e0000000003,"user_id":": 1e12345"}', {"price": 1000, "user_id": ": 1e12345"}),
    (b'{"price":"1e0000000003"}', {"price": 1000}),
    (b'{"price":1e-10000000,"user_id":"\\":[1e12345"}', {"price": 0, "user_id": '":[1e12345'}),
    (b'{"price":-1E-10000000,"deal":{"fee":0.0e10000000}}', {"price": 0, "deal": {"fee": 0}}),
    (b'{"price":' + b"9" * 900 + b"e-10000000}", {"price": 0}),
    (b'{"price":0.' + b"0" * 960 + b"15e0961}", {"price": 1.5}),
    (b'{"price":' + b"123" + b"0" * 987 + b'e-989,"deal":{"fee":5e-2000}}', {"price": 1.23, "deal": {"fee": 0}}),
    (b'{"properties":{"ms":1e-10000000},"price":"5"}', {"properties": {"ms": 0}, "price": 5}),
    (b'{"unknown":{"price":[1e10000000,"1e10000000"]},"price":5}', {"price": 5}),
    (b'{"1e10000000":1,"price":5}', {"price": 5}),
    (b'{"user_id":"' + b"1" * 5000 + b'","price":5}', {"user_id": "1" * 5000, "price": 5}),
    (b'{"user_id":"\\u0031\\u0065\\u0031\\u0030\\u0030\\u0030\\u0030"}', {"user_id": "1e10000"}),
    (b'{"deal":{"fees":{"1e10000000":[null,{"net":1.5}]}}}', {"deal": {"fees": {"1e10000000": [None, {"net": 1.5}]}}}),
]

LONG_DECIMALS = (
    b"1e10000000",
    b"-0.5E+10000000",
    b'"1e10000000"',
    b'"-1.5E-10000000"',
    b'"1e1,0,0,0,0,0,0,0"',
    b'"1\\u0065\\u0031000000\\u0030"',
    '"１e１０００００００"'.encode(),
    b'"' + b"1" * 100_000 + b'"',
)
"""Java would take many seconds for each of them to give it a scale."""
LONG_INSIDE = "deal.fees is not map<string,array<struct<net:decimal(5,1)>>>"

INVALID: list[tuple[bytes | None, str]] = [
    (None, "no value (a tombstone)"),
    (b"", "empty"),
    (b"  ", "empty"),
    (b"null", "empty"),
    (b"\xff\xfe", "not UTF-8"),
    (b'{"event_id":"\xed\xa0\x80"}', "not UTF-8"),
    (b'{"day":"12026-03-01"}', "day is after the year 9999"),
    (b"{", "not JSON"),
    (b'{"event_id":"a",}', "not JSON"),
    (b"{'event_id':'a'}", "not JSON"),
    (b'{"properties":{"ms":NaN}}', "not JSON"),
    (b'{"event_id":"tab\there"}', "not JSON"),
    (b'// comment\n{"flag":true}', "not JSON"),
    (b'\xef\xbb\xbf{"flag":true}', "not JSON"),
    (b'\x00{"flag":true}', "not JSON"),
    (b'{"a":' + b"[" * 1200 + b"]" * 1200 + b"}", "not JSON"),
    (b'{"x":' + b"9" * 1500 + b"}", "not JSON"),
    (b"[]", "not a JSON object"),
    (b'[{"event_id":"a"}]', "not a JSON object"),
    (b"3", "not a JSON object"),
    (b'"text"', "not a JSON object"),
    (b'{"event_id":"a"} more', "more than one JSON value"),
    (b'{"event_id":"a"}{"event_id":"b"}', "more than one JSON value"),
    (b'{"event_id":"a"},{"event_id":"b"}', "more than one JSON value"),
    (b'{"event_id":"a"},"x":4', "more than one JSON value"),
    (b'{"flag":true}\x00', "more than one JSON value"),
    (b'{"event_id":"\\ud800"}', "half a surrogate pair, or a repeated key"),
    (b'{"event_id":"' + b"x" * 513 + b'"}', "event_id is longer than 512 characters"),
    (b'{"event_time":"garbage"}', "event_time is not timestamp"),
    (b'{"event_time":"2026-02-30T00:00:00Z"}', "event_time is not timestamp"),
    (b'{"event_time":1700000000000}', "event_time is not between 1970-01-01 and 2200-01-01"),
    (b'{"event_time":"1969-12-31T23:59:59Z"}', "event_time is not between 1970-01-01 and 2200-01-01"),
    (b'{"event_time":"2200-01-01T00:00:00Z"}', "event_time is not between 1970-01-01 and 2200-01-01"),
    (b'{"properties":[1]}', "properties is not an object"),
    (b'{"properties":{"ms":"1.5"}}', "properties.ms is not double"),
    (b'{"properties":{"status":1.0}}', "properties.status is not int"),
    (b'{"properties":{"status":99999999999}}', "properties.status is not int"),
    (b'{"properties":{"inner":{"deep":40000}}}', "properties.inner.deep is not smallint"),
    (b'{"properties":{"inner":"x"}}', "properties.inner is not an object"),
    (b'{"properties":{"ms":1e400}}', "properties.ms is too large for its type"),
    (b'{"ratio":1e39}', "ratio is too large for its type"),
    (b'{"weights":[1,1e39]}', "weights[] is too large for its type"),
    (b'{"weights":[null,-1e39]}', "weights[] is too large for its type"),
    (b'{"shares":{"a":null,"b":1e400}}', "shares[] is too large for its type"),
    (b'{"track":[null,{},{"at":1},{"at":-1e400}]}', "track[] is too large for its type"),
    (b'{"track":[{"at":1,"tags":{"a":[],"b":[null,1e39]}}]}', "track[] is too large for its type"),
    (b'{"day":"x"}', "day is not date"),
    (b'{"counts":{"a":"x"}}', "counts is not map<string,int>"),
    (b'{"numbers":[1,"x"]}', "numbers is not array<int>"),
    (b'{"price":12345678901}', "price is not decimal(10,2)"),
    (b'{"price":"12345678901"}', "price is not decimal(10,2)"),
    (b'{"price":"cheap"}', "price is not decimal(10,2)"),
    (b'{"flag":1}', "flag is not boolean"),
    *((b'{"price":%b}' % number, "price is not decimal(10,2)") for number in LONG_DECIMALS),
    *((b'{"price":%b,"user_id":"x"},{"price":5}' % number, "price is not decimal(10,2)") for number in LONG_DECIMALS),
    *((b'{"event_id":"a"},{"price":%b}' % number, "more than one JSON value") for number in LONG_DECIMALS),
    *((b'{"price":5,"deal":{"fee":%b}}' % number, "deal.fee is not decimal(38,18)") for number in LONG_DECIMALS),
    *((b'{"deal":{"fees":{"a":[],"b":[{"net":1},{"net":%b}]}}}' % number, LONG_INSIDE) for number in LONG_DECIMALS),
    *((b'{"price":%b' % number, "not JSON") for number in LONG_DECIMALS),
    *((b'{"flag":1,"price":%b}' % number, "price is not decimal(10,2)") for number in LONG_DECIMALS),
    (b'{"price":"1e10000000","price":"1"}', "not JSON"),  # a repeated key, and decimals of both would be made
    (b'{"price":1e10000000,"flag":1,"price":5}', "not JSON"),
    (b'{"price":5},{"price":"1e10000000","price":"1"}', "more than one JSON value"),
    (b'{"price":5} "1e10000000"', "more than one JSON value"),
    (b'{"properties":{"ms":1e10000000},"price":5}', "properties.ms is too large for its type"),
]


def records(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    rows = [("t", 1, number, KAFKA_TIME, bytearray(v) if v is not None else None) for number, v in enumerate(values)]
    schema = "topic string, partition int, offset bigint, timestamp timestamp, value binary"
    return spark.createDataFrame(rows, schema)


def read(spark: SparkSession, values: list[bytes | None]) -> list[Any]:
    columns = ("offset", "event_id", "cast(event_time as string) as event_time", "invalid", "to_json(event) as event")
    found = with_event(records(spark, values), SOURCE).selectExpr(*columns).collect()
    return sorted(found, key=lambda row: row["offset"])


def test_valid_records_are_read_as_declared(spark: SparkSession) -> None:
    rows = read(spark, [value for value, _ in VALID])
    assert [row["invalid"] for row in rows] == [None] * len(VALID)
    assert [_without_nulls(json.loads(row["event"])) for row in rows] == [expected for _, expected in VALID]


def test_invalid_records_say_why(spark: SparkSession) -> None:
    rows = read(spark, [value for value, _ in INVALID])
    assert [(value, row["invalid"]) for (value, _), row in zip(INVALID, rows, strict=True)] == INVALID
    assert {row["event"] for row in rows} == {None}


def test_without_reasons_the_same_records_are_valid_and_say_the_same(spark: SparkSession) -> None:
    values = [value for value, _ in (*VALID, *INVALID)]
    columns = ("offset", "event_id", "event_time", "invalid is null as valid", "to_json(event) as event")
    found = [with_event(records(spark, values), SOURCE, reasons=each).selectExpr(*columns) for each in (True, False)]
    with_reasons, without = (sorted(each.collect(), key=lambda row: row["offset"]) for each in found)
    assert without == with_reasons
    assert [row["valid"] for row in without] == [True] * len(VALID) + [False] * len(INVALID)


def test_an_event_without_id_or_time_gets_its_position_and_kafkas_timestamp(spark: SparkSession) -> None:
    rows = read(
        spark, [b"{}", b'{"event_id":""}', b'{"event_id":"a","event_time":"2026-01-01T05:30:00.25+05:30"}', b"["]
    )
    assert [(row["event_id"], row["event_time"]) for row in rows] == [
        ("t/1/0", "2026-05-01 00:00:00"),
        ("t/1/1", "2026-05-01 00:00:00"),
        ("a", "2026-01-01 00:00:00.25"),
        ("t/1/3", "2026-05-01 00:00:00"),
    ]


numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=12)
times = st.datetimes(min_value=datetime(1969, 1, 1), max_value=datetime(2201, 1, 1)).map(lambda t: t.isoformat() + "Z")
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
events = st.fixed_dictionaries(
    {},
    optional={
        "event_id": st.text(max_size=20) | scalars,
        "event_time": times | scalars,
        "user_id": scalars,
        "properties": st.fixed_dictionaries(
            {},
            optional={
                "url": scalars,
                "status": scalars,
                "ms": scalars,
                "bytes": scalars,
                "inner": st.fixed_dictionaries({}, optional={"deep": scalars}) | scalars,
            },
        )
        | scalars,
        "day": st.dates().map(str) | scalars,
        "counts": st.dictionaries(st.text(max_size=5), scalars, max_size=3) | scalars,
        "numbers": st.lists(scalars, max_size=3) | scalars,
        "price": st.decimals(-(10**9), 10**9, places=3).map(float) | scalars,
        "flag": scalars,
        "ratio": scalars,
        "weights": st.lists(scalars, max_size=3),
        "shares": st.dictionaries(st.text(max_size=5), scalars, max_size=3),
        "more": anything,
    },
)


def test_what_the_collector_accepts_spark_accepts(spark: SparkSession) -> None:
    """The collector may be stricter, never laxer: an event that it acknowledged is never a dead letter."""
    drawn: list[dict[str, Any]] = []

    @settings(max_examples=12, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
    @given(made=st.lists(events, min_size=30, max_size=30))
    def draw(made: list[dict[str, Any]]) -> None:
        drawn.extend(made)

    draw()  # all of them first, and then one job
    validate = compile_validator(SOURCE)
    values: list[bytes | None] = [
        json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogatepass") for event in drawn
    ]
    accepted = []
    for value in values:
        try:
            validate(parse_json(value or b""))
        except InvalidEvent:
            accepted.append(False)
        else:
            accepted.append(True)
    rows = read(spark, values)
    refused = [(v, row["invalid"]) for v, ok, row in zip(values, accepted, rows, strict=True) if ok and row["invalid"]]
    assert refused == []
    assert any(accepted), "the generated events were all refused: this test shows nothing"


RULES = Source(
    "rules",
    fields="""
        event_id string, event_time timestamp, user_id string NOT NULL, ms bigint DEFAULT -7,
        tries int NOT NULL DEFAULT 1,
        p struct<url: string NOT NULL, price: decimal(10,2) DEFAULT 9.99, kind: string DEFAULT 'it\\'s $HOME',
                 deep: struct<x: float DEFAULT 0.1, on: boolean DEFAULT true>>,
        day date DEFAULT '2026-02-28', at timestamp DEFAULT '2026-02-28T01:00:00+01:00',
        amount decimal(38,10) NOT NULL DEFAULT 0
    """,
    aliases={"user_id": ("user", "uid"), "p": ("properties",), "p.url": ("uri",), "ms": ("millis",), "day": ("date",)},
)
REQUIRED: list[tuple[bytes, str]] = [
    (b'{"user_id":"a"}', ""),
    (b'{"uid":"a","user_id":null}', ""),
    (b'{"user":"a","ms":null,"p":null,"day":null}', ""),
    (b'{"user":"a","millis":null,"p":{"uri":"/","price":null,"deep":{}}}', ""),
    (b'{"user":"a","properties":{"url":"/","price":"5","deep":{"x":null}},"amount":"12.5"}', ""),
    (b'{"user":"a","p":{"url":"/1"},"properties":{"url":"/2"}}', ""),
    (b"{}", "user_id is required, and absent or null"),
    (b'{"user":null}', "user_id is required, and absent or null"),
    (b'{"user":"a","tries":null}', "tries is required, and absent or null"),
    (b'{"user":"a","p":{}}', "p.url is required, and absent or null"),
    (b'{"user":"a","properties":{"uri":null}}', "p.url is required, and absent or null"),
    (b'{"user":"a","amount":null}', "amount is required, and absent or null"),
    (b'{"user":"a","millis":"x"}', "millis is not bigint"),
    (b'{"user":"a","date":"12026-01-01"}', "date is after the year 9999"),
]


def test_fields_by_alias_and_default_are_the_same_for_spark_the_collector_and_python(spark: SparkSession) -> None:
    sampled = generate(RULES, 400, seed=5, duplicates=0)
    values = [value for value, _ in REQUIRED] + [record.value for record in sampled]
    found = with_event(records(spark, list(values)), RULES).select("offset", "invalid", "event").collect()
    rows = sorted(found, key=lambda row: row["offset"])
    validate = compile_validator(RULES)
    for (value, reason), row in zip(REQUIRED, rows, strict=False):
        assert (value, row["invalid"] or "") == (value, reason)
        if reason:
            with pytest.raises(InvalidEvent):
                validate(parse_json(value))
            assert row["event"] is None
        else:
            validate(parse_json(value))
            assert _of_row(row["event"]) == typed_event(RULES.schema, parse_json(value))
    for record, row in zip(sampled, rows[len(REQUIRED) :], strict=True):
        assert row["invalid"] is None, record.value
        event = _of_row(row["event"])
        assert event == typed_event(RULES.schema, parse_json(record.value))
        assert event == _complete(RULES.schema, record.event.fields), "as the reference interpreter is to read it"


def _of_row(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: _of_row(inner) for name, inner in value.asDict().items()}
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _complete(fields: tuple[Field, ...], given: dict[str, Any]) -> dict[str, Any]:
    found = {each.name: given.get(each.name) for each in fields}
    structs = [each for each in fields if each.type.kind == "struct" and found[each.name] is not None]
    return found | {each.name: _complete(each.type.fields, found[each.name]) for each in structs}


def _without_nulls(value: Any) -> Any:
    """Spark's to_json leaves null fields out; nulls in arrays stay."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value
