"""Alerts by REST: how they stand, what was, what happens; to whom it may be shown; and slow readers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.rest.access_keys import remove_key
from infra.settings import load_settings
from serving_layer.alerts import push_sources
from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import Evaluation, Journal, Transitions, open_journal
from serving_layer.alerts.notifications import notification_body
from serving_layer.alerts.tables.positions import FollowerPosition
from serving_layer.push import connection
from serving_layer.push.log_channel import parse_id
from serving_layer.push.mailbox import MAX_UNREAD, QUEUE, Mailbox, Message
from tests.conftest import wait_until
from tests.process.serving_server import Served, serving

FIRED = Episode(
    "slow_page-1-0", "slow_page", "page_latency", ("url",), ("/<b>",), EpisodeState.FIRING, 0, 0, 1.0, 2.0, None,
    {"p95_ms": 900.0},
)  # fmt: skip
OVER = replace(FIRED, id="slow_page-2-0", state=EpisodeState.RESOLVED, resolved_at=3.0, pending_at=0.5)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "home") as running:
        yield running


@pytest.fixture
def journal(served: Served) -> Iterator[Journal]:
    made = open_journal(load_settings(home=served.home))
    yield made
    made.close()


def commit(journal: Journal, *episodes: Episode) -> None:
    bodies = tuple((each, notification_body(each, is_muted=False)) for each in episodes)
    journal.commit(
        Evaluation("web", FollowerPosition({0: 1}, 1.0), 1.0, changed=episodes, transitions=Transitions(bodies))
    )


def test_before_the_alert_process_ran_every_alert_is_ok(served: Served) -> None:
    alerts = served.client.get("/alerts").json()["alerts"]
    assert {each["name"]: each["state"] for each in alerts} == {
        "fewer_hits": "ok",
        "no_visits": "ok",
        "slow_page": "ok",
    }
    assert served.client.get("/alerts/history").json() == {"episodes": []}


def test_an_alert_says_what_is_open_of_it(served: Served, journal: Journal) -> None:
    commit(journal, FIRED, OVER)
    journal.mutes.add("slow_page", time.time() + 60)
    (alert,) = [each for each in served.client.get("/alerts").json()["alerts"] if each["name"] == "slow_page"]
    assert alert["state"] == "firing"
    assert alert["firing"] == [
        {"id": "slow_page-1-0", "key": {"url": "/<b>"}, "since": "1970-01-01T00:00:02Z", "value": {"p95_ms": 900.0}}
    ]
    assert (alert["view"], alert["by"], alert["for"], alert["pending"]) == ("page_latency", ["url"], 1, [])
    assert alert["muted_until"] is not None
    history = served.client.get("/alerts/history", params={"limit": 1}).json()["episodes"]
    assert [each["id"] for each in history] == ["slow_page-1-0"]  # the newest


@pytest.mark.parametrize(("path", "parameter"), [
    ("/alerts/history?limit=0", "limit"), ("/alerts/history?limit=1001", "limit"), ("/alerts/history?lmit=1", "lmit"),
    ("/alerts?x=1", "x"), ("/alerts/live?x=1", "x"),
])  # fmt: skip
def test_a_wrong_parameter_is_named(served: Served, path: str, parameter: str) -> None:
    answer = served.client.get(path)
    assert (answer.status_code, answer.json()["parameter"]) == (422, parameter)


def test_a_key_sees_the_alerts_of_its_views(served: Served, journal: Journal) -> None:
    commit(journal, FIRED)
    hits = served.key("hits", ["query"], ["page_hits"])
    alerts = served.client.get("/alerts", auth=hits).json()["alerts"]
    assert [each["name"] for each in alerts] == ["fewer_hits", "no_visits"]
    assert served.client.get("/alerts/history", auth=hits).json() == {"episodes": []}
    assert served.client.get("/watches", auth=hits).json() == {"watches": []}
    assert served.client.get("/watches/server_errors/live", auth=hits).status_code == 403
    for path in ("/alerts", "/alerts/history", "/alerts/live", "/watches", "/watches/server_errors/live"):
        assert served.client.get(path, auth=("hits", "wrong")).status_code == 401, path
        assert served.client.get(path, auth=served.key(f"m{len(path)}", ["metrics"])).status_code == 403, path


def test_what_happens_is_pushed_to_those_who_may_see_it(served: Served, journal: Journal) -> None:
    commit(journal, OVER)  # before anybody listened
    mine: list[Any] = []
    others: list[Any] = []
    connected = threading.Semaphore(0)

    def follow(into: list[Any], auth: tuple[str, str] | None) -> None:
        more: dict[str, Any] = {} if auth is None else {"auth": auth}
        with (
            suppress(httpx.TransportError),
            served.client.stream("GET", "/alerts/live", timeout=None, **more) as answer,
        ):
            for line in answer.iter_lines():  # until the server ends
                if line.startswith("retry:"):
                    connected.release()
                if line.startswith("event:"):
                    into.append(line)
                if line.startswith("data:"):
                    into.append(json.loads(line.removeprefix("data: ")))

    hits = served.key("hits", ["query"], ["page_hits"])
    followers = [threading.Thread(target=follow, args=given, daemon=True) for given in ((mine, None), (others, hits))]
    for follower in followers:
        follower.start()
    assert connected.acquire(timeout=30)
    assert connected.acquire(timeout=30)
    wait_until("the channel to have begun", lambda: len(mine) > 1 or commit(journal, FIRED))
    assert mine[0] == "event: alert"
    assert (mine[1]["id"], mine[1]["state"], mine[1]["muted"]) == ("slow_page-1-0", "firing", False)
    assert others == []
    served.stop()
    for follower in followers:
        follower.join(60)


def pushed_after(served: Served, last: str, count: int) -> list[tuple[str, str, Any]]:
    """(event, id, data) of the first messages to one that comes back."""
    found: list[tuple[str, str, Any]] = []
    said: dict[str, str] = {}
    with served.client.stream("GET", "/alerts/live", headers={"Last-Event-ID": last}, timeout=20) as answer:
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name:
                said[name] = value
                continue
            if "data" in said:
                found.append((said["event"], said.get("id", ""), json.loads(said["data"])))
            said = {}
            if len(found) == count:
                break
    return found


@contextmanager
def committing(journal: Journal, episode: Episode) -> Iterator[None]:
    """Commit it again and again while the block runs: a stream does not receive what happened before it started."""
    is_over = threading.Event()

    def commit_on() -> None:
        while not is_over.wait(0.3):
            commit(journal, episode)

    thread = threading.Thread(target=commit_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_one_who_comes_back_gets_what_came_since(served: Served, journal: Journal) -> None:
    for number in range(5):
        commit(journal, replace(FIRED, id=f"slow_page-{number}-0"))
    found = pushed_after(served, "2", 3)
    assert [(event, id_) for event, id_, _ in found] == [("alert", "3"), ("alert", "4"), ("alert", "5")]
    assert [data["id"] for _, _, data in found] == ["slow_page-2-0", "slow_page-3-0", "slow_page-4-0"]
    for last in ("none of ours", "2-0", "", "99"):  # what we did not say tells us nothing
        with committing(journal, replace(FIRED, id="later")):
            ((_, _, data),) = pushed_after(served, last, 1)
        assert data["id"] == "later"


def test_a_client_that_was_away_too_long_learns_how_many_it_missed(
    served: Served, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_sources, "MAX_UNREAD", 2)
    for number in range(5):
        commit(journal, replace(FIRED, id=f"slow_page-{number}-0"))
    found = pushed_after(served, "0", 3)
    assert [(event, id_) for event, id_, _ in found] == [("missed", ""), ("alert", "4"), ("alert", "5")]
    assert found[0][2] == {"count": 3}


def test_an_idle_stream_ends_when_its_key_is_removed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.05)
    name, secret = served.key("passing", ["query"])
    with served.client.stream("GET", "/alerts/live", auth=(name, secret), timeout=10) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry:")
        remove_key(served.home, name)
        began = time.monotonic()
        for _ in lines:
            assert time.monotonic() - began < 10, "it goes on"


def test_a_slow_reader_finds_the_newest_and_how_many_it_missed() -> None:
    async def read() -> list[Message]:
        mailbox = Mailbox(QUEUE)
        for number in range(MAX_UNREAD + 7):
            mailbox.put(Message("alert", "{}", str(number), "v"))
        return await mailbox.take(1)

    missed, *rest = asyncio.run(read())
    assert (missed.event, missed.data) == ("missed", '{"count":7}')
    assert [rest[0].id, rest[-1].id, len(rest)] == ["7", str(MAX_UNREAD + 6), MAX_UNREAD]


def test_too_many_live_connections_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "home", serving_live_subscribers=0) as served:
        answer = served.client.get("/alerts/live")
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (429, "too-many-live")


@pytest.mark.parametrize(
    ("given", "found"), [("17", (17,)), ("5-0", (5, 0)), ("", None), ("x", None), ("-1", None), ("1" * 5_000, None)]
)
def test_what_is_no_id_of_a_message_is_known_as_none(given: str, found: tuple[int, ...] | None) -> None:
    assert parse_id(given) == found


def test_one_limit_holds_for_live_queries_and_alerts_together(tmp_path: Path) -> None:
    with serving(tmp_path / "home", serving_live_subscribers=1) as served:
        for first, second in (("/alerts/live", "/views/page_hits/live"), ("/views/page_hits/live", "/alerts/live")):
            with served.client.stream("GET", first) as connected:
                assert connected.status_code == 200
                assert served.client.get(second).status_code == 429
            wait_until("the connection to end", lambda: served.app.state.live.subscribers == 0)
