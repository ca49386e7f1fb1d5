"""A query that is asked again is answered on the event loop: the same bytes as by the usual way, whatever happens."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from hand_off.lag import KafkaEnd
from hand_off.manifests import Manifest, write_manifest
from infra.rest.access_keys import add_key, remove_key
from serving_layer.app import create_app
from serving_layer.query import repeated_query
from serving_layer.query.model import Query
from serving_layer.readers.limits import ExecutionLimits
from tests.conftest import wait_until
from tests.process.serving_server import running
from tests.serving_data import FIRST, MICROS, SHOP
from tests.system.speed_source import RedisServer
from tests.system.test_query_engine import END, EVENTS, HALF, WHOLE, Shop
from tests.system.test_serving_answers import ASKED, given, moments, server
from views import in_memory
from views.aggregates import Count, Distinct, Quantiles
from views.in_memory import Event
from views.states import pack
from views.view import View

__all__ = ["server"]

REPEATED: list[list[tuple[str, str]]] = [
    [],
    [("grain", "day")],
    [("grain", "day"), ("by", "item,size"), ("order", "-users,item")],
    [("item", "a"), ("grain", "hour"), ("from", "2026-02-28"), ("to", "2026-03-03")],
    [("item.not", "b"), ("by", "size"), ("grain", "week"), ("tz", "Europe/Berlin")],
    [("by", "item"), ("grain", "month"), ("quantiles", "0.1,0.999")],
    [("having", "orders > 1 and share is not null"), ("by", "item"), ("answers", "often,spread,few,last,latest,spent")],
    [("from", "2020-01-01"), ("to", "2020-01-05"), ("by", "item")],
]
"""Queries that are small and simple enough."""
PATIENCE_S = 3.0
"""How long Redis may take: a busy machine makes no answer degraded."""
USUAL = {"If-None-Match": '"another"'}
"""A request with a condition goes the usual way."""


class Front(NamedTuple):
    """A shop that is served, what asks it, and the queries that were executed the usual way."""

    shop: Shop
    client: httpx.Client
    executed: list[Query]
    home: Path

    def ask(self, more: list[tuple[str, str]], **options: Any) -> httpx.Response:
        return self.client.get("/views/sales/query", params=given(more), **options)

    def ask_again(self, more: list[tuple[str, str]]) -> httpx.Response:
        """Ask until the answer comes the short way."""
        found: list[httpx.Response] = []

        def is_short() -> bool:
            before = len(self.executed)
            found.append(self.ask(more))
            return len(self.executed) == before

        wait_until(f"{more} to be answered the short way", is_short)
        return found[-1]


@pytest.fixture
def front(tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    monkeypatch.setattr(repeated_query, "MAX_SPEED_STATES", 1_000)  # some of REPEATED read all states
    monkeypatch.setattr(repeated_query, "MAX_TILES", 1_000)
    shop = Shop(tmp_path / "home", server, ExecutionLimits(speed_timeout_s=PATIENCE_S))
    with served(shop, monkeypatch) as found:
        yield found


@contextmanager
def served(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    home = shop.place.home
    settings = shop.place.settings.model_copy(update={"serving_redis_timeout_s": PATIENCE_S})
    secret = add_key(home, "admin", ["query"])
    executed: list[Query] = []
    real = shop.engine.execute
    monkeypatch.setattr(shop.engine, "execute", lambda query: executed.append(query) or real(query))
    app = create_app(settings, shop.place.declarations, shop.engine)
    with (
        running(app) as (address, _stop),
        httpx.Client(base_url=address, auth=("admin", secret), timeout=30) as client,
    ):
        yield Front(shop, client, executed, home)


def sent(response: httpx.Response) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """All that a client sees, but for the date."""
    return response.status_code, [each for each in response.headers.raw if each[0] != b"date"], response.content


def test_both_ways_give_the_same_bytes(front: Front) -> None:
    for moment in moments(front.shop):
        for more in REPEATED:
            short, usual = front.ask_again(more), front.ask(more, headers=USUAL)
            assert usual.status_code == 200, usual.text
            assert sent(short) == sent(usual), (moment, more)


def test_every_query_has_the_same_bytes_when_it_is_asked_again(front: Front) -> None:
    """Also those that always go the usual way."""
    front.ask_again([])
    for moment in moments(front.shop):
        for more in ASKED:
            every = [sent(front.ask(more)) for _ in range(3)]
            assert every == [sent(front.ask(more, headers=USUAL))] * 3, (moment, more)


def test_a_refused_query_is_refused_again(front: Front) -> None:
    front.shop.run(1)
    for more in ([("by", "nothing")], [("grain", "1y")], [("limit", "0")], [("format", "xml")]):
        every = [sent(front.ask(more)) for _ in range(3)]
        assert every[0][0] == 422
        assert every == [every[0]] * 3


def test_other_formats_and_accept_headers_go_the_usual_way(front: Front) -> None:
    front.shop.run(1)
    front.ask_again([])
    for headers in ({"Accept": "text/csv"}, {"Accept": "application/x-ndjson"}, {"Accept": "image/png"}):
        every = [sent(front.ask([], headers=headers)) for _ in range(3)]
        assert every == [sent(front.ask([], headers=headers | USUAL))] * 3
    assert front.ask([], headers={"Accept": "text/csv"}).headers["content-type"].startswith("text/csv")


def test_new_events_are_in_the_next_answer(front: Front) -> None:
    front.shop.run(1)
    before = front.ask_again([]).json()
    assert before["rows"] == []
    front.shop.writer.apply(EVENTS, HALF)
    after = front.ask_again([])
    assert after.json()["rows"]
    assert sent(after) == sent(front.ask([], headers=USUAL))


def test_lag_is_that_of_now(front: Front) -> None:
    front.shop.run(1)
    front.ask_again([])
    front.shop.writer.apply(EVENTS, HALF)
    shop = front.shop
    shop.speed_views.writer(shop.writer.token).heartbeat(3600, KafkaEnd(END, 1.0, HALF, 900.0))
    meta = front.ask_again([]).json()["meta"]
    assert meta["speed"]["lag_events"] == sum(END.values()) - sum(HALF.values())
    assert meta["speed"]["lag_s"] >= 900


def test_a_removed_key_is_refused_at_once(front: Front) -> None:
    front.shop.run(1)
    front.ask_again([])
    remove_key(front.home, "admin")
    assert front.ask([]).status_code == 401
    assert httpx.get(front.client.base_url.join("/views/sales/query"), params=WHOLE).status_code == 401


def test_a_key_that_may_not_see_the_view_is_refused(front: Front) -> None:
    front.shop.run(1)
    front.ask_again([])
    other = add_key(front.home, "other", ["query"], ["totals"])
    assert front.ask([], auth=("other", other)).status_code == 403
    assert front.ask([]).status_code == 200


def test_without_redis_the_answer_is_degraded_and_complete_again_after_it(front: Front, server: RedisServer) -> None:
    front.shop.run(1)
    front.shop.writer.apply(EVENTS, HALF)
    whole = front.ask_again([]).json()["rows"]
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        meta = front.ask([]).json()["meta"]
        assert meta["degraded"]
        assert "Redis does not reply" in meta["why"]
    finally:
        server.process.send_signal(signal.SIGCONT)
    wait_until("answers to be complete", lambda: not front.ask([]).json()["meta"]["degraded"])
    assert front.ask_again([]).json()["rows"] == whole


def test_redis_that_lost_its_scripts_gives_the_same_answers(front: Front, server: RedisServer) -> None:
    front.shop.run(1)
    front.shop.writer.apply(EVENTS, HALF)
    rows = front.ask_again([]).json()["rows"]
    server.client.script_flush()
    assert front.ask([]).json()["rows"] == rows
    assert front.ask_again([]).json()["rows"] == rows


def test_redis_that_was_emptied_makes_answers_degraded(front: Front, server: RedisServer) -> None:
    front.shop.run(1)
    front.shop.writer.apply(EVENTS, HALF)
    front.ask_again([])
    server.client.flushall()
    meta = front.ask([]).json()["meta"]
    assert meta["degraded"]
    assert meta["speed"] is None


def test_metrics_count_answers_of_both_ways(front: Front) -> None:
    front.shop.run(1)
    front.ask_again([])
    key = ("meter", add_key(front.home, "meter", ["metrics"]))

    def counted() -> dict[str, float]:
        lines = front.client.get("/metrics", auth=key).text.splitlines()
        return {
            name: float(line.rpartition(" ")[2])
            for line in lines
            for name in ('answer_seconds_count{outcome="answered",view="sales"}', 'responses_total{status="200"}')
            if line.startswith(f"tidemark_serving_{name}")
        }

    before = counted()
    assert len(before) == 2
    front.ask([])
    after = counted()
    assert [after[name] - before[name] for name in before] == [1, 2]  # the metrics themselves are a response too


# ---- many different queries ----------------------------------------------------

PAGES = View(
    "sales", SHOP, {"orders": Count(), "users": Distinct("user_id"), "ms": Quantiles("ms", at=(0.5, 0.9))},
    keys={"item": "item"}, grain="1h",
)  # fmt: skip
KEYS, DAYS, EVENTS_OF_A_DAY = 200, 30, 400


def write_pages(shop: Shop) -> None:
    """Run 1: a state of many events for each key and day. They are alike, because folding as many events takes long."""
    group = [
        Event(0, number, f"{number}", FIRST, {"item": "", "user_id": f"u{number}", "ms": number**1.5})
        for number in range(EVENTS_OF_A_DAY)
    ]
    (state,) = in_memory.fold(PAGES, group).values()
    packed, first = pack(PAGES.algebras, state), int(FIRST.timestamp())
    groups = [((first + day * 86_400) * MICROS, (f"page {key}",), packed) for day in range(DAYS) for key in range(KEYS)]
    cut = shop.writer.open(1)
    data = shop.place.view_data(1, PAGES, groups)
    write_manifest(shop.place.folder, Manifest(1, SHOP.name, cut, None, 1.0, 2.0, len(groups), 0, 0, (data,), ()))
    shop.place.append(1, cut)
    shop.speed_views.runs.publish(1, cut)


def test_a_month_of_each_of_200_keys_stays_prepared(
    tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default settings, while the speed view changes the last day of each."""
    shop = Shop(tmp_path / "home", server, ExecutionLimits(speed_timeout_s=PATIENCE_S), (PAGES,))
    write_pages(shop)
    prepared: list[Query] = []
    real = shop.engine.prepare
    monkeypatch.setattr(shop.engine, "prepare", lambda query, write: prepared.append(query) or real(query, write))
    end = FIRST + timedelta(days=DAYS)
    month = [("from", f"{FIRST:%Y-%m-%d}"), ("to", f"{end:%Y-%m-%d}"), ("grain", "day")]
    queries = [[*month, ("item", f"page {key}")] for key in range(KEYS)]
    at = end - timedelta(hours=1)
    new = [
        Event(0, key, f"new {key}", at, {"event_time": at, "item": f"page {key}", "user_id": "someone", "ms": 1.0})
        for key in range(KEYS)
    ]
    with served(shop, monkeypatch) as front:
        for query in queries:
            front.ask_again(query)
        counts = len(prepared), len(front.executed)
        assert counts[0] == KEYS
        for end_offset in (KEYS // 2, KEYS):
            shop.writer.apply(new, {0: end_offset})
            for query in queries:
                assert front.ask(query).status_code == 200
        assert (len(prepared), len(front.executed)) == counts, "each was answered from what was kept of it"
        for query in queries[:: KEYS // 10]:
            short = front.ask(query)
            assert sent(short) == sent(front.ask(query, headers=USUAL))
            orders = [row["orders"] for row in short.json()["rows"]]
            assert orders == [EVENTS_OF_A_DAY] * (DAYS - 1) + [EVENTS_OF_A_DAY + 1]
