"""Looks at alerts over a real Redis and real batch files: what was touched, late, copied, crashed, trimmed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis import Redis

from hand_off.lag import KafkaEnd
from hand_off.speed_views import CHANGE_LOG, SpeedViews
from master_dataset.errors import MasterDatasetError
from serving_layer.alerts.change_follower import WAIT_S, ChangeFollower
from serving_layer.alerts.evaluator import MAX_TRIES, Evaluator
from serving_layer.alerts.feeds import Feeder
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.notifier import Notifier
from serving_layer.alerts.process import arm
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import ExecutionLimits
from tests.alert_oracle import Oracle
from tests.serving_data import Place, Writer, end_of
from tests.system.redis_server import redis_server
from views.aggregates import Count, Quantiles
from views.alert import Alert
from views.declarations import Declarations
from views.derived import Ratio
from views.feed import Feed
from views.in_memory import Event, answers
from views.source import Source
from views.view import View

TAPS = Source("taps", fields="event_id string, event_time timestamp, card string, failed boolean, ms double")
TRIES = View(
    "tries", TAPS,
    {"attempts": Count(), "failures": Count(where="failed"), "share": Ratio("failures", "attempts"),
     "ms": Quantiles("ms")},
    keys={"card": "card"}, grain="5s", where="card is not null",
)  # fmt: skip
ALERTS = (
    Alert("many", TRIES, when="attempts > 3", keep="15s"),
    Alert("slow", TRIES, when="p95_ms > 800", for_buckets=2),
    Alert("failing", TRIES, when="attempts >= 3 and share > 0.5", by=(), over="10s", keep="10s"),
    Alert("fewer", TRIES, when="attempts < previous_attempts", by=(), over="10s", compare="previous"),
    Alert("fewest", TRIES, when="attempts < 5", by=(), over="10s", settled=True),
    Alert("silent", TRIES, silence="40s"),
)
NOW = 1_772_323_200


class Crash(Exception):
    """The process is gone at this point."""


class Taps:
    """Events, the writer that applies them, and the evaluator, whose clock the test sets."""

    def __init__(self, folder: Path, client: Redis) -> None:
        client.flushall()
        port = client.connection_pool.connection_kwargs["port"]
        self.place = Place(folder / "home", (TRIES,), f"redis://127.0.0.1:{port}/0")
        self.place.begin()
        self.client, self.folder = client, folder
        self.declarations = Declarations({"taps": TAPS}, {"tries": TRIES}, {each.name: each for each in ALERTS})
        self.writer = Writer(SpeedViews(client, "taps"), self.place)
        self.writer.followed = self.declarations.followed_views("taps")
        self.engine = QueryEngine(self.place.settings, self.declarations)
        self.journal = Journal(folder / "alerts.sqlite")
        self.now = float(NOW)
        self.events: list[Event] = []
        self.crashing: dict[str, int] = {}
        hashes = {each.name: each.hash for each in ALERTS}
        self.journal.arm(hashes, self.now)
        self.begin()

    def declare(self, *alerts: Alert) -> None:
        """Other alerts, from the next start on, which is now."""
        self.declarations = replace(self.declarations, alerts={each.name: each for each in alerts})
        arm(self.journal, self.declarations, Notifier(self.declarations, self.journal), self.now)
        self.begin()

    def begin(self) -> None:
        """As a process does."""
        self.journal.close()
        self.journal = Journal(self.folder / "alerts.sqlite")
        self.evaluator = Evaluator(
            self.place.settings, self.declarations, "taps", self.engine, self.journal,
            Notifier(self.declarations, self.journal), failpoint=self.failpoint, clock=lambda: self.now,
        )  # fmt: skip
        self.follower = ChangeFollower("taps", "taps", self.evaluator, self.journal, self.client, None)  # type: ignore[arg-type]
        self.evaluator.resume()

    def bound(self, bounds: ExecutionLimits) -> None:
        """From now on this is what one answer may take."""
        self.engine.close()
        self.engine = self.evaluator.engine = QueryEngine(self.place.settings, self.declarations, bounds)

    def failpoint(self, name: str) -> None:
        self.crashing[name] = self.crashing.get(name, 0) - 1
        if self.crashing[name] == 0:
            raise Crash(name)

    def look(self, *, is_touched: bool = True) -> None:
        """One look at what was touched and one at what time decides, through crashes."""
        self.beat()
        for touching in (is_touched, False):
            while True:
                try:
                    changes = self.follower.next_changes() if touching else None
                    if changes is not None or not touching:
                        location = self.evaluator.evaluate(changes, self.follower.changes_since)
                        self.follower._location = location or self.follower._location
                    break
                except Crash:
                    self.begin()

    def beat(self) -> None:
        applied = end_of(self.events)
        self.writer.speed_views.writer(self.writer.token).heartbeat(3600, KafkaEnd(applied, 0.0, applied, 0.0))

    def add(self, card: str | None, at: float, *, ms: float = 10.0, failed: bool = False, id_: str = "") -> Event:
        number = len(self.events)
        partition = number % 2
        moment = datetime.fromtimestamp(at, UTC)
        fields = {"event_time": moment, "card": card, "ms": ms, "failed": failed}
        event = Event(partition, end_of(self.events).get(partition, 0), id_ or f"e{number}", moment, fields)
        self.events.append(event)
        return event

    def copy(self, of: Event) -> None:
        offset = end_of(self.events).get(of.partition, 0)
        self.events.append(replace(of, offset=offset))

    def apply(self) -> None:
        self.writer.apply(self.events, end_of(self.events))

    def close(self) -> None:
        self.engine.close()
        self.journal.close()

    def fired(self, name: str) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for episode in self.journal.episodes.all(name):
            if episode.fired_at is not None:
                found[episode.key] = found.get(episode.key, 0) + 1
        return found

    def expected(self, name: str) -> dict[Any, int]:
        oracle = Oracle(self.declarations.alerts[name])
        for cut, as_of, _, is_exact in self.journal.evaluations.all("taps"):
            assert is_exact
            oracle.look(self.events, cut, as_of)
        return {key: len(told) for key, told in oracle.told.items() if told}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as client:
        yield client


@pytest.fixture
def taps(server: Redis, tmp_path: Path) -> Iterator[Taps]:
    made = Taps(tmp_path, server)
    yield made
    made.close()


def at_random(taps: Taps, chance: Random, steps: int) -> None:
    """Events in order, late and copied; runs; crashes before and after a commit."""
    for step in range(steps):
        taps.now += chance.choice((0.5, 2.0, 2.0, 5.0, 20.0))
        for _ in range(chance.randrange(3)):
            card = chance.choice(("a", "b", None))
            late = chance.choice((0, 0, 0, 7, 60, 300))
            ms, failed = chance.choice((10.0, 900.0) if step // 5 % 2 else (900.0, 2000.0)), chance.random() < 0.6
            for _ in range(chance.choice((1, 1, 2, 5))):
                taps.add(card, taps.now - late, ms=ms, failed=failed)
            if chance.random() < 0.3:
                taps.copy(chance.choice(taps.events))
        if chance.random() < 0.2:
            taps.crashing = {chance.choice(("alerts.before_commit", "alerts.after_commit")): 1}
        if taps.events:
            taps.apply()
        if step % 17 == 16:
            cut = taps.writer.open(step)
            taps.place.publish(step, cut, taps.events)
            taps.writer.speed_views.runs.publish(step, cut)
        taps.look()


@pytest.mark.parametrize("seed", range(3))
def test_each_episode_of_the_oracle_fires_exactly_once(taps: Taps, seed: int) -> None:
    taps.look()
    at_random(taps, Random(seed), 50)  # noqa: S311  made-up events
    fired = {alert.name: taps.fired(alert.name) for alert in ALERTS}
    assert fired == {alert.name: taps.expected(alert.name) for alert in ALERTS}
    assert all(sum(found.values()) for found in fired.values()), fired  # it was no idle test


def test_what_was_touched_while_nobody_followed_is_found_by_looking_at_everything(taps: Taps, server: Redis) -> None:
    taps.look()
    for _ in range(5):
        taps.add("a", taps.now - 200)
        taps.apply()
    server.xtrim(f"tidemark:{{taps}}:{CHANGE_LOG}", maxlen=1, approximate=False)
    taps.look()
    assert taps.fired("many") == {("a",): 1}
    taps.look()
    assert taps.fired("many") == {("a",): 1}


def test_a_follower_that_begins_again_waits_for_what_is_new_instead_of_reading_what_it_knows(taps: Taps) -> None:
    taps.look()
    taps.add("a", taps.now)
    taps.apply()
    taps.look()
    taps.begin()
    assert taps.follower.next_changes() is None  # it was read once more, and is known
    newest: Any = taps.client.xrevrange(f"tidemark:{{taps}}:{CHANGE_LOG}", count=1)
    assert taps.follower._location == newest[0][0]
    began = time.monotonic()
    assert taps.follower.next_changes() is None
    assert time.monotonic() - began > WAIT_S / 2
    taps.add("b", taps.now)
    taps.apply()
    touched = taps.follower.next_changes()
    assert touched is not None
    assert touched.views


def test_nothing_is_concluded_while_redis_lost_its_views(taps: Taps, server: Redis) -> None:
    from serving_layer.alerts.answers import AnswersIncomplete

    taps.look()
    taps.add("a", taps.now)
    taps.apply()
    taps.look()
    server.flushall()
    taps.now += 1000
    with pytest.raises(AnswersIncomplete):
        taps.evaluator.evaluate(None, taps.follower.changes_since)
    assert taps.fired("silent") == {}


def test_nothing_is_silent_while_events_wait_in_kafka(taps: Taps) -> None:
    taps.look()
    taps.add("a", taps.now)
    taps.apply()
    taps.look()
    taps.now += 1000
    applied = end_of(taps.events)
    behind = KafkaEnd({0: 100, 1: 100}, 0.0, applied, 999.0)  # the writer has not applied what Kafka has
    taps.writer.speed_views.writer(taps.writer.token).heartbeat(3600, behind)
    taps.evaluator.evaluate(None, taps.follower.changes_since)
    assert taps.fired("silent") == {}
    taps.look(is_touched=False)
    assert taps.fired("silent") == {("a",): 1}


def test_what_time_decides_is_not_decided_before_what_was_touched_is_looked_at(taps: Taps) -> None:
    taps.look()
    taps.add("a", taps.now)
    taps.apply()
    taps.look()
    taps.now += 100
    taps.add("a", taps.now - 1)
    taps.apply()  # between a look at what was touched and the one at what time decides
    taps.beat()
    looks = taps.journal.evaluations.all("taps")
    taps.evaluator.evaluate(None, taps.follower.changes_since)
    assert taps.journal.evaluations.all("taps") == looks
    taps.look()
    assert taps.fired("silent") == {}
    assert len(taps.journal.evaluations.all("taps")) > len(looks)


def test_an_episode_is_not_over_before_the_periods_that_are_over_are_judged(taps: Taps) -> None:
    start = NOW + 100
    taps.now = start
    taps.look()
    taps.add("a", start + 1)
    taps.apply()
    taps.now = start + 11
    taps.look()
    taps.look()
    (episode,) = taps.journal.episodes.all("fewest", is_open=True)
    assert (episode.first, episode.last) == (start, start)
    taps.add("a", start + 11)
    taps.apply()
    taps.look()  # the second period is touched, and not over
    taps.now = start + 25
    taps.add("a", start + 24)
    taps.apply()
    taps.beat()
    touched = taps.follower.next_changes()
    assert touched is not None
    taps.evaluator.evaluate(touched, taps.follower.changes_since)  # it is over now, but nobody has judged it yet
    assert [each.id for each in taps.journal.episodes.all("fewest", is_open=True)] == [episode.id]
    taps.look()
    (longer,) = taps.journal.episodes.all("fewest", is_open=True)
    assert (longer.id, longer.last) == (episode.id, start + 10)


def test_silence_is_told_where_the_list_of_what_was_touched_is_lost(taps: Taps, server: Redis) -> None:
    taps.look()
    taps.add("a", taps.now)
    taps.apply()
    taps.look()
    taps.add("b", taps.now)
    taps.apply()
    server.delete(f"tidemark:{{taps}}:{CHANGE_LOG}")
    taps.now += 100
    for _ in range(MAX_TRIES + 1):
        taps.look()
    assert taps.fired("silent") == {("a",): 1}  # nobody says that b was ever there


def test_a_micro_batch_that_touched_more_than_fits_makes_no_key_silent(taps: Taps) -> None:
    taps.look()
    taps.add("a", taps.now)
    taps.apply()
    taps.look()
    taps.now += 30
    for number in range(1_500):
        taps.add(f"card {number:040}", taps.now)
    taps.add("a", taps.now)
    taps.apply()
    newest: Any = taps.client.xrevrange(f"tidemark:{{taps}}:{CHANGE_LOG}", count=1)
    assert b"null" in newest[0][1][b"groups"]
    taps.look()
    taps.now += 25
    taps.look()
    assert taps.fired("silent") == {}


def test_a_clock_that_was_a_day_ahead_for_one_look_ruins_no_day(taps: Taps) -> None:
    taps.look()
    taps.add("a", taps.now)
    taps.apply()
    taps.look()
    taps.now += 86_400
    taps.look()
    taps.now -= 86_400 - 60
    taps.begin()
    taps.look()
    assert taps.evaluator.as_of <= taps.now
    settled = taps.fired("fewest").get((), 0)
    for _ in range(5):
        taps.add("a", taps.now)
    taps.add("b", taps.now + 30)
    taps.apply()
    taps.look()
    many = [episode.is_open for episode in taps.journal.episodes.all("many") if episode.key == ("a",)]
    assert many == [True]  # it fires, and is not over at once
    taps.now += 60
    taps.look()
    assert taps.fired("fewest")[()] == settled + 1  # the second event alone, judged when its period was over


def test_answers_that_are_too_many_for_one_reading_are_read_in_parts(taps: Taps) -> None:
    taps.bound(ExecutionLimits(speed_states=40))
    taps.look()
    for number in range(30):
        for _ in range(4 if number == 29 else 1):
            taps.add("a", taps.now - 5 * number)
            taps.add("b", taps.now - 5 * number)
    taps.apply()
    taps.look()
    assert taps.fired("many") == {("a",): 1, ("b",): 1}
    assert not any(memory.is_behind for memory in taps.evaluator.memory.values())


def test_an_alert_whose_answers_are_too_many_holds_up_no_other_and_catches_up(taps: Taps) -> None:
    taps.look()
    taps.bound(ExecutionLimits(speed_states=10))
    for number in range(15):
        taps.add(f"card {number}", taps.now - 100)
    taps.apply()
    taps.look()
    assert "states" in taps.evaluator.memory["many"].error
    for _ in range(4):
        taps.add("a", taps.now, failed=True)
    taps.apply()
    taps.now += 1
    taps.evaluator.memory["many"].retry_at = taps.now + 1
    taps.look()
    assert taps.fired("many") == {}
    assert taps.fired("failing") == {(): 1}
    taps.begin()  # a process that begins again knows that it is behind
    taps.bound(ExecutionLimits())
    taps.now += 30
    taps.look()
    assert taps.fired("many") == {("a",): 1}
    assert taps.evaluator.memory["many"].error == ""


def test_an_alert_that_is_new_does_not_tell_what_was_long_before(taps: Taps) -> None:
    for _ in range(5):
        taps.add("a", taps.now - 3600)
    taps.apply()
    taps.look()
    assert taps.fired("many") == {}


def test_what_is_told_waits_in_the_outbox_with_one_name_each(taps: Taps) -> None:
    taps.look()
    for _ in range(5):
        taps.add("a", taps.now)
    taps.crashing = {"alerts.after_commit": 1}
    taps.apply()
    taps.look()
    deliveries = [each.delivery for each in taps.journal.outbox.all() if each.delivery.startswith("many-")]
    assert len(deliveries) == 1
    assert deliveries[0].endswith(":firing")


def test_an_alert_that_is_declared_otherwise_tells_anew(taps: Taps) -> None:
    taps.look()
    for _ in range(5):
        taps.add("a", taps.now)
    taps.apply()
    taps.look()
    taps.now += 1
    taps.declare(Alert("many", TRIES, when="attempts > 4", keep="15s"))
    taps.add("a", taps.now)
    taps.apply()
    taps.look()
    states = [str(episode.state) for episode in taps.journal.episodes.all("many")]
    assert states == ["firing", "resolved"]


def test_an_alert_that_is_new_on_a_followed_view_looks_at_its_last_periods(taps: Taps) -> None:
    taps.look()
    for _ in range(5):
        taps.add("a", taps.now)
    taps.apply()
    taps.look()
    taps.now += 1
    taps.declare(*ALERTS, Alert("five", TRIES, when="attempts > 4"))
    taps.add("b", taps.now)  # another key: nothing of "a" is touched any more
    taps.apply()
    taps.look()
    assert taps.fired("five") == {("a",): 1}


@pytest.mark.parametrize("is_muted_first", [False, True])
def test_who_was_told_of_a_firing_is_told_of_its_end_and_nobody_else(taps: Taps, *, is_muted_first: bool) -> None:
    taps.evaluator.notifier.webhooks = ("ops",)
    taps.look()
    for _ in range(5):
        taps.add("a", taps.now)
    taps.apply()
    until = time.time() + 3600
    if is_muted_first:
        taps.journal.mutes.add("many", until)
    taps.look()
    if is_muted_first:
        taps.journal.mutes.remove("many")
    else:
        taps.journal.mutes.add("many", until)
    taps.now += 60
    taps.look()
    told = [
        each.delivery.rpartition(":")[2]
        for each in taps.journal.outbox.all()
        if each.target == "webhook:ops" and each.delivery.startswith("many-")
    ]
    assert told == ([] if is_muted_first else ["firing", "resolved"])


# ---- feeds and watches without Kafka -------------------------------------------


class KafkaStandIn:
    """Stands where Kafka is: what was sent, by key, and whether the next sending fails."""

    def __init__(self) -> None:
        self.table: dict[bytes, Any] = {}
        self.is_away = False

    def send(self, messages: Any) -> int:
        found = list(messages)
        if self.is_away:
            raise MasterDatasetError("Kafka is away.")
        self.table |= {key: json.loads(value) for key, value, _ in found}
        return len(found)


def test_a_feed_read_to_its_end_is_the_view_also_after_kafka_was_away(taps: Taps) -> None:
    topic = KafkaStandIn()
    feed = Feed("table", TRIES)
    feeder = Feeder(taps.place.settings, feed, taps.engine, taps.journal, topic)  # type: ignore[arg-type]
    follower = ChangeFollower(feeder.name, "taps", feeder, taps.journal, taps.client, None)  # type: ignore[arg-type]
    taps.now = float(int(time.time()))  # a feed is filled up to the clock
    chance = Random(5)  # noqa: S311  made-up events
    for step in range(12):
        for _ in range(3):
            taps.add(chance.choice(("a", "b")), taps.now - chance.choice((0, 5, 600)))
        taps.apply()
        topic.is_away = step in (4, 5)
        try:
            touched = follower.next_changes()
            if touched is not None:
                follower._location = feeder.evaluate(touched, follower.changes_since) or follower._location
        except MasterDatasetError:
            follower._location = b"0"  # as one that begins again
    expected = {
        (bucket // 1_000_000, key[0]): found["attempts"] for (bucket, key), found in answers(TRIES, taps.events).items()
    }
    found = {
        (int(datetime.fromisoformat(row["bucket"]).timestamp()), row["card"]): row["answers"]["attempts"]
        for row in topic.table.values()
    }
    assert found == expected
    assert all(row["cut"] and row["view"] == "tries" for row in topic.table.values())


@pytest.mark.parametrize("behind_s", [3600, -3600])
def test_a_clock_that_is_wrong_for_a_while_tells_nothing_twice_and_passes_nothing_by(taps: Taps, behind_s: int) -> None:
    """The process lives by a wrong clock, tells something, and is started again with the right one."""
    many = Alert("many", TRIES, when="attempts > 3", keep="15s")
    taps.declare(many)
    taps.now -= behind_s
    taps.begin()
    for _ in range(4):
        taps.add("a", NOW - 5400)
    taps.apply()
    taps.look()
    taps.add("a", NOW - 5400)
    taps.apply()
    taps.look()
    assert taps.fired("many") == {("a",): 1}
    taps.now += behind_s + 30
    taps.begin()
    for card in "abbbb":
        taps.add(card, NOW - 5400)
    taps.apply()
    taps.look()
    assert taps.fired("many") == {("a",): 1, ("b",): 1}
    told = [json.loads(body) for _, _, body in taps.journal.transitions.after(0)]
    assert sorted(each["key"]["card"] for each in told if each["state"] == "firing") == ["a", "b"]
