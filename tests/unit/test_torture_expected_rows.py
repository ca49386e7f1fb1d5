"""What the fault programme expects of an answer: right by hand, and without the serving layer's own periods."""

from __future__ import annotations

import ast
import importlib.util
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from master_dataset.cut import Cut
from serving_layer.query import periods
from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Query
from serving_layer.query.parse import parse_query
from serving_layer.verification.from_scratch import recompute
from torture import expected_rows as expected_rows_module
from torture import shop
from torture.comparison import ServedAnswer, compare
from torture.expected_rows import expected_rows, windows
from torture.questions import question
from views.aggregates import Average, Count, Quantiles, Sum, TopK
from views.derived import Ratio
from views.in_memory import Event
from views.view import View

HOUR, DAY = 3600, 24 * 3600
SABOTAGE = Path(__file__).parents[1] / "torture" / "sabotage" / "sitecustomize.py"
ANSWERS = {"orders": Count(), "cents": Sum("cents"), "mean": Average("ms"), "each": Ratio("cents", "orders")}
dated = View(
    "dated",
    source=shop.shop,
    grain="30m",
    keys={"on": "cast(event_time as date)", "by": "item", "worth": "floor(cents / 3)", "paid": "paid"},
    answers={**ANSWERS, "ms": Quantiles("ms"), "users": TopK("user_id", k=2, room=3)},
)
seconds = View("seconds", source=shop.shop, grain="5s", keys={"key": "item"}, where="paid", answers=ANSWERS)
VIEWS = [shop.sales, shop.totals, shop.minutes, dated, seconds]
NEAR = {
    "a usual week": datetime(2026, 3, 1, 22, tzinfo=UTC),
    "Berlin is set forward": datetime(2026, 3, 29, 20, tzinfo=UTC),
    "Berlin is set back": datetime(2026, 10, 25, 20, tzinfo=UTC),
    "New York is set forward": datetime(2026, 3, 8, 23, tzinfo=UTC),
    "New York is set back": datetime(2026, 11, 2, 3, tzinfo=UTC),
}
KNOWN = {"item": "item 1", "user": "u1", "paid": "true", "on": "", "worth": "1", "key": "item 2"}
"""Values that keys have; that of `on` is the day of the events."""


class Known:
    """Stands for the truth: events of the three days before a moment, and of some hours after it."""

    def __init__(self, around: datetime, seed: int = 1) -> None:
        chance = random.Random(seed)  # noqa: S311  # which events
        self.all = [self._event(number, around, chance) for number in range(400)]
        self.all += [Event(2, 1000 + each.offset, each.event_id, each.event_time, each.fields) for each in self.all[:9]]
        self.hours = sorted({int(each.event_time.timestamp()) // HOUR for each in self.all})

    def events(self, cut: Cut, start_s: float, end_s: float) -> Iterator[Event]:
        """All events of the hours that the range overlaps, as the truth gives them."""
        for each in self.all:
            hour = each.event_time.timestamp() // HOUR * HOUR
            if each.offset < cut.get(each.partition, 0) and start_s - HOUR < hour < end_s:
                yield each

    def _event(self, number: int, around: datetime, chance: random.Random) -> Event:
        at = around + timedelta(seconds=chance.randrange(-3 * DAY, 4 * HOUR))
        fields = {
            "user_id": f"u{chance.randrange(5)}",
            "item": chance.choice(["item 1", "item 2", "other", None]),
            "paid": chance.choice([True, False, None]),
            "cents": chance.choice([None, *range(9)]),
            "ms": chance.random() * 100,
        }
        return Event(number % 3, number // 3, f"e{number}", at, fields)


def asked_of(view: View, truth: Known, around: datetime, count: int) -> Iterator[dict[str, str]]:
    chance = random.Random(f"{view.name} {around}")  # noqa: S311  # which questions
    known = {key: KNOWN.get(key) or around.date().isoformat() for key in view.keys}
    for _ in range(count):
        yield question(view, truth.hours, chance, known)


def served(view: View, query: dict[str, str]) -> Query:
    return parse_query(view, list(query.items()), now=0.0, limits=QueryLimits())


def by_the_serving_layer(view: View, query: dict[str, str], cut: Cut, truth: Known) -> dict[Any, Any]:
    made = served(view, query)
    start, end = min(each.start for each in made.windows), max(each.end for each in made.windows)
    return {(at.start, *key): row for (at, key), row in recompute(made, truth.events(cut, start, end)).items()}


# ---- by hand -----------------------------------------------------------------

RANGES: list[tuple[str, str, str, dict[str, str], list[str]]] = [
    # from, to, tz, more, where periods begin (UTC)
    ("2026-03-01T10:00", "2026-03-01T12:00", "UTC", {}, ["03-01T10:00"]),
    ("2026-03-01T10:00", "2026-03-01T12:00", "UTC", {"grain": "hour"}, ["03-01T10:00", "03-01T11:00"]),
    ("2026-03-01T10:10", "2026-03-01T10:31", "UTC", {"grain": "30m"}, ["03-01T10:00", "03-01T10:30"]),
    ("2026-03-01T22:00", "2026-03-02T02:00", "UTC", {"grain": "day"}, ["03-01T22:00", "03-02T00:00"]),
    ("2026-03-01T22:00", "2026-03-02T02:00", "Europe/Berlin", {"grain": "day"}, ["03-01T22:00", "03-01T23:00"]),
    ("2026-03-01T22:00", "2026-03-02T02:00", "Europe/Berlin", {"grain": "week"}, ["03-01T22:00", "03-01T23:00"]),
    ("2026-03-02T22:00", "2026-03-05T22:00", "Europe/Berlin", {"grain": "week"}, ["03-02T22:00"]),
    ("2026-03-01T10:00", "2026-03-01T20:00", "Asia/Kolkata", {"grain": "day"}, ["03-01T10:00", "03-01T18:30"]),
    ("2026-03-28T12:00", "2026-03-30T12:00", "Europe/Berlin", {"grain": "day"},
     ["03-28T12:00", "03-28T23:00", "03-29T22:00"]),
    ("2026-10-24T12:00", "2026-10-26T12:00", "Europe/Berlin", {"grain": "day"},
     ["10-24T12:00", "10-24T22:00", "10-25T23:00"]),
    ("2026-03-28T23:00", "2026-03-29T12:00", "Europe/Berlin", {"grain": "6h"},
     ["03-28T23:00", "03-29T04:00", "03-29T10:00"]),
    ("2026-10-25T00:00", "2026-10-25T12:00", "Europe/Berlin", {"grain": "6h"},
     ["10-25T00:00", "10-25T05:00", "10-25T11:00"]),
    ("2026-11-01T04:00", "2026-11-01T12:00", "America/New_York", {"grain": "6h"}, ["11-01T04:00", "11-01T11:00"]),
    ("2026-10-24T23:00", "2026-10-25T03:00", "Europe/Berlin", {"grain": "hour"},
     ["10-24T23:00", "10-25T00:00", "10-25T01:00", "10-25T02:00"]),
    ("2026-10-24T22:00", "2026-10-25T05:00", "Europe/Berlin", {"grain": "2h"},
     ["10-24T22:00", "10-25T00:00", "10-25T03:00"]),
    ("2026-10-31T12:00", "2026-11-02T12:00", "America/Havana", {"grain": "day"},
     ["10-31T12:00", "11-01T04:00", "11-02T05:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("start", "end", "tz", "more", "expected"), RANGES)
def test_periods_begin_where_the_documentation_says(
    start: str, end: str, tz: str, more: dict[str, str], expected: list[str]
) -> None:
    found = windows(dated, {"from": f"{start}:00Z", "to": f"{end}:00Z", "tz": tz, **more})
    assert [datetime.fromtimestamp(begin, UTC).strftime("%m-%dT%H:%M") for begin, _, _ in found] == expected
    assert all(begin == start for begin, start, _ in found)
    assert [until for _, _, until in found[:-1]] == [begin for begin, _, _ in found[1:]]
    assert found[-1][2] % dated.bucket.seconds == 0


@pytest.mark.parametrize(
    ("tz", "grain", "window", "end", "hours"),
    [
        ("UTC", "hour", "6h", "2026-03-29T22:00", 6),
        ("UTC", "hour", "24h", "2026-03-29T22:00", 24),
        ("Europe/Berlin", "day", "2d", "2026-03-28T23:00", 48),
        ("Europe/Berlin", "day", "2d", "2026-03-29T22:00", 47),
        ("Europe/Berlin", "day", "2d", "2026-10-25T23:00", 49),
        ("Europe/Berlin", "day", "2d", "2026-03-29T07:00", 47),
        ("Asia/Tokyo", "day", "2d", "2026-03-29T22:00", 48),
    ],
)
def test_a_window_of_days_is_as_long_as_they_are_and_ends_with_its_period(
    tz: str, grain: str, window: str, end: str, hours: int
) -> None:
    until = int(datetime.fromisoformat(f"{end}Z").timestamp())
    start = datetime.fromtimestamp(until - 3 * HOUR, UTC).isoformat()
    found = windows(dated, {"from": start, "to": f"{end}:00Z", "tz": tz, "grain": grain, "window": window})
    assert found[-1][1:] == (until - hours * HOUR, until)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"item": "a"}, ["a"]),
        ({"item.not": "a"}, [None, "ab", "b"]),
        ({"item.prefix": "a"}, ["a", "ab"]),
        ({"paid": "true"}, ["a", "b"]),
        ({"paid.not": "true"}, [None, "ab"]),
        ({"paid": "true", "item.prefix": "b"}, ["b"]),
    ],
)
def test_a_filter_holds_and_null_is_a_value_that_has_no_name(more: dict[str, str], expected: list[str | None]) -> None:
    at = datetime(2026, 3, 1, 22, tzinfo=UTC)
    truth = Known(at)
    pairs: list[tuple[str | None, bool | None]] = [("a", True), ("ab", False), ("b", True), (None, None)]
    truth.all = [Event(0, n, f"e{n}", at, {"item": item, "paid": paid}) for n, (item, paid) in enumerate(pairs)]
    query = {"from": "2026-03-01T22:00:00Z", "to": "2026-03-01T23:00:00Z", "by": "item", **more}
    found = expected_rows(shop.sales, query, {0: 9}, truth)  # type: ignore[arg-type]
    assert sorted((key for _, key in found), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("name", ["fill", "item.null", "colour", "answers"])
def test_what_the_checker_does_not_understand_it_does_not_judge(name: str) -> None:
    query = {"from": "2026-03-01T22:00:00Z", "to": "2026-03-01T23:00:00Z", name: "zero"}
    with pytest.raises(ValueError, match=f"{name}=zero was asked of sales"):
        expected_rows(shop.sales, query, {}, Known(NEAR["a usual week"]))  # type: ignore[arg-type]


# ---- beside the serving layer ------------------------------------------------


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_the_serving_layer_and_the_checker_mean_the_same_by_every_question(view: View) -> None:
    cut, ways = {0: 120, 1: 130, 2: 1002}, Counter[str]()
    for around in NEAR.values():
        truth = Known(around)
        for query in asked_of(view, truth, around, 60):
            made = served(view, query)
            both = [(period.start, *window) for period, window in zip(made.periods, made.windows, strict=True)]
            assert windows(view, query) == both, query
            found = expected_rows(view, query, cut, truth)  # type: ignore[arg-type]
            assert found == by_the_serving_layer(view, query, cut, truth), query
            ways.update(["a row"] if found else [])
            ways.update(name.partition(".")[2] or name for name in query)
    assert ways["a row"] > 200
    if view.bucket.seconds <= HOUR:
        assert ways.keys() >= {"tz", "grain", "window", "by", "not"}


# ---- without the serving layer -----------------------------------------------


def sabotage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the periods of the serving layer here, as a sabotage breaks those of the process that serves."""
    spec = importlib.util.spec_from_file_location("broken_builds", SABOTAGE)
    assert spec is not None
    assert spec.loader is not None
    broken = importlib.util.module_from_spec(spec)
    monkeypatch.delenv("TORTURE_SABOTAGE", raising=False)
    spec.loader.exec_module(broken)
    for function in ("cut", "rolling"):  # to be put back
        monkeypatch.setattr(periods, function, getattr(periods, function))
    broken.SABOTAGES[name]["serving_layer.query.periods"](periods)


def answered(view: View, query: dict[str, str], cut: Cut, truth: Known) -> ServedAnswer:
    """All rows, as a serving process in which this code runs would tell them."""
    made, rows = served(view, query), by_the_serving_layer(view, query, cut, truth)
    zone = expected_rows_module.zone_of(query)
    rows = [
        {"bucket": datetime.fromtimestamp(at, zone).isoformat(), **dict(zip(made.by, key, strict=True)), **row}
        for (at, *key), row in sorted(rows.items(), key=lambda item: [(each is not None, each) for each in item[0]])
    ]
    plain = [{name: list(v) if isinstance(v, tuple) else v for name, v in row.items()} for row in rows]
    meta = {"cut": {str(p): o for p, o in cut.items()}, "degraded": False}
    return ServedAnswer(view, query, {"rows": plain, "next": None, "meta": meta}, 0.0)


@pytest.mark.parametrize(
    ("name", "parameter"),
    [("days are those of UTC", "tz"), ("a window is short by an hour", "window")],
)
def test_broken_periods_of_the_serving_layer_change_nothing_of_what_is_wanted_and_are_found(
    name: str, parameter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker shares this process with the broken code: whatever it still used of it would break with it."""
    view, around, cut = shop.sales, NEAR["Berlin is set forward"], {0: 120, 1: 130, 2: 1002}
    truth = Known(around)
    every = [each for each in asked_of(view, truth, around, 200) if each["limit"] == "10000"]
    right = [expected_rows(view, query, cut, truth) for query in every]  # type: ignore[arg-type]
    meant = [served(view, query) for query in every]
    assert all(not compare(answered(view, query, cut, truth), truth).differences for query in every)  # type: ignore[arg-type]
    sabotage(name, monkeypatch)
    assert [expected_rows(view, query, cut, truth) for query in every] == right  # type: ignore[arg-type]
    found = [bool(compare(answered(view, query, cut, truth), truth).differences) for query in every]  # type: ignore[arg-type]
    assert sum(found) >= 5
    assert not any(is_found and parameter not in query for query, is_found in zip(every, found, strict=True))
    assert [served(view, query) for query in every] != meant
    monkeypatch.undo()
    assert [served(view, query) for query in every] == meant


def test_what_is_wanted_is_made_without_the_serving_layer() -> None:
    tree = ast.walk(ast.parse(Path(expected_rows_module.__file__).read_text()))
    modules = [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
    assert "torture.truth" in modules
    assert not [module for module in modules if module.startswith("serving_layer")]
