"""Spark makes of events the states that the oracle makes: the same answers, and bytes that merge with Python's."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from tests.serving_data import without_limit
from views import in_memory, short_texts
from views.aggregates import (
    Average,
    Count,
    DecayedRate,
    Distinct,
    First,
    FirstK,
    Histogram,
    Kurtosis,
    Largest,
    Last,
    LastK,
    Max,
    Min,
    Quantiles,
    Skewness,
    Smallest,
    StdDev,
    Sum,
    TopK,
    Trend,
    UniqueValues,
    ValueCounts,
    Variance,
)
from views.derived import Derived, Ratio
from views.in_memory import Event, Group
from views.laws import Reference
from views.on_spark.events import with_event
from views.on_spark.merge import merged
from views.on_spark.states import COUNTED, states
from views.sample_events import generate
from views.source import Source
from views.states import pack, unpack
from views.types import EPOCH, MICROSECOND
from views.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = Source(
    "everything",
    fields="""
        event_id string, event_time timestamp, user_id string, n int, tiny tinyint, big bigint, x double, f float,
        price decimal(10,2), wide decimal(28,6), day date, at timestamp, flag boolean, tags array<string>,
        labels map<string,string>, p struct<url: string, ms: double, status: int>
    """,
)
OF_EVERY_TYPE = ("big", "n", "x", "price", "user_id", "day", "at", "flag")
EXACT = {
    "c": Count(),
    "c_where": Count(where="p.status >= 500"),
    "c_of": Count("user_id", where="flag or flag is null"),
    **{f"s_{name}": Sum(name) for name in ("n", "tiny", "big", "price", "wide")},
    "s_expression": Sum("n * 2 + big % 7", where="n is not null"),
    **{f"a_{name}": Average(name) for name in ("n", "big", "price", "wide")},
    "v_n": Variance("n"),
    "v_population": Variance("tiny", population=True, where="flag"),
    "sd_n": StdDev("n"),
    **{f"min_{name}": Min(name) for name in OF_EVERY_TYPE if name != "x"},
    **{f"max_{name}": Max(name) for name in OF_EVERY_TYPE if name != "x"},
    **{f"first_{name}": First(name) for name in OF_EVERY_TYPE if name != "x"},
    **{f"last_{name}": Last(name, where="n >= 0") for name in OF_EVERY_TYPE if name != "x"},
    "h_big": Histogram("big", bounds=(-1, 0, 2**53)),
}
"""Whose bytes are the same, whoever wrote them."""
EXACT_TOO = {
    "skew_n": Skewness("n"),
    "kurt_n": Kurtosis("n"),
    "kurt_tiny": Kurtosis("tiny", where="flag"),
    **{f"firsts_{name}": FirstK(name, k=2) for name in OF_EVERY_TYPE if name != "x"},
    **{f"lasts_{name}": LastK(name, k=3, where="n >= 0") for name in ("user_id", "price")},
    **{f"largest_{name}": Largest(name, k=3) for name in OF_EVERY_TYPE if name not in ("x", "flag")},
    **{f"smallest_{name}": Smallest(name, where="flag", k=2) for name in ("user_id", "n")},
    **{f"values_{name}": ValueCounts(name) for name in OF_EVERY_TYPE if name != "x"},
    "values_few": ValueCounts("user_id", at_most=3, where="n > 0"),
    **{f"unique_{name}": UniqueValues(name, at_most=7) for name in ("user_id", "day", "at")},
    "trend_n": Trend("n"),
    "trend_big": Trend("big", where="flag"),
    "rate": DecayedRate(half_life="1m"),
    "rate_n": DecayedRate("n", half_life="57s", where="flag or n > 0"),
}
"""The same."""
OTHERS = {
    "c": Count(),
    "c_where": Count(where="p.status >= 500"),
    "s_big": Sum("big"),
    "s_price": Sum("price"),
    "s_x": Sum("x"),
    "s_f": Sum("f"),
    "s_ms": Sum("p.ms * 1e10", where="p.ms > 0"),
    "a_x": Average("x"),
    "v_ms": Variance("p.ms"),
    "v_big": Variance("big"),
    "sd_x": StdDev("x", population=True),
    "skew_x": Skewness("x"),
    "skew_big": Skewness("big", where="flag"),
    "kurt_x": Kurtosis("x"),
    "kurt_ms": Kurtosis("p.ms", where="n > 0"),
    "min_x": Min("x"),
    "max_x": Max("-x"),
    "first_x": First("x"),
    "last_x": Last("x / n"),
    "trend_x": Trend("x"),
    "trend_ms": Trend("p.ms", where="n > 0"),
    "rate_x": DecayedRate("x", half_life="15s"),
    "rate_big": DecayedRate("big"),
    "largest_x": Largest("x", k=3),
    "smallest_x": Smallest("-x", k=4, where="n > 0"),
    "firsts_x": FirstK("x", k=3),
    **{f"d_{name}": Distinct(name) for name in ("user_id", "big", "at", "flag")},
    "d_small": Distinct("user_id", precision=4, where="n > 0"),
    "d_exact": Distinct("user_id", exact=True, where="flag"),
    "d_over": Distinct("user_id", exact=True, at_most=3),
    "d_exact_big": Distinct("big", exact=True),
    "d_exact_at": Distinct("at", exact=True),
    "q_x": Quantiles("x"),
    "q_big": Quantiles("big", at=(0, 0.07, 1), error=0.001),
    "q_one": Quantiles("n", at=0.9, error=0.1, where="flag"),
    "t": TopK("user_id", k=3),
    "t_where": TopK("lower(p.url)", where="n > 0"),
    "h_x": Histogram("x", bounds=(0, 1, 100)),
    "r": Ratio("c_where", "c"),
    "r_decimal": Ratio("s_price", "c"),
    "r_distinct": Ratio("d_user_id", "d_big"),
    "d_whole": Derived("s_big - c"),
    "d_mixed": Derived("s_x / c + d_user_id"),
    "d_decimal": Derived("c * 1.5"),
    "d_condition": Derived("c > 5"),
    "d_unseen": Derived("q_one + d_exact"),
}
WHERE = "p.status is not null or flag"
KEYS = {"url": "p.url", "s": "p.status", "fl": "flag", "on": "day"}
VIEWS = {
    "exact": View("exact", SOURCE, EXACT, keys={"url": "p.url", "s": "p.status % 3"}, where=WHERE, grain="1h"),
    "exact_too": View("exact_too", SOURCE, EXACT_TOO, keys={"s": "p.status % 3"}, where=WHERE, grain="1h"),
    "others": View("others", SOURCE, OTHERS, keys={"s": "p.status % 2"}, where=WHERE, grain="15m"),
    "keys": View("keys", SOURCE, {"c": Count(), "total": Sum("x")}, keys=KEYS, grain="1d"),
    "no_keys": View("no_keys", SOURCE, {"c": Count(), "d": Distinct("user_id"), "r": Ratio("d", "c")}, grain="1d"),
    "odd_names": View(
        "odd_names", SOURCE,
        {"timestamp": Sum("n"), "topic": First("user_id"), "value": Distinct("user_id"),
         "headers": Count(where="n > 0"), "key": Ratio("headers", "value")},
        keys={"event": "p.url", "partition": "n % 2", "offset": "p.status % 2", "event_time": "flag",
              "event_id": "day"},
    ),
}  # fmt: skip
SEEDS = (1, 2)
Rows = dict[Group, dict[str, Any]]


def events_of(seed: int) -> list[Event]:
    """Each once: the layers remove duplicates before they compute."""
    return in_memory.counted(record.event for record in generate(SOURCE, 800, seed, views=VIEWS.values()))


@pytest.fixture(scope="module", params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def events(spark: SparkSession, seed: int) -> Iterator[DataFrame]:
    made = generate(SOURCE, 800, seed, views=VIEWS.values())
    rows = [("t", each.event.partition, each.event.offset, datetime(2026, 1, 1), each.value) for each in made]
    given = spark.createDataFrame(rows, "topic string, partition int, offset bigint, timestamp timestamp, value binary")
    kept = [(event.partition, event.offset) for event in events_of(seed)]
    once = spark.createDataFrame(kept, "partition int, offset bigint")
    read = with_event(given, SOURCE).where("invalid is null").join(once, ["partition", "offset"]).cache()
    assert read.count() == len(kept)
    yield read
    read.unpersist()


def rows_of(computed: DataFrame, view: View) -> Rows:
    found = {}
    for row in computed.withColumn("bucket", f.unix_micros("bucket")).toArrow().to_pylist():
        group = (row["bucket"], tuple(row[name] for name in view.keys))
        assert group not in found
        found[group] = row
    return found


def presented(rows: Rows, view: View) -> Rows:
    return {group: view.present(unpack(view.algebras, row["state"])) for group, row in rows.items()}


@pytest.fixture(scope="module")
def computed(events: DataFrame) -> dict[str, Rows]:
    return {name: rows_of(states(events, view), view) for name, view in VIEWS.items()}


@pytest.mark.parametrize("name", VIEWS)
def test_spark_is_the_oracle(computed: dict[str, Rows], seed: int, name: str) -> None:
    view = VIEWS[name]
    reference = Reference(view, tuple(events_of(seed)))
    assert len(reference.answers) > 1
    assert list(reference.differences("by Spark", presented(computed[name], view))) == []


@pytest.mark.parametrize("name", VIEWS)
def test_plain_columns_are_the_presented_answers(computed: dict[str, Rows], name: str) -> None:
    view = VIEWS[name]
    hidden = {
        each for each, algebra in view.algebras.items() if algebra.column(algebra.aggregate("measure", "")) is None
    }
    for group, answers in presented(computed[name], view).items():
        row = computed[name][group]
        assert {*row} >= {*view.answers} - hidden - {"d_unseen"}
        for answer in {*view.answers} & {*row}:
            assert is_same(row[answer], answers[answer]), (group, answer, row[answer], answers[answer])


def is_same(column: Any, answer: Any) -> bool:
    """A column has the type of its values, an answer what JSON can hold; doubles in columns are rounded once more."""
    match column:
        case float():
            return isinstance(answer, float) and math.isclose(column, answer, rel_tol=1e-12, abs_tol=1e-300)
        case Decimal():
            return f"{column:f}" == answer if isinstance(answer, str) else column == answer
        case datetime():
            return column.astimezone(UTC).isoformat().replace("+00:00", "Z") == answer
        case date():
            return column.isoformat() == answer
        case list():
            return column == [entry["count"] for entry in answer]
    return type(column) is type(answer) and column == answer


def test_rows_say_how_many_events_went_into_them(computed: dict[str, Rows]) -> None:
    for row in computed["keys"].values():
        assert row[COUNTED] == row["c"]
    assert any(None in key for _, key in computed["keys"])


@pytest.mark.parametrize("name", ["exact", "exact_too"])
def test_exact_states_have_the_same_bytes_whoever_wrote_them(computed: dict[str, Rows], seed: int, name: str) -> None:
    view = VIEWS[name]
    folded = in_memory.fold(view, events_of(seed))
    assert {group: row["state"] for group, row in computed[name].items()} == {
        group: pack(view.algebras, state) for group, state in folded.items()
    }


@pytest.mark.parametrize("name", ["exact", "others"])
def test_states_of_spark_and_of_python_merge_into_those_of_all_events(
    spark: SparkSession, events: DataFrame, seed: int, name: str
) -> None:
    view, all_events = VIEWS[name], events_of(seed)
    by_spark = states(events.where("offset % 2 = 0"), view)
    by_python = {
        group: pack(view.algebras, state)
        for group, state in in_memory.fold(view, [event for event in all_events if event.offset % 2]).items()
    }
    found = {group: unpack(view.algebras, row["state"]) for group, row in rows_of(by_spark, view).items()}
    both = in_memory.merge(view, found, {group: unpack(view.algebras, packed) for group, packed in by_python.items()})
    reference = Reference(view, tuple(all_events))
    assert list(reference.differences("by both", in_memory.present(view, both))) == []


def test_spark_merges_what_it_wrote(events: DataFrame, seed: int) -> None:
    view = VIEWS["others"]
    halves = [states(events.where(f"offset % 2 = {side}"), view) for side in range(2)]
    rows = rows_of(merged(*halves, view), view)
    answers = presented(rows, view)
    assert list(Reference(view, tuple(events_of(seed))).differences("merged on Spark", answers)) == []
    for group, row in rows.items():
        for answer in {*view.answers} & {*row}:
            assert is_same(row[answer], answers[group][answer]), (group, answer)


def test_top_k_beyond_its_room_is_off_by_at_most_what_it_states(spark: SparkSession) -> None:
    """The order is the worst for Spark: half of the table is heavy, then rare values push it over."""
    view = View("v", SOURCE, {"t": TopK("user_id", k=12, room=12), "c": Count()}, grain="1d")
    heavy = int(view.algebras["t"].table.capacity / 2) + 1
    texts = [f"heavy {n}" for n in range(heavy) for _ in range(200)] + [f"rare {n}" for n in range(400)]
    rows = [("t", 0, n, datetime(2026, 1, 1), f'{{"user_id": "{text}"}}'.encode()) for n, text in enumerate(texts)]
    given = spark.createDataFrame(rows, "topic string, partition int, offset bigint, timestamp timestamp, value binary")
    (answers,) = presented(rows_of(states(with_event(given.coalesce(1), SOURCE), view), view), view).values()
    for entry in answers["t"]:
        true = texts.count(entry["value"])
        assert true <= entry["count"] <= true + len(texts) / 12
        assert entry["count"] - true <= entry["off_by_at_most"]


def test_min_and_max_of_long_texts_are_cut_where_python_cuts_them(spark: SparkSession) -> None:
    """Also characters whose order is another one in UTF-16, and states of an older version."""
    view = View(
        "v", SOURCE, {"least": Min("user_id"), "most": Max("user_id"), "first": First("user_id")},
        keys={"begins": "left(user_id, 1)", "n": "n"}, grain="1d",
    )  # fmt: skip
    limit = short_texts.MAX_CHARACTERS
    ends = ("", "\x01", "a", "…", "\uffff", "𝄞", "𝄞" * 5_000)
    texts = [begins * (limit - back) + end for begins in "aé𝄞" for back in (0, 1) for end in ends]
    rows = [("t", 0, n, datetime(2026, 1, 1), json.dumps({"event_id": f"e{n}", "event_time": "2026-03-01T00:00:00Z",
             "user_id": text, "n": n // len(ends) % 2}).encode()) for n, text in enumerate(texts)]  # fmt: skip
    given = spark.createDataFrame(rows, "topic string, partition int, offset bigint, timestamp timestamp, value binary")
    read = with_event(given, SOURCE).where("invalid is null").cache()
    at = datetime(2026, 3, 1, tzinfo=UTC)
    events = [Event(0, n, f"e{n}", at, {"user_id": text, "n": n // len(ends) % 2}) for n, text in enumerate(texts)]
    folded = {group: pack(view.algebras, state) for group, state in in_memory.fold(view, events).items()}
    assert len(folded) == 6
    assert {group: row["state"] for group, row in rows_of(states(read, view), view).items()} == folded
    older, newer = states(read.where("offset % 2 = 0"), without_limit(view)), states(read.where("offset % 2 = 1"), view)
    assert max(len(row["most"]) for row in rows_of(older, view).values()) == limit + 5_000, "nothing was long"
    both = rows_of(merged(older, newer, view), view)
    assert {group: row["state"] for group, row in both.items()} == folded
    assert presented(both, view) == {group: {"least": row["least"], "most": row["most"], "first": row["first"]}
                                     for group, row in both.items()}  # fmt: skip
    read.unpersist()


def test_buckets_begin_at_multiples_of_the_grain(computed: dict[str, Rows]) -> None:
    for name, rows in computed.items():
        assert all(bucket % VIEWS[name].bucket.micros == 0 for bucket, _ in rows)
    assert (datetime(2026, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND % VIEWS["exact"].bucket.micros == 0
