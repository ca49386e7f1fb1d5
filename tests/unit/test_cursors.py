"""Pages: rows in an order that a cursor can go on from, whatever was published meanwhile; and cursors of strangers."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_layer.errors import BadParameter
from serving_layer.query import cursors
from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Query
from serving_layer.query.order import positions, sort_key
from serving_layer.query.parse import parse_query
from serving_layer.query.result import ResultRow
from serving_layer.readers.selection import Period
from tests.tiers import times
from views.aggregates import Count, Last, Max, Min, Sum
from views.derived import Ratio
from views.source import Source
from views.view import View

WEB = Source(
    "web",
    fields="event_id string, event_time timestamp, url string, status int, ok boolean, day_of date, "
    "price decimal(20,2)",
)
VIEW = View(
    "pages", WEB, grain="1h", keys={"url": "url", "status": "status", "ok": "ok", "on_day": "day_of"},
    answers={"hits": Count(), "spend": Sum("price"), "rate": Ratio("spend", "hits"), "longest": Max("url"),
             "first": Min("event_time"), "latest": Last("day_of"), "fine": Min("ok"), "total": Sum("status * 1000")},
)  # fmt: skip
START = 1_772_323_200
ORDERABLE = ["bucket", *VIEW.keys, *VIEW.answers]


def question_of(order: str = "", by: str = "url,status,ok,on_day", **more: str) -> Query:
    given = {"from": "2026-03-01", "to": "2026-03-02", "grain": "hour", "by": by, **({"order": order} if order else {})}
    return parse_query(VIEW, [*{**given, **more}.items()], now=START, limits=QueryLimits())


TEXTS = st.sampled_from(["", "/", "/a", "/b", "Z", "é", "\U0001f600", "\uffff"])
ROWS = st.lists(
    st.builds(
        lambda hour, *values: ResultRow(
            Period(START + 3600 * hour, START + 3600 * hour + 3600), tuple(values[:4]),
            dict(zip(VIEW.answers, values[4:], strict=True)),
        ),
        st.integers(0, 23), st.none() | TEXTS, st.none() | st.integers(-3, 3), st.none() | st.booleans(),
        st.none() | st.dates(date(2026, 1, 1), date(2026, 1, 3)),
        st.integers(0, 3), st.sampled_from(["9.50", "10.50", "-1.00", "123456789012345678901234567890.25"]),
        st.none() | st.floats(-2, 2), st.none() | TEXTS,
        st.none() | st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.500000Z", "2026-01-01T00:00:01Z"]),
        st.none() | st.sampled_from(["2026-01-01", "2026-01-02"]), st.none() | st.booleans(),
        st.none() | st.sampled_from([0, 2**70, -(2**70)]),
    ),
    max_size=25, unique_by=lambda row: (row.period, row.key),
)  # fmt: skip
ORDERS = st.lists(st.sampled_from(ORDERABLE), max_size=3, unique=True).flatmap(
    lambda names: st.tuples(*(st.sampled_from([name, f"-{name}"]) for name in names)).map(",".join)
)


def sorted_rows(question: Query, rows: list[ResultRow]) -> list[ResultRow]:
    where, key = positions(question), sort_key(question)
    return sorted(rows, key=lambda row: key(where(row)))


def page(question: Query, rows: list[ResultRow], cursor: str | None) -> tuple[list[ResultRow], str | None]:
    """A page as the serving layer makes it."""
    where, key = positions(question), sort_key(question)
    ordered = sorted_rows(question, rows)
    if cursor:
        after = key(cursors.read(cursor).after)
        ordered = [row for row in ordered if key(where(row)) > after]
    found = ordered[: question.limit]
    return found, cursors.write(question, found[-1], 3, {0: 17}) if len(ordered) > len(found) else None


def naive(row: ResultRow, name: str) -> Any:
    """A value of a row as something that Python sorts by itself, null first."""
    values = {"bucket": row.period.start, **dict(zip(VIEW.keys, row.key, strict=True)), **row.answers}
    value = values[name]
    if value is None:
        return (False,)
    if name == "spend":
        return (True, Decimal(value))
    return (True, value.rstrip("Z") if name == "first" else value)


# ---- the order ---------------------------------------------------------------


@settings(max_examples=times(40, 1000), deadline=None)
@given(ROWS, ORDERS)
def test_rows_are_in_the_order_asked_for_null_first(rows: list[ResultRow], order: str) -> None:
    """Held against one stable sort after another, from the last name to the first."""
    expected = list(rows)
    asked = [*filter(None, order.split(","))]
    named = {each.removeprefix("-") for each in asked}
    for term in reversed([*asked, *(name for name in ("bucket", *VIEW.keys) if name not in named)]):
        expected.sort(key=partial(naive, name=term.removeprefix("-")), reverse=term.startswith("-"))
    assert sorted_rows(question_of(order), rows) == expected


RISING: list[tuple[str, list[Any]]] = [
    ("spend", [None, "-10.00", "-9.50", "9.50", "10.50", "123456789012345678901234567890.24",
               "123456789012345678901234567890.25"]),
    ("first", [None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.500000Z", "2026-01-01T00:00:01Z"]),
    ("latest", [None, "2025-12-31", "2026-01-01"]),
    ("longest", [None, "", "9", "90", "Z", "a", "é", "\uffff", "\U0001f600"]),
    ("fine", [None, False, True]),
    ("rate", [None, -1.5, 0, 0.5, 2]),
    ("total", [None, -(2**70), -1, 2**70, 2**70 + 1]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values"), RISING, ids=[name for name, _ in RISING])
def test_answers_are_sorted_by_their_values_not_their_texts(name: str, values: list[Any]) -> None:
    rows = [replace(ROW, answers={**ROW_OF_ALL.answers, name: value}) for value in values]
    assert [row.answers[name] for row in sorted_rows(question_of(name), rows[::-1])] == values
    assert [row.answers[name] for row in sorted_rows(question_of(f"-{name}"), rows)] == values[::-1]


@settings(max_examples=times(30, 1000), deadline=None)
@given(ROWS, ORDERS, st.integers(1, 7))
def test_pages_together_are_all_rows_in_order(rows: list[ResultRow], order: str, limit: int) -> None:
    question = question_of(order, limit=str(limit))
    found: list[ResultRow] = []
    cursor = None
    while True:
        rows_of_page, cursor = page(question, rows, cursor)
        found += rows_of_page
        if cursor is None:
            break
        cursors.check(cursor, cursors.read(cursor), question)
    assert found == sorted_rows(question, rows)


@settings(max_examples=times(30, 1000), deadline=None)
@given(ROWS, ROWS, st.integers(1, 7), ORDERS)
def test_rows_that_come_or_go_between_pages_move_no_other(
    rows: list[ResultRow], others: list[ResultRow], limit: int, order: str
) -> None:
    """As when a run is published: what stays is seen exactly once."""
    question = question_of(order, limit=str(limit))
    known = {(row.period, row.key) for row in rows}
    gone = rows[::3]
    later = [row for row in rows if row not in gone] + [row for row in others if (row.period, row.key) not in known]
    found, cursor = page(question, rows, None)
    while cursor is not None:
        rows_of_page, cursor = page(question, later, cursor)
        found += rows_of_page
    staying = [row for row in rows if row not in gone]
    assert [row for row in found if row in staying] == sorted_rows(question, staying)


# ---- the text ----------------------------------------------------------------

CUT = {0: 17, 12: 2**63 - 1}
ROW = ResultRow(
    Period(START, START + 3600), ("/ä", 200, None, date(2026, 1, 1)), {"hits": 2**70, "rate": 0.1, "spend": "1.50"}
)


def test_a_cursor_comes_back_as_it_was() -> None:
    question = question_of("-hits,rate,-spend")
    text = cursors.write(question, ROW, 7, CUT)
    assert text.isascii()
    assert "=" not in text
    assert cursors.read(text) == (
        cursors.hash_of(question), question.range, (2**70, 0.1, "1.50", START, "/ä", 200, None, "2026-01-01"), 7, CUT,
    )  # fmt: skip
    cursors.check(text, cursors.read(text), question)


def forged(parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).rstrip(b"=").decode()


GOOD: list[Any] = [1, "a" * 32, 0, 3600, 3, {"0": 17}, [START]]


def changed(at: int, value: Any) -> str:
    return forged([*GOOD[:at], value, *GOOD[at + 1 :]])


NO_CURSORS = [
    "", "a", "abc", "====", "!!!!", "ä", "\ud800", "a" * 200_000, forged(5), forged(None), forged("text"), forged([]),
    forged({}), forged([1]), forged(GOOD[:-1]), forged([*GOOD, 1]), forged("[" * 100), changed(1, 5), changed(1, None),
    changed(2, -1), changed(2, 3600), changed(2, "0"), changed(2, 0.5), changed(2, True), changed(3, 10**12),
    changed(3, float("nan")), changed(4, -1), changed(4, None), changed(5, []), changed(5, None), changed(5, {"a": 1}),
    changed(5, {"-1": 1}), changed(5, {"0": -1}), changed(5, {"0": "1"}), changed(5, {"0": 1.5}),
    changed(5, {"9" * 5000: 1}), changed(5, {"0": 10**4000}), changed(4, 2**63),
    changed(6, None), changed(6, {"0": 1}), changed(6, "text"),
    base64.urlsafe_b64encode(b"\xff\xfe").decode(), base64.urlsafe_b64encode(b"[" * 30_000).decode(),
]  # fmt: skip


@pytest.mark.parametrize("text", NO_CURSORS, ids=[str(number) for number in range(len(NO_CURSORS))])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    assert cursors.read(forged(GOOD)).run == 3
    with pytest.raises(BadParameter, match=r"Take it from `next` of the page before, or leave it out") as caught:
        cursors.read(text)
    assert caught.value.more["parameter"] == "cursor"
    assert len(str(caught.value.more["given"])) <= 100


def test_a_cursor_of_another_version_says_so() -> None:
    with pytest.raises(BadParameter, match="made by another version of Tidemark"):
        cursors.read(changed(0, 2))


@pytest.mark.parametrize("text", ["cut", "swapped", "other"])
def test_a_damaged_cursor_is_refused(text: str) -> None:
    question = question_of()
    good = cursors.write(question, ROW, 7, CUT)
    bad = {"cut": good[:-9], "swapped": good[:20] + good[24:28] + good[20:24] + good[28:],
           "other": cursors.write(question_of(by="url"), replace(ROW, key=("/a",)), 7, CUT)}[text]  # fmt: skip
    with pytest.raises(BadParameter):
        cursors.check(bad, cursors.read(bad), question)


POSITIONS: list[tuple[str, Any]] = [
    ("hits", "5"), ("hits", 1.5), ("hits", True), ("rate", "x"), ("rate", True), ("rate", float("inf")),
    ("rate", float("nan")), ("spend", 5), ("spend", "x"), ("spend", "NaN"), ("spend", "1e999999999"),
    ("spend", "1" * 500), ("longest", 5), ("first", "x"), ("first", 5), ("first", "2026-01-01T00:00:00"),
    ("latest", "x"), ("latest", 5), ("fine", 1), ("fine", "true"), ("bucket", None), ("bucket", "0"), ("bucket", 1.0),
    ("url", 5), ("url", []), ("status", "200"), ("ok", 1), ("on_day", "2026-13-01"), ("on_day", 5), ("total", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), POSITIONS)
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_forged_position_is_refused(name: str, value: Any, sign: str) -> None:
    question = question_of(f"{sign}{name}")
    good = cursors.Cursor(cursors.hash_of(question), question.range, positions(question)(ROW_OF_ALL), 7, CUT)
    cursors.check("", good, question)
    bad = good._replace(after=(value, *good.after[1:]))
    with pytest.raises(BadParameter, match="belongs to another query"):
        cursors.check("", bad, question)
    with pytest.raises(BadParameter, match="belongs to another query"):
        cursors.check("", good._replace(after=good.after[1:]), question)


ROW_OF_ALL = replace(ROW, answers=dict.fromkeys(VIEW.answers))
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
LIKELY = [
    None,
    True,
    5,
    -(10**400),
    0.5,
    1e308,
    "",
    "x",
    "1.50",
    "-" + "9" * 80,
    "2026-01-01",
    "2026-01-01T00:00:00Z",
    {},
]


@settings(max_examples=times(60, 2000), deadline=None)
@given(st.data(), ORDERS, ROWS)
def test_any_position_is_refused_or_can_be_gone_on_from(data: st.DataObject, order: str, rows: list[ResultRow]) -> None:
    question = question_of(order)
    where, key = positions(question), sort_key(question)
    good = where(ROW_OF_ALL)
    at = data.draw(st.integers(0, len(good) - 1))
    after = (*good[:at], data.draw(st.sampled_from(LIKELY)), *good[at + 1 :])
    with suppress(BadParameter):
        cursors.check("", cursors.Cursor(cursors.hash_of(question), question.range, after, 7, CUT), question)
        ahead = [row for row in rows if key(where(row)) > key(after)]
        behind = [row for row in rows if key(where(row)) <= key(after)]
        assert sorted_rows(question, rows) == sorted_rows(question, behind) + sorted_rows(question, ahead)


@given(st.text(max_size=60) | st.lists(JSON, max_size=8).map(lambda parts: forged([1, *parts])))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with suppress(BadParameter):
        cursors.read(text)


def test_a_day_is_where_it_was() -> None:
    """Dates are texts in a cursor, and sorted as dates."""
    question = question_of("-on_day", by="on_day")
    days = [date(2026, 1, 1) + timedelta(days=n) for n in range(40)]
    rows = [ResultRow(Period(START, START + 3600), (day,), ROW_OF_ALL.answers) for day in [None, *days]]  # type: ignore[list-item]
    assert [row.key[0] for row in sorted_rows(question, rows)] == [*reversed(days), None]
