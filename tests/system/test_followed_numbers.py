"""Followed numbers: what is kept of very many keys is, at each read, what one look at all of their states gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hand_off import generations
from hand_off.speed_views import FollowedNumbers, Outcome, StateRange, followed_numbers, wide_read
from serving_layer.errors import TooLarge
from serving_layer.query import cursors, page_keys, top_keys
from serving_layer.query.model import Query
from serving_layer.query.result import Result
from serving_layer.readers.followed import FollowedViews, Following
from serving_layer.readers.limits import ExecutionLimits
from tests.conftest import wait_until
from tests.serving_data import FIRST, SALES, SHOP, SPAN_DAYS, below, end_of, events, naive, same, steps
from tests.system.speed_source import RedisServer
from tests.system.test_query_engine import END, EVENTS, HALF, QUARTER, Shop
from tests.system.test_wide_reads import NO_LIMITS
from views.in_memory import Event
from views.states import HeadReader

NARROW = ExecutionLimits(speed_states_at_once=60, speed_timeout_s=30)
"""The states of a page are read in one call, those of all keys are too many; a busy machine degrades no answer."""
DAY_S = 86_400
START_S = int(FIRST.timestamp())
PERIODS = [(START_S - DAY_S, START_S + SPAN_DAYS * DAY_S), (START_S, START_S + 4 * DAY_S), (START_S + 3 * DAY_S, 2**40)]
TOP = [("by", "item,size"), ("order", "-orders"), ("limit", "4")]


def _many() -> list[Event]:
    """Events of very many keys in four hours; some keys have very many."""
    chance = Random(8)  # noqa: S311
    items: dict[str, str] = {}
    made = []
    for event in events(600, 21, (0,)):
        item = items.setdefault(event.event_id, f"item-{int(chance.paretovariate(0.5)) % 200}")
        at = FIRST + timedelta(hours=int(item[-1]) % 4)
        made.append(
            replace(event, event_time=at, fields={**event.fields, SHOP.time_field: at, "item": item, "size": 1})
        )
    return made


MANY = _many()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    yield found
    found.kill()


@pytest.fixture
def make(tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def shop(limits: ExecutionLimits = NARROW) -> Shop:
        made.append(Shop(tmp_path / f"home{len(made)}", server, limits))
        return made[-1]

    yield shop
    for each in made:
        each.engine.close()


def kept(shop: Shop) -> FollowedViews:
    return shop.engine._readers[SHOP.name].speed.followed


def follow(shop: Shop, answer: str, run: int = 0, cut: Any = None) -> FollowedNumbers:
    states = StateRange(SALES.hash, PERIODS[0][0])
    read = HeadReader(SALES.algebras, answer).read
    found = shop.speed_views.followed_numbers(run, cut or {}, states, read, NO_LIMITS)
    said = found.read(3)
    assert said is not None
    assert said.outcome == Outcome.OK
    return found


def all_sums(shop: Shop, answer: str, run: int, cut: Any) -> list[dict[bytes, int]]:
    """By one look at every state."""
    read = HeadReader(SALES.algebras, answer)
    asked = [StateRange(SALES.hash, *period, heads=True) for period in PERIODS]
    return [top_keys.added(states, read) for states in shop.speed_views.reader.answer(run, cut, asked).ranges]


@pytest.mark.parametrize("answer", ["orders", "cents"])
@pytest.mark.parametrize("at_once", [7, 2_000])
def test_the_sums_are_those_of_all_states_after_each_change(
    make: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch, answer: str, at_once: int
) -> None:
    """Cents are negative too. The second period is asked for late: its sums are made of what was kept."""
    for module in (wide_read, followed_numbers):
        monkeypatch.setattr(module, "AT_ONCE", at_once)
    shop, of = make(), events(300, 17, (0, 3, 4, 35, 36))
    shop.writer.apply(of, {0: 3})
    numbers = follow(shop, answer)
    chance = Random(2)  # noqa: S311
    reads: list[Any] = []
    count_reads(monkeypatch, reads)
    for number, end in enumerate(steps(of, chance, 20)):
        shop.writer.apply(of, {p: max(o, 3 if p == 0 else 0) for p, o in end.items()})
        said = numbers.catch_up()
        assert said is not None
        assert said.applied == shop.speed_views.reader.snapshot().meta.applied  # type: ignore[union-attr]
        asked = PERIODS if number > 5 else PERIODS[:1]
        expected = all_sums(shop, answer, 0, {})
        assert [numbers.sums(period) for period in asked] == expected[: len(asked)]
    assert any(value < 0 for value in expected[0].values()) or answer == "orders"
    assert reads == [], "all headers were read again"


def count_reads(monkeypatch: pytest.MonkeyPatch, reads: list[Any]) -> None:
    """Note where all headers are read."""
    begin = FollowedNumbers._begin

    def noted(self: FollowedNumbers) -> None:
        reads.append(self)
        begin(self)

    monkeypatch.setattr(FollowedNumbers, "_begin", noted)


def test_a_run_a_gap_and_another_redis_are_noticed(make: Callable[..., Shop]) -> None:
    shop = make()
    shop.writer.apply(EVENTS, QUARTER)
    numbers = follow(shop, "orders")
    shop.writer.open(1)
    assert numbers.catch_up() is None, "the generations have changed"
    numbers = follow(shop, "orders")
    shop.writer.apply(EVENTS, HALF)
    said = numbers.catch_up()
    assert said is not None
    assert [numbers.sums(period) for period in PERIODS] == all_sums(shop, "orders", 0, {}), "of both generations"
    recent = shop.speed_views.layout.recent
    shop.writer.apply(EVENTS, {**HALF, 0: HALF[0] + 1})
    shop.writer.apply(EVENTS, {**HALF, 0: HALF[0] + 2})
    shop.server.client.xtrim(recent, maxlen=1, approximate=False)
    assert numbers.catch_up() is None, "an entry is gone that it had not read"
    numbers = follow(shop, "orders")
    shop.server.client.flushall()
    assert numbers.catch_up() is None
    shop.writer.start()
    shop.writer.apply(EVENTS, END)
    assert numbers.catch_up() is None, "its states are of another history"


# ---- answers -------------------------------------------------------------------


def expected_rows(question: Query, included: list[Event]) -> list[tuple[Any, dict[str, Any]]]:
    (window,) = question.windows
    beginning = question.filters[0].values[0] if question.filters else ""
    found = naive(
        question.view, included, window, question.by, lambda key: str(key["item"] or "").startswith(beginning)
    )
    rows = sorted(found.items(), key=lambda row: [(value is not None, value) for value in row[0]])
    for name in reversed([each.name for each in question.order if each.name in question.view.answers]):
        rows.sort(key=lambda row: -row[1][name])
    return rows


def check_page(answer: Result, question: Query, of: list[Event] = EVENTS, first: int = 0) -> None:
    """The rows and their order are those of a look at every event below the cut that it reports."""
    rows = expected_rows(question, list(below(of, answer.meta.cut)))[first : first + question.limit]
    assert [row.key for row in answer.rows] == [key for key, _ in rows]
    for row, (_, answers) in zip(answer.rows, rows, strict=True):
        assert same(row.answers, {name: answers[name] for name in question.answers})


def test_a_page_of_very_many_keys_reads_only_what_changed(
    make: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, end = MANY, end_of(MANY)
    quarter = {p: offset // 4 for p, offset in end.items()}
    shop = make()
    monkeypatch.setattr(page_keys, "_by_states", _must_not_be_used)
    shop.writer.apply(of, quarter)
    shop.run(1, of)
    shop.writer.apply(of, {p: 3 * offset for p, offset in quarter.items()})
    question = shop.question(*TOP)
    reads: list[Any] = []
    count_reads(monkeypatch, reads)
    for number in range(quarter[0]):
        shop.writer.apply(of, {p: min(3 * quarter[p] + number, end[p]) for p in end})
        answer = shop.engine.execute(question)
        check_page(answer, question, of)
        assert not answer.meta.degraded
    second = shop.engine.execute(replace(question, cursor=cursors.read(answer.next)))
    check_page(second, question, of, first=4)
    assert len(reads) == 1
    assert 0 < kept(shop).size < 10_000
    shop.run(2, of)
    shop.retire()
    check_page(shop.engine.execute(question), question, of)
    assert len(reads) == 2, "those since the next run"


def _must_not_be_used(*_arguments: Any) -> Any:
    raise AssertionError("all states were read")


def test_pages_are_right_while_a_writer_applies_and_runs_are_published(make: Callable[..., Shop]) -> None:
    shop = make()
    shop.writer.apply(EVENTS, QUARTER)
    stop = threading.Event()
    cuts: set[tuple[Any, ...]] = set()
    orders = ["-orders", "-cents", "-orders,-cents"]
    ranges = [[], [("from", str((START_S + 2 * DAY_S) * 1000))], [("item.prefix", "/")]]

    def query(seed: int) -> None:
        chance = Random(seed)  # noqa: S311
        while not stop.is_set():
            more = dict([*TOP, ("order", chance.choice(orders)), *chance.choice(ranges)])
            question = shop.question(*more.items())
            try:
                answer = shop.engine.execute(question)
            except TooLarge:
                continue  # the writer was faster: refused, not wrong
            check_page(answer, question)
            assert not answer.meta.degraded, answer.meta.why
            cuts.add(tuple(sorted(answer.meta.cut.items())))

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(query, seed) for seed in range(3)]
        try:
            for number in range(60):
                share = 0.25 + 0.75 * (number + 1) / 60
                applied = {p: max(int(o * share), QUARTER[p]) for p, o in END.items()}
                shop.writer.apply(EVENTS, applied)
                if number % 12 == 11:
                    wait_until(
                        "this cut to be read",
                        lambda applied=applied: (
                            tuple(sorted(applied.items())) in cuts or any(each.done() for each in asking)
                        ),
                    )
                if number in (20, 40):
                    shop.run(number)
                    generations.clean_up(shop.speed_views, shop.place.folder, grace_s=1000)
        finally:
            stop.set()
        for each in asking:
            each.result()
    assert tuple(sorted(END.items())) in cuts
    assert len(cuts) > 3


def test_what_is_kept_is_bounded(make: Callable[..., Shop]) -> None:
    """Where there is room for one answer, the other goes; where there is room for none, all states are read."""
    shop = make()
    shop.writer.apply(EVENTS, END)
    check_page(shop.engine.execute(question := shop.question(*TOP)), question)
    one = kept(shop).size
    assert one > 0
    shop = make(replace(NARROW, followed_states=one + one // 2))
    shop.writer.apply(EVENTS, END)
    for order in ("-orders", "-cents", "-orders"):
        question = shop.question(*dict([*TOP, ("order", order)]).items())
        check_page(shop.engine.execute(question), question)
        (period,) = [(window.start, window.end) for window in question.windows]
        assert kept(shop).size == one
        assert {name for name in ("orders", "cents") if kept(shop).follows(0, Following(SALES, name), period)} == {
            order[1:]
        }
    shop = make(replace(NARROW, followed_states=10))
    shop.writer.apply(EVENTS, END)
    check_page(shop.engine.execute(question := shop.question(*TOP)), question)
    assert kept(shop).size == 0


def test_sums_go_before_the_numbers_that_they_are_made_of(
    make: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All headers are read once, also where there is room for the numbers alone."""
    shop = make()
    shop.writer.apply(EVENTS, END)
    question = shop.question(*TOP)
    check_page(shop.engine.execute(question), question)
    limit = kept(shop).size - 1
    shop = make(replace(NARROW, followed_states=limit))
    shop.writer.apply(EVENTS, END)
    reads: list[Any] = []
    count_reads(monkeypatch, reads)
    for _ in range(3):
        check_page(shop.engine.execute(question), question)
        assert 0 < kept(shop).size <= limit
    assert len(reads) == 1


def test_numbers_that_were_let_go_while_a_query_waited_for_them_are_kept_anew(make: Callable[..., Shop]) -> None:
    shop = make()
    shop.writer.apply(EVENTS, END)
    check_page(shop.engine.execute(question := shop.question(*TOP)), question)
    followed = kept(shop)
    ((name, entry),) = followed._entries.items()
    with ThreadPoolExecutor(1) as threads:
        with entry.lock:
            before = entry.used_at
            asking = threads.submit(followed.choose, 0, {}, Following(SALES, "orders"), PERIODS[0], dict)
            wait_until("the query to wait", lambda: entry.used_at > before or asking.done())
            del followed._entries[name]
        found = asking.result()
    assert found is not None
    assert found.chosen == all_sums(shop, "orders", 0, {})[0]
    assert followed.size > 0


def test_a_redis_that_is_emptied_or_away_is_said(make: Callable[..., Shop]) -> None:
    shop = make()
    shop.writer.apply(EVENTS, QUARTER)
    shop.run(1)
    shop.writer.apply(EVENTS, END)
    question = shop.question(*TOP)
    check_page(shop.engine.execute(question), question)
    shop.server.client.flushall()
    answer = shop.engine.execute(question)
    check_page(answer, question)
    assert (answer.meta.degraded, answer.meta.cut) == (True, QUARTER)
    shop.writer.start()
    shop.writer.apply(EVENTS, END)
    answer = shop.engine.execute(question)
    check_page(answer, question)
    assert (answer.meta.degraded, answer.meta.cut) == (False, END)
    shop.server.kill()
    try:
        answer = shop.engine.execute(question)
        check_page(answer, question)
        assert (answer.meta.degraded, answer.meta.cut) == (True, QUARTER)
    finally:
        shop.server.start()
