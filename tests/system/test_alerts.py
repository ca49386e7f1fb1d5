"""Alerts on a whole stack whose alert process is killed again and again: each episode of the oracle fires once.

One stack for all of it: alerts of every form, a watch, a feed and a webhook over the same events, with late ones,
duplicates and records that are not events.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from infra.clients.kafka import librdkafka_config
from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import Journal, journal_path
from serving_layer.alerts.webhooks import DELIVERY, SIGNATURE, signature
from tests.alert_oracle import Oracle
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from tests.system.redis_server import free_port
from tests.tiers import times
from views.declarations import declared_by
from views.in_memory import Event, answers

DECLARED = """
from views.aggregates import Count, Quantiles
from views.alert import Alert
from views.derived import Ratio
from views.feed import Feed
from views.source import Source
from views.view import View
from views.watch import Watch

taps = Source("taps", fields="event_id string, event_time timestamp, card string, failed boolean, ms double")
tries = View(
    "tries", source=taps, grain="1s", keys={"card": "card"}, where="card is not null",
    answers={"attempts": Count(), "failures": Count(where="failed"), "share": Ratio("failures", "attempts"),
             "ms": Quantiles("ms")},
)
many = Alert("many", tries, when="attempts > 3", keep="3s")
slow = Alert("slow", tries, when="p95_ms > 800", for_buckets=2, keep="2s")
failing = Alert("failing", tries, when="attempts >= 10 and share > 0.5", by=(), over="2s", keep="4s")
fewer = Alert("fewer", tries, when="attempts < previous_attempts", by=(), over="5s", compare="previous", settled=True)
silent = Alert("silent", tries, silence="4s")
large = Watch("large", taps, where="ms >= 900")
table = Feed("table", tries)
"""
CARDS = ("a", "b", "c", "d", "Ünï ✓", "it's <b>")
KILLS = times(3, 20)
STEPS_A_LIFE = 60
"""So many sendings lie between two kills: a life in which something can go wrong."""
STEP_S = 0.08
EVALUATIONS = 20
"""More than so many are compared with the oracle."""
SECRET = "a secret of the test's own"


class Hook:
    """A webhook on loopback: what it got, each signature checked. The first delivery of each kind fails."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.refused: set[str] = set()
        self.wrong: list[str] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                delivery = self.headers[DELIVERY]
                at = int(self.headers[SIGNATURE].partition(",")[0].removeprefix("t="))
                if self.headers[SIGNATURE] != signature(SECRET, at, body):
                    hook.wrong.append(delivery)
                fails = not hook.refused
                if fails:
                    hook.refused.add(delivery)
                else:
                    hook.got.append((delivery, json.loads(body)))
                self.send_response(500 if fails else 204)
                self.end_headers()

            def log_message(self, *_arguments: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook"


class Taps:
    """A whole stack, and everything that was sent to it."""

    def __init__(self, folder: Path) -> None:
        views_dir = folder / "views"
        views_dir.mkdir()
        (views_dir / "declared.py").write_text(DECLARED)
        self.hook = Hook()
        hooks = folder / "webhooks.json"
        hooks.write_text(json.dumps({"operations": {"url": self.hook.url, "secret": SECRET}}))
        self.stack: Stack = start_stack(
            folder / "home", views_dir=views_dir, with_examples=False, speed_enabled=True, serving_enabled=True,
            alerts_enabled=True, alerts_webhooks_file=hooks, alerts_webhooks_private=True, restart_backoff_max_s=0.5,
            start_timeout_s=180, alerts_metrics_port=free_port(),
        )  # fmt: skip
        self.settings = self.stack.settings
        self.declared = declared_by(self.settings)
        self.config = librdkafka_config(self.settings, self.stack.kafka)
        self.producer = Producer({**self.config, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
        self.events: list[Event] = []
        self.client = self.stack.asking()
        self.number = 0
        self.pushed: list[Any] = []
        self.matched: list[Any] = []

    def journal(self) -> Journal:
        return Journal(journal_path(self.settings))

    def send(self, fields: dict[str, Any], at: float) -> None:
        """One event; the same `event_id` is the same event."""
        moment = datetime.fromtimestamp(round(at, 3), UTC)
        event = {**fields, "event_time": moment.isoformat()}
        partition = hash(fields["event_id"]) % 3

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.events.append(
                Event(
                    message.partition(), message.offset(), fields["event_id"], moment, {**fields, "event_time": moment}
                )
            )

        self.producer.produce("taps", json.dumps(event), partition=partition, on_delivery=delivered)

    def new(self, card: str | None, at: float, *, ms: float = 10.0, failed: bool = False) -> dict[str, Any]:
        self.number += 1
        fields = {"event_id": f"t{self.number}", "card": card, "ms": ms, "failed": failed}
        self.send(fields, at)
        return fields

    @contextmanager
    def following(self, path: str, first: str, into: list[Any]) -> Iterator[None]:
        """Follow a live address in a thread, as a browser does: when it breaks, again from the last id it had."""
        done, last = threading.Event(), first

        def follow() -> None:
            nonlocal last
            while not done.is_set():
                with (
                    suppress(httpx.HTTPError),
                    self.stack.asking(timeout_s=None) as client,  # type: ignore[arg-type]
                    client.stream("GET", path, headers={"Last-Event-ID": last}) as answer,
                ):
                    message: Any = None
                    for line in answer.iter_lines():
                        if done.is_set():
                            return
                        name, _, value = line.partition(": ")
                        if name == "data":
                            message = json.loads(value)
                        elif name == "id":
                            last = value
                        elif not line and message is not None:
                            into.append(message)
                            message = None
                done.wait(0.2)

        threading.Thread(target=follow, daemon=True).start()
        yield
        done.set()


@pytest.fixture(scope="module")
def taps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taps]:
    made = Taps(tmp_path_factory.mktemp("alerts"))
    yield made
    made.client.close()
    stop_stack(made.stack)


@pytest.fixture(scope="module")
def after_chaos(taps: Taps) -> Taps:
    """Events of every kind for a while, the alert process killed at random; then quiet until all is settled."""
    wait_until("the first evaluation", lambda: taps.journal().positions.get("taps"), deadline_s=180)
    chance = random.Random(9)  # noqa: S311  which events come
    kills, step, killed, known = KILLS, 0, 0.0, []
    deadline = time.time() + 120 * KILLS
    with (
        taps.following("/alerts/live", "0", taps.pushed),
        taps.following("/watches/large/live", "0-0", taps.matched),
    ):
        while kills or step < STEPS_A_LIFE or not has_fired_enough(taps):
            now = time.time()
            assert now < deadline, f"{kills} kills are left, and fired have {counts(taps)}"
            step += 1
            draw = chance.random()
            card = chance.choice(CARDS)
            if draw < 0.12:  # a burst
                known += [taps.new(card, now, failed=chance.random() < 0.7) for _ in range(chance.randrange(2, 7))]
            elif draw < 0.22:  # a slow spell
                known.append(taps.new(card, now, ms=chance.choice((850.0, 950.0, 100.0))))
            elif draw < 0.34:  # late, some of them a whole burst
                late = now - chance.uniform(2, 30)
                known += [taps.new(card, late) for _ in range(chance.choice((1, 1, 5)))]
            elif draw < 0.42 and known:  # a copy
                copied = (
                    next(event for event in taps.events[::-1] or () if event.fields["card"]) if taps.events else None
                )
                if copied is not None:
                    taps.send(
                        {n: v for n, v in copied.fields.items() if n != "event_time"}, copied.event_time.timestamp()
                    )
            elif draw < 0.45:
                taps.producer.produce("taps", b'{"event_id": "torn', partition=0)
            elif draw < 0.6:
                taps.new(card, now)
            taps.producer.flush(10)
            if kills and step >= STEPS_A_LIFE and has_looked_since(taps, killed):
                kills, step, killed = kills - 1, 0, now
                for victim in (taps.stack.service("alerts"), *([taps.stack.service("serving")] * (kills == 1))):
                    if victim["pid"]:
                        os.kill(victim["pid"], signal.SIGKILL)
            threading.Event().wait(STEP_S)
        assert taps.producer.flush(30) == 0
        wait_until("everything to be over", lambda: is_quiet(taps), deadline_s=240)
        end = taps.journal().transitions.newest()
        wait_until("everything to be pushed", lambda: len(taps.pushed) >= end)
        wait_until("all matches", lambda: len(taps.matched) >= len(large(taps)))
    return taps


def has_looked_since(taps: Taps, moment: float) -> bool:
    """A process that is killed before it evaluations even once does nothing that could be wrong."""
    journal = taps.journal()
    try:
        return journal.evaluations.last_at("taps") > moment
    finally:
        journal.close()


ENOUGH = {"many": 5, "slow": 1, "failing": 1, "fewer": 1}
"""So often an alert fires at least before the end: else the test would be an idle one."""


def counts(taps: Taps) -> dict[str, int]:
    return {name: sum(map(len, fired(taps, name).values())) for name in ENOUGH}


def has_fired_enough(taps: Taps) -> bool:
    journal = taps.journal()
    evaluations = len(journal.evaluations.all("taps"))
    journal.close()
    found = counts(taps)
    return (
        evaluations > EVALUATIONS
        and all(found[name] >= enough for name, enough in ENOUGH.items())
        and len(large(taps)) > 5
    )


def large(taps: Taps) -> Counter[tuple[int, int]]:
    """What the watch matches."""
    return Counter((event.partition, event.offset) for event in taps.events if event.fields["ms"] >= 900)


def is_quiet(taps: Taps) -> bool:
    """All but silence is over, all keys are silent, and everything was delivered."""
    journal = taps.journal()
    try:
        open_ = journal.episodes.all(is_open=True)
        silent = {episode.key for episode in open_ if episode.alert == "silent"}
        others = [episode for episode in open_ if episode.alert != "silent"]
        return len(silent) == len(CARDS) and not others and not journal.outbox.all()
    finally:
        journal.close()


def fired(taps: Taps, alert: str) -> dict[Any, list[Episode]]:
    journal = taps.journal()
    found: dict[Any, list[Episode]] = {}
    for episode in sorted(journal.episodes.all(alert), key=lambda each: (each.fired_at or 0, each.first)):
        if episode.fired_at is not None:
            found.setdefault(episode.key, []).append(episode)
    journal.close()
    return found


@pytest.mark.parametrize("name", ["many", "slow", "failing", "silent", "fewer"])
def test_each_episode_of_the_oracle_fires_exactly_once(after_chaos: Taps, name: str) -> None:
    taps = after_chaos
    oracle = Oracle(taps.declared.alerts[name])
    evaluations = taps.journal().evaluations.all("taps")
    assert len(evaluations) > EVALUATIONS
    for cut, as_of, _, _ in evaluations:
        oracle.evaluate(taps.events, cut, as_of)
    expected = {key: fired for key, fired in oracle.fired.items() if fired}
    found = fired(taps, name)
    assert {key: len(each) for key, each in found.items()} == {key: len(each) for key, each in expected.items()}
    assert sum(map(len, found.values())) >= {**ENOUGH, "silent": 5}[name]
    for key, episodes in found.items():
        if name != "silent":
            assert sorted(each.last for each in episodes) == sorted(max(each.periods) for each in expected[key]), key
        states = [each.state is EpisodeState.RESOLVED for each in episodes]
        assert states == [each.is_over for each in expected[key]], key


def test_every_target_receives_every_firing_under_the_same_name(after_chaos: Taps) -> None:
    taps = after_chaos
    journal = taps.journal()
    wanted = {f"{each.id}:firing" for each in journal.episodes.all() if each.fired_at is not None}
    consumer = Consumer({**taps.config, "group.id": "notified", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("tidemark.alerts", 0, 0)])
    received: list[Any] = []

    def read() -> bool:
        received.extend(json.loads(each.value()) for each in consumer.consume(500, 0.5))
        return {f"{each['id']}:{each['state']}" for each in received} >= wanted

    wait_until("the topic", read)
    consumer.close()
    by_kafka = Counter(f"{each['id']}:{each['state']}" for each in received if each["state"] == "firing")
    assert set(by_kafka) == wanted
    assert sum(by_kafka.values()) - len(by_kafka) <= KILLS  # sent again only where a kill came before the note of it
    by_hook = {delivery for delivery, body in taps.hook.got if body["state"] == "firing"}
    assert by_hook == wanted
    assert taps.hook.refused <= {delivery for delivery, _ in taps.hook.got}  # tried again
    assert not taps.hook.wrong
    by_push = Counter(f"{each['id']}:{each['state']}" for each in taps.pushed if each["state"] == "firing")
    assert set(by_push) == wanted  # also of what happened while the serving layer was away
    assert max(by_push.values()) == 1


def test_a_watch_shows_and_counts_every_match_once(after_chaos: Taps) -> None:
    taps = after_chaos
    wanted = large(taps)
    assert Counter((each["partition"], each["offset"]) for each in taps.matched) == wanted
    (said,) = taps.client.get("/watches").json()["watches"]
    assert said["matched"] == len(wanted)
    assert len(wanted) > 5


def test_a_feed_read_to_its_end_is_the_view(after_chaos: Taps) -> None:
    taps = after_chaos
    expected = {
        (bucket // 1_000_000, key[0]): found["attempts"]
        for (bucket, key), found in answers(taps.declared.views["tries"], taps.events).items()
    }
    consumer = Consumer({**taps.config, "group.id": "fed", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("tidemark.feed.table", number, 0) for number in range(3)])
    table: dict[Any, int] = {}

    def is_same() -> bool:
        for message in consumer.consume(1000, 0.5):
            value = json.loads(message.value())
            assert json.loads(message.key()) == {"bucket": value["bucket"], "card": value["card"]}
            at = int(datetime.fromisoformat(value["bucket"]).timestamp())
            table[at, value["card"]] = value["answers"]["attempts"]
        return table == expected

    wait_until("the feed to be the view", is_same)
    consumer.close()


def test_rest_shows_open_episodes_and_the_history(after_chaos: Taps) -> None:
    taps = after_chaos
    alerts = {each["name"]: each for each in taps.client.get("/alerts").json()["alerts"]}
    assert {name: each["state"] for name, each in alerts.items()} == {
        "many": "ok", "slow": "ok", "failing": "ok", "fewer": "ok", "silent": "firing",
    }  # fmt: skip
    assert {each["key"]["card"] for each in alerts["silent"]["firing"]} == set(CARDS)
    history = taps.client.get("/alerts/history", params={"limit": 5}).json()["episodes"]
    assert len(history) == 5
    assert {"id", "alert", "view", "key", "state", "pending_at", "fired_at", "resolved_at", "value"} <= history[
        0
    ].keys()
    refused = taps.client.get("/alerts/history", params={"limit": "many"})
    assert (refused.status_code, refused.json()["parameter"]) == (422, "limit")


def test_a_key_sees_the_alerts_of_its_views_alone(after_chaos: Taps) -> None:
    from infra.rest.access_keys import add_key

    taps = after_chaos
    secret = add_key(taps.settings.home, "other", ["query"], ["nothing"])
    with httpx.Client(base_url=taps.stack.serving, auth=("other", secret)) as client:
        assert client.get("/alerts").json() == {"alerts": []}
        assert client.get("/alerts/history").json() == {"episodes": []}
        assert client.get("/watches").json() == {"watches": []}
        assert client.get("/watches/large/live").status_code == 403
    assert httpx.get(f"{taps.stack.serving}/alerts").status_code == 401
