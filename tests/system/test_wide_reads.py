"""Wide reads: states that are too many for one call of Redis are read in parts, and are of one cut all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hand_off import generations
from hand_off.speed_views import Outcome, SpeedAnswer, StateRange, WideLimits, totals_of, wide_read
from hand_off.speed_views.wide_read import WideReader
from serving_layer.errors import TooLarge
from serving_layer.readers.limits import ExecutionLimits
from tests.conftest import wait_until
from tests.serving_data import SALES, below, end_of, events, steps
from tests.system.speed_source import RedisServer
from tests.system.test_query_engine import END, EVENTS, HALF, QUARTER, QUESTIONS, Shop, check, check_all

NARROW = ExecutionLimits(speed_states_at_once=5)
"""So that nearly every query is a wide one."""
NO_LIMITS = WideLimits(100_000, 10_000_000, 2**40, time.monotonic() + 3600)
RANGES = [StateRange(SALES.hash), StateRange(totals_of(SALES.hash)), StateRange(SALES.hash, heads=True)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    yield found
    found.kill()


@pytest.fixture
def shop(tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(wide_read, "AT_ONCE", 7)
    made = Shop(tmp_path / "home", server, NARROW)
    yield made
    made.engine.close()


def in_parts(shop: Shop, ranges: Sequence[StateRange] = RANGES, **limits: Any) -> SpeedAnswer | None:
    return shop.speed_views.answer_in_parts(0, {}, ranges, WideLimits(**{**NO_LIMITS.__dict__, **limits}))


def as_sets(answer: SpeedAnswer | None) -> tuple[Any, ...]:
    assert answer is not None
    return answer.outcome, answer.applied, answer.made, [sorted(states) for states in answer.ranges]


def between(monkeypatch: pytest.MonkeyPatch, step: str, act: Any, times: int) -> None:
    """Let something happen before a step of a reader, the first times that it comes to it."""
    original, left = getattr(WideReader, step), [times]

    def first_act(self: WideReader, *arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            act()
        return original(self, *arguments)

    monkeypatch.setattr(WideReader, step, first_act)


@pytest.mark.parametrize("step", ["_read_few", "_scan", "_catch_up", "_put"])
def test_what_a_writer_changes_meanwhile_is_read_again(shop: Shop, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    cuts = steps(EVENTS, Random(3), 12)  # noqa: S311

    def apply_next() -> None:
        end = next(cuts, END)
        shop.writer.apply(EVENTS, {p: max(end.get(p, 0), QUARTER[p]) for p in END})

    between(monkeypatch, step, apply_next, 5)
    found = as_sets(in_parts(shop))
    assert found == as_sets(shop.speed_views.reader.answer(0, {}, RANGES)), "the newest cut, as one call reads it"
    assert found[1] != QUARTER


def test_a_bucket_with_many_changes_is_read_whole(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of the recent changes is bounded: where keys are many or long, it names the bucket alone."""
    long = [event for event in events(3_000, 5, (0,)) if event.partition == 0]
    for event in long:
        event.fields["item"] = f"{event.fields.get('item')}-{event.offset}" + "x" * 200
    end = end_of(long)
    shop.writer.apply(long, {0: 10})
    between(monkeypatch, "_catch_up", lambda: shop.writer.apply(long, end), 1)
    scans: list[Any] = []
    between(monkeypatch, "_scan", lambda: scans.append(1), 1_000)
    found = as_sets(in_parts(shop, RANGES[:1]))
    assert found == as_sets(shop.speed_views.reader.answer(0, {}, RANGES[:1]))
    assert scans


def test_it_begins_again_where_a_run_moves_the_generations_and_gives_up_at_last(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.writer.apply(EVENTS, HALF)
    runs = iter(range(1, 100))
    with monkeypatch.context() as patch:
        between(patch, "_catch_up", lambda: shop.writer.open(next(runs)), 2)
        found = as_sets(in_parts(shop))
        assert found == as_sets(shop.speed_views.reader.answer(0, {}, RANGES))
        between(patch, "_catch_up", lambda: shop.writer.open(next(runs)), 3)
        assert in_parts(shop) is None
    with monkeypatch.context() as patch:  # a writer of an older version, which does not record what it changes
        between(patch, "_catch_up", lambda: shop.server.client.delete(shop.speed_views.layout.recent), 10)
        between(patch, "_read_few", lambda: shop.writer.apply(EVENTS, END), 10)
        assert in_parts(shop) is not None, "nothing changes any more when it begins again"


def test_its_limits(shop: Shop) -> None:
    assert in_parts(shop) is not None
    shop.writer.apply(EVENTS, HALF)
    for limits in ({"states": 50}, {"bytes": 500}, {"buckets": 3}):
        found = in_parts(shop, **limits)
        assert found is not None
        assert found.outcome == Outcome.TOO_MANY
    assert as_sets(shop.speed_views.answer_in_parts(7, {0: 1}, RANGES, NO_LIMITS))[0] == Outcome.REFUSED
    shop.server.client.flushall()
    assert as_sets(in_parts(shop))[0] == Outcome.LOST


@pytest.mark.parametrize("seed", range(2))
def test_wide_answers_are_the_oracles_at_the_cut_they_report(shop: Shop, seed: int) -> None:
    chance = Random(seed)  # noqa: S311
    of = events(250, 200 + seed, (0, 3, 4, 35, 36))
    for number, end in enumerate(steps(of, chance, 4), start=1):
        shop.writer.apply(of, end)
        if chance.random() < 0.5:
            shop.run(number, of)
        for answer in check_all(shop, of):
            assert answer.meta.cut == {p: o for p, o in end.items() if o}
            assert not answer.meta.degraded


def test_wide_answers_are_right_while_a_writer_applies_all_the_time(shop: Shop) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    stop = threading.Event()
    cuts: set[tuple[Any, ...]] = set()

    def query(seed: int) -> None:
        chance = Random(seed)  # noqa: S311
        while not stop.is_set():
            question = shop.question(*chance.choice(QUESTIONS))
            try:
                answer = shop.engine.execute(question)
            except TooLarge:
                continue  # the writer was faster: refused, not wrong
            check(answer, question)
            assert not answer.meta.degraded, answer.meta.why
            cuts.add(tuple(sorted(answer.meta.cut.items())))

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(query, seed) for seed in range(3)]
        try:
            for number in range(60):
                share = 0.25 + 0.75 * (number + 1) / 60
                shop.writer.apply(EVENTS, {p: max(int(o * share), QUARTER[p]) for p, o in END.items()})
                if number in (20, 40):
                    shop.run(number)
                    generations.clean_up(shop.speed_views, shop.place.folder, grace_s=1000)
            wait_until(
                "the last cut to be read",
                lambda: tuple(sorted(END.items())) in cuts or any(each.done() for each in asking),
            )
        finally:
            stop.set()
        for each in asking:
            each.result()
    assert len(cuts) > 3


def test_equal_numbers_are_ranked_by_key_in_one_small_read(shop: Shop) -> None:
    """Many keys with the same number: the first page is right, before a run and after it, with few states read."""
    of = [event for event in events(400, 9, (0,)) if event.partition == 0]
    for event in of:
        event.fields["item"] = f"item-{event.offset:03}"
    end = end_of(of)
    for after_run in (False, True):
        shop.writer.apply(of, end)
        if after_run:
            shop.run(1, of)
        question = shop.question(("by", "item,size"), ("order", "-orders"), ("limit", "5"))
        answer = shop.engine.execute(question)
        check(answer, question, of)
        everything = shop.engine.execute(shop.question(("by", "item,size"), ("order", "item"), ("limit", "1000")))
        ordered = sorted(everything.rows, key=lambda row: -row.answers["orders"])
        assert len(below(of, end)) > 50
        assert [row.key for row in answer.rows] == [row.key for row in ordered[:5]]
