"""The catalog's `web` gets a new field on the whole stack, under load: it is asked for over both halves.

Then it gets another version, and whoever takes part in the switch is killed: the run at each failpoint, and the
archiver and the speed layer in the middle of it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra import failpoints
from infra.settings import child_environment
from infra.stack.addresses import with_addresses
from master_dataset.cut import cut_from_json, is_below
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table import coverage
from master_dataset.table.checks.fsck import quick_check
from master_dataset.table.paths import table_path
from tests.conftest import Stack, assert_same, start_stack, stop_stack, wait_until
from torture.commands import kill_group
from torture.faults.failpoints import IN_EVOLUTIONS
from views import catalog, in_memory
from views.declarations import declared_by
from views.in_memory import Event
from views.reading import picked
from views.sample_events import START
from views.source import Source
from views.view import View

pytestmark = pytest.mark.in_order

CATALOG_WEB = Path(catalog.__file__).with_name("web.py")
VISITS = """
from tidemark import Count, Distinct, Max, Sum, View

from .web import web

hits = View(
    "hits", web, grain="1h", keys={"url": "properties.url"},
    answers={"events": Count(), "users": Distinct("user_id"), "largest": Max("properties.status")},
)
totals = View("totals", web, grain="1d", answers={"events": Count(), "bytes": Sum("properties.bytes")})
"""
CAMPAIGNS = """
campaigns = View(
    "campaigns", web, grain="1h", keys={"campaign": "campaign"},
    answers={"events": Count(), "users": Distinct("user_id")},
)
"""
ADDED = (
    ("name=", "version=2,\n    name="),
    ("name string,", "name string, campaign string,"),
    ("status: int", "status: bigint"),
)
"""Version 2: a new field, and one that holds more."""
DEFAULTED = (
    ("version=2", "version=3"),
    ("campaign string,", "campaign string DEFAULT 'none',"),
    ("ms: double, ", ""),
)
"""Version 3: another answer for events without a campaign, and a field less for which events were refused."""
KILLED_AT = (*IN_EVOLUTIONS, "run.before_publish", "run.after_publish")
"""Where the runs that switch to version 3 are killed, one after another."""
STOPPED_AT, KILLED_THEN = "run.after_prepare", ("archiver", "speed")
"""Where the run before the last one waits until these services are killed."""
ASKED = {
    "hits": {"grain": "1h", "by": "url"},
    "totals": {"grain": "1d"},
    "campaigns": {"grain": "1h", "by": "campaign"},
}
PERIOD = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-03T00:00:00Z", "limit": 10_000}
LARGE = 3_000_000_000
"""A status that no int holds: invalid by version 1."""
SLOW = "slow"
"""A time that is no number: invalid until version 3, which reads no time."""
SERVICES = ("collector", "archiver", "speed", "scheduler", "serving")
LOAD, PAUSE_S, MOST = 5, 0.3, 4_000
"""Events of one request of the load, the pause after it, and how many events there are at most."""
RUN_S, BACK_S = 240.0, 240.0


@dataclass(frozen=True)
class Sent:
    """An event where it is, with its fields under the names that came."""

    partition: int
    offset: int
    fields: dict[str, Any]

    @property
    def since(self) -> int:
        """The first version of the source by which it is valid."""
        if "ms" in self.fields["properties"]:
            return 3
        return 2 if self.fields["properties"]["status"] == LARGE else 1

    def read_by(self, source: Source) -> Event | None:
        """As a version of the source reads it; None: invalid by that version."""
        if source.version < self.since:
            return None
        at = datetime.fromisoformat(self.fields["event_time"])
        fields = picked(source.schema, {**self.fields, "event_time": at})
        return Event(self.partition, self.offset, self.fields["event_id"], at, fields)


class Site:
    """A whole stack with a copy of `web`, everything that was sent to it, and how often its answers were compared."""

    def __init__(self, folder: Path) -> None:
        self.views_dir = folder / "views"
        self.views_dir.mkdir()
        shutil.copy(CATALOG_WEB, self.views_dir / "web.py")
        (self.views_dir / "visits.py").write_text(VISITS)
        self.log = folder / "runs.log"
        self.armed = folder / "failpoints"
        self.armed.mkdir()
        self.stack: Stack = start_stack(
            folder / "home", views_dir=self.views_dir, with_examples=False, archiver_enabled=True, speed_enabled=True,
            serving_enabled=True, scheduler_enabled=True, batch_schedule="0 0 1 1 *", speed_grace_s=2, batch_wait_s=60,
        )  # fmt: skip
        self.settings = self.stack.settings
        self.views: dict[str, View] = {}
        """Each that was ever declared, by the version that answers name."""
        self.declare()
        self.sent: list[Sent] = []
        self.ends: dict[int, int] = {}
        """Up to which offset of each partition we know what is there."""
        self.names: tuple[str, ...] = ("hits", "totals")
        self.campaign = "early"
        self.compared, self.versions = 0, set[int]()
        self._chance, self._numbers, self._turn = random.Random(19), count(), threading.Lock()  # noqa: S311  no secret
        self._collector, self._serving = self.stack.client(), self.stack.asking()

    def close(self) -> None:
        for each in (self._collector, self._serving):
            each.close()
        stop_stack(self.stack)

    # ---- what is declared and sent ----

    def declare(self, changes: Sequence[tuple[str, str]] = (), views: str = VISITS) -> None:
        """Change the files of the views folder, as their author does."""
        web = self.views_dir / "web.py"
        text = web.read_text()
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new, 1)
        (self.views_dir / "visits.py").write_text(views)
        web.write_text(text)
        self.views |= {view.hash[:16]: view for view in declared_by(self.settings).views_of("web")}

    def send(self, count: int, path: str = "/events/web", **properties: Any) -> None:
        """Events and some that were sent before, in one request. All are stored when this returns."""
        with self._turn:
            made = [self._event(properties) for _ in range(count)]
            known = self._chance.sample(self.sent, min(len(self.sent), 2))
            made += [each.fields for each in known if path != "/events/web" or each.since == 1]
            self._post(path, made)

    def send_again(self, known: Sequence[Sent]) -> None:
        """Events that were sent before: whatever they are by now, none of them counts twice."""
        with self._turn:
            self._post("/produce/web", [each.fields for each in known])

    def _post(self, path: str, made: Sequence[dict[str, Any]]) -> None:
        body = made if path == "/events/web" else [{"value": each, "key": each["event_id"]} for each in made]
        stored = self._collector.post(path, json=body).raise_for_status().json()
        for fields, place in zip(made, stored, strict=True):
            self.sent.append(Sent(place["partition"], place["offset"], fields))
            self.ends[place["partition"]] = max(self.ends.get(place["partition"], 0), place["offset"] + 1)

    def _event(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        number, draw = next(self._numbers), self._chance.random
        at = START + timedelta(seconds=self._chance.randrange(8 * 3600))
        named = {"campaign": self.campaign} if draw() < 0.7 else {}
        return {
            "event_id": f"e{number}", "event_time": at.isoformat(), "user_id": f"u{number % 17}", **named,
            "properties": {
                "url": f"/{number % 5}", "status": 200, "bytes": self._chance.randrange(10**6), **properties,
            },
        }  # fmt: skip

    @contextmanager
    def load(self) -> Iterator[None]:
        """Events come while the block runs."""
        done, failures = threading.Event(), list[BaseException]()

        def send() -> None:
            try:
                while not done.wait(PAUSE_S) and len(self.sent) < MOST:
                    self.send(LOAD)
            except BaseException as error:  # it is raised where the block ends
                failures.append(error)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(60)
        assert failures == []

    # ---- runs ----

    def run(self) -> None:
        """A batch run that succeeds, as a process. Answers are compared for as long as it takes."""
        with self._running() as run:
            self.wait("the run to end", lambda: run.poll() is not None)
        assert run.returncode == 0, self.log.read_text()[-2000:]

    def run_killed_at(self, point: str, others: Sequence[str] = ()) -> None:
        """A batch run that SIGKILL ends at a failpoint. The `others` are killed while it is stopped in the middle."""
        (self.armed / point).touch()
        if others:
            (self.armed / STOPPED_AT).write_text(failpoints.STOP)
        with self._running() as run:
            if others:
                process = psutil.Process(run.pid)
                self.wait(f"the run to stop at {STOPPED_AT}", lambda: process.status() == psutil.STATUS_STOPPED)
                self._kill(others)
                process.resume()
            self.wait(f"the run to be killed at {point}", lambda: run.poll() is not None)
        assert run.returncode == -signal.SIGKILL, self.log.read_text()[-2000:]
        assert list(self.armed.iterdir()) == []

    @contextmanager
    def _running(self) -> Iterator[subprocess.Popen[bytes]]:
        """A batch run. What is left of it at the end of the block is killed."""
        variables = {**child_environment(with_addresses(self.settings)), failpoints.VARIABLE: str(self.armed)}
        with self.log.open("ab") as log:
            run = subprocess.Popen(
                [sys.executable, "-m", "tidemark", "batch", "run", "--source", "web"],
                env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            yield run
        finally:
            kill_group(run)
            run.wait(60)

    def _kill(self, services: Sequence[str]) -> None:
        before = self.processes()
        for name in services:
            os.kill(before[name], signal.SIGKILL)
        wait_until("the supervisor to see it", lambda: all(self.processes()[name] != before[name] for name in services))

    def processes(self) -> dict[str, int]:
        return {name: self.stack.service(name)["pid"] for name in SERVICES}

    # ---- what must be so ----

    def wait(self, what: str, condition: Any) -> None:
        """Until something is so; answers are compared meanwhile."""
        wait_until(what, lambda: (self.check(), condition())[1], RUN_S)

    def check(self) -> dict[str, dict[str, Any]]:
        """All views asked at once: one cut, one version, and the oracle's answers by both. Empty: no answer now."""
        names = self.names
        questions = [{"view": name, **PERIOD, **ASKED[name]} for name in names]
        try:
            answer = self._serving.post("/query", json={"questions": questions})
        except httpx.TransportError:
            return {}
        if answer.status_code in (404, 429, 503):  # a view that is not served yet; a process that just starts
            return {}
        assert answer.status_code == 200, answer.text
        bodies: list[dict[str, Any]] = answer.json()["answers"]
        views = [self.views[body["meta"]["version"]] for body in bodies]
        (version,) = {view.source.version for view in views}
        assert len({str(body["meta"]["cut"]) for body in bodies}) == 1
        cut = cut_from_json(bodies[0]["meta"]["cut"])
        wait_until("what was sent below the cut", lambda: is_below(cut, dict(self.ends)))
        read = [each.read_by(views[0].source) for each in self.sent if each.offset < cut.get(each.partition, 0)]
        events = [event for event in read if event is not None]
        for view, body in zip(views, bodies, strict=True):
            assert body["next"] is None
            assert_same(by_group(view, body["rows"]), in_memory.answers(view, events))
            self.compared += len(body["rows"])
        self.versions.add(version)
        return dict(zip(names, bodies, strict=True))

    def version(self) -> int:
        """Of the answers now; 0: there is none."""
        found = self.check()
        return self.views[found["totals"]["meta"]["version"]].source.version if found else 0

    def wait_served(self, version: int) -> None:
        wait_until(f"version {version} to be served", lambda: self.version() == version, RUN_S)

    def caught_up(self) -> dict[str, dict[str, Any]]:
        """The answers that hold everything that was sent."""
        end = dict(self.ends)

        def found() -> dict[str, dict[str, Any]]:
            bodies = self.check()
            meta = bodies["totals"]["meta"] if bodies else {}
            return bodies if meta and not meta["degraded"] and is_below(end, cut_from_json(meta["cut"])) else {}

        made: dict[str, dict[str, Any]] = wait_until("everything to be answered", found, BACK_S)
        return made

    def check_nothing_lost(self, bodies: dict[str, dict[str, Any]]) -> None:
        """Each event counts once, and each record is one row of the master dataset."""
        counted = sum(row["events"] for row in bodies["totals"]["rows"])
        assert counted == len({each.fields["event_id"] for each in self.sent})
        table = table_path(self.settings, "web")
        wait_until("the archiver", lambda: is_below(self.ends, coverage.of(table).cut), BACK_S)
        columns = ["partition", "offset"]
        rows = [
            row for batch in read_records(table, RecordFilter(with_invalid=True), columns) for row in batch.to_pylist()
        ]
        assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(
            (each.partition, each.offset) for each in self.sent
        )
        assert [finding for finding in quick_check(table) if finding.is_damage] == []


def by_group(view: View, rows: Sequence[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """As the reference interpreter has them."""
    return {
        (int(datetime.fromisoformat(row["bucket"]).timestamp()) * 1_000_000, tuple(row[key] for key in view.keys)): {
            name: row[name] for name in view.answers
        }
        for row in rows
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A stack that serves version 1 from a batch view and a speed view."""
    made = Site(tmp_path_factory.mktemp("evolving"))
    try:
        made.send(60)
        made.send(3, "/produce/web", status=LARGE)  # invalid by version 1
        wait_until("the first answer", made.check, BACK_S)
        made.run()
        yield made
    finally:
        made.close()


def test_a_field_that_is_added_under_load_is_asked_for_over_both_halves_without_a_restart(site: Site) -> None:
    before = site.processes()
    with site.load():
        site.declare(ADDED, VISITS + CAMPAIGNS)
        site.send(3, "/produce/web", status=LARGE)
        assert site.version() == 1, "until the run of version 2 is complete"
        site.run()
        site.wait_served(2)
        site.names, site.campaign = (*site.names, "campaigns"), "late"
        site.send(20, status=LARGE)  # the collector has them: by version 2 they are valid
    bodies = site.caught_up()
    assert all(body["meta"][half]["read"] for body in bodies.values() for half in ("batch", "speed"))
    assert {row["campaign"] for row in bodies["campaigns"]["rows"]} == {"early", "late", None}, (
        "also of events from before anybody declared it"
    )
    assert site.processes() == before, "nothing was restarted"
    assert site.versions == {1, 2}
    site.check_nothing_lost(bodies)


def test_a_switch_under_load_whose_processes_are_killed_ends_with_the_right_answers(site: Site) -> None:
    with site.load():
        site.send(3, "/produce/web", ms=SLOW)  # invalid by version 2
        site.declare(DEFAULTED, VISITS + CAMPAIGNS)
        for point in KILLED_AT:
            site.send(2, "/produce/web", ms=SLOW)
            version = wait_until("an answer", site.version)
            assert version == 2, f"until a run of version 3 is published, before {point}"
            site.run_killed_at(point, KILLED_THEN if point == KILLED_AT[-2] else ())
        site.wait_served(3)  # the entry is in the log: whoever comes next completes it, without another run
        site.send_again([each for each in site.sent if each.since == 3])  # now they are valid, and counted
    bodies = site.caught_up()
    assert {row["campaign"] for row in bodies["campaigns"]["rows"]} == {"early", "late", "none"}
    assert site.versions == {1, 2, 3}
    site.check_nothing_lost(bodies)
