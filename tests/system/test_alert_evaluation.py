"""Evaluation of alerts over a real Redis and real batch files: changes, late events, duplicates, crashes, trimming."""

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
from serving_layer.readers.limits import ExecutionLimits
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
        self.start()

    def declare(self, *alerts: Alert) -> None:
        """Other alerts, from the next start on, which is now."""
        self.declarations = replace(self.declarations, alerts={each.name: each for each in alerts})
        arm(self.journal, self.declarations, Notifier(self.declarations, self.journal), self.now)
        self.start()

    def start(self) -> None:
        """Start as the process does."""
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

    def evaluate(self, *, has_changes: bool = True) -> None:
        """Evaluate the changes, then what time decides, through crashes."""
        self.beat()
        for with_changes in (has_changes, False):
            while True:
                try:
                    changes = self.follower.next_changes() if with_changes else None
                    if changes is not None or not with_changes:
                        location = self.evaluator.evaluate(changes, self.follower.changes_since)
                        self.follower._location = location or self.follower._location
                    break
                except Crash:
                    self.start()

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

    def duplicate(self, of: Event) -> None:
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
            oracle.evaluate(self.events, cut, as_of)
        return {key: len(fired) for key, fired in oracle.fired.items() if fired}


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
    """Events in order, late and duplicated; runs; crashes before and after a commit."""
    for step in range(steps):
        taps.now += chance.choice((0.5, 2.0, 2.0, 5.0, 20.0))
        for _ in range(chance.randrange(3)):
            card = chance.choice(("a", "b", None))
            late = chance.choice((0, 0, 0, 7, 60, 300))
            ms, failed = chance.choice((10.0, 900.0) if step // 5 % 2 else (900.0, 2000.0)), chance.random() < 0.6
            for _ in range(chance.choice((1, 1, 2, 5))):
                taps.add(card, taps.now - late, ms=ms, failed=failed)
            if chance.random() < 0.3:
                taps.duplicate(chance.choice(taps.events))
        if chance.random() < 0.2:
            taps.crashing = {chance.choice(("alerts.before_commit", "alerts.after_commit")): 1}
        if taps.events:
            taps.apply()
        if step % 17 == 16:
            cut = taps.writer.open(step)
            taps.place.publish(step, cut, taps.events)
            taps.writer.speed_views.runs.publish(step, cut)
        taps.evaluate()


@pytest.mark.parametrize("seed", range(3))
def test_each_episode_of_the_oracle_fires_exactly_once(taps: Taps, seed: int) -> None:
    taps.evaluate()
    at_random(taps, Random(seed), 50)  # noqa: S311  made-up events
    fired = {alert.name: taps.fired(alert.name) for alert in ALERTS}
    assert fired == {alert.name: taps.expected(alert.name) for alert in ALERTS}
    assert all(sum(found.values()) for found in fired.values()), fired  # it was no idle test


def test_changes_that_the_log_no_longer_has_are_found_by_evaluating_all_recent_periods(
    taps: Taps, server: Redis
) -> None:
    taps.evaluate()
    for _ in range(5):
        taps.add("a", taps.now - 200)
        taps.apply()
    server.xtrim(f"tidemark:{{taps}}:{CHANGE_LOG}", maxlen=1, approximate=False)
    taps.evaluate()
    assert taps.fired("many") == {("a",): 1}
    taps.evaluate()
    assert taps.fired("many") == {("a",): 1}


def test_a_restarted_follower_waits_for_new_changes_instead_of_reading_known_ones(taps: Taps) -> None:
    taps.evaluate()
    taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    taps.start()
    assert taps.follower.next_changes() is None  # it was read once more, and is known
    newest: Any = taps.client.xrevrange(f"tidemark:{{taps}}:{CHANGE_LOG}", count=1)
    assert taps.follower._location == newest[0][0]
    began = time.monotonic()
    assert taps.follower.next_changes() is None
    assert time.monotonic() - began > WAIT_S / 2
    taps.add("b", taps.now)
    taps.apply()
    changes = taps.follower.next_changes()
    assert changes is not None
    assert changes.views


def test_nothing_is_concluded_while_redis_lost_its_views(taps: Taps, server: Redis) -> None:
    from serving_layer.alerts.answers import AnswersIncomplete

    taps.evaluate()
    taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    server.flushall()
    taps.now += 1000
    with pytest.raises(AnswersIncomplete):
        taps.evaluator.evaluate(None, taps.follower.changes_since)
    assert taps.fired("silent") == {}


def test_nothing_is_silent_while_events_wait_in_kafka(taps: Taps) -> None:
    taps.evaluate()
    taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    taps.now += 1000
    applied = end_of(taps.events)
    behind = KafkaEnd({0: 100, 1: 100}, 0.0, applied, 999.0)  # the writer has not applied what Kafka has
    taps.writer.speed_views.writer(taps.writer.token).heartbeat(3600, behind)
    taps.evaluator.evaluate(None, taps.follower.changes_since)
    assert taps.fired("silent") == {}
    taps.evaluate(has_changes=False)
    assert taps.fired("silent") == {("a",): 1}


def test_time_decides_nothing_before_all_changes_are_evaluated(taps: Taps) -> None:
    taps.evaluate()
    taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    taps.now += 100
    taps.add("a", taps.now - 1)
    taps.apply()  # between the evaluation of changes and that of time
    taps.beat()
    before = taps.journal.evaluations.all("taps")
    taps.evaluator.evaluate(None, taps.follower.changes_since)
    assert taps.journal.evaluations.all("taps") == before
    taps.evaluate()
    assert taps.fired("silent") == {}
    assert len(taps.journal.evaluations.all("taps")) > len(before)


def test_an_episode_is_not_over_before_the_periods_that_are_over_are_judged(taps: Taps) -> None:
    start = NOW + 100
    taps.now = start
    taps.evaluate()
    taps.add("a", start + 1)
    taps.apply()
    taps.now = start + 11
    taps.evaluate()
    taps.evaluate()
    (episode,) = taps.journal.episodes.all("fewest", is_open=True)
    assert (episode.first, episode.last) == (start, start)
    taps.add("a", start + 11)
    taps.apply()
    taps.evaluate()  # the second period has changed, and is not over
    taps.now = start + 25
    taps.add("a", start + 24)
    taps.apply()
    taps.beat()
    changes = taps.follower.next_changes()
    assert changes is not None
    taps.evaluator.evaluate(changes, taps.follower.changes_since)  # it is over now, but nobody has judged it yet
    assert [each.id for each in taps.journal.episodes.all("fewest", is_open=True)] == [episode.id]
    taps.evaluate()
    (longer,) = taps.journal.episodes.all("fewest", is_open=True)
    assert (longer.id, longer.last) == (episode.id, start + 10)


def test_silence_fires_even_if_the_change_log_is_lost(taps: Taps, server: Redis) -> None:
    taps.evaluate()
    taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    taps.add("b", taps.now)
    taps.apply()
    server.delete(f"tidemark:{{taps}}:{CHANGE_LOG}")
    taps.now += 100
    for _ in range(MAX_TRIES + 1):
        taps.evaluate()
    assert taps.fired("silent") == {("a",): 1}  # nobody says that b was ever there


def test_a_micro_batch_with_more_changes_than_fit_makes_no_key_silent(taps: Taps) -> None:
    taps.evaluate()
    taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    taps.now += 30
    for number in range(1_500):
        taps.add(f"card {number:040}", taps.now)
    taps.add("a", taps.now)
    taps.apply()
    newest: Any = taps.client.xrevrange(f"tidemark:{{taps}}:{CHANGE_LOG}", count=1)
    assert b"null" in newest[0][1][b"groups"]
    taps.evaluate()
    taps.now += 25
    taps.evaluate()
    assert taps.fired("silent") == {}


def test_a_clock_that_was_a_day_ahead_for_one_evaluation_ruins_no_day(taps: Taps) -> None:
    taps.evaluate()
    taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    taps.now += 86_400
    taps.evaluate()
    taps.now -= 86_400 - 60
    taps.start()
    taps.evaluate()
    assert taps.evaluator.as_of <= taps.now
    settled = taps.fired("fewest").get((), 0)
    for _ in range(5):
        taps.add("a", taps.now)
    taps.add("b", taps.now + 30)
    taps.apply()
    taps.evaluate()
    many = [episode.is_open for episode in taps.journal.episodes.all("many") if episode.key == ("a",)]
    assert many == [True]  # it fires, and is not over at once
    taps.now += 60
    taps.evaluate()
    assert taps.fired("fewest")[()] == settled + 1  # the second event alone, judged when its period was over


def test_answers_that_are_too_large_for_one_query_are_read_in_parts(taps: Taps) -> None:
    taps.bound(ExecutionLimits(speed_states=40))
    taps.evaluate()
    for number in range(30):
        for _ in range(4 if number == 29 else 1):
            taps.add("a", taps.now - 5 * number)
            taps.add("b", taps.now - 5 * number)
    taps.apply()
    taps.evaluate()
    assert taps.fired("many") == {("a",): 1, ("b",): 1}
    assert not any(memory.is_behind for memory in taps.evaluator.memory.values())


def test_an_alert_whose_answers_are_too_large_delays_no_other_and_catches_up(taps: Taps) -> None:
    taps.evaluate()
    taps.bound(ExecutionLimits(speed_states=10))
    for number in range(15):
        taps.add(f"card {number}", taps.now - 100)
    taps.apply()
    taps.evaluate()
    assert "states" in taps.evaluator.memory["many"].error
    for _ in range(4):
        taps.add("a", taps.now, failed=True)
    taps.apply()
    taps.now += 1
    taps.evaluator.memory["many"].retry_at = taps.now + 1
    taps.evaluate()
    assert taps.fired("many") == {}
    assert taps.fired("failing") == {(): 1}
    taps.start()  # a process that begins again knows that it is behind
    taps.bound(ExecutionLimits())
    taps.now += 30
    taps.evaluate()
    assert taps.fired("many") == {("a",): 1}
    assert taps.evaluator.memory["many"].error == ""


def test_a_new_alert_does_not_fire_for_earlier_periods(taps: Taps) -> None:
    for _ in range(5):
        taps.add("a", taps.now - 3600)
    taps.apply()
    taps.evaluate()
    assert taps.fired("many") == {}


def test_a_notification_waits_in_the_outbox_under_one_name(taps: Taps) -> None:
    taps.evaluate()
    for _ in range(5):
        taps.add("a", taps.now)
    taps.crashing = {"alerts.after_commit": 1}
    taps.apply()
    taps.evaluate()
    deliveries = [each.delivery for each in taps.journal.outbox.all() if each.delivery.startswith("many-")]
    assert len(deliveries) == 1
    assert deliveries[0].endswith(":firing")


def test_a_redefined_alert_fires_again(taps: Taps) -> None:
    taps.evaluate()
    for _ in range(5):
        taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    taps.now += 1
    taps.declare(Alert("many", TRIES, when="attempts > 4", keep="15s"))
    taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    states = [str(episode.state) for episode in taps.journal.episodes.all("many")]
    assert states == ["firing", "resolved"]


def test_a_new_alert_on_a_followed_view_evaluates_its_last_periods(taps: Taps) -> None:
    taps.evaluate()
    for _ in range(5):
        taps.add("a", taps.now)
    taps.apply()
    taps.evaluate()
    taps.now += 1
    taps.declare(*ALERTS, Alert("five", TRIES, when="attempts > 4"))
    taps.add("b", taps.now)  # another key: nothing of "a" changes any more
    taps.apply()
    taps.evaluate()
    assert taps.fired("five") == {("a",): 1}


@pytest.mark.parametrize("is_muted_first", [False, True])
def test_a_webhook_is_notified_of_the_end_if_it_was_notified_of_the_firing(taps: Taps, *, is_muted_first: bool) -> None:
    taps.evaluator.notifier.webhooks = ("ops",)
    taps.evaluate()
    for _ in range(5):
        taps.add("a", taps.now)
    taps.apply()
    until = time.time() + 3600
    if is_muted_first:
        taps.journal.mutes.add("many", until)
    taps.evaluate()
    if is_muted_first:
        taps.journal.mutes.remove("many")
    else:
        taps.journal.mutes.add("many", until)
    taps.now += 60
    taps.evaluate()
    states = [
        each.delivery.rpartition(":")[2]
        for each in taps.journal.outbox.all()
        if each.target == "webhook:ops" and each.delivery.startswith("many-")
    ]
    assert states == ([] if is_muted_first else ["firing", "resolved"])


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
            changes = follower.next_changes()
            if changes is not None:
                follower._location = feeder.evaluate(changes, follower.changes_since) or follower._location
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
def test_a_clock_that_is_wrong_for_a_while_neither_fires_twice_nor_misses_an_episode(taps: Taps, behind_s: int) -> None:
    """The process runs with a wrong clock, fires, and is restarted with the right one."""
    many = Alert("many", TRIES, when="attempts > 3", keep="15s")
    taps.declare(many)
    taps.now -= behind_s
    taps.start()
    for _ in range(4):
        taps.add("a", NOW - 5400)
    taps.apply()
    taps.evaluate()
    taps.add("a", NOW - 5400)
    taps.apply()
    taps.evaluate()
    assert taps.fired("many") == {("a",): 1}
    taps.now += behind_s + 30
    taps.start()
    for card in "abbbb":
        taps.add(card, NOW - 5400)
    taps.apply()
    taps.evaluate()
    assert taps.fired("many") == {("a",): 1, ("b",): 1}
    transitions = [json.loads(body) for _, _, body in taps.journal.transitions.after(0)]
    assert sorted(each["key"]["card"] for each in transitions if each["state"] == "firing") == ["a", "b"]
