"""Declaring views: what is refused and how, derived answers, and a hash that changes exactly when the meaning does."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from views import aggregates, functions, in_memory
from views.aggregates import (
    Aggregate,
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
    Max,
    Min,
    Quantiles,
    StdDev,
    Sum,
    TopK,
    Trend,
    ValueCounts,
    Variance,
)
from views.derived import Derived, Ratio
from views.errors import ExpressionError, ViewError
from views.evolution import evolution
from views.expressions import parse, parse_condition
from views.in_memory import Event
from views.source import Source
from views.types import CASTS
from views.view import MAX_ANSWERS, MAX_KEYS, RESERVED, View

FIELDS = """
    event_id string, event_time timestamp, user_id string, status int, big bigint, ms double, price decimal(10,2),
    wide decimal(38,2), day date, flag boolean, tags array<string>, properties struct<url: string>
"""
WEB = Source("web", fields=FIELDS)
HITS: dict[str, Any] = {"name": "hits", "source": WEB, "answers": {"hits": Count()}}

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"name": "Hits"}, ["View 'Hits'", "lower-case letters"]),
    ({"name": "1st"}, ["View '1st'", "begins with a letter"]),
    ({"name": ""}, ["View ''"]),
    ({"name": None}, ["View None", "a name consists of"]),
    ({"name": "a" * 64}, ["a name consists of"]),
    ({"source": "web"}, ["source is 'web'", "should be a Source"]),
    ({"keys": ["url"]}, ["keys is ['url']", "should be a dict like"]),
    ({"keys": None}, ["keys is None"]),
    ({"answers": Count()}, ["answers is Count", "should be a dict"]),
    ({"answers": {}}, ["it has no answers", "answers={'events': Count()}"]),
    ({"keys": {f"k{n}": "user_id" for n in range(MAX_KEYS + 1)}}, ["it has 17 keys; 16 are allowed"]),
    ({"answers": {f"a{n}": Count() for n in range(MAX_ANSWERS + 1)}}, ["it has 65 answers; 64 are allowed"]),
    ({"keys": {"Url": "user_id"}}, ["'Url' among its keys is not a name"]),
    ({"keys": {5: "user_id"}}, ["5 among its keys is not a name"]),
    ({"answers": {"hits": Count(), "Hits": Count()}}, ["'Hits' among its answers is not a name", "lower-case"]),
    ({"answers": {"a b": Count()}}, ["'a b' among its answers is not a name"]),
    ({"answers": {"a`b": Count()}}, ["among its answers is not a name"]),
    *(({"keys": {name: "user_id"}}, [f"'{name}' among its keys is reserved", "Rename it"]) for name in RESERVED),
    *(({"answers": {name: Count()}}, [f"'{name}' among its answers is reserved"]) for name in RESERVED),
    ({"keys": {"hits": "user_id"}}, ["['hits'] is both a key and an answer", "'hits_count'"]),
    ({"answers": {"hits": "count(*)"}}, ["answer 'hits' is 'count(*)'", "Count()", "average of averages"]),
    ({"answers": {"hits": Count}}, ["answer 'hits' is <class", "should be an aggregate"]),
    ({"answers": {"r": Derived("1")}}, ["all its answers are derived", "Add the aggregates"]),
    ({"grain": "7m"}, ["View 'hits'", "grain is '7m'", "divides a day", "'15m'"]),
    ({"grain": "1w"}, ["grain is '1w'", "Queries may ask for weeks and months"]),
    ({"grain": "2d"}, ["grain is '2d'"]),
    ({"grain": 3600}, ["grain is 3600"]),
    ({"where": "status"}, ["View 'hits', where: 'status' is bigint; a condition is boolean"]),
    ({"where": ""}, ["View 'hits', where: '' is not an expression"]),
    ({"where": 5}, ["where: 5 is not an expression"]),
    ({"where": "statsu = 1"}, ["View 'hits', where: 'statsu = 1'", "Did you mean 'status'?"]),
    ({"keys": {"u": "usr_id"}}, ["View 'hits', key 'u': 'usr_id'", "Did you mean 'user_id'?"]),
    ({"keys": {"u": ""}}, ["key 'u': '' is not an expression"]),
    ({"keys": {"u": None}}, ["key 'u': None is not an expression"]),
    ({"keys": {"u": "ms"}}, ["key 'u' is of type double; a key is string, bigint, boolean, date", "floor("]),
    ({"keys": {"u": "price"}}, ["key 'u' is of type decimal(10,2)"]),
    ({"keys": {"u": "event_time"}}, ["key 'u' is of type timestamp"]),
    ({"keys": {"u": "tags"}}, ["key 'u'", "take one part"]),
    ({"keys": {"u": "rand()"}}, ["key 'u'", "another value each time"]),
    ({"keys": {"u": "max(status)"}}, ["key 'u'", "aggregates"]),
    ({"answers": {"a": Sum("user_id")}}, ["View 'hits', answer 'a': 'user_id': Sum takes bigint, double, decimal"]),
    ({"answers": {"a": Sum("mss")}}, ["answer 'a': 'mss'", "Did you mean 'ms'?"]),
    ({"answers": {"a": Sum(5)}}, ["answer 'a': 5 is not an expression"]),  # type: ignore[arg-type]
    ({"answers": {"a": Sum("")}}, ["answer 'a': '' is not an expression"]),
    ({"answers": {"a": Sum("sum(ms)")}}, ["answer 'a'", "aggregates"]),
    ({"answers": {"a": Sum("wide")}}, ["Sum of decimal(38,2) could need more than 38 digits", "decimal(28,2)"]),
    ({"answers": {"a": Count(where="status")}}, ["answer 'a', where: 'status' is bigint"]),
    ({"answers": {"a": Count(where="")}}, ["answer 'a', where: '' is not an expression"]),
    ({"answers": {"a": Average("flag")}}, ["Average takes bigint, double, decimal, not boolean"]),
    ({"answers": {"a": Variance("price")}}, ["Variance takes bigint, double, not decimal(10,2)"]),
    ({"answers": {"a": Variance("ms", population=1)}}, ["population is 1", "True or False"]),  # type: ignore[arg-type]
    ({"answers": {"a": StdDev("user_id")}}, ["StdDev takes bigint, double, not string"]),
    ({"answers": {"a": Min("tags")}}, ["answer 'a': 'tags'", "take one part"]),
    ({"answers": {"a": Distinct("ms")}}, ["Distinct takes string, bigint, timestamp, boolean, not double", "Cast it"]),
    ({"answers": {"a": Distinct("user_id", precision=3)}}, ["precision is 3", "4 to 21"]),
    ({"answers": {"a": Distinct("user_id", exact=True, at_most=0)}}, ["at_most is 0", "1 to 100000"]),
    ({"answers": {"a": Distinct("user_id", exact="yes")}}, ["exact is 'yes'"]),  # type: ignore[arg-type]
    ({"answers": {"a": Quantiles("user_id")}}, ["Quantiles takes bigint, double"]),
    ({"answers": {"a": Quantiles("ms", at=())}}, ["at is ()", "(0.5, 0.99)"]),
    ({"answers": {"a": Quantiles("ms", at=(50,))}}, ["at is (50,)", "from 0 to 1"]),
    ({"answers": {"a": Quantiles("ms", at=float("nan"))}}, ["at is nan"]),
    ({"answers": {"a": Quantiles("ms", at=(0.5, 0.5))}}, ["each share should appear once"]),
    ({"answers": {"a": Quantiles("ms", error=0.5)}}, ["error is 0.5", "0.001 to 0.1"]),
    ({"answers": {"a": Quantiles("ms", error="small")}}, ["error is 'small'"]),  # type: ignore[arg-type]
    ({"answers": {"a": Kurtosis("price")}}, ["Kurtosis takes bigint, double, not decimal(10,2)"]),
    ({"answers": {"a": FirstK("user_id", k=101)}}, ["k is 101", "1 to 100"]),
    ({"answers": {"a": FirstK("user_id", k=True)}}, ["k is True"]),
    ({"answers": {"a": Largest("status", k=0)}}, ["k is 0"]),
    ({"answers": {"a": ValueCounts("status", at_most=1_001)}}, ["at_most is 1001", "1 to 1000"]),
    ({"answers": {"a": ValueCounts("ms")}}, ["ValueCounts takes string, bigint, decimal", "not double", "Cast it"]),
    ({"answers": {"a": Trend("price")}}, ["Trend takes bigint, double, not decimal(10,2)", "answer 'a'"]),
    ({"answers": {"a": DecayedRate("price")}}, ["DecayedRate takes bigint, double, not decimal"]),
    ({"answers": {"a": DecayedRate(half_life="10")}}, ["half_life: '10' is not a duration"]),
    ({"answers": {"a": DecayedRate(half_life="366d")}}, ["half_life is '366d'", "at most 365d"]),
    ({"answers": {"a": DecayedRate(half_life="22m")}, "grain": "1d"}, ["'22m'", "1/64 of the grain", "1350s"]),
    ({"answers": {"a": TopK("status")}}, ["TopK takes string, not bigint"]),
    ({"answers": {"a": TopK("user_id", k=0)}}, ["k is 0", "1 <= k <= room"]),
    ({"answers": {"a": TopK("user_id", k=20, room=10)}}, ["k is 20 and room 10"]),
    ({"answers": {"a": Histogram("ms")}}, ["bounds is ()", "rising numbers"]),
    ({"answers": {"a": Histogram("ms", bounds=(2, 1))}}, ["bounds is (2, 1)"]),
    ({"answers": {"a": Histogram("ms", bounds=(1, 1))}}, ["bounds is (1, 1)"]),
    ({"answers": {"a": Histogram("ms", bounds=(1, float("nan")))}}, ["rising numbers"]),
    ({"answers": {"a": Histogram("ms", bounds=(1, float("inf")))}}, ["rising numbers"]),
    ({"answers": {"a": Histogram("ms", bounds=(1, 2**53 + 1))}}, ["at most 2^53"]),
    ({"answers": {"a": Histogram("ms", bounds=5)}}, ["bounds is 5"]),  # type: ignore[arg-type]
    ({"answers": {"c": Count(), "r": Ratio("hit", "c")}}, ["answer 'r'", "no numeric answer 'hit'", "There are: c."]),
    ({"answers": {"c": Count(), "r": Derived("status")}}, ["no numeric answer 'status'"]),
    ({"answers": {"c": Count(), "r": Derived("c +")}}, ["answer 'r'", "not Spark SQL"]),
    ({"answers": {"c": Count(), "r": Derived("")}}, ["answer 'r': '' is not an expression"]),
    ({"answers": {"c": Count(), "r": Derived("sum(c)")}}, ["aggregates"]),
    ({"answers": {"c": Count(), "r": Derived("case when c > 1 then 'a' else 'b' end")}}, ["is string", "a number"]),
    ({"answers": {"c": Count(), "r": Ratio("c", "c"), "s": Ratio("r", "c")}}, ["answer 's'", "no numeric answer 'r'"]),
    ({"answers": {"t": TopK("user_id"), "r": Derived("t + 1")}}, ["no numeric answer 't'", "none"]),
    ({"answers": {"q": Quantiles("ms"), "r": Derived("q * 2")}}, ["no numeric answer 'q'"]),
    ({"answers": {"m": Max("user_id"), "r": Derived("m")}}, ["no numeric answer 'm'"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=[str(given)[:70] for given, _ in REFUSED])
def test_a_view_that_cannot_be_computed_is_refused(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ViewError) as caught:
        View(**{**HITS, **given})
    for word in [f"View {given.get('name', 'hits')!r}", *words]:
        assert word in str(caught.value)


def test_names_that_columns_of_events_have_are_fine() -> None:
    names = ("event", "partition", "offset", "event_time", "event_id", "select", "order", "end", "value", "topic")
    view = View("odd", WEB, {"hits": Count(), "key": Sum("status")}, keys=dict.fromkeys(names, "user_id"))
    assert [*view.key_expressions] == [*names]


# ---- derived answers ---------------------------------------------------------


def present(view: View, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The answers over events with these fields, all in one group."""
    at = datetime(2026, 3, 1, tzinfo=UTC)
    events = [Event(0, number, str(number), at, fields) for number, fields in enumerate(rows)]
    (found,) = in_memory.answers(view, events).values()
    return found


LARGE = 2**63 - 1
DERIVED: list[tuple[dict[str, Any], str, list[dict[str, Any]], Any]] = [
    ({"a": Count(where="flag"), "b": Count()}, "a / b", [{"flag": True}, {"flag": False}], 0.5),
    ({"a": Count(where="flag"), "b": Count()}, "b / a", [{}], None),
    ({"a": Sum("ms"), "b": Count("ms")}, "a / b", [{}], None),
    ({"a": Sum("price"), "b": Count()}, "a / b", [{"price": Decimal("0.25")}, {"price": Decimal("0.50")}], 0.375),
    ({"a": Sum("price"), "b": Sum("price", where="flag")}, "b / a", [{"price": Decimal(5), "flag": True}], 1.0),
    ({"a": Distinct("user_id"), "b": Count()}, "a / b", [{"user_id": "x"}, {"user_id": "x"}], 0.5),
    ({"a": Distinct("user_id", exact=True), "b": Count()}, "b - a", [{"user_id": "x"}, {"user_id": "x"}], 1),
    ({"a": Distinct("user_id", exact=True, at_most=1)}, "a + 1", [{"user_id": "x"}, {"user_id": "y"}], None),
    ({"a": Max("big"), "b": Min("big")}, "a - b", [{"big": LARGE}, {"big": LARGE - 1}], 1),
    ({"a": Max("big"), "b": Min("big")}, "a - b", [{"big": LARGE}, {"big": -1}], None),
    ({"a": Max("big"), "b": Min("big")}, "a - b", [{}], None),
    ({"a": Sum("big")}, "a + 1", [{"big": LARGE}, {"big": -1}], LARGE),
    ({"a": Sum("big")}, "a - 1", [{"big": LARGE}, {"big": 1}], None),
    ({"a": Sum("big"), "b": Count()}, "a / b", [{"big": 3}, {"big": 4}], 3.5),
    ({"a": Count()}, "a * 1.5", [{}, {}], 3.0),
    ({"a": Count()}, "a > 1", [{}, {}], True),
    ({"a": Count()}, "a % 2", [{}, {}, {}], 1),
    ({"a": Sum("ms")}, "a * 1e300", [{"ms": 1e100}], None),
    ({"a": Last("ms"), "b": First("ms")}, "a - b", [{"ms": 1.5}, {"ms": 4.0}], 2.5),
    ({"a": Quantiles("ms", at=0.5)}, "round(a / a)", [{"ms": 7.0}], 1.0),
    ({"a": Average("status"), "b": StdDev("status"), "c": Variance("status")}, "a + b + c", [{"status": 7}], None),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "text", "rows", "expected"), DERIVED, ids=[text for _, text, _, _ in DERIVED])
def test_derived_answer_is_computed_from_merged_answers(
    answers: dict[str, Any], text: str, rows: list[dict[str, Any]], expected: Any
) -> None:
    found = present(View("v", WEB, {**answers, "derived": Derived(text)}), rows)["derived"]
    assert found == expected
    assert type(found) is type(expected)


def test_some_answers_are_presented_from_the_states_that_they_need() -> None:
    view = View(
        "v", WEB,
        {"hits": Count(), "users": Distinct("user_id"), "bytes": Sum("price"),
         "mean": Derived("bytes / hits"), "more": Derived("users > 2")},
    )  # fmt: skip
    assert view.derived_from == {"mean": {"bytes", "hits"}, "more": {"users"}}
    assert view.stored_for(["mean", "hits"]) == {"bytes", "hits"}
    assert view.stored_for([]) == set()
    states = {"hits": 4, "bytes": Decimal("6.00")}
    assert view.present(states, ["mean", "hits"]) == {"mean": 1.5, "hits": 4}
    assert list(view.present(states, ["mean", "hits"])) == ["mean", "hits"]
    assert view.numbers({"mean": 1.5, "bytes": "6.00", "hits": 4}) == {"mean": 1.5, "bytes": 6.0, "hits": 4}


def test_ratio_is_null_on_division_by_zero_and_never_an_average_of_averages() -> None:
    view = View("v", WEB, {"ok": Count(where="flag"), "all": Count("status"), "rate": Ratio("ok", "all")})
    assert present(view, [{}])["rate"] is None
    parts = [in_memory.fold(view, [Event(0, n, str(n), datetime(2026, 3, 1, tzinfo=UTC), row) for n, row in rows])
             for rows in ([(0, {"flag": True, "status": 1})], [(n, {"status": 1}) for n in range(1, 4)])]  # fmt: skip
    (found,) = in_memory.present(view, in_memory.merge(view, *parts)).values()
    assert found == {"ok": 1, "all": 4, "rate": 0.25}


# ---- answers as numbers --------------------------------------------------------

ALL_KINDS = View("v", WEB, {
    "hits": Count(), "big": Sum("big"), "spend": Sum("price"), "mean": Average("ms"), "spread": StdDev("ms"),
    "users": Distinct("user_id"), "few": Distinct("user_id", exact=True), "name": Max("user_id"), "on": Last("day"),
    "at": First("event_time"), "flagged": Min("flag"), "p50": Quantiles("ms", at=0.5), "ps": Quantiles("ms"),
    "top": TopK("user_id"), "sizes": Histogram("ms", bounds=(1,)), "rate": Ratio("spend", "hits"),
    "some": Derived("hits > 1"),
})  # fmt: skip


def test_every_answer_has_the_type_that_it_is_presented_as() -> None:
    types = {name: kind and kind.ddl() for name, kind in ALL_KINDS.answer_types.items()}
    assert types == {
        "hits": "bigint", "big": "bigint", "spend": "decimal(10,2)", "mean": "double", "spread": "double",
        "users": "bigint", "few": "bigint", "name": "string", "on": "date", "at": "timestamp", "flagged": "boolean",
        "p50": "double", "ps": None, "top": None, "sizes": None, "rate": "double", "some": "boolean",
    }  # fmt: skip
    assert [*types] == [*ALL_KINDS.answers]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hits = 2", True),
        ("HITS > 2", False),
        ("spend > 9.5", True),  # presented as the text "10.50", which is less than "9.5"
        ("rate = 5.25 and some", True),
        ("mean > 1 or p50 > 1", None),  # of no values
        ("big > 0", None),  # beyond 64 bits
        ("mean is null", True),
    ],
)
def test_a_condition_over_answers_computes_with_numbers(text: str, expected: Any) -> None:
    rows = [{"price": Decimal("10.50"), "big": LARGE}, {"big": 1}]
    numbers = ALL_KINDS.numbers(present(ALL_KINDS, rows))
    assert parse_condition(text, ALL_KINDS.answer_scope()).evaluate(numbers) is expected


@pytest.mark.parametrize("name", ["name", "on", "at", "flagged", "ps", "top", "sizes", "hitz"])
def test_what_is_no_number_has_no_place_in_a_condition_over_answers(name: str) -> None:
    with pytest.raises(ExpressionError, match=f"no numeric answer '{name}'"):
        parse_condition(f"`{name}` is null", ALL_KINDS.answer_scope())


# ---- the definition hash -----------------------------------------------------

BASE: dict[str, Any] = {
    "name": "pages",
    "source": WEB,
    "grain": "1h",
    "keys": {"url": "lower(properties.url)", "day_of": "day"},
    "where": "status < 500 and flag",
    "answers": {
        "hits": Count(),
        "slow": Count(where="ms > 100"),
        "spend": Sum("price"),
        "users": Distinct("user_id"),
        "exact_users": Distinct("user_id", exact=True),
        "latency": Quantiles("ms"),
        "top": TopK("user_id"),
        "spread": Variance("ms"),
        "sizes": Histogram("ms", bounds=(1, 10)),
        "share": Ratio("slow", "hits"),
    },
}


def changed(**given: Any) -> View:
    return View(**{**BASE, **given})


def with_answer(**given: Any) -> View:
    return changed(answers={**BASE["answers"], **given})


UNCHANGED = [
    changed(),
    changed(doc="What it is for."),
    changed(grain="60m"),
    changed(grain="3600s"),
    changed(keys={"url": " LOWER ( properties . URL ) -- the page", "day_of": "`day`"}),
    changed(keys=dict(reversed(BASE["keys"].items()))),
    changed(answers=dict(reversed(BASE["answers"].items()))),
    changed(where="STATUS<500 AND (flag)"),
    changed(source=replace(WEB, doc="Visits.", partitions=9, retention_hours=1)),
    changed(source=replace(WEB, fields=FIELDS + ", unused int")),
    changed(source=replace(WEB, fields=FIELDS.replace("<url: string>", "<url: string, unused: int>"))),
    with_answer(slow=Count(where="Ms>100")),
    with_answer(share=Derived("slow/hits")),
    with_answer(sizes=Histogram("ms", bounds=(1.0, 10.0))),
    with_answer(sizes=Histogram("ms", bounds=[1, 10])),  # type: ignore[arg-type]
    with_answer(latency=Quantiles("ms", at=[0.5, 0.95, 0.99])),  # type: ignore[arg-type]
]
CHANGED = [
    changed(name="other"),
    changed(source=replace(WEB, name="other", topic="web")),
    changed(source=replace(WEB, fields=FIELDS.replace("status int", "status smallint"))),
    changed(source=replace(WEB, fields=FIELDS.replace("ms double", "ms float"))),
    changed(source=replace(WEB, fields=FIELDS.replace("price decimal(10,2)", "price decimal(12,2)"))),
    changed(source=replace(WEB, fields=FIELDS.replace("status int", "status bigint"))),
    changed(source=replace(WEB, fields=FIELDS + ", at timestamp", time_field="at")),
    changed(source=replace(WEB, fields=FIELDS + ", id string", id_field="id")),
    changed(grain="1m"),
    changed(where=None),
    changed(where="status <= 500 and flag"),
    changed(where="status < 501 and flag"),
    changed(keys={"url": "upper(properties.url)", "day_of": "day"}),
    changed(keys={"page": "lower(properties.url)", "day_of": "day"}),
    changed(keys={"url": "lower(properties.url)"}),
    changed(answers={**BASE["answers"], "more": Count()}),
    with_answer(hits=Count("user_id")),
    with_answer(hits=Count(where="flag")),
    with_answer(slow=Count(where="ms >= 100")),
    with_answer(spend=Average("price")),
    with_answer(spend=Sum("price + 1")),
    with_answer(users=Distinct("user_id", precision=11)),
    with_answer(users=Distinct("user_id", exact=True)),
    with_answer(exact_users=Distinct("user_id", exact=True, at_most=5)),
    with_answer(latency=Quantiles("ms", at=0.5)),
    with_answer(latency=Quantiles("ms", at=(0.5, 0.95))),
    with_answer(latency=Quantiles("ms", error=0.02)),
    with_answer(top=TopK("user_id", k=5)),
    with_answer(top=TopK("user_id", room=2_000)),
    with_answer(spread=Variance("ms", population=True)),
    with_answer(spread=StdDev("ms")),
    with_answer(sizes=Histogram("ms", bounds=(1, 11))),
    with_answer(share=Ratio("hits", "slow")),
    with_answer(share=Derived("slow / hits * 100")),
    changed(answers={{"share": "part"}.get(name, name): answer for name, answer in BASE["answers"].items()}),
    changed(answers={{"hits": "events", "share": "share"}.get(name, name): Ratio("slow", "events") if name == "share"
                     else answer for name, answer in BASE["answers"].items()}),
]  # fmt: skip


@pytest.mark.parametrize("view", UNCHANGED, ids=range(len(UNCHANGED)))
def test_definition_hash_stays_when_only_the_writing_changes(view: View) -> None:
    assert view.hash == View(**BASE).hash


def test_definition_hash_changes_when_the_meaning_does() -> None:
    hashes = [view.hash for view in (View(**BASE), *CHANGED)]
    twice = [number for number, found in enumerate(hashes) if hashes.count(found) > 1]
    assert twice == []


def test_a_changed_type_changes_the_hash_of_whatever_uses_the_field() -> None:
    """Also where the Spark SQL stays the same: the values that the field can have are others."""
    narrow, wide = (
        View("v", replace(WEB, fields=FIELDS.replace("decimal(10,2)", kind)), {"a": Count(where="price is null")})
        for kind in ("decimal(10,2)", "decimal(12,2)")
    )
    assert narrow.condition == wide.condition
    assert narrow.hash != wide.hash


def test_definition_is_the_same_after_other_expressions_were_read_in_its_scope() -> None:
    view = View(**BASE)
    before = view.definition()
    parse("wide > 1", view.scope)
    assert view.definition() == before


# ---- the documentation -------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "views.md").read_text(encoding="utf-8")


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the table with this heading."""
    table = PAGE[PAGE.index(heading) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_every_function_is_documented() -> None:
    documented = [name for row in rows_below("| functions |") for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(documented) == sorted(functions.NAMES)


def test_every_cast_is_documented() -> None:
    documented = {row[0].strip("`| "): tuple(row[1].strip("| ").split(", ")) for row in rows_below("| from |")}
    assert documented == CASTS


def test_every_aggregate_is_documented() -> None:
    documented = {name for row in rows_below("| aggregate |") for name in re.findall(r"`([A-Z]\w+)\(", row[0])}
    exported = {getattr(aggregates, name) for name in aggregates.__all__}
    declarable = {kind.__name__ for kind in exported if issubclass(kind, Aggregate) and kind is not Aggregate}
    assert documented == declarable


def test_what_the_documentation_declares_can_be_declared() -> None:
    declared: dict[str, Any] = {}
    versions = []
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(code, declared)  # noqa: S102  # our own page
        versions.append(declared.get("orders"))
    assert declared["page_health"].hash
    _, before, after = versions
    assert evolution(before, after).refused == ()


def test_the_key_of_a_source_is_no_part_of_what_its_views_mean() -> None:
    """Views stay what they are, with all that was computed, when a source begins to name its key."""
    fields = "event_id string, event_time timestamp, user_id string"
    plain, keyed = (Source("shop", fields, key_field=name) for name in ("", "user_id"))
    hashes = {
        View("users", source=each, keys={"user": "user_id"}, answers={"n": Count()}).hash for each in (plain, keyed)
    }
    assert len(hashes) == 1
