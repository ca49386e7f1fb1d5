"""While events flow, runs are made and processes are killed, every answer is the reference interpreter's at its cut."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from infra.backup_store import BackupManifest
from infra.clients.kafka import librdkafka_config
from infra.settings import Settings, child_environment
from master_dataset.cut import cut_from_json, is_below
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table import coverage
from master_dataset.table.checks.fsck import quick_check
from master_dataset.table.paths import table_path
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from serving_layer.verification.from_scratch import recompute
from tests.conftest import Stack, assert_same, start_stack, stop_stack, wait_until
from tests.system.speed_source import POISON
from tidemark.backup.backup import back_up
from tidemark.backup.restore import restore
from views.declarations import declared_by
from views.in_memory import Event
from views.sample_events import generate

DECLARED = """
from views.aggregates import Average, Count, Distinct, First, Last, Max, Min, Quantiles, Sum, TopK
from views.derived import Ratio
from views.source import Source
from views.view import View

shop = Source(
    "shop",
    fields="event_id string, event_time timestamp, user_id string, item string, paid boolean, cents int, ms double",
)
sales = View(
    "sales", source=shop, grain="1h", keys={"item": "item", "paid": "paid"},
    answers={"orders": Count(), "large": Count(where="cents >= 99"), "share": Ratio("large", "orders"),
             "cents": Sum("cents"), "users": Distinct("user_id"), "ms": Quantiles("ms"), "last": Last("user_id")},
)
totals = View("totals", source=shop, grain="1d", answers={"events": Count(), "users": Distinct("user_id")})
minutes = View(
    "minutes", source=shop, grain="1m", keys={"user": "user_id"}, where="cents is not null",
    answers={"least": Min("cents"), "most": Max("cents"), "average": Average("cents"), "first": First("item"),
             "items": TopK("item", k=3, room=100)},
)
"""
JOINING = """
from views.aggregates import Count
from views.view import View
from .declared import shop

joined = View("joined", source=shop, grain="1h", keys={"item": "item"}, answers={"events": Count()})
"""
DAY, AFTER = "2026-03-01T00:00:00Z", "2026-03-03T00:00:00Z"
QUESTIONS: tuple[tuple[str, dict[str, str]], ...] = (
    ("sales", {"by": "item,paid", "grain": "hour"}),
    ("sales", {"by": "item"}),
    ("sales", {"by": "paid", "grain": "day", "tz": "Europe/Berlin"}),
    ("sales", {"grain": "1h"}),
    ("sales", {"item": "a", "grain": "6h"}),
    ("sales", {"item.prefix": "/d", "by": "item"}),
    ("sales", {"item.not": "b", "from": "2026-03-01T23:00:00Z", "to": "2026-03-02T01:00:00Z", "by": "item"}),
    ("sales", {"grain": "hour", "window": "3h"}),
    ("totals", {}),
    ("totals", {"grain": "day"}),
    ("minutes", {"by": "user", "grain": "hour"}),
    ("minutes", {"grain": "15m", "tz": "Asia/Kolkata"}),
    ("minutes", {"by": "user", "from": "2026-03-01T22:00:00Z", "to": "2026-03-01T22:01:00Z"}),
)
WANTED, CUTS = 100_000, 60
"""So many numbers are compared while things are killed, at so many cuts at least."""
VICTIMS = ("speed", "serving", "archiver", "redis", "kafka") * 6
RUNS = 1_000
"""At most so many batch runs are made meanwhile."""
BACK_S = 240.0
"""So long may a service that was killed be away, on a machine that is busy with other things."""


class Shop:
    """A whole stack, everything that was sent to it, and how often its answers were compared."""

    def __init__(self, folder: Path) -> None:
        self.views_dir = folder / "views"
        self.views_dir.mkdir()
        (self.views_dir / "declared.py").write_text(DECLARED)
        self.stack: Stack = start_stack(
            folder / "home", views_dir=self.views_dir, with_examples=False, archiver_enabled=True, speed_enabled=True,
            serving_enabled=True, speed_grace_s=2, batch_wait_s=60,
        )  # fmt: skip
        self.settings = self.stack.settings
        self.declared = declared_by(self.settings)
        self.source = self.declared.source("shop")
        self.producer = Producer(
            {**librdkafka_config(self.settings, self.stack.kafka), "acks": "all", "enable.idempotence": True}
        )
        self.events: list[Event] = []
        self.acknowledged: dict[int, int] = {}
        """Up to which offset of each partition we know what stands there."""
        self.chance = random.Random(7)  # noqa: S311  which question comes when
        self.seed, self.compared, self.degraded = 0, 0, 0
        self.cuts: set[str] = set()
        self.runs: set[int] = set()
        self.runs_at_first: frozenset[int] = frozenset()
        self.refusals: list[int] = []
        self.client = httpx.Client(base_url=self.stack.serving, auth=("admin", self.stack.secret), timeout=30)

    # ---- what happens ----

    def send(self, count: int) -> None:
        """Late, copied and poisonous records among them. All are acknowledged when this returns."""
        self.seed += 1
        records = generate(self.source, count, self.seed, views=self.declared.views_of("shop"), duplicates=0.1)
        known = self.events[:: max(len(self.events) // 5, 1)][:5]

        def noted(event: Event | None) -> Any:
            def delivered(error: Any, message: Any) -> None:
                assert error is None, error
                partition, offset = message.partition(), message.offset()
                if event is not None:
                    self.events.append(Event(partition, offset, event.event_id, event.event_time, event.fields))
                self.acknowledged[partition] = offset + 1

            return delivered

        from views.sample_events import encode

        for record in records:
            event = record.event
            self.producer.produce("shop", record.value, partition=event.partition, on_delivery=noted(event))
        for event in known:
            value = encode(event.fields).encode()
            self.producer.produce("shop", value, partition=event.partition, on_delivery=noted(event))
        poison = POISON[self.seed % len(POISON)]
        self.producer.produce("shop", poison, partition=self.seed % 3, on_delivery=noted(None))
        assert self.producer.flush(BACK_S) == 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Events flow and runs are made while the block runs."""
        done = threading.Event()
        failures: list[str] = []

        def send() -> None:
            while not done.wait(0.4):
                self.send(20)

        def run() -> None:
            for _ in range(RUNS):
                if done.is_set():
                    return
                code, said = self.batch_run()
                if code:
                    failures.append(said)

        threads = [threading.Thread(target=each, daemon=True) for each in (send, run)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            done.set()
            for each in threads:
                each.join(timeout=BACK_S + 60)
        assert len(failures) <= len(VICTIMS), failures  # some are killed under, and say so

    def batch_run(self) -> tuple[int, str]:
        command = [sys.executable, "-m", "tidemark", "batch", "run", "--source", "shop"]
        actual = self.settings.model_copy(update={"kafka_bootstrap": self.stack.kafka, "redis_url": self.stack.redis})
        environment = {**os.environ, **child_environment(actual)}
        try:
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=170)
        except subprocess.TimeoutExpired as error:  # what it waits for was killed, on a busy machine
            return 1, str(error)
        return ended.returncode, ended.stderr[-500:]

    def kill(self, name: str) -> None:
        """Kill -9 of a service; returns when another process of it is ready, and answers were compared meanwhile."""
        victim = self.stack.service(name)["pid"]
        os.kill(victim, signal.SIGKILL)

        def is_back() -> bool:
            self.check_any()
            service = self.stack.service(name)
            return service["pid"] not in (None, victim) and service["state"] == "ready"

        wait_until(f"{name} to be back", is_back, BACK_S)

    def run_well(self) -> None:
        """A batch run that is served when this returns."""
        table = table_path(self.settings, "shop")
        wait_until("the archiver", lambda: is_below(dict(self.acknowledged), coverage.of(table).cut), BACK_S)
        code, said = self.batch_run()
        assert code == 0, said
        newest = publish_log.last(BatchFolder.of(self.settings, "shop")).run
        wait_until("the run to be served", lambda: self.check("totals", {}) and newest in self.runs, BACK_S)

    # ---- what must be so ----

    def check(self, view: str, parameters: dict[str, str]) -> bool:
        """Ask, and compare every number with the oracle at the cut of the answer. False: not answered now."""
        asked = {"from": DAY, "to": AFTER, "limit": "10000", **parameters}
        try:
            answer = self.client.get(f"/views/{view}/query", params=asked)
        except httpx.TransportError:
            self.refusals.append(0)
            return False
        if answer.status_code != 200:
            assert answer.status_code in (429, 503), answer.text
            assert answer.headers["content-type"] == "application/problem+json"
            self.refusals.append(answer.status_code)
            return False
        body = answer.json()
        meta = body["meta"]
        cut = cut_from_json(meta["cut"])
        wait_until(
            "Kafka's word on what was sent below the cut",
            lambda: all(self.acknowledged.get(partition, 0) >= offset for partition, offset in cut.items()),
            BACK_S,
        )
        below = [event for event in self.events if event.offset < cut.get(event.partition, 0)]
        declared = self.declared.view(view)
        question = parse_query(declared, list(asked.items()), now=time.time(), limits=QueryLimits())
        expected = {(period.start, *key): answers for (period, key), answers in recompute(question, below).items()}
        found = {
            (int(datetime.fromisoformat(row["bucket"]).timestamp()), *(row[name] for name in question.by)): {
                name: row[name] for name in declared.answers
            }
            for row in body["rows"]
        }
        assert body["next"] is None
        assert_same(found, _as_json(expected))
        self.compared += sum(map(len, found.values()))
        self.cuts.add(str(meta["cut"]))
        self.runs.add(meta["batch"]["run"])
        self.degraded += meta["degraded"]
        return True

    def check_any(self) -> bool:
        return self.check(*self.chance.choice(QUESTIONS))

    def check_all(self) -> None:
        for view, parameters in QUESTIONS:
            wait_until(f"an answer of {view} {parameters}", lambda v=view, p=parameters: self.check(v, p))

    def caught_up(self) -> None:
        """Everything that was sent is in the answers."""
        end = dict(self.acknowledged)

        def is_there() -> bool:
            try:
                answer = self.client.get("/views/totals/query", params={"from": DAY, "to": AFTER})
            except httpx.TransportError:
                return False
            if answer.status_code != 200 or answer.json()["meta"]["degraded"]:
                return False
            cut = cut_from_json(answer.json()["meta"]["cut"])
            return all(cut.get(partition, 0) >= offset for partition, offset in end.items())

        wait_until("everything to be applied", is_there, deadline_s=120)


def _as_json(expected: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """As JSON has them: tuples are lists."""
    return {
        place: {name: list(value) if isinstance(value, tuple) else value for name, value in answers.items()}
        for place, answers in expected.items()
    }


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A stack that has counted some events and has made no run yet, or more: tests leave it running."""
    made = Shop(tmp_path_factory.mktemp("oracle"))
    wait_until("the first answer", lambda: made.check("totals", {}), deadline_s=120)
    made.send(200)
    made.caught_up()
    made.check_all()
    made.runs_at_first = frozenset(made.runs)
    yield made
    made.client.close()
    stop_stack(made.stack)


def test_before_the_first_run_the_speed_view_answers_alone(shop: Shop) -> None:
    assert shop.runs_at_first == {0}
    assert shop.compared > 0


def test_a_run_and_an_empty_speed_view(shop: Shop) -> None:
    shop.caught_up()
    shop.run_well()
    shop.check_all()


@pytest.mark.soak  # the fault programme of the gate kills the same processes, and compares every answer
def test_while_events_flow_runs_are_made_and_processes_are_killed(shop: Shop) -> None:
    compared, cuts = shop.compared, len(shop.cuts)
    with shop.busy():
        for victim in VICTIMS:
            shop.kill(victim)
        wait_until(
            f"{WANTED} comparisons at {CUTS} cuts",
            lambda: shop.check_any() and shop.compared - compared >= WANTED and len(shop.cuts) - cuts >= CUTS,
            BACK_S,
        )
    shop.caught_up()
    shop.run_well()  # those before may all have been killed under
    shop.check_all()


@pytest.mark.soak  # a batch run beside everything else takes minutes on a busy machine
def test_backups_beside_commits_and_runs_give_the_answers_of_their_own_cuts(shop: Shop, tmp_path: Path) -> None:
    """Archiver, speed layer and batch runs work meanwhile; later events and runs are in no earlier backup."""
    folder, made = tmp_path / "backups", list[BackupManifest]()
    table = table_path(shop.settings, "shop")

    def is_enough() -> bool:
        made.append(back_up(shop.settings, folder).manifest)
        cut = coverage.of(table).cut
        wait_until("another commit", lambda: coverage.of(table).cut != cut, BACK_S)
        return len(made) >= 3 and made[-1].sources["shop"]["run"] > made[0].sources["shop"]["run"]

    with shop.busy():
        wait_until("three backups, and a run between them", is_enough, BACK_S)
    assert len({str(each.sources["shop"]["master_cut"]) for each in made}) == len(made)
    for manifest in (made[0], made[-1]):
        home = tmp_path / f"restored-{manifest.number}"
        settings = shop.settings.model_copy(update={"home": home, "redis_url": "redis://127.0.0.1:1/0"})
        restore(settings, folder, manifest.number)
        check_restored(shop, settings, manifest.sources["shop"])


def check_restored(shop: Shop, settings: Settings, said: dict[str, Any]) -> None:
    """What the manifest says of the source is what the restored home holds, and not an event more or less."""
    table, master_cut, cut = table_path(settings, "shop"), cut_from_json(said["master_cut"]), cut_from_json(said["cut"])
    assert quick_check(table) == []
    assert is_below(cut, master_cut), "no run is newer than the events"
    held = [row for batch in read_records(table, RecordFilter(), ["partition", "offset"]) for row in batch.to_pylist()]
    assert sorted((row["partition"], row["offset"]) for row in held) == sorted(
        (event.partition, event.offset) for event in shop.events if event.offset < master_cut.get(event.partition, 0)
    )
    below = [event for event in shop.events if event.offset < cut.get(event.partition, 0)]
    engine = QueryEngine(settings, shop.declared)
    try:
        for view, parameters in QUESTIONS[::3]:
            asked = {"from": DAY, "to": AFTER, "limit": "10000", **parameters}
            query = parse_query(engine.served_view(view), list(asked.items()), now=time.time(), limits=QueryLimits())
            result = engine.execute(query)
            assert result.meta.batch.cut == cut
            found = {(row.period, row.key): row.answers for row in result.rows}
            assert_same(found, recompute(query, below))
    finally:
        engine.close()


def test_a_view_that_joins_is_served_from_the_next_run_on(shop: Shop) -> None:
    (shop.views_dir / "joining.py").write_text(JOINING)
    shop.declared = declared_by(shop.settings)
    shop.run_well()
    shop.send(50)
    wait_until("the new view", lambda: shop.check("joined", {"by": "item", "grain": "hour"}), deadline_s=90)
    shop.caught_up()
    assert shop.check("joined", {"by": "item", "grain": "hour"})
