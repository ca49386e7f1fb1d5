"""Faults prove that they struck: what did not come about is no shot, and what the platform owes then is its own."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hand_off.speed_views import SpeedViews
from infra.failpoints import VARIABLE
from infra.home import write_json
from infra.logs import configure_logging
from infra.rest.problems import Problem
from infra.stack import supervisor as supervisor_module
from infra.stack.ports import LOOPBACK
from infra.stack.service import Service
from infra.stack.supervisor import Limits, Supervisor
from infra.threads import Threads
from master_dataset.collector.bodies import check_batch, parse_within, read_body
from master_dataset.collector.limits import Budget
from master_dataset.collector.limits import Limits as CollectorLimits
from master_dataset.table.append import TableBusy
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from tests.conftest import wait_until
from tests.system.redis_server import redis_server
from torture import runs
from torture.commands import CommandResult, Commands
from torture.errors import BrokenPromise, TortureError
from torture.faults import clocks, concurrency, damage, imports, overload, processes, redis, views
from torture.faults.overload import OverloadReplies
from torture.installation import Installation
from torture.installation_settings import free_port
from torture.processes import Processes
from views.aggregates import Count
from views.sample_events import START
from views.view import View

CHANCE = random.Random(1)  # noqa: S311  no secret
COMES = "from infra.failpoints import reach; reach('run.after_number'); print('went on')"


class ScriptedCommands(Commands):
    """Batch runs are a script, or end as the test says."""

    script = COMES
    ends_with = 0

    def __init__(self, installation: Installation) -> None:
        super().__init__(installation.folder, installation.source_name, dict)
        self.failpoints_dir, self.spawned = installation.failpoints_dir, list[tuple[str, ...]]()

    def spawn(self, *arguments: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        self.spawned.append(arguments)
        environment = {**os.environ, VARIABLE: str(self.failpoints_dir), **(more or {})}
        return subprocess.Popen(
            [sys.executable, "-c", self.script if arguments[0] == "batch" else ""],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def batch_run(self, *options: str, timeout_s: float = 0) -> CommandResult:
        del options, timeout_s
        return CommandResult(self.ends_with, "as the test says")


class NoProcesses(Processes):
    """Nothing runs, and nobody complains."""

    def is_up(self) -> bool:
        return True

    def kill(self, service: str) -> bool:
        del service
        return False


class Scripted(Installation):
    """An installation that was never started."""

    commands: ScriptedCommands

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.commands, self.processes = ScriptedCommands(self), NoProcesses(self.settings, self.failpoints_dir)


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path / "scripted", overrides={"collector_buffer_mb": 2, "collector_max_body_mb": 0.5})


# ---- runs ----------------------------------------------------------------------


def test_a_run_under_way_stands_still_until_it_is_let_go_on(scripted: Scripted) -> None:
    with runs.run_under_way(scripted, "run.after_number") as run:
        assert scripted.run_turn.locked()
        assert runs._is_still(run.pid)
        runs.go_on(run)
        wait_until("the run to end", lambda: run.poll() is not None)
    assert scripted.notes == ["the run ended with 0"]
    assert not scripted.run_turn.locked()
    assert not any(scripted.failpoints_dir.iterdir())


def test_a_run_that_ends_before_its_place_is_no_shot_and_leaves_nothing_armed(scripted: Scripted) -> None:
    with (
        pytest.raises(TortureError, match=r"ended with 0 before it came to run\.after_data: went on"),
        runs.run_under_way(scripted, "run.after_data"),
    ):
        pass
    assert not any(scripted.failpoints_dir.iterdir())


def test_a_run_beside_one_that_stands_still_has_to_be_refused(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "LEFT_AT", ("run.after_number",))
    strike = concurrency.run_left_behind(scripted, CHANCE)
    with pytest.raises(BrokenPromise, match="published while another held the lease"), strike:
        pass
    scripted.commands.script = f"{COMES}; raise SystemExit(75)"
    with concurrency.run_left_behind(scripted, CHANCE):
        pass
    scripted.commands.script = f"{COMES}; raise SystemExit(1)"
    with pytest.raises(TortureError, match="did not come to the lease"), concurrency.run_left_behind(scripted, CHANCE):
        pass


def test_only_what_is_said_of_the_source_since_the_start_is_heard(tmp_path: Path) -> None:
    log = tmp_path / "module.log"
    log.write_text("before [info] waiting source=shop reason='another writer lives'\n")
    begin = log.stat().st_size
    with log.open("a") as file:
        file.write("now [info] started source=shopping applied={}\nnow [info] started source=shop applied={}\n")
    assert concurrency.lines_of(log, begin, "shop") == ["now [info] started source=shop applied={}"]


@pytest.mark.parametrize(
    ("event", "values", "text"),
    [
        ("waiting", {"reason": "another writer lives"}, "another writer lives"),
        ("started", {"applied": {}}, "started"),
        ("refused", {"reason": str(TableBusy("The table '/x' is written by process 7."))}, "is written by"),
        ("opened", {"cut": {0: 1}}, "opened"),
    ],
)
def test_what_a_second_process_says_is_understood(
    tmp_path: Path, event: str, values: dict[str, Any], text: str
) -> None:
    log = tmp_path / "module.log"
    with log.open("w") as stream:
        configure_logging("info", stream)
        structlog.get_logger().info(event, source="shop", **values)
    structlog.reset_defaults()
    (line,) = concurrency.lines_of(log, 0, "shop")
    assert text in line


@pytest.mark.parametrize(("text", "module"), concurrency.LOG_TEXTS.items())
def test_the_platform_still_logs_what_a_fault_waits_for(text: str, module: str) -> None:
    source = inspect.getsource(importlib.import_module(module))
    assert re.search(rf'(log\.\w+\("{text}"|[ "]{text}["  ])', source), f"{module} logs no {text!r} any more"


@pytest.mark.parametrize(
    ("cut", "armed", "error"),
    [
        ({0: 9, 1: 4}, "", ""),
        (None, "", "no run had overtaken the speed layer"),
        ({0: 5}, "", "counted everything before"),
        ({0: 9}, "run.after_publish", r"nobody came to run\.after_publish"),
    ],
)
def test_an_overtake_that_skips_nothing_or_kills_nobody_is_no_shot(
    scripted: Scripted,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cut: dict[int, int] | None,
    armed: str,
    error: str,
) -> None:
    monkeypatch.setattr(imports, "OVERTAKES_S", 0)
    points = [armed] if armed else []
    for name in points:
        (scripted.failpoints_dir / name).touch()
    with redis_server(tmp_path) as client:
        speed_views = SpeedViews(client, scripted.source_name)
        speed_views.start_writer()[0].init(0, {0: 5}, ["a" * 64])
        jump = imports._Jump(speed_views)
        if cut is not None:
            speed_views.runs.overtake(1, cut, ["a" * 64])
        if error:
            with pytest.raises(TortureError, match=error):
                imports._wait_until_struck(scripted, jump, points, 0.0)
        else:
            imports._wait_until_struck(scripted, jump, points, 0.0)
            assert scripted.notes == ["the speed layer skipped 8 events"]


# ---- clocks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pid", "at_s", "commits", "works"),
    [(8, 3600, 1, True), (7, 3600, 1, False), (None, 3600, 1, False), (8, 0, 1, False), (8, 3600, 0, False)],
)
def test_a_clock_is_wrong_when_a_new_process_commits_under_it(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, pid: int | None, at_s: int, commits: int, works: bool
) -> None:
    scripted.home.prepare()
    services = [{"name": "archiver", "pid": pid, "state": "starting"}]
    monkeypatch.setattr(scripted.processes, "status", lambda: {"services": services})
    status = {"at": time.time() + at_s, "error": "", "sources": {"shop": {"commits": commits}}}
    write_json(scripted.home.run / "archiver.json", status)
    assert clocks._works(scripted, "archiver", 7, 3600) is works


# ---- what the platform owes ----------------------------------------------------


def test_a_run_that_publishes_from_a_damaged_table_is_a_broken_promise(scripted: Scripted, tmp_path: Path) -> None:
    harmed = tmp_path / "part.parquet"
    harmed.write_bytes(b"x" * 1000)
    strike = damage.strike_master(lambda _installation, _chance: harmed, damage.tear, scripted, CHANCE)
    with pytest.raises(BrokenPromise, match="should refuse the table"), strike:
        pass
    assert scripted.commands.spawned == [("master", "repair", "shop")]
    scripted.commands.ends_with = 1
    with damage.strike_master(lambda _installation, _chance: harmed, damage.tear, scripted, CHANCE):
        assert scripted.notes[-1] == "part.parquet harmed, the run ended with 1"


def test_a_run_that_fails_after_a_view_was_declared_is_a_broken_promise(scripted: Scripted) -> None:
    scripted.commands.ends_with = 1
    with (
        pytest.raises(BrokenPromise, match="A run should succeed, and 3 failed"),
        views.declared("with a count", scripted, CHANCE),
    ):
        pass
    assert views.NAME in scripted.declared.views


def test_nothing_to_kill_is_no_shot(scripted: Scripted) -> None:
    for strike in (processes.kill(("redis", "speed"), scripted, CHANCE), redis.set_back(scripted, CHANCE)):
        with pytest.raises(TortureError, match="not run"), strike:
            pass


# ---- a service that hangs ------------------------------------------------------


class Supervised(Scripted):
    """A supervisor of the platform with one service, which shows no sign of life while it is stopped."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.processes = Processes(self.settings, self.failpoints_dir)
        self.timeouts: list[float] = []
        self._supervisor: Supervisor | None = None
        self._thread = threading.Thread()

    def start(self) -> None:
        self.home.prepare()
        self.timeouts.append(self.settings.hang_timeout_s)
        service = Service("serving", ("sleep", "600"), "", self._check)
        begun = threading.Event()
        limits = replace(Limits.of(self.settings), stop_timeout_s=5, backoff_max_s=0.05)
        supervisor = self._supervisor = Supervisor(self.home, [service], limits, lambda _status: begun.set())

        def run() -> None:
            with self.home.locked():
                supervisor.run()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert begun.wait(20)
        self.processes.wait_ready(("serving",), 20)

    def stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stop()
            self._thread.join(30)
            assert not self._thread.is_alive()

    def _check(self) -> str | None:
        pid = self._supervisor.children[0].process.pid if self._supervisor else 0  # type: ignore[union-attr]
        return "silent" if psutil.Process(pid).status() == psutil.STATUS_STOPPED else None


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    monkeypatch.setattr(processes, "HANG_TIMEOUT_S", 0.2)
    monkeypatch.setattr(supervisor_module, "CHECK_EVERY_S", dict.fromkeys(supervisor_module.CHECK_EVERY_S, 0.02))
    installation = Supervised(tmp_path / "here")
    installation.start()
    yield installation
    installation.stop()


def test_a_service_that_hangs_is_killed_and_the_installation_goes_on_as_it_was(supervised: Supervised) -> None:
    usual = supervised.settings
    with processes.hang("serving", supervised, CHANCE):
        line = supervised.processes.status()["services"][0]
        assert (line["restarts"], line["last_restart"]["cause"]) == (1, "hang")
    assert supervised.timeouts == [0, 0.2, 0], "only this fault lets the supervisor kill what hangs"
    assert supervised.settings == usual


def test_a_service_that_hangs_and_is_not_killed_is_a_broken_promise(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "ENDED_S", 1)
    monkeypatch.setattr(Supervisor, "_is_hung", lambda *_: False)
    with (
        pytest.raises(BrokenPromise, match=r"serving was stopped; .* and it was not killed"),
        processes.hang("serving", supervised, CHANCE),
    ):
        pass
    assert supervised.processes.is_ready(("serving",)), "it goes on"
    assert supervised.timeouts == [0, 0.2, 0]


# ---- too much ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "error"),
    [
        ([], TortureError),
        ([200, 422], TortureError),
        ([200, 422, 429], None),
        ([503], None),
        ([429, 500], BrokenPromise),
        ([429, 400], BrokenPromise),
    ],
)
def test_overload_is_one_that_was_refused_and_refused_well(statuses: list[int], error: type[Exception] | None) -> None:
    refused = OverloadReplies(well=frozenset((422,)))
    for status in statuses:
        refused.note(httpx.Response(status, headers={"content-type": "application/problem+json"}))
    if error is None:
        refused.check()
        return
    with pytest.raises(error) as found:
        refused.check()
    assert type(found.value) is error


@pytest.mark.parametrize("earlier", [0, 999])
def test_what_is_asked_for_under_overload_may_be_asked(scripted: Scripted, earlier: int) -> None:
    assert [view.name for view in overload._large_views(scripted)] == ["minutes", "sales"]
    for view in scripted.declared.views_of("shop"):
        query = overload._all_of(scripted, view, earlier)
        question = parse_query(view, list(query.items()), now=time.time(), limits=QueryLimits())
        assert question.by == tuple(view.keys)
        assert question.range.start <= START.timestamp() - 2 * 86_400
        assert question.range.end >= START.timestamp() + 5 * 86_400
    finest = View("finest", source=scripted.source, grain="1s", answers={"events": Count()})
    parse_query(
        finest, list(overload._all_of(scripted, finest, earlier).items()), now=time.time(), limits=QueryLimits()
    )


@contextmanager
def collector(installation: Installation) -> Iterator[tuple[Budget, set[int]]]:
    """What the collector does with bodies, by its own limits, without Kafka: what it holds, and its statuses."""
    limits = CollectorLimits.of(installation.settings)
    budget, threads, statuses = Budget(limits.buffer), Threads("parse", 2), set[int]()

    async def store(request: Request) -> Response:
        try:
            with budget.charge() as charge:
                body = await read_body(request, limits.of_body, charge, threads)
                check_batch(len(parse_within(body, limits.of_body, charge)), limits, charge)
        except Problem as problem:
            statuses.add(problem.response().status_code)
            return problem.response()
        statuses.add(422)
        return Response(status_code=422, headers={"content-type": overload.PROBLEM})

    app = Starlette(routes=[Route("/events/shop", store, methods=["POST"])])
    port = installation.settings.collector_port
    server = uvicorn.Server(uvicorn.Config(app, host=LOOPBACK, port=port, log_level="error", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    wait_until("the server", lambda: server.started)
    try:
        yield budget, statuses
    finally:
        server.should_exit = True
        thread.join(10)


def test_events_to_refuse_are_too_many_for_the_limits_of_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"collector_buffer_mb": 2, "collector_max_body_mb": 0.5, "collector_port": free_port()}
    installation = Installation(tmp_path / "here", overrides=limits)
    monkeypatch.setattr(overload, "SENDERS", 4)
    with collector(installation) as (budget, statuses):
        with overload.strike_invalid_events(installation, CHANCE):
            wait_until("bodies that do not end", lambda: budget.held > 1_500_000)
            wait_until("both refusals", lambda: {422, 429} <= statuses)
        wait_until("all to be given back", lambda: not budget.held)
    (note,) = installation.notes
    assert "429:" in note
    assert "422:" in note


def test_a_reader_that_does_not_read_holds_up_the_server_itself() -> None:
    with socket.create_server((LOOPBACK, 0)) as listening:
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        with overload._connect(address, overload.RECEIVES_BYTES) as reader:
            served, _ = listening.accept()
            with served:
                served.setblocking(False)
                assert not overload._is_unread(reader)
                served.send(b"HTTP/1.1 200 OK\r\n\r\n")
                sent = 0
                with suppress(BlockingIOError):
                    while sent < 1_000_000:
                        sent += served.send(b"x" * 10_000)
                assert sent < 200_000
                wait_until("an answer that is not read", lambda: overload._is_unread(reader))
