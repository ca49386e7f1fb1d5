"""Answers over a real Redis and real read indexes: right at the cut that they report, or degraded, or refused."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batch_layer.index import files
from batch_layer.run_hand_off import HandOff
from hand_off import generations, publish_log
from hand_off.lag import KafkaEnd
from hand_off.speed_views import SpeedViews
from master_dataset.cut import Cut
from serving_layer.engine import PreparedQuery, QueryEngine
from serving_layer.errors import (
    NoBatchView,
    NotComputedYet,
    NotYet,
    Stale,
    TooLarge,
    TooLong,
    UnknownView,
)
from serving_layer.query import cursors, repeated_query
from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Query
from serving_layer.query.parse import parse_query
from serving_layer.query.result import Result
from serving_layer.readers import speed as speed_reader
from serving_layer.readers.limits import ExecutionLimits
from serving_layer.rest import formats
from tests.conftest import wait_until
from tests.serving_data import (
    FIRST,
    SALES,
    SHOP,
    SPAN_DAYS,
    TOTALS,
    Place,
    Writer,
    below,
    end_of,
    events,
    naive,
    same,
    steps,
)
from tests.system.speed_source import RedisServer
from views.aggregates import Count, Max
from views.in_memory import Event
from views.view import View

NOW = FIRST.timestamp() + SPAN_DAYS * 86400
WHOLE = [("from", str(int(FIRST.timestamp()) * 1000 - 86_400_000)), ("to", str(int(NOW) * 1000))]
FEW_DAYS = (0, 3, 4, 35, 36)
EVENTS = events(400, 7, FEW_DAYS)
END = end_of(EVENTS)
HALF = {partition: offset // 2 for partition, offset in END.items()}
QUARTER = {partition: offset // 4 for partition, offset in END.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    yield found
    found.kill()


class Shop:
    """A source that is served: its batch data, its speed views, and what answers about it."""

    def __init__(
        self,
        home: Path,
        server: RedisServer,
        bounds: ExecutionLimits | None = None,
        views: Sequence[View] = (SALES, TOTALS),
    ) -> None:
        server.client.flushall()
        self.server = server
        self.place = Place(home, views=views, redis_url=server.url)
        self.place.begin()
        self.speed_views = SpeedViews(server.client, SHOP.name)
        self.writer = Writer(self.speed_views, self.place)
        self.engine = QueryEngine(self.place.settings, self.place.declarations, bounds)

    def run(self, number: int, of: Sequence[Event] = EVENTS, *, base: int | None = None, **options: Any) -> Cut:
        """A batch run as it goes: open, compute, publish in the log, publish in Redis."""
        cut = self.writer.open(number)
        self.place.write(number, cut, of, base=base)
        self.place.append(number, cut, **options)
        self.speed_views.runs.publish(number, cut)
        return cut

    def retire(self) -> None:
        """Drop all generations but the newest."""
        assert self.speed_views.runs.retire(self.speed_views.reader.snapshot().generations[-1].gid)

    def question(self, *more: tuple[str, str], view: str = "sales") -> Query:
        given = [*(each for each in WHOLE if each[0] not in dict(more)), *more]
        return parse_query(self.engine.served_view(view), given, now=NOW, limits=QueryLimits())

    def query(self, *more: tuple[str, str], view: str = "sales") -> Result:
        return self.engine.execute(self.question(*more, view=view))


@pytest.fixture
def shop(tmp_path: Path, server: RedisServer) -> Iterator[Shop]:
    made = Shop(tmp_path / "home", server)
    yield made
    made.engine.close()
    assert files._opened == {}, "files are still open"


QUESTIONS = [
    [],
    [("by", "item,size"), ("order", "-orders"), ("limit", "5")],
    [("by", "item"), ("grain", "month")],
    [("grain", "day"), ("window", "7d"), ("answers", "orders,users,ms")],
    [("item", "a"), ("by", "size")],
    [("by", "item,size"), ("limit", "4")],
    [("from", "2026-01-17T05:00Z"), ("to", "2026-02-02T23:00Z"), ("by", "item"), ("explain", "true")],
]


def check(answer: Result, question: Query, of: Sequence[Event] = EVENTS) -> None:
    """It is the oracle's over just the events below the cut that it reports."""
    included = below(of, answer.meta.cut)
    expected = {}
    for period, window in zip(question.periods, question.windows, strict=True):
        for group, answers in naive(question.view, included, window, question.by, passes(question)).items():
            expected[period, group] = {name: answers[name] for name in question.answers}
    found = {(row.period, row.key): row.answers for row in answer.rows}
    assert len(found) == len(answer.rows) == min(len(expected), question.limit)
    for at, answers in found.items():
        assert same(answers, expected[at]), (at, answers, expected[at])


def passes(question: Query) -> Callable[[dict[str, Any]], bool]:
    return lambda key: all(key[each.key] in each.values for each in question.filters)


def check_all(shop: Shop, of: Sequence[Event] = EVENTS) -> list[Result]:
    found = []
    for more in QUESTIONS:
        question = shop.question(*more)
        found.append(shop.engine.execute(question))
        check(found[-1], question, of)
    return found


# ---- right at the cut ----------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_merged_answers_are_the_oracles_at_the_cut_they_report(shop: Shop, seed: int) -> None:
    chance = Random(seed)  # noqa: S311
    of = events(250, 100 + seed, FEW_DAYS)
    number, last = 0, None
    for end in steps(of, chance, 8):
        shop.writer.apply(of, end)
        if chance.random() < 0.5:
            number += 1
            shop.run(number, of, base=last if chance.random() < 0.6 else None)
            last = number
        for answer in check_all(shop, of):
            assert answer.meta.cut == {p: o for p, o in end.items() if o}
            assert (answer.meta.degraded, answer.meta.complete, answer.meta.why) == (False, True, None)
            assert answer.meta.batch.run == number
            assert answer.meta.speed is not None
            assert answer.meta.speed.published_run == number
        if chance.random() < 0.5:
            generations.clean_up(shop.speed_views, shop.place.folder, grace_s=0)


def test_what_only_one_side_has_is_read_from_that_side(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    nothing = shop.query(("from", "2020-01-01"), ("to", "2020-01-05"))
    assert nothing.rows == []
    shop.run(1)
    batch = shop.query()
    assert (batch.meta.batch.read, batch.meta.speed and batch.meta.speed.read) == (True, False)
    late = Event(0, END[0], "late", FIRST.replace(year=2020), {"cents": 5, "item": "x"})
    shop.writer.apply([*EVENTS, late], {**HALF, 0: END[0] + 1})
    speed = shop.query(("from", "2019-01-01"), ("to", "2021-01-01"), ("by", "item"))
    assert [row.key for row in speed.rows] == [("x",)]
    assert (speed.meta.batch.read, speed.meta.speed and speed.meta.speed.read) == (False, True)


def test_each_row_says_what_it_is_made_of(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    shop.writer.apply(EVENTS, END)
    (row,) = shop.query(("explain", "true"), ("answers", "orders,users")).rows
    assert row.explain is not None
    sides = [row.explain[side]["orders"] for side in ("batch", "speed", "merged")]
    assert sides[0] + sides[1] == sides[2] == row.answers["orders"]
    assert sides[0] > 0 < sides[1]
    assert row.explain["batch"]["users"] <= row.answers["users"]


def test_several_views_are_answered_at_one_cut(shop: Shop) -> None:
    stop = threading.Event()

    def write() -> None:
        for offset in range(END[0]):
            shop.writer.apply(EVENTS, {0: offset + 1})
            if stop.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        cuts = set()
        while thread.is_alive():
            sales, totals = shop.engine.execute_all([shop.question(), shop.question(view="totals")])
            assert sales.meta.cut == totals.meta.cut
            check(totals, shop.question(view="totals"))
            check(sales, shop.question())
            cuts.add(str(totals.meta.cut))
        assert len(cuts) > 2, "nothing happened meanwhile"
    finally:
        stop.set()
        thread.join()


def test_a_run_that_redis_sent_a_reader_to_is_closed_when_another_is_served(shop: Shop) -> None:
    batch = shop.engine._readers[SHOP.name].batch
    shop.writer.apply(EVENTS, QUARTER)
    shop.run(1)
    assert shop.query().meta.batch.run == 1
    shop.writer.apply(EVENTS, HALF)
    question = shop.question()
    with batch._refreshing:  # as if another thread opened the next run just now
        shop.run(2)
        shop.retire()
        assert shop.engine.execute(question).meta.batch.run == 2, "Redis says which"
        assert batch.served == 1
    assert shop.query().meta.batch.run == 2
    shop.writer.apply(EVENTS, END)
    shop.run(3)
    assert shop.query().meta.batch.run == 3
    with batch.current() as run:
        assert {file.path for view in run._opened for file in run.index(view).files} == files._opened.keys()


def test_runs_are_switched_while_queries_read(shop: Shop) -> None:
    """Every answer is right at its cut, none is refused or degraded, and old files are closed in the end."""
    shop.writer.apply(EVENTS, QUARTER)
    stop = threading.Event()
    failures: list[BaseException] = []
    runs: set[int] = set()

    def query(seed: int) -> int:
        chance, asked = Random(seed), 0  # noqa: S311
        while not stop.is_set():
            question = shop.question(*chance.choice(QUESTIONS))
            answer = shop.engine.execute(question)
            check(answer, question)
            assert not answer.meta.degraded, answer.meta.why
            runs.add(answer.meta.batch.run)
            asked += 1
        return asked

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(query, seed) for seed in range(4)]
        try:
            for number, end in enumerate(steps(EVENTS, Random(1), 5), start=1):  # noqa: S311
                shop.writer.apply(EVENTS, {p: max(end.get(p, 0), QUARTER[p]) for p in END})
                shop.run(number, base=number - 1 or None if number % 3 else None)
                generations.clean_up(shop.speed_views, shop.place.folder, grace_s=1000)
                wait_until(f"run {number} to be read", lambda: number in runs or any(map(_failed, asking)))  # noqa: B023
        except BaseException as error:
            failures.append(error)
        finally:
            stop.set()
        assert all(each.result() > 3 for each in asking)
    assert failures == []
    with shop.engine._readers[SHOP.name].batch.current() as run:
        used = {file.path for view in ("sales", "totals") for file in run.index(view).files}

    def are_closed() -> bool:
        gc.collect()  # a reader that was given up lets go of its file when it is collected
        return used == files._opened.keys()

    wait_until("files of older runs to be closed", are_closed)


def _failed(future: Any) -> bool:
    return future.done() and future.exception() is not None


def replied(shop: Shop, prepared: PreparedQuery) -> Any:
    """What Redis replies to the command of a prepared query now."""
    connection = shop.server.client.connection_pool.get_connection()
    connection.send_packed_command([prepared.command])
    reply = connection.read_response()
    shop.server.client.connection_pool.release(connection)
    return reply


def test_a_prepared_query_reads_its_own_run_while_another_is_served(shop: Shop) -> None:
    """A run is published and served between the reply of Redis and the rows: the tiles are those of the run before."""
    shop.run(1)
    shop.writer.apply(EVENTS, HALF)
    shop.run(2)
    shop.writer.apply(EVENTS, {p: HALF[p] + 40 for p in HALF})
    question = shop.question(("grain", "day"))
    prepared = shop.engine.prepare(question, formats.written_row)
    assert prepared is not None
    held = shop.engine.hold_run(prepared)
    assert held is not None
    expected, reply = formats.to_json(shop.engine.execute(question)), replied(shop, prepared)
    with held.run:
        shop.run(3)
        assert shop.query().meta.batch.run == 3
        assert shop.engine.hold_run(prepared) is None
        found = shop.engine.answer_again(prepared, held, reply)
        assert found is not None
        rows, meta = found
        assert formats.json_document(rows.json, None, meta) == expected
        assert b'"run":2' in expected


def test_few_tiles_are_read_again_at_a_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """More are left to the threads."""
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    shop.writer.apply(EVENTS, {p: HALF[p] + 20 for p in HALF})
    prepared = shop.engine.prepare(shop.question(("grain", "day")), formats.written_row)
    assert prepared is not None
    held = shop.engine.hold_run(prepared)
    assert held is not None
    with held.run:
        monkeypatch.setattr(repeated_query, "MAX_TILES", 1)
        assert shop.engine.answer_again(prepared, held, replied(shop, prepared)) is None
        monkeypatch.setattr(repeated_query, "MAX_TILES", 100)
        shop.writer.apply(EVENTS, {p: HALF[p] + 21 for p in HALF})
        assert shop.engine.answer_again(prepared, held, replied(shop, prepared)) is not None


def test_pages_go_on_across_a_publish(shop: Shop) -> None:
    shop.writer.apply(EVENTS, END)
    for order in ("bucket", "-orders", "item,-cents"):
        question = shop.question(("by", "item,size"), ("order", order), ("limit", "7"), ("grain", "month"))
        whole = shop.engine.execute(replace(question, limit=10_000)).rows
        found, number = [], publish_log.last(shop.place.folder).run
        page = shop.engine.execute(question)
        while page.next is not None:
            found += page.rows
            number += 1
            if len(found) < 40:
                shop.run(number, base=number - 1 or None)
            page = shop.engine.execute(replace(question, cursor=cursors.read(page.next)))
            assert not page.meta.degraded
        assert [*found, *page.rows] == whole


@pytest.mark.parametrize("more", [[], [("order", "item")], [("order", "item,size"), ("explain", "true")]])
def test_pages_in_the_order_of_keys_have_the_rows_of_the_oracle(shop: Shop, more: list[tuple[str, str]]) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    shop.writer.apply(EVENTS, END)
    question = shop.question(("by", "item,size"), ("limit", "3"), *more)
    (window,) = question.windows
    expected = naive(question.view, below(EVENTS, END), window, question.by, passes(question))
    found = []
    page = shop.engine.execute(question)
    while True:
        found += page.rows
        if page.next is None:
            break
        page = shop.engine.execute(replace(question, cursor=cursors.read(page.next)))
    assert [row.key for row in found] == sorted(expected, key=lambda key: [(v is not None, v) for v in key])
    assert all(same(row.answers, expected[row.key]) for row in found)


def test_a_forged_cursor_in_the_order_of_keys_does_no_harm(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    question = shop.question(("by", "item,size"), ("limit", "3"))
    first = shop.engine.execute(question)
    cursor = cursors.read(first.next or "")
    for forged in ("\ud800", ""):
        after = tuple(forged if isinstance(each, str) else each for each in cursor.after)
        shop.engine.execute(replace(question, cursor=cursor._replace(after=after)))


# ---- another run than ours -----------------------------------------------------


def test_a_run_that_redis_does_not_go_with_is_left_for_the_one_it_does(shop: Shop) -> None:
    """A takeover that was killed after its append: the log is ahead of Redis, which goes on with the run before."""
    shop.writer.apply(EVENTS, QUARTER)
    shop.run(1)
    shop.place.publish(2, HALF, EVENTS)
    for answer in check_all(shop):
        assert answer.meta.degraded, "the newer run alone has more than Redis with the older one"
        assert "behind run 2" in str(answer.meta.why)
        assert (answer.meta.cut, answer.meta.batch.run, answer.meta.speed) == (HALF, 2, None)
    shop.writer.apply(EVENTS, END)
    for answer in check_all(shop):
        assert not answer.meta.degraded
        assert (answer.meta.cut, answer.meta.batch.run) == (END, 1)
        assert answer.meta.speed is not None
        assert answer.meta.speed.published_run == 1
    shop.run(3)
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.batch.run) == (False, 3)


def test_a_run_that_redis_continues_and_that_is_gone_leaves_the_batch_view_alone(shop: Shop) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    shop.run(1)
    shop.place.publish(2, HALF, EVENTS)
    shop.writer.apply(EVENTS, END)
    shop.place.folder.manifest(1).unlink()
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.batch.run, answer.meta.cut) == (True, 2, HALF)
        assert "continues run 1" in str(answer.meta.why)


def test_readers_that_are_rolled_back_stay_there(shop: Shop) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    shop.run(1)
    shop.writer.apply(EVENTS, HALF)
    shop.run(2)
    assert shop.query().meta.batch.run == 2
    pinned = publish_log.serve(shop.place.folder, 1)
    hand_off = HandOff(shop.place.folder, shop.speed_views, wait_s=1)
    shop.writer.apply(EVENTS, END)
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.batch.run, answer.meta.cut) == (False, 1, END)
    assert hand_off.continues(pinned) is True
    shop.retire()  # what nobody does while readers are pinned
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.batch.run, answer.meta.cut) == (True, 1, QUARTER)
        assert "pinned to run 1 by a rollback" in str(answer.meta.why)
    assert hand_off.continues(pinned) is False, "as the command and `tidemark status` say"
    said = shop.engine.status("shop")
    assert (said.is_frozen, said.speed, "pinned to run 1 by a rollback" in str(said.why)) == (True, None, True)
    publish_log.serve(shop.place.folder, None)
    assert not shop.engine.status("shop").is_frozen
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.batch.run, answer.meta.cut) == (False, 2, END)


# ---- views that change ---------------------------------------------------------

CHANGED = View("sales", SHOP, {"orders": Count(), "most": Max("cents")}, keys={"item": "item"}, grain="1d")
NEW = View("fresh", SHOP, {"orders": Count()})


def test_an_old_version_is_served_until_a_run_has_the_new_one(shop: Shop, tmp_path: Path) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    shop.run(1)
    shop.writer.apply(EVENTS, HALF)
    shop.place.views = (CHANGED, TOTALS, NEW)
    again = shop.engine = QueryEngine(shop.place.settings, shop.place.declarations)
    assert again.served_view("sales").hash == SALES.hash
    check_all(shop)
    with pytest.raises(NotComputedYet, match="joins at the next batch run"):
        again.served_view("fresh")
    with pytest.raises(UnknownView, match="no view 'nothing'"):
        again.served_view("nothing")
    old = shop.question(("by", "item"))
    cut = shop.writer.open(2)
    shop.writer.apply(EVENTS, END)
    shop.place.publish(2, cut, EVENTS)
    shop.speed_views.runs.publish(2, cut)
    assert again.served_view("sales").hash == CHANGED.hash
    for view in ("sales", "fresh"):
        question = shop.question(("by", "item"), view=view) if view == "sales" else shop.question(view=view)
        answer = again.execute(question)
        check(answer, question)
        assert (answer.meta.version, answer.meta.batch.run) == (question.view.hash[:16], 2)
    late = again.execute(old)
    check(late, old)
    assert (late.meta.batch.run, late.meta.cut, late.meta.degraded) == (1, END, False), "asked just before the switch"
    never = replace(old, view=View("sales", SHOP, {"orders": Count(), "hits": Count()}))
    with pytest.raises(NotComputedYet, match="Try again"):
        again.execute(never)
    again.close()


def test_a_view_that_is_declared_no_more_is_served_until_a_run_leaves_it_out(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    shop.place.views = (TOTALS,)
    shop.engine.close()
    shop.engine = QueryEngine(shop.place.settings, shop.place.declarations)
    check_all(shop)
    shop.run(2)
    with pytest.raises(UnknownView):
        shop.engine.served_view("sales")


def test_before_anything_was_computed(tmp_path: Path, server: RedisServer) -> None:
    server.client.flushall()
    place = Place(tmp_path, views=(SALES,), redis_url=server.url)
    engine = QueryEngine(place.settings, place.declarations)
    with pytest.raises(NotComputedYet, match="tidemark batch run --source shop"):
        engine.served_view("sales")
    place.begin()
    question = parse_query(engine.served_view("sales"), WHOLE, now=NOW, limits=QueryLimits())
    answer = engine.execute(question)
    assert (answer.rows, answer.meta.cut, answer.meta.batch.run, answer.meta.degraded) == ([], {}, 0, True)
    engine.close()


# ---- without Redis -------------------------------------------------------------


def test_a_redis_that_is_away_leaves_the_batch_view_alone(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    shop.writer.apply(EVENTS, END)
    check_all(shop)
    shop.server.kill()
    try:
        for answer in check_all(shop):
            assert (answer.meta.degraded, answer.meta.complete, answer.meta.speed) == (True, False, None)
            assert answer.meta.cut == HALF
            assert "Redis does not reply" in str(answer.meta.why)
        with pytest.raises(NotYet):
            shop.query(("min_cut", "0:9999"), ("wait", "0s"))
        assert shop.query(("min_cut", f"0:{HALF[0]}"), ("wait", "0s")).rows[0].answers["orders"] > 0
        with pytest.raises(Stale, match="unknown"):
            shop.query(("max_staleness", "1h"), ("wait", "0s"))
    finally:
        shop.server.start()
    wait_until("answers to be whole again", lambda: not shop.query().meta.degraded, deadline_s=60)
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.cut) == (False, END)


def test_a_redis_that_hangs_holds_up_few(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """One query waits until its time is over; those after it do not."""
    wait_s = 5.0
    monkeypatch.setattr(speed_reader, "RETRY_AFTER_S", 2 * wait_s)  # so that none is the next to try
    shop.engine.close()
    shop.engine = QueryEngine(
        shop.place.settings, shop.place.declarations, replace(shop.engine.limits, speed_timeout_s=wait_s)
    )
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    check_all(shop)
    questions = [shop.question(*more) for more in QUESTIONS]
    assert shop.server.process is not None
    shop.server.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        answers = [shop.engine.execute(questions[0])]
        waited = time.monotonic()
        answers += [shop.engine.execute(question) for question in questions[1:]]
        assert waited - began > 0.9 * wait_s, "none waited: this shows nothing"
        assert time.monotonic() - waited < wait_s, "another one waited"
    finally:
        shop.server.process.send_signal(signal.SIGCONT)
    for answer, question in zip(answers, questions, strict=True):
        assert answer.meta.degraded
        check(answer, question)
    wait_until("answers to be whole again", lambda: not shop.query().meta.degraded, deadline_s=60)


def test_a_redis_that_was_emptied_is_said_until_it_has_caught_up(shop: Shop) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    shop.run(1)
    shop.writer.apply(EVENTS, END)
    check_all(shop)
    saved = shop.server.saved()
    shop.server.client.flushall()
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.cut, answer.meta.speed) == (True, QUARTER, None)
        assert "Redis holds no speed views" in str(answer.meta.why)
    shop.writer.start()
    shop.writer.apply(EVENTS, HALF)
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.complete, answer.meta.cut) == (True, False, HALF)
        assert "held" in str(answer.meta.why)
        assert answer.meta.speed is not None
    other = QueryEngine(shop.place.settings, shop.place.declarations)
    assert not other.execute(shop.question()).meta.degraded, "one that has never held more need not say so"
    other.close()
    shop.writer.apply(EVENTS, END)
    for answer in check_all(shop):
        assert (answer.meta.degraded, answer.meta.cut) == (False, END)
    assert saved


def test_a_page_behind_the_page_before_says_so(shop: Shop) -> None:
    shop.writer.apply(EVENTS, END)
    question = shop.question(("by", "item"), ("limit", "2"))
    first = shop.engine.execute(question)
    shop.server.client.flushall()
    shop.writer.start()
    shop.writer.apply(EVENTS, HALF)
    other = QueryEngine(shop.place.settings, shop.place.declarations)
    second = other.execute(replace(question, cursor=cursors.read(first.next)))
    assert second.meta.degraded
    assert "Begin again with the first page" in str(second.meta.why)
    other.close()


# ---- fresh enough --------------------------------------------------------------


def test_a_question_waits_until_the_views_have_come_as_far(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    with pytest.raises(NotYet) as refused:
        shop.query(("min_cut", f"0:{END[0]}"), ("wait", "0s"))
    assert refused.value.more["applied"] == {str(p): o for p, o in HALF.items()}
    assert refused.value.more["missing"] == END[0] - HALF[0]
    later = threading.Timer(0.3, shop.writer.apply, (EVENTS, END))
    later.start()
    answer = shop.query(("min_cut", f"0:{END[0]}"), ("wait", "20s"))
    assert answer.meta.cut == END
    later.join()
    began = time.monotonic()
    with pytest.raises(NotYet):
        shop.query(("min_cut", f"0:{END[0] + 1}"), ("wait", "200ms"))
    assert 0.2 <= time.monotonic() - began < 20  # and not as long as anybody may wait


def test_a_question_waits_until_the_views_are_fresh(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    with pytest.raises(Stale, match="unknown"):
        shop.query(("max_staleness", "5s"), ("wait", "0s"))
    shop.speed_views.writer(shop.writer.token).heartbeat(3600, KafkaEnd(END, 1.0, HALF, 900.0))
    with pytest.raises(Stale) as refused:
        shop.query(("max_staleness", "10m"), ("wait", "0s"))
    assert 899 < refused.value.more["lag_s"] < 1100
    found = shop.query(("max_staleness", "1h")).meta.speed
    assert found is not None
    assert found.lag_events == sum(END.values()) - sum(HALF.values())
    later = threading.Timer(0.3, shop.writer.apply, (EVENTS, END))
    later.start()
    answer = shop.query(("max_staleness", "10m"), ("wait", "20s")).meta
    later.join()
    assert answer.speed is not None
    assert (answer.cut, answer.speed.lag_events) == (END, 0)
    assert answer.speed.lag_s is not None
    assert answer.speed.lag_s < 600


# ---- what cannot be answered ---------------------------------------------------


def test_a_batch_view_that_is_damaged_is_never_half_an_answer(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.run(1)
    shop.writer.apply(EVENTS, END)
    question = shop.question()
    (index,) = (shop.place.folder.indexes / SALES_TABLE(shop)).glob("*.mdb")
    moved = index.rename(index.with_suffix(".away"))
    with pytest.raises(NoBatchView, match=r"Run 1 of source 'shop' cannot be read.*tidemark batch run"):
        shop.engine.execute(question)
    moved.rename(index)
    check_all(shop)
    shop.run(2)
    shop.place.folder.manifest(2).write_bytes(b"{}")
    with pytest.raises(NoBatchView, match="manifest of run 2"):
        shop.engine.execute(question)
    shop.run(3)
    check_all(shop)
    shop.run(4)
    (shop.place.folder.root / "publish" / "00000004.json").write_bytes(b"damaged")
    check_all(shop)  # its manifest says what it was
    shop.run(5)
    for path in (shop.place.folder.root / "publish" / "00000005.json", shop.place.folder.manifest(5)):
        path.write_bytes(b"damaged")
    with pytest.raises(NoBatchView, match="Entry 5 of the publish log"):
        shop.engine.execute(question)


def SALES_TABLE(shop: Shop) -> str:
    return shop.place.folder.table("sales", SALES.hash).name


@pytest.mark.parametrize(
    ("bounds", "error", "words"),
    [
        (ExecutionLimits(speed_states=50), TooLarge, "needs more than 50 states"),
        (ExecutionLimits(speed_buckets=10), TooLarge, "10 buckets"),
        (ExecutionLimits(max_groups=60), TooLarge, "serving_max_groups"),
        (ExecutionLimits(max_state_mb=0.01), TooLarge, "0.01 MB"),
        (ExecutionLimits(timeout_s=0), TooLong, "serving_timeout_s"),
    ],
)
def test_a_question_that_takes_too_much_is_refused(
    tmp_path: Path, server: RedisServer, bounds: ExecutionLimits, error: type[Exception], words: str
) -> None:
    shop = Shop(tmp_path, server, bounds)
    shop.writer.apply(EVENTS, HALF)
    with pytest.raises(error, match=words):
        shop.query(("by", "item,size"), ("grain", "hour"))
    shop.run(1)
    shop.writer.apply(EVENTS, {**HALF, 0: HALF[0] + 1})
    shop.retire()
    if bounds.speed_states == 50 or bounds.speed_buckets == 10:
        assert shop.query().rows, "after a run the speed views have few again"
    else:
        with pytest.raises(error, match=words):
            shop.query(("by", "item,size"), ("grain", "hour"))
    shop.engine.close()


def test_an_etag_is_the_same_as_long_as_the_answer_is(shop: Shop) -> None:
    shop.writer.apply(EVENTS, HALF)
    first = shop.query().meta.etag
    assert shop.query().meta.etag == first
    others = [
        shop.query(("by", "item")).meta.etag,
        shop.query(("limit", "3")).meta.etag,
        shop.query(("explain", "true")).meta.etag,
    ]
    shop.writer.apply(EVENTS, END)
    others.append(shop.query().meta.etag)
    shop.run(1)
    others.append(shop.query().meta.etag)
    assert len({first, *others}) == 6


def test_a_meta_says_how_far_an_answer_may_be_off(shop: Shop) -> None:
    found = shop.query(("answers", "orders,users,share,ms")).meta.answers
    assert found["orders"] == {"kind": "count", "exact": True}
    assert found["share"] == {"kind": "derived", "exact": True}
    assert found["users"]["exact"] is False
    assert "1.6%" in found["users"]["error"]
    assert found["ms"]["kind"] == "quantiles"


def test_more_quantiles_stand_beside_those_that_were_declared(shop: Shop) -> None:
    shop.writer.apply(EVENTS, END)
    (row,) = shop.query(("answers", "ms,median"), ("quantiles", "0.5,0.9,1")).rows
    assert row.answers.keys() == {"ms", "median", "ms.quantiles", "median.quantiles"}
    assert row.answers["ms.quantiles"].keys() == {"0.5", "0.9", "1"}
    assert row.answers["ms.quantiles"]["0.9"] == row.answers["ms"]["p90"]
    assert row.answers["median.quantiles"]["0.5"] == row.answers["median"]
