"""Asking: from a query string or JSON to a checked question, and every mistake with its parameter and its remedy."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_layer.errors import BadParameter, ServingError, TooLarge
from serving_layer.query import cursors
from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Filter, Freshness, Order, Query
from serving_layer.query.parse import PARAMETERS, parse_query, parse_query_json
from serving_layer.query.result import ResultRow
from serving_layer.readers.selection import Period
from tests.tiers import times
from views.aggregates import Count, Distinct, Max, Quantiles, Sum, TopK
from views.catalog.page_hits import page_hits
from views.derived import Ratio
from views.short_texts import shorten
from views.source import Source
from views.view import View

WEB = Source(
    "web",
    fields="event_id string, event_time timestamp, url string, status int, ok boolean, day_of date, ms double, "
    "price decimal(10,2)",
)
PAGES = View(
    "pages", WEB, grain="1h", keys={"url": "url", "status": "status", "ok": "ok", "on_day": "day_of"},
    answers={"hits": Count(), "good": Count(where="ok"), "spend": Sum("price"), "latency": Quantiles("ms"),
             "median": Quantiles("ms", at=0.5), "users": Distinct("url"), "top": TopK("url"), "longest": Max("url"),
             "share": Ratio("good", "hits")},
)  # fmt: skip
PLAIN = View("plain", WEB, {"hits": Count()}, keys={"url": "url"}, grain="5s")
ODD = View(
    "odd", WEB, {"previous": Count(), "hits": Count()},
    keys={"limit": "url", "from": "status", "key": "url", "not": "url", "view": "url", "filters": "url",
          "explain": "url"},
)  # fmt: skip
NOW = datetime(2026, 11, 16, 12, 20, 30, tzinfo=UTC).timestamp()
LIMITS = QueryLimits(max_rows=5_000, max_periods=2_000, max_values=20, max_wait_s=10)
HOUR, DAY = 3600, 86400


def at(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp())  # type: ignore[misc,arg-type]


def asked(*items: tuple[str, str], view: View = PAGES, now: float = NOW) -> Query:
    return parse_query(view, items, now=now, limits=LIMITS)


def asked_json(body: dict[str, Any], view: View = PAGES) -> Query:
    return parse_query_json(view, body, now=NOW, limits=LIMITS)


def refused(*items: tuple[str, str], view: View = PAGES) -> BadParameter:
    with pytest.raises(BadParameter) as caught:
        asked(*items, view=view)
    return caught.value


# ---- defaults and forms ------------------------------------------------------


def test_a_question_of_nothing_is_the_total_of_the_last_24_hours() -> None:
    last_day = Period(at(2026, 11, 15, 12), at(2026, 11, 16, 13))
    assert asked() == asked_json({}) == Query(
        view=PAGES, range=last_day, grain="all", tz="UTC", periods=(last_day,), windows=(last_day,), filters=(), by=(),
        answers=tuple(PAGES.answers), quantiles=(), having=None, order=(Order("bucket", False),), limit=1000,
        cursor=None, previous=None, fill=False, explain=False, freshness=Freshness(None, None, 2.0),
    )  # fmt: skip


FULL_TEXT = [
    ("from", "2026-03-01"), ("to", "2026-03-03"), ("grain", "day"), ("tz", "Europe/Berlin"), ("url", "/a"),
    ("url", "/b"), ("status.not", "500"), ("ok", "true"), ("by", "status,url"), ("answers", "latency,hits"),
    ("quantiles", "0.5,0.999"), ("having", "hits > 10 and share >= 0.1"), ("order", "-hits,url"), ("limit", "10"),
    ("compare", "previous_period"),
    ("window", "7d"), ("fill", "zero"), ("explain", "true"), ("max_staleness", "5s"), ("min_cut", "0:17,2:5"),
    ("wait", "500ms"), ("format", "csv"),
]  # fmt: skip
FULL_JSON: dict[str, Any] = {
    "view": "pages", "from": "2026-03-01", "to": "2026-03-03", "grain": "day", "tz": "Europe/Berlin",
    "filters": {"url": ["/a", "/b"], "status": {"not": 500}, "ok": True}, "by": ["status", "url"],
    "answers": ["latency", "hits"], "quantiles": [0.5, 0.999], "having": "HITS > 10 AND `share` >= 0.1",
    "order": ["-hits", "url"], "limit": 10, "compare": "previous_period", "window": "7d", "fill": "zero",
    "explain": True, "max_staleness": "5s", "min_cut": {"0": 17, "2": 5}, "wait": "500ms",
    "format": "csv", "cursor": None,
}  # fmt: skip


def test_a_full_question_is_the_same_from_a_query_string_and_from_json() -> None:
    berlin = [at(2026, 2, 28, 23), at(2026, 3, 1, 23), at(2026, 3, 2, 23)]
    question = asked(*FULL_TEXT)
    assert question == asked_json(FULL_JSON)
    assert question.range == Period(berlin[0], berlin[2])
    assert question.periods == (Period(*berlin[:2]), Period(*berlin[1:]))
    assert question.windows == tuple(Period(end - 7 * DAY, end) for end in berlin[1:])
    assert question.previous == tuple(Period(end - 9 * DAY, end - 2 * DAY) for end in berlin[1:])
    assert (question.grain, question.tz) == ("day", "Europe/Berlin")
    assert question.filters == (
        Filter("url", "is", ("/a", "/b")),
        Filter("status", "not", (500,)),
        Filter("ok", "is", (True,)),
    )
    assert question.by == ("status", "url")
    assert question.answers == ("latency", "hits")
    assert question.quantiles == (0.5, 0.999)
    assert question.having is not None
    assert question.having.evaluate({"hits": 11, "share": 0.1}) is True
    assert question.order == (Order("hits", True), Order("url", False), Order("bucket", False), Order("status", False))
    assert (question.limit, question.fill, question.explain) == (10, True, True)
    assert question.freshness == Freshness(5.0, {0: 17, 2: 5}, 0.5)


@pytest.mark.parametrize(
    ("items", "start", "end"),
    [
        ([("from", "2026-03-01T10:20:00Z"), ("to", "2026-03-01T10:40:00Z")], (2026, 3, 1, 10), (2026, 3, 1, 11)),
        ([("from", "2026-03-01T10:00:00Z"), ("to", "2026-03-01T11:00:00Z")], (2026, 3, 1, 10), (2026, 3, 1, 11)),
        ([("from", "2026-03-01T10:00:00Z"), ("to", "2026-03-01T11:00:00.000001Z")], (2026, 3, 1, 10), (2026, 3, 1, 12)),
        ([("to", "2026-03-02")], (2026, 3, 1), (2026, 3, 2)),  # 24 hours before `to`, wherever that is
        ([("to", "-1h")], (2026, 11, 15, 11), (2026, 11, 16, 12)),
        ([("from", "0"), ("to", "1970-01-01T00:00:01Z")], (1970, 1, 1), (1970, 1, 1, 1)),
        ([("to", "1970-01-01T06:00:00Z")], (1970, 1, 1), (1970, 1, 1, 6)),
        ([("from", "2026-03-01"), ("to", "2026-03-02"), ("tz", "Asia/Kolkata")], (2026, 2, 28, 18), (2026, 3, 1, 19)),
    ],
)  # fmt: skip
def test_a_range_is_widened_to_whole_buckets(items: list[tuple[str, str]], start: Any, end: Any) -> None:
    assert asked(*items).range == Period(at(*start), at(*end))


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([("url", "")], [Filter("url", "is", ("",))]),
        ([("url", "/a"), ("url", "/a")], [Filter("url", "is", ("/a",))]),
        ([("url", "a,b")], [Filter("url", "is", ("a,b",))]),  # a text is taken as it is
        ([("url.null", "true")], [Filter("url", "is", (None,))]),
        ([("url.null", "false")], [Filter("url", "not", (None,))]),
        ([("url", "/a"), ("url.null", "true")], [Filter("url", "is", ("/a", None))]),
        ([("url.not", "/a"), ("url.null", "false")], [Filter("url", "not", ("/a", None))]),
        ([("url.prefix", "/a"), ("url.prefix", "/b")], [Filter("url", "prefix", ("/a", "/b"))]),
        ([("url.prefix", "/a"), ("url.not", "/ab"), ("url", "/ac")],
         [Filter("url", "is", ("/ac",)), Filter("url", "not", ("/ab",)), Filter("url", "prefix", ("/a",))]),
        ([("key.url", "/a"), ("key.url.not", "/b")], [Filter("url", "is", ("/a",)), Filter("url", "not", ("/b",))]),
        ([("status", "-9223372036854775808")], [Filter("status", "is", (-(2**63),))]),
        ([("status", "007")], [Filter("status", "is", (7,))]),
        ([("ok", "false"), ("on_day", "2026-02-28")],
         [Filter("ok", "is", (False,)), Filter("on_day", "is", (date(2026, 2, 28),))]),
        ([("status", "1"), ("url", "x")], [Filter("url", "is", ("x",)), Filter("status", "is", (1,))]),
    ],
)  # fmt: skip
def test_filters_are_read_by_the_type_of_their_key(items: list[tuple[str, str]], expected: list[Filter]) -> None:
    assert [*asked(*items).filters] == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (None, []),
        ({}, []),
        ({"url": "/docs"}, [Filter("url", "is", ("/docs",))]),
        ({"url": ["/a", "/b"]}, [Filter("url", "is", ("/a", "/b"))]),
        ({"url": {"not": ["/a", None]}}, [Filter("url", "not", ("/a", None))]),
        ({"url": {"not": None}}, [Filter("url", "not", (None,))]),
        ({"url": {"prefix": "/d"}}, [Filter("url", "prefix", ("/d",))]),
        ({"url": {"prefix": ["/d", "/e"], "not": "/dd"}},
         [Filter("url", "not", ("/dd",)), Filter("url", "prefix", ("/d", "/e"))]),
        ({"url": None}, [Filter("url", "is", (None,))]),
        ({"url": ["/a", None]}, [Filter("url", "is", ("/a", None))]),
        ({"url": {"is": "/a", "null": True}}, [Filter("url", "is", ("/a", None))]),
        ({"status": 5, "ok": False}, [Filter("status", "is", (5,)), Filter("ok", "is", (False,))]),
        ({"on_day": "2026-02-28"}, [Filter("on_day", "is", (date(2026, 2, 28),))]),
    ],
)  # fmt: skip
def test_filters_in_json(filters: Any, expected: list[Filter]) -> None:
    assert [*asked_json({"filters": filters}).filters] == expected


def test_a_filter_by_a_long_text_is_one_by_its_short_form() -> None:
    """Whichever of both somebody asks for. A cursor of one is good for the other."""
    text = "/" + "é" * 600
    by_text, by_short = asked(("url", text)), asked(("url", shorten(text)))
    assert by_text.filters == by_short.filters == (Filter("url", "is", (shorten(text),)),)
    assert by_text.without_page() == by_short.without_page()
    assert (by_text.filters[0].long_texts, by_short.filters[0].long_texts) == ((text,), ())
    assert asked(("url.not", text), ("url.not", "/a")).filters == (Filter("url", "not", (shorten(text), "/a")),)


def test_a_prefix_of_a_long_text_is_refused_where_it_is_longer_than_what_is_stored() -> None:
    assert asked(("url.prefix", "x" * 200)).filters == (Filter("url", "prefix", ("x" * 200,)),)
    error = refused(("url.prefix", "x" * 201))
    assert (error.status, error.more["parameter"]) == (422, "url.prefix")
    assert "at most 200 characters, and this one has 201" in error.detail


def test_a_key_that_is_called_like_a_parameter_has_key_before_it() -> None:
    question = asked(
        ("limit", "5"), ("key.limit", "x"), ("key.limit.not", "y"), ("from.not", "3"), ("key.from", "4"), ("key", "k"),
        ("key.not", "l"), ("not", "n"), ("key.key.prefix", "m"), ("view", "v"), ("filters", "f"), view=ODD,
    )  # fmt: skip
    assert question.limit == 5
    assert question.filters == (
        Filter("limit", "is", ("x",)), Filter("limit", "not", ("y",)), Filter("from", "is", (4,)),
        Filter("from", "not", (3,)), Filter("key", "is", ("k",)), Filter("key", "not", ("l",)),
        Filter("key", "prefix", ("m",)),
        Filter("not", "is", ("n",)), Filter("view", "is", ("v",)), Filter("filters", "is", ("f",)),
    )  # fmt: skip
    assert asked_json({"limit": 5, "filters": {"limit": "x", "from": 4}}, ODD).filters == (
        Filter("limit", "is", ("x",)), Filter("from", "is", (4,)),
    )  # fmt: skip
    assert "key.limit.prefix" in refused(("limti.prefix", "x"), view=ODD).more["allowed"]


def test_by_is_in_the_order_given_and_every_row_has_one_position() -> None:
    question = asked(("by", "on_day, url"), ("order", "url"))
    assert question.by == ("on_day", "url")
    assert question.order == (Order("url", False), Order("bucket", False), Order("on_day", False))
    assert asked(("by", "")).by == asked_json({"by": []}).by == ()


def test_limits_hold_for_defaults_too() -> None:
    small = QueryLimits(max_rows=50, max_wait_s=0.5)
    question = parse_query(PAGES, (), now=NOW, limits=small)
    assert (question.limit, question.freshness.wait_s) == (50, 0.5)


def test_a_window_of_the_range_before_is_compared_too() -> None:
    question = asked(
        ("from", "2026-03-02"), ("to", "2026-03-03"), ("grain", "day"), ("window", "2d"), ("compare", "previous_period")
    )
    assert question.windows == (Period(at(2026, 3, 1), at(2026, 3, 3)),)
    assert question.previous == (Period(at(2026, 2, 28), at(2026, 3, 2)),)


def test_what_lies_before_1970_is_compared_with_nothing() -> None:
    question = asked(("from", "0"), ("to", "1970-01-02"), ("compare", "previous_period"))
    assert question.previous == (Period(0, 0),)
    assert asked(("from", "0"), ("to", "1970-01-02"), ("grain", "day"), ("window", "7d")).windows == (Period(0, DAY),)


# ---- mistakes ----------------------------------------------------------------

MISTAKES: list[tuple[str, list[tuple[str, str]], str, list[str]]] = [
    ("unknown", [("fro", "x")], "fro", ["no parameter 'fro'", "Did you mean 'from'?", "There are: from, to"]),
    ("unknown key", [("ulr", "x")], "ulr", ["Did you mean 'url'?", "url.prefix"]),
    ("unknown suffix", [("url.prefx", "x")], "url.prefx", ["Did you mean 'url.prefix'?"]),
    ("empty suffix", [("url.", "x")], "url.", ["no parameter 'url.'"]),
    ("unknown escaped", [("key.ulr", "x")], "key.ulr", ["no parameter 'key.ulr'"]),
    ("an answer as a filter", [("hits", "5")], "hits", ["no parameter 'hits'"]),
    ("case", [("From", "x")], "From", ["Did you mean 'from'?"]),
    ("nothing alike", [("zzz", "x")], "zzz", ["There are: from"]),
    ("twice", [("from", "now"), ("from", "-1h")], "from", ["from is given twice", "Give it once"]),
    ("by twice", [("by", "url"), ("by", "ok")], "by", ["by is given twice"]),
    ("null twice", [("url.null", "true"), ("url.null", "false")], "url.null", ["url.null is given twice"]),
    ("null twice by both names", [("url.null", "true"), ("key.url.null", "true")], "key.url.null", ["is given twice"]),
    ("no time", [("from", "soon")], "from", ["from is 'soon'; it should be a time like"]),
    ("empty time", [("to", "")], "to", ["to is ''"]),
    ("turned around", [("from", "2026-03-02"), ("to", "2026-03-01")], "from", ["before to, which is '2026-03-01'"]),
    ("empty range", [("from", "2026-03-01"), ("to", "2026-03-01")], "from", ["before to"]),
    ("future", [("from", "2027-01-01")], "from", ["before to, which is 'now'"]),
    ("zone", [("tz", "Mars")], "tz", ["no time zone 'Mars'"]),
    ("grain", [("grain", "5m")], "grain", ["grain is '5m'; it should be 1h", "day, week, month, all"]),
    ("within a bucket", [("grain", "day"), ("tz", "Asia/Kolkata")], "tz", ["grain=day", "tz=Asia/Kolkata", "30m"]),
    ("by", [("by", "url,stats")], "by", ["by: there is no key 'stats'. Did you mean 'status'?", "ok"]),
    ("by an answer", [("by", "hits")], "by", ["there is no key"]),
    ("by twice in one", [("by", "url,url")], "by", ["names 'url' twice"]),
    ("by with a hole", [("by", "url,,ok")], "by", ["there is no key ''"]),
    ("answers", [("answers", "hitz")], "answers", ["there is no answer", "Did you mean 'hits'?"]),
    ("no answers", [("answers", "")], "answers", ["one or more answers"]),
    ("quantiles", [("quantiles", "0.5,2")], "quantiles", ["numbers from 0 to 1, like 0.5,0.99"]),
    ("quantiles as percent", [("quantiles", "p99")], "quantiles", ["numbers from 0 to 1"]),
    ("quantiles empty", [("quantiles", "")], "quantiles", ["numbers from 0 to 1"]),
    ("quantiles nan", [("quantiles", "nan")], "quantiles", ["numbers from 0 to 1"]),
    ("quantiles twice", [("quantiles", "0.5,0.50")], "quantiles", ["each of them once"]),
    ("quantiles many", [("quantiles", ",".join(f"0.{n}" for n in range(1000, 1101)))], "quantiles", ["at most 100"]),
    ("quantiles of none", [("quantiles", "0.5"), ("answers", "hits")], "quantiles", ["Ask for latency or median too"]),
    ("having", [("having", "hitz > 5")], "having", ["having: 'hitz > 5': there is no numeric answer", "'hits'"]),
    ("having no condition", [("having", "hits")], "having", ["a condition is boolean"]),
    ("having a list", [("having", "top > 5")], "having", ["no numeric answer 'top'"]),
    ("having empty", [("having", "")], "having", ["is not an expression"]),
    ("having half", [("having", "hits >")], "having", ["not Spark SQL"]),
    ("having two", [("having", "hits > 5; drop table x")], "having", ["'hits > 5; drop table x'"]),
    ("having deep", [("having", "(" * 4000 + "hits > 1" + ")" * 4000)], "having", ["nested"]),
    ("order", [("order", "-hitz")], "order", ["there is no column '-hitz'. Did you mean '-hits'?"]),
    ("order by a key that is not there", [("order", "url")], "order", ["There are: bucket, hits"]),
    ("order by an answer not asked", [("order", "good"), ("answers", "hits")], "order", ["There are: bucket, hits"]),
    ("order by a list", [("order", "top")], "order", ["there is no column"]),
    ("order both ways", [("order", "hits,-hits")], "order", ["each once"]),
    ("order by nothing", [("order", "")], "order", ["one or more names"]),
    ("order --", [("order", "--hits")], "order", ["there is no column"]),
    ("limit 0", [("limit", "0")], "limit", ["limit is '0'; it should be a whole number, 1 to 5000."]),
    ("limit large", [("limit", "5001")], "limit", ["1 to 5000"]),
    ("limit 1.5", [("limit", "1.5")], "limit", ["a whole number"]),
    ("limit digits", [("limit", "9" * 5000)], "limit", ["a whole number"]),
    ("limit arabic", [("limit", "٥")], "limit", ["a whole number"]),
    ("cursor", [("cursor", "abc")], "cursor", ["This is not a cursor", "Take it from `next`"]),
    ("compare", [("compare", "previous")], "compare", ["it should be previous_period. Did you mean"]),
    ("window", [("window", "x"), ("grain", "day")], "window", ["a duration like"]),
    ("window no multiple", [("window", "36h"), ("grain", "day")], "window", ["a multiple of the grain, day"]),
    ("window too short", [("window", "1h"), ("grain", "6h")], "window", ["a multiple of the grain, 6h"]),
    ("window 0", [("window", "0d"), ("grain", "day")], "window", ["a multiple of the grain"]),
    ("window of 2 million years", [("window", "999999999d"), ("grain", "day")], "window", ["a multiple of the grain"]),
    ("window of months", [("window", "30d"), ("grain", "month")], "window", ["grain is month. Use grain=day"]),
    ("window of all", [("window", "7d")], "window", ["grain is all"]),
    ("fill", [("fill", "true")], "fill", ["it should be zero"]),
    ("explain", [("explain", "yes")], "explain", ["true or false"]),
    ("max_staleness", [("max_staleness", "5")], "max_staleness", ["a duration like 5s"]),
    ("wait", [("wait", "11s")], "wait", ["at most 10s"]),
    *((f"min_cut {text}", [("min_cut", text)], "min_cut", ["partition:offset pairs like 0:17,1:20"]) for text in
      ("", "17", "0:", "0:1,0:2", "0:1,", "a:1", "{}", "[]", "{", '{"0": -1}', '{"0": "1"}', '{"a": 1}', '{"-1": 1}',
       '{"0": 1.0}', '{"0": true}', '{"0": 9223372036854775808}', '{"2147483648": 0}', '{"0": 1, "00": 2}',
       "[" * 9999)),
    ("bigint", [("status", "2xx")], "status", ["status is '2xx'; it should be a whole number"]),
    ("bigint too large", [("status.not", str(2**63))], "status.not", ["a whole number, -9223372036854775808"]),
    ("boolean", [("ok", "1")], "ok", ["true or false"]),
    ("date", [("on_day", "2026-02-30")], "on_day", ["a date like 2026-01-31"]),
    ("date by week", [("on_day", "2026-W01-1")], "on_day", ["a date like"]),
    ("date short", [("on_day", "20260101")], "on_day", ["a date like"]),
    ("prefix of a number", [("status.prefix", "4")], "status.prefix", ["Only strings have", "'status' is bigint"]),
    ("null what", [("url.null", "maybe")], "url.null", ["true or false"]),
    ("half a surrogate", [("url", "\ud800")], "url", ["a string"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "parameter", "words"), [each[1:] for each in MISTAKES], ids=[each[0] for each in MISTAKES]
)
def test_a_mistake_names_its_parameter_and_what_would_do(
    items: list[tuple[str, str]], parameter: str, words: list[str]
) -> None:
    error = refused(*items)
    assert error.more["parameter"] == parameter
    for word in words:
        assert word in error.detail
    given = dict(items)[parameter]
    assert error.more["given"] in (given, [value for name, value in items if name == parameter])
    assert len(error.detail) < 1500
    assert error.status == 422


JSON_MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"url": "/docs"}, "url", """'url' is a key. Write {"filters": {"url": …}}."""),
    ({"filter": {}}, "filter", "Did you mean 'filters'?"),
    ({"view": "others"}, "view", "it should be 'pages'"),
    ({"filters": ["url"]}, "filters", 'an object like {"url": "/docs"}'),
    ({"filters": {"ulr": 1}}, "filters.ulr", "The view has no key 'ulr'. Did you mean 'url'? There are: url, status"),
    ({"filters": {"url": []}}, "filters.url", "at least one value"),
    ({"filters": {"url": {}}}, "filters.url", "at least one condition"),
    ({"filters": False}, "filters", 'an object like {"url": "/docs"}'),
    ({"filters": 0}, "filters", 'an object like {"url": "/docs"}'),
    ({"filters": {"url": {"not": []}}}, "filters.url", "at least one value"),
    ({"filters": {"url": {"like": "x"}}}, "filters.url", '"is", "not", "prefix" or "null"'),
    ({"filters": {"url": 5}}, "filters.url", "a string"),
    ({"filters": {"url": [["a"]]}}, "filters.url", "a string"),
    ({"filters": {"url": "\ud800"}}, "filters.url", "a string"),
    ({"filters": {"url": {"prefix": None}}}, "filters.url", "a string"),
    ({"filters": {"url": {"null": None}}}, "filters.url", "true or false"),
    ({"filters": {"url": {"null": [True, False]}}}, "filters.url", "is given twice"),
    ({"filters": {"status": 1.0}}, "filters.status", "a whole number"),
    ({"filters": {"status": True}}, "filters.status", "a whole number"),
    ({"filters": {"status": 2**63}}, "filters.status", "a whole number"),
    ({"filters": {"ok": 1}}, "filters.ok", "true or false"),
    ({"filters": {"on_day": 20260101}}, "filters.on_day", "a date like"),
    ({"from": 1.5}, "from", "a time like"),
    ({"from": {}}, "from", "a time like"),
    ({"tz": 5}, "tz", "a string"),
    ({"grain": 3600}, "grain", "it should be 1h"),
    ({"by": 5}, "by", "list of key names"),
    ({"by": ["url", 5]}, "by", "list of key names"),
    ({"by": {"url": 1}}, "by", "list of key names"),
    ({"quantiles": 0.5}, "quantiles", "numbers from 0 to 1"),
    ({"quantiles": [True]}, "quantiles", "numbers from 0 to 1"),
    ({"quantiles": [float("nan")]}, "quantiles", "numbers from 0 to 1"),
    ({"quantiles": [10**400]}, "quantiles", "numbers from 0 to 1"),
    ({"having": 5}, "having", "5 is not an expression"),
    ({"order": [["hits"]]}, "order", "list of column names"),
    ({"limit": True}, "limit", "a whole number"),
    ({"limit": 10.0}, "limit", "a whole number"),
    ({"cursor": 5}, "cursor", "a string"),
    ({"compare": ["previous_period"]}, "compare", "previous_period"),
    ({"fill": True}, "fill", "zero"),
    ({"explain": 1}, "explain", "true or false"),
    ({"wait": 2}, "wait", "a duration like"),
    ({"min_cut": [0]}, "min_cut", "partition:offset"),
    ({"min_cut": {"0": 10**30}}, "min_cut", "partition:offset"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "parameter", "words"), JSON_MISTAKES, ids=[str(each[0])[:60] for each in JSON_MISTAKES]
)
def test_a_mistake_in_json_does_so_too(body: dict[str, Any], parameter: str, words: str) -> None:
    with pytest.raises(BadParameter) as caught:
        asked_json(body)
    assert caught.value.more["parameter"] == parameter
    assert words in caught.value.detail


def test_every_parameter_has_a_mistake_that_is_tested() -> None:
    assert {parameter for _, _, parameter, _ in MISTAKES} >= {*PARAMETERS} - {"format"}


@pytest.mark.parametrize(
    ("items", "limit"),
    [([("grain", "hour"), ("from", "2026-01-01"), ("to", "2026-06-01")], "max_periods"),
     ([("url", str(n)) for n in range(21)], "max_values"),
     ([("url", str(n)) for n in range(11)] + [("status.not", str(n)) for n in range(10)], "max_values")],
    ids=["periods", "values", "values of several keys"],
)  # fmt: skip
def test_a_question_that_is_too_large_names_its_limit(items: list[tuple[str, str]], limit: str) -> None:
    with pytest.raises(TooLarge, match=r"(?i)ask for|name fewer") as caught:
        asked(*items)
    assert caught.value.more["limit"] == limit


@pytest.mark.parametrize(("parameter", "value"), [("compare", "previous_period"), ("explain", "true")])
def test_what_a_row_could_not_hold_twice_is_refused(parameter: str, value: str) -> None:
    error = refused((parameter, value), ("by", "explain"), view=ODD)
    assert f"Leave {parameter} out" in error.detail
    assert asked((parameter, value), ("answers", "hits"), view=ODD).answers == ("hits",)


def test_a_view_without_quantiles_says_so() -> None:
    assert "The view has none: leave quantiles out" in refused(("quantiles", "0.5"), view=PLAIN).detail


# ---- pages -------------------------------------------------------------------


def next_page(question: Query) -> str:
    row = ResultRow(question.periods[0], tuple("x" for _ in question.by), dict.fromkeys(question.answers))
    return cursors.write(question, row, 3, {0: 17})


@pytest.mark.parametrize(
    "items", [[], [("from", "-1h")], [("to", "-5s")], [("from", "2026-11-01"), ("to", "now")],
    [("from", "-1d"), ("tz", "Europe/Berlin")]]
)  # fmt: skip
def test_relative_times_mean_the_same_on_every_page(items: list[tuple[str, str]]) -> None:
    first = asked(*items, ("by", "url"), view=PLAIN, now=NOW + 2)  # within a bucket
    later = asked(*items, ("by", "url"), ("cursor", next_page(first)), view=PLAIN, now=NOW + 1000)
    assert later.range == first.range != asked(*items, view=PLAIN, now=NOW + 1000).range
    assert later.without_page() == first.without_page()


def test_an_empty_cursor_is_the_first_page() -> None:
    assert asked(("cursor", "")).cursor is None
    assert asked_json({"cursor": None}).cursor is None


@pytest.mark.parametrize(
    "change",
    [("url", "/b"), ("from", "2026-03-02"), ("grain", "hour"), ("tz", "Europe/Berlin"), ("by", "url"),
     ("answers", "good"), ("quantiles", "0.5"), ("having", "hits > 5"), ("order", "-hits"),
     ("compare", "previous_period"), ("fill", "zero")],
)  # fmt: skip
def test_a_cursor_of_another_question_is_refused(change: tuple[str, str]) -> None:
    base = {"from": "2026-03-01", "to": "2026-03-03"}
    cursor = next_page(asked(*base.items()))
    assert asked(*base.items(), ("cursor", cursor), ("limit", "7")).cursor == cursors.read(
        cursor
    )  # the size of pages may change
    error = refused(*{**base, change[0]: change[1], "cursor": cursor}.items())
    assert error.more["parameter"] == "cursor"
    assert "belongs to another query" in error.detail


OTHER: dict[str, Any] = {
    "view": PLAIN, "range": Period(0, HOUR), "grain": "5m", "tz": "Europe/Berlin", "windows": (Period(0, HOUR),),
    "filters": (Filter("url", "is", ("/a",)),), "by": ("url",), "answers": ("good",), "quantiles": (0.5,),
    "having": asked(("having", "hits > 5")).having, "order": (Order("hits", True),), "previous": (Period(0, HOUR),),
    "fill": True,
}  # fmt: skip
"""Fields of a query that decide its rows, and for each a value that the query of nothing does not have."""
ELSEWHERE = {
    "periods": "follow from range, grain and tz",
    "limit": "is in page(), which the ETag has too",
    "cursor": "is in page()",
    "explain": "is in page(): it adds to the rows and changes none",
    "freshness": "decides when the views are read; the ETag has the cut that was read",
}
"""Fields that are not in without_page(), and why not."""


def test_every_field_is_part_of_what_cursors_and_etags_belong_to() -> None:
    """A field that is missing there would let two different queries share cursors and ETags."""
    assert {field.name for field in fields(Query)} == {*OTHER, *ELSEWHERE}
    assert not {*OTHER} & {*ELSEWHERE}


@pytest.mark.parametrize("name", OTHER)
def test_another_value_is_another_query_to_cursors_and_etags(name: str) -> None:
    base = asked()
    assert replace(base, **{name: OTHER[name]}).without_page() != base.without_page()


@pytest.mark.parametrize("name", ["limit", "cursor", "explain"])
def test_another_page_is_of_the_same_query(name: str) -> None:
    base = asked()
    values: dict[str, Any] = {"limit": 7, "explain": True, "cursor": cursors.read(next_page(base))}
    other = replace(base, **{name: values[name]})
    assert other.without_page() == base.without_page()
    assert other.page() != base.page()


# ---- anything ----------------------------------------------------------------

NAMES = st.sampled_from([*PARAMETERS, *PAGES.keys, "url.not", "url.null", "key.url", "status.prefix", "nope"])
VALUES = st.text(max_size=20) | st.sampled_from(
    ["", "now", "-24h", "day", "hour", "week", "month", "all", "url", "hits", "-hits", "true", "0.5", "zero", "5s",
     "7d", "0:1", "previous_period", "Asia/Kolkata", "Europe/Berlin", "hits > 1", "100",
     "2026-03-01", "2026-10-25T02:30"]
)  # fmt: skip
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | VALUES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(VALUES | st.sampled_from(["url", "not", "0"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=times(80, 4000), deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=5))
def test_any_query_string_is_a_question_or_refused(items: list[tuple[str, str]]) -> None:
    with suppress(ServingError):
        check(asked(*items))


@settings(max_examples=times(80, 4000), deadline=None)
@given(st.dictionaries(NAMES | st.just("filters"), JSON, max_size=5))
def test_any_json_is_a_question_or_refused(body: dict[str, Any]) -> None:
    with suppress(ServingError):
        check(asked_json(body))


def check(question: Query) -> None:
    """What holds for every question."""
    assert len(question.periods) == len(question.windows) <= LIMITS.max_periods
    assert all(
        end % HOUR == 0
        for of in (question.periods, question.windows, question.previous or ())
        for each in of
        for end in each
    )
    assert (question.periods[0].start, question.periods[-1].end) == question.range
    assert 1 <= question.limit <= LIMITS.max_rows
    assert {each.name for each in question.order} >= {"bucket", *question.by}
    assert question.without_page()


# ---- the page about it -------------------------------------------------------


def test_every_parameter_is_described() -> None:
    page = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")
    table = page[: page.index("## Filters")]
    described = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", table, re.MULTILINE)
    assert re.findall("[a-z_]+", " ".join(described)) == [*PARAMETERS]


def test_the_examples_of_the_page_can_be_asked() -> None:
    page = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")
    (address,) = re.findall(r"^/views/page_hits/query\?(.*)$", page, re.MULTILINE)
    (body,) = re.findall(r"^```json\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    question = parse_query(page_hits, parse_qsl(address), now=NOW, limits=LIMITS)
    assert len(question.periods) == 8
    assert parse_query_json(page_hits, json.loads(body), now=NOW, limits=LIMITS).filters == question.filters
    both = re.findall(r"^\| `(url[^`]*)` \| `(\{[^`]*\})` \|", page, re.MULTILINE)
    assert len(both) == 6
    for text, as_json in both:
        assert parse_query(page_hits, parse_qsl(text), now=NOW, limits=LIMITS).filters == (
            asked_json({"filters": json.loads(as_json)}, page_hits).filters
        )
