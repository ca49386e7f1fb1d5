"""The alert process itself, killed at every point, over a real Redis: each episode fires once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from hand_off.lag import KafkaEnd
from hand_off.speed_views import SpeedViews
from infra.failpoints import VARIABLE as FAILPOINTS
from infra.settings import child_environment, load_settings
from serving_layer.alerts.journal import Journal, journal_path
from tests.alert_oracle import Oracle
from tests.conftest import wait_until
from tests.serving_data import Place, Writer, end_of
from tests.system.redis_server import redis_server
from tests.system.test_alerts import SECRET, Hook
from tests.tiers import times
from views.declarations import declared_by
from views.in_memory import Event

DECLARED = """
from views.aggregates import Count
from views.alert import Alert
from views.source import Source
from views.view import View

taps = Source("taps", fields="event_id string, event_time timestamp, card string")
tries = View("tries", source=taps, grain="1s", keys={"card": "card"}, answers={"attempts": Count()})
many = Alert("many", tries, when="attempts > 2", keep="2s")
longer = Alert("longer", tries, when="attempts > 1", by=(), for_buckets=2, keep="2s")
"""
KILLS = (
    "alerts.before_commit 2",
    "alerts.after_commit 1",
    "at random",
    *("alerts.after_commit 2", "alerts.before_commit 5", *("at random",) * times(0, 1)) * times(1, 10),
)
STEPS, STEPS_A_LIFE, STEP_S = times(60, 300), 14, 0.3


class Running:
    """The process, started again with another point at which it kills itself whenever it is gone."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.armed = log.with_name("failpoints")
        self.armed.mkdir()
        self.environment = {**environment, FAILPOINTS: str(self.armed)}
        self.log, self.ways, self.deaths = log, list(KILLS), 0
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        way = self.ways.pop(0) if self.ways else ""
        self.way = way
        if way and way != "at random":
            point, _, count = way.partition(" ")
            (self.armed / point).write_text(count)
        with self.log.open("ab") as output:
            command = [sys.executable, "-P", "-m", "serving_layer.alerts"]
            return subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)

    def restart_if_gone(self, step: int) -> None:
        if self.way == "at random" and step % STEPS_A_LIFE == STEPS_A_LIFE - 1:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        if self.process.poll() is not None:
            assert self.process.returncode == -signal.SIGKILL, self.log.read_text()[-2000:]
            self.deaths += 1
            self.process = self.start()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def prepared(folder: Path) -> Iterator[tuple[Any, Writer, Hook]]:
    views_dir = folder / "views"
    views_dir.mkdir()
    (views_dir / "declared.py").write_text(DECLARED)
    hook = Hook()
    hooks = folder / "hooks.json"
    hooks.write_text(json.dumps({"operations": {"url": hook.url, "secret": SECRET}}))
    with redis_server(folder) as client:
        url = f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}/0"
        settings = load_settings(
            home=folder / "home", redis_url=url, kafka_bootstrap="127.0.0.1:1", views_dir=views_dir,
            with_examples=False, alerts_webhooks_file=hooks, alerts_webhooks_private=True,
        )  # fmt: skip
        declared = declared_by(settings)
        place = Place(folder / "home", tuple(declared.views.values()), url)
        place.begin()
        writer = Writer(SpeedViews(client, "taps"), place)
        writer.followed = declared.followed_views("taps")
        yield settings, writer, hook
    hook.server.shutdown()
    hook.server.server_close()


def test_killed_at_every_point_each_episode_fires_once(tmp_path: Path) -> None:
    with prepared(tmp_path) as (settings, writer, hook):
        home = settings.home
        (home / "home.json").write_text('{"layout": 1, "version": "test"}')  # the test made the folder, not `up`
        environment = {**os.environ, **child_environment(settings)}
        running = Running(environment, tmp_path / "alerts.log")
        try:
            events = drive(settings, writer, running)
        finally:
            running.end()
        assert running.deaths >= len(KILLS)
        journal = Journal(journal_path(settings))
        evaluations = journal.evaluations.all("taps")
        fired = [episode for episode in journal.episodes.all() if episode.fired_at is not None]
        for alert in declared_by(settings).alerts.values():
            oracle = Oracle(alert)
            for cut, as_of, _, _ in evaluations:
                oracle.evaluate(events, cut, as_of)
            expected = {key: len(each) for key, each in oracle.fired.items() if each}
            assert Counter(each.key for each in fired if each.alert == alert.name) == expected, alert.name
            assert expected, f"{alert.name} never fired: nothing was tried"
        delivered = Counter(delivery for delivery, body in hook.got if body["state"] == "firing")
        assert set(delivered) == {f"{episode.id}:firing" for episode in fired}
        assert (
            sum(delivered.values()) - len(delivered) <= running.deaths
        )  # sent again only where a kill came before the note of it
        assert not hook.wrong


def drive(settings: Any, writer: Writer, running: Running) -> list[Event]:
    """Micro-batches with bursts, late events and duplicates, until the process was killed at every point."""
    chance = Random(3)  # noqa: S311  made-up events
    events: list[Event] = []
    step = 0
    beat(writer, events)
    wait_until("the first evaluation", lambda: has_evaluated(settings), 180)
    deadline = time.monotonic() + 120 * len(KILLS)
    while running.deaths < len(KILLS) or step < STEPS:
        assert time.monotonic() < deadline, (running.deaths, running.log.read_text()[-2000:])
        now, card = time.time(), chance.choice("abc")
        late = chance.choice((0, 0, 0, 5, 20))
        for _ in range(chance.choice((1, 2, 4))):
            partition = len(events) % 2
            at = datetime.fromtimestamp(now - late, UTC)
            event = Event(partition, end_of(events).get(partition, 0), f"e{len(events)}", at, {"card": card})
            events.append(event)
        if chance.random() < 0.3:
            again = chance.choice(events)
            offset = end_of(events)[again.partition]
            events.append(Event(again.partition, offset, again.event_id, again.event_time, again.fields))
        writer.apply(events, end_of(events))
        beat(writer, events)
        running.restart_if_gone(step)
        step += 1
        threading.Event().wait(STEP_S)
    journal = Journal(journal_path(settings))
    wait_until("all to be over", lambda: is_quiet(journal, writer, events, running), deadline_s=300)
    return events


def has_evaluated(settings: Any) -> bool:
    if not journal_path(settings).is_file():
        return False
    journal = Journal(journal_path(settings))
    found = journal.positions.get("taps")
    journal.close()
    return found is not None


def is_quiet(journal: Journal, writer: Writer, events: list[Event], running: Running) -> bool:
    beat(writer, events)
    running.restart_if_gone(0)
    position = journal.positions.get("taps")
    waiting = [each for each in journal.outbox.all() if each.target != "kafka"]
    return (
        position is not None
        and position.cut == end_of(events)
        and not journal.episodes.all(is_open=True)
        and not waiting
    )


def beat(writer: Writer, events: list[Event]) -> None:
    end = end_of(events)
    writer.speed_views.writer(writer.token).heartbeat(3600, KafkaEnd(end, 0.0, end, 0.0))
