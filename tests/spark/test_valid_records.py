"""Which records are valid, and what they say: the one expression that every layer reads records through."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import compile_validator, parse_json
from views.on_spark.events import with_event
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
        track array<struct<at: double, tags: map<string, array<float>>>>
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
    (b'{"event_id":"\\ud83d\\ude00"}', {"event_id": "\U0001f600"}),
    (b'{"event_id":"\\\\ud800"}', {"event_id": "\\ud800"}),
    ('{"event_id":"ünï"}'.encode(), {"event_id": "ünï"}),
    (b'{"counts":{"a":1},"numbers":[1,null,3]}', {"counts": {"a": 1}, "numbers": [1, None, 3]}),
    (b'{"day":"2026-02-28"}', {"day": "2026-02-28"}),
    (b'{"weights":[],"shares":{},"track":[]}', {"weights": [], "shares": {}, "track": []}),
    (b'{"weights":[null,3e38],"shares":{"a":1e308}}', {"weights": [None, 3e38], "shares": {"a": 1e308}}),
    (b'{"track":[{"at":1.5,"tags":{"a":[0.5]}}]}', {"track": [{"at": 1.5, "tags": {"a": [0.5]}}]}),
]

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
    (b'{"flag":1}', "flag is not boolean"),
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


def _without_nulls(value: Any) -> Any:
    """Spark's to_json leaves null fields out; nulls in arrays stay."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value
