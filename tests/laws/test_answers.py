"""The law of answers: whatever is asked, both sides merged give what one look at every event gives.

For generated events, any cut between batch view and speed view, late events and duplicates on both sides of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from batch_layer.index import Index
from hand_off import speed_views
from hand_off.speed_views import ALL_KEYS, Outcome, State
from serving_layer.query import cursors, page_by_key, repeated_query, top_keys
from serving_layer.query import order as ordering
from serving_layer.query.batch_tiles import read_named
from serving_layer.query.execute import execute
from serving_layer.query.limits import QueryBudget, QueryLimits
from serving_layer.query.merge import WindowSpans
from serving_layer.query.model import Query
from serving_layer.query.page_keys import narrow
from serving_layer.query.parse import parse_query
from serving_layer.query.plan import QueryPlan, plan
from serving_layer.query.presentation_cache import PresentationCache
from serving_layer.query.provenance import has_short_keys
from serving_layer.query.repeated_query import MAX_SPEED_STATES, RepeatedQuery, can_repeat
from serving_layer.query.result import Result, ResultRow
from serving_layer.query.rows import Presenter
from serving_layer.query.segments import Span
from serving_layer.query.snapshot import Snapshot
from serving_layer.readers.batch import BatchViewReader, OpenRun
from serving_layer.readers.limits import ExecutionLimits
from serving_layer.readers.speed import SpeedSnapshot
from serving_layer.rest import formats
from tests import tiers
from tests.serving_data import (
    FIRST,
    GIFTS,
    SALES,
    SPAN_DAYS,
    TOTALS,
    VIEWS,
    Place,
    below,
    end_of,
    events,
    fresh,
    naive,
    same,
    speed_states,
    zero,
)
from views.in_memory import Event
from views.sample_events import LONG
from views.short_texts import shorten
from views.states import head_of, merge_packed, pack
from views.view import View

NOW = FIRST.timestamp() + SPAN_DAYS * 86400
LIMITS = QueryLimits()
SETTINGS = settings(
    max_examples=tiers.times(12, 300),
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass
class World:
    """Events, a run over those below a cut, and the states of the others in two generations."""

    events: list[Event]
    run: OpenRun
    is_older: bool
    """Whether a Tidemark that did not limit the length of texts computed the run."""
    speed: dict[str, list[list[tuple[int, bytes, bytes]]]]

    def read(self, view: View) -> tuple[Snapshot, list[tuple[int, bytes, bytes]]]:
        applied = end_of(self.events)
        states = [state for generation in self.speed[view.name] for state in generation]
        reading = SpeedSnapshot(speed_views.SpeedAnswer(Outcome.OK, applied, self.run.run), None, {})
        return Snapshot(self.run, reading), states

    def answer(self, question: Query) -> Result:
        """As QueryEngine makes it, of the states that Redis would have given."""
        each = plan(question)
        read, states = self.read(question.view)
        heads = [(bucket, key, head_of(state)) for bucket, key, state in _inside(each, states)]
        of_all_keys = [(bucket, key, head_of(state)) for bucket, key, state in _in_ranges(each, states)]
        chosen = narrow(each, self.run, heads)
        by_all = narrow(each, self.run, of_all_keys)
        if None not in (chosen.selection.keys, by_all.selection.keys):  # else there were too many to look up
            assert chosen.selection == by_all.selection, "a reader that keeps numbers has those of all keys"
        each = chosen
        return execute(each, read, self.inside(each), QueryBudget(ExecutionLimits(), math.inf), PresentationCache(1))

    def inside(self, each: QueryPlan) -> list[State]:
        """The states that Redis would have given for a plan."""
        view = each.query.view
        inside = _inside(each, self.read(view)[1])
        if not each.is_total or not view.keys:
            return inside
        packed: dict[int, list[bytes]] = {}
        for bucket, _, state in inside:
            packed.setdefault(bucket, []).append(state)
        return [(bucket, ALL_KEYS, merge_packed(view.algebras, every)) for bucket, every in packed.items()]


def _inside(each: QueryPlan, states: list[State]) -> list[State]:
    """What Redis gives of all its states."""
    keys = each.selection.keys
    return [
        state
        for state in _in_ranges(each, states)
        if (state[1] in keys if keys is not None else state[1].startswith(each.selection.prefix))
    ]


def _in_ranges(each: QueryPlan, states: list[State]) -> list[State]:
    return [state for start, end in each.ranges for state in states if start <= state[0] < end]


@pytest.fixture(scope="module", params=[(0, 0.5), (1, 0.0), (2, 1.0), (3, 0.8), (4, -0.6)], ids=str)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    seed, share = request.param
    is_older, share = share < 0, abs(share)
    made = events(260, seed)
    chance = Random(seed)  # noqa: S311
    end = end_of(made)
    cut = {p: round(offset * share * chance.uniform(0.8, 1.2)) if 0 < share < 1 else round(offset * share)
           for p, offset in end.items()}  # fmt: skip
    middle = {p: chance.randint(cut[p], max(end[p], cut[p])) for p in end}
    place = Place(tmp_path_factory.mktemp("home"), is_older=is_older)
    place.begin()
    if any(cut.values()):
        place.publish(1, {p: offset // 2 for p, offset in cut.items()}, made)
        place.publish(2, cut, made, base=1)
    later = fresh(made, cut)
    parts = below(later, middle), [event for event in later if event not in below(later, middle)]
    speed = {view.name: [speed_states(view, part) for part in parts] for view in VIEWS}
    side = BatchViewReader(place.settings, place.source, place.declarations.views)
    with side.current() as run:
        yield World(made, run, is_older, speed)
    side.close()


# ---- questions -----------------------------------------------------------------

ITEMS = [None, "a", "/docs/a.html", "Ünï ✓", "", "nowhere", *LONG, shorten(LONG[0]), "é" * 5_000]
SIZES = [None, 0, 1, 99, -(2**31), 7777]


@st.composite
def times(draw: st.DrawFn) -> list[tuple[str, str]]:
    start = draw(st.integers(-2, SPAN_DAYS)) * 24 + draw(st.just(0) | st.integers(0, 23))
    hours = draw(st.sampled_from([1, 5, 24, 48, 31 * 24, 70 * 24]) | st.integers(1, 100))
    begin = int(FIRST.timestamp()) + start * 3600
    return [("from", str(begin * 1000)), ("to", str((begin + hours * 3600) * 1000))]


@st.composite
def questions(draw: st.DrawFn, view: View) -> Query:
    given = draw(times())
    grains = ["all", "day", "week", "month"] + (["hour", "6h"] if view is not TOTALS else [])
    grain = draw(st.sampled_from(grains))
    given.append(("grain", grain))
    if view is not TOTALS:
        given.append(("tz", draw(st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]))))
    if grain in ("day", "6h", "hour") and draw(st.booleans()):
        given.append(("window", draw(st.sampled_from(["2d", "7d"]))))
    given += draw(filters(view))
    by = draw(st.permutations(list(view.keys)))[: draw(st.integers(0, len(view.keys)))]
    given.append(("by", ",".join(by)))
    if draw(st.booleans()):
        names = draw(st.sets(st.sampled_from(sorted(view.answers)), min_size=1))
        given.append(("answers", ",".join(sorted({*names, "orders"}))))
    order = draw(st.lists(st.sampled_from(["bucket", "orders", *by]), unique=True))
    signs = [draw(st.sampled_from(["", "-"])) for _ in order]
    if order:
        given.append(("order", ",".join(map("".join, zip(signs, order, strict=True)))))
    if draw(st.booleans()):
        given.append(("compare", "previous_period"))
    if draw(st.booleans()) and grain != "hour":
        given.append(("fill", "zero"))
    if draw(st.sampled_from([True, False, False])):
        given.append(("having", draw(st.sampled_from(["orders > 1", "orders >= 2 or orders = 0", "orders < 0"]))))
    given.append(("explain", draw(st.sampled_from(["true", "false"]))))
    given.append(("limit", draw(st.sampled_from(["1", "3", "50", "10000"]))))
    return parse_query(view, given, now=NOW, limits=LIMITS)


@st.composite
def filters(draw: st.DrawFn, view: View) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if view is SALES:
        kind = draw(st.sampled_from(["", "", "", "is", "not", "prefix"]))
        values = draw(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=3, unique=True))
        if kind == "prefix":
            found += [("item.prefix", draw(st.sampled_from(["", "/", "/docs", "a", "x", LONG[0][:200]])))]
        elif kind:
            found += [("item" if kind == "is" else "item.not", value) for value in values if value is not None]
        if draw(st.sampled_from([True, False, False])):
            found += [
                ("size", str(value)) for value in draw(st.sets(st.sampled_from(SIZES), min_size=1)) if value is not None
            ]
    if view is GIFTS and draw(st.booleans()):
        found += [("gift", draw(st.sampled_from(["true", "false"])))]
    return found


def passes(question: Query, key: dict[str, Any]) -> bool:
    for each in question.filters:
        value = key[each.key]
        match each.kind:
            case "is":
                is_right = value in each.values
            case "not":
                is_right = value not in each.values
            case "prefix":
                is_right = value is not None and any(value.startswith(text) for text in each.values)
        if not is_right:
            return False
    return True


# ---- what must come out --------------------------------------------------------


def expected_rows(question: Query, of: list[Event]) -> dict[Any, ResultRow]:
    """Every row, by period and key."""

    def over(windows: Any) -> list[dict[Any, Any]]:
        return [naive(question.view, of, window, question.by, lambda key: passes(question, key)) for window in windows]

    zeros = question.view.present({name: each.zero() for name, each in question.view.algebras.items()})
    now, before = over(question.windows), over(question.previous or ())
    every = {group for found in (*now, *before) for group in found}
    if question.fill:
        values = {each.key: each.values for each in question.filters if each.kind == "is"}
        if all(name in values for name in question.by):
            tests = [replace(question, filters=(each,)) for each in question.filters if each.key in question.by]
            for group in product(*(values[name] for name in question.by)):
                if all(passes(each, dict(zip(question.by, group, strict=True))) for each in tests):
                    every.add(group)
    found = {}
    for place, period in enumerate(question.periods):
        for group in every if question.fill else now[place]:
            answers = now[place].get(group, zeros)
            if question.having is not None and not question.having.evaluate(question.view.numbers(answers)):
                continue
            previous = before[place].get(group, zeros) if question.previous is not None else None
            found[period, group] = ResultRow(period, group, answers, previous)
    return found


def asked_of(question: Query, answers: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if answers is None else {name: answers[name] for name in question.answers}


def all_pages(world: World, question: Query) -> list[ResultRow]:
    """Page after page."""
    found: list[ResultRow] = []
    while True:
        page = world.answer(question)
        assert len(page.rows) <= question.limit
        found += page.rows
        if page.next is None:
            return found
        assert len(page.rows) == question.limit
        question = replace(question, cursor=cursors.read(page.next))


def check(world: World, question: Query) -> None:
    expected = expected_rows(question, world.events)
    limit = question.limit if len(expected) < 40 * question.limit else 10_000
    found = all_pages(world, replace(question, limit=limit))
    places = [(row.period, row.key) for row in found]
    assert sorted(map(repr, places)) == sorted(map(repr, expected)), "not the rows that there are"
    for row in found:
        wanted = expected[row.period, row.key]
        assert same(row.answers, asked_of(question, wanted.answers)), (row, wanted)
        assert same(row.previous, asked_of(question, wanted.previous)), (row, wanted)
        assert (row.explain is not None) == question.explain
        if row.explain is not None:
            assert same(row.explain["merged"], row.answers)
    position, sorted_by = ordering.positions(question), ordering.sort_key(question)
    ranks = [sorted_by(position(row)) for row in found]
    assert all(left < right for left, right in pairwise(ranks)), "not in order, or twice"


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
@SETTINGS
@given(data=st.data())
def test_an_answer_is_that_of_every_event_looked_at(world: World, view: View, data: st.DataObject) -> None:
    check(world, data.draw(questions(view)))


def test_only_a_run_of_an_older_version_has_long_keys(world: World) -> None:
    assert world.run.has_long_keys("sales") == world.is_older


@pytest.mark.parametrize("text", [*LONG[:2], LONG[3], "é" * 5_000])
def test_a_filter_by_a_long_text_finds_its_short_form_and_the_answer_says_so(world: World, text: str) -> None:
    given = [("from", "0"), ("to", "2199-01-01"), ("by", "item"), ("item", text), ("fill", "zero")]
    query = parse_query(SALES, given, now=NOW, limits=LIMITS)
    found = world.answer(query)
    assert [row.key for row in found.rows] == [(shorten(text),)]
    assert found.meta.shortened_keys
    check(world, query)


@pytest.mark.parametrize("is_older", [True, False])
def test_the_first_key_is_right_though_a_run_of_an_older_version_has_it_as_it_is(
    tmp_path: Path, is_older: bool
) -> None:
    """Each view alone has another key first. In a run of an older version the key has other bytes."""
    items = ["a"] * 7 + ["b"] * 6 + [LONG[0]] * 5 + ["a"] + [LONG[0]] * 5
    fields = {"size": 1, "cents": 5}
    made = [Event(0, n, f"e{n}", FIRST, {"item": item, **fields}) for n, item in enumerate(items)]
    place = Place(tmp_path, is_older=is_older)
    place.begin()
    place.publish(1, {0: 18}, made)
    side = BatchViewReader(place.settings, place.source, place.declarations.views)
    given = [("from", "0"), ("to", "2199-01-01"), ("by", "item,size"), ("order", "-orders"), ("limit", "1")]
    with side.current() as run:
        world = World(made, run, is_older, {"sales": [speed_states(SALES, made[18:])]})
        (row,) = world.answer(parse_query(SALES, given, now=NOW, limits=LIMITS)).rows
    side.close()
    assert (row.key, row.answers["orders"]) == ((shorten(LONG[0]), 1), 10)


# ---- pages ---------------------------------------------------------------------


@SETTINGS
@given(data=st.data())
def test_pages_in_the_order_of_keys_are_all_rows(world: World, data: st.DataObject) -> None:
    order = data.draw(st.sampled_from(["bucket", "item", "item,size", "item,bucket"]))
    limit = data.draw(st.sampled_from("123"))
    given = [*data.draw(times()), ("by", "item,size"), ("order", order), ("limit", limit), ("answers", "orders,users")]
    grain = data.draw(st.sampled_from(["all", "all", "day"]))
    question = parse_query(SALES, [*given, ("grain", grain)], now=NOW, limits=LIMITS)
    assert page_by_key.is_by_key(question) == (len(question.windows) == 1)
    whole = replace(question, limit=10_000)
    check(world, whole)
    assert all_pages(world, question) == world.answer(whole).rows


@pytest.mark.parametrize("order", ["bucket", "-bucket"])
@pytest.mark.parametrize("days", [2, 3])
def test_a_page_that_goes_on_in_another_period_has_all_of_its_keys(world: World, days: int, order: str) -> None:
    """A part of one period is read by key; the key of the cursor belongs to the period of the cursor alone."""
    for first in range(0, SPAN_DAYS - days, days):
        begin = int(FIRST.timestamp()) + first * 86400
        given = [("from", str(begin * 1000)), ("to", str((begin + days * 86400) * 1000)), ("grain", "day"),
                 ("by", "item,size"), ("order", order), ("limit", "2"), ("answers", "orders")]  # fmt: skip
        question = parse_query(SALES, given, now=NOW, limits=LIMITS)
        assert all_pages(world, question) == world.answer(replace(question, limit=10_000)).rows


@SETTINGS
@given(data=st.data())
def test_pages_together_are_all_rows(world: World, data: st.DataObject) -> None:
    """However small they are, in whatever order: ties, nulls, periods with many rows and with one."""
    by = data.draw(st.sampled_from([["item"], ["size", "item"], ["size"]]))
    names = data.draw(st.permutations(["bucket", "orders", "least", "latest", "share", "many", *by]))[:3]
    order = ",".join(data.draw(st.sampled_from(["", "-"])) + name for name in names)
    given = [
        *data.draw(times()), ("grain", data.draw(st.sampled_from(["all", "day", "month"]))), ("by", ",".join(by)),
        ("order", order), ("answers", "orders,least,latest,share,many"), ("limit", data.draw(st.sampled_from("123"))),
    ]  # fmt: skip
    question = parse_query(SALES, given, now=NOW, limits=LIMITS)
    whole = world.answer(replace(question, limit=10_000))
    assert whole.next is None
    assert all_pages(world, question) == whole.rows


# ---- the first n ---------------------------------------------------------------


@pytest.mark.parametrize("view", [SALES, GIFTS], ids=lambda view: view.name)
@SETTINGS
@given(data=st.data())
def test_the_first_by_a_number_are_found_without_reading_all(world: World, view: View, data: st.DataObject) -> None:
    by = data.draw(st.permutations(list(view.keys)))
    order = data.draw(st.sampled_from(["-orders", "-cents", "-orders,-cents", "-cents,bucket", f"-orders,-{by[0]}"]))
    beginning = data.draw(st.sampled_from([None, None, "", "/", "a", "/docs/a.html"])) if view is SALES else None
    given = [
        *data.draw(times()), ("by", ",".join(by)), ("order", order),
        ("explain", data.draw(st.sampled_from(["true", "false"]))),
        ("limit", str(data.draw(st.integers(1, 6)))),
        *([] if beginning is None else [("item.prefix", beginning)]),
    ]  # fmt: skip
    question = parse_query(view, given, now=NOW, limits=LIMITS)
    assert top_keys.rank_by(question, plan(question).selection) == question.order[0].name
    with pytest.MonkeyPatch.context() as patch:
        if world.run.run and not world.run.has_long_keys(view.name):
            patch.setattr(Index, "of_prefix", _must_not_be_read)
        check(world, question)
        found = all_pages(world, question)
        patch.undo()
        patch.setattr(top_keys, "MAX_CANDIDATES", -1)  # too many candidates: everything is read
        assert found == all_pages(world, question)


def _must_not_be_read(*_arguments: Any) -> Any:
    raise AssertionError("the tiles of all keys were read")


@pytest.mark.parametrize(
    "more",
    [
        [("order", "orders")],
        [("order", "-users")],
        [("order", "bucket,-orders")],
        [("by", "item")],
        [("by", "")],
        [("having", "orders > 1")],
        [("fill", "zero")],
        [("compare", "previous_period")],
        [("item", "a"), ("item", "")],
        [("item.not", "a")],
        [("size", "1")],
        [("grain", "day")],
        [("order", "-mean")],
        [("order", "-spent")],
    ],
    ids=str,
)
def test_other_questions_are_not_ranked_by_one_number(more: list[tuple[str, str]]) -> None:
    given = {"from": "-48h", "by": "item,size", "order": "-orders"}
    plain = parse_query(SALES, list(given.items()), now=NOW, limits=LIMITS)
    assert top_keys.rank_by(plain, plan(plain).selection) == "orders"
    one = parse_query(SALES, [*given.items(), ("item", "a")], now=NOW, limits=LIMITS)
    assert top_keys.rank_by(one, plan(one).selection) == "orders", "an equal first key is what its bytes begin with"
    items = [*(each for each in given.items() if each[0] not in dict(more)), *more]
    question = parse_query(SALES, items, now=NOW, limits=LIMITS)
    assert top_keys.rank_by(question, plan(question).selection) is None


# ---- asked again ---------------------------------------------------------------


@SETTINGS
@given(data=st.data())
def test_a_query_that_is_asked_again_has_the_bytes_of_its_rows(world: World, data: st.DataObject) -> None:
    """With no states of the speed view, with some of them, with all, and with the same once more."""
    drawn = data.draw(questions(data.draw(st.sampled_from(VIEWS))))
    question = replace(drawn, previous=None, explain=False, fill=False)
    each = plan(question)
    assume(can_repeat(each))
    budget = QueryBudget(ExecutionLimits(), math.inf)
    tiles = read_named(each, world.run, budget, 1_000_000)
    assert tiles is not None
    repeated = RepeatedQuery(each, tiles, budget, PresentationCache(1), formats.written_row)
    states = world.inside(each)
    snapshot, _ = world.read(question.view)
    for some in ([], states[:50], states[50:140], states, states):
        expected = execute(each, snapshot, some, budget, PresentationCache(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(repeated_query, "MAX_TILES", len(tiles))
            found = repeated.rows(some, world.run, budget)
        if expected.next is not None or len(some) > MAX_SPEED_STATES:
            assert found is None
            continue
        assert found is not None
        assert formats.json_document(found.json, None, expected.meta) == formats.to_json(expected)
        assert found.has_short_keys == has_short_keys(expected.rows)


# ---- windows -------------------------------------------------------------------


@settings(max_examples=tiers.times(100, 3000), deadline=None)
@given(
    cells=st.dictionaries(st.integers(0, 30), st.lists(st.integers(1, 9), min_size=1, max_size=3)),
    steps=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12),
    cache_mb=st.sampled_from([0, 0.003, 32]),
)
def test_windows_hold_the_segments_that_are_theirs(
    cells: dict[int, list[int]], steps: list[tuple[int, int]], cache_mb: float
) -> None:
    first = end = 0
    spans = []
    for later_first, later_end in steps:
        first, end = first + later_first, max(end + later_end, first + later_first)
        spans.append(Span(first, end))
    packed = {
        segment: [pack(TOTALS.algebras, {**zero(TOTALS), "orders": count}) for count in counts]
        for segment, counts in cells.items()
    }
    presenting = Presenter(
        parse_query(TOTALS, [("answers", "orders")], now=NOW, limits=LIMITS), PresentationCache(cache_mb)
    )
    found = [*presenting.over_windows(packed, WindowSpans(spans), QueryBudget(ExecutionLimits(), math.inf))]
    again = [*presenting.over_windows(packed, WindowSpans(spans), QueryBudget(ExecutionLimits(), math.inf))]
    assert found == again
    sums = [[sum(cells[segment]) for segment in range(*span) if segment in cells] for span in spans]
    assert [(number, made.shown["orders"]) for number, made in found] == [
        (number, sum(counts)) for number, counts in enumerate(sums) if counts
    ]
