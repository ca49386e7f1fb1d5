"""The scheduler's process: which runs it starts, what it says of itself, and what it remembers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import structlog
from prometheus_client import CollectorRegistry

from batch_layer.failures import Failures, note_failure, noted, read_failures
from batch_layer.metrics import ScheduleMetrics
from batch_layer.run_child import run_child
from batch_layer.run_sources import sources_to_run, sources_with_views
from batch_layer.scheduler import (
    Scheduler,
    progress_file,
    run_command,
    status_file,
)
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import Manifest, write_manifest
from hand_off.publish_log import Entry
from infra.home import Home, read_json, write_json
from infra.process_status import check_alive, last_error, missing_runs, read_status
from infra.settings import Settings, load_settings
from infra.stack.services import scheduler_service
from master_dataset.table.ledger import ledger_file
from master_dataset.table.paths import table_path
from tests.conftest import wait_until
from tests.unit.test_due_runs import DAY, HOUR, at

MIDNIGHT = at("2026-06-01 00:00")
DUE = at("2026-06-01 03:15")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """The program logs to the standard error of this test, which is closed after it."""
    yield
    structlog.reset_defaults()


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(MIDNIGHT)


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    Home(tmp_path / "home").prepare()
    return load_settings(home=tmp_path / "home")


class Runs:
    """Runs that do nothing but note that they were started; each ends with the code that is given for its source."""

    def __init__(self, folder: Path, codes: dict[str, int]) -> None:
        self.note = folder / "started"
        self.codes = codes

    def command(self, source: str) -> list[str]:
        code = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\n'); sys.exit(int(sys.argv[3]))"
        return [sys.executable, "-S", "-c", code, str(self.note), source, str(self.codes[source])]

    @property
    def started(self) -> list[str]:
        return self.note.read_text().split() if self.note.exists() else []


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path, {"web": 0, "ads": 0})


def scheduler(here: Settings, runs: Runs, clock: Clock) -> Scheduler:
    return Scheduler(here, lambda: list(runs.codes), runs.command, clock)


def publish(here: Settings, source: str, run: int, started: float, at: float | None = None) -> None:
    folder = BatchFolder.of(here, source)
    write_manifest(folder, Manifest(run, source, {0: run}, None, started, started + 9, 1, 0, 0, (), ()))
    publish_log.append(folder, Entry(run, {0: run}, {}, started + 10 if at is None else at))


def damage_newest(folder: BatchFolder) -> None:
    """The newest entry and its manifest: nothing is left to rebuild the publish log from."""
    for path in (max((folder.root / "publish").iterdir()), max(folder.runs.iterdir())):
        path.write_bytes(b"x")


# ---- which runs are started ------------------------------------------------------


def test_nothing_is_run_before_it_is_due_and_each_source_once_when_it_is(
    here: Settings, runs: Runs, clock: Clock
) -> None:
    ours = scheduler(here, runs, clock)
    ours.fire()
    assert runs.started == []
    clock.now = DUE
    ours.fire()
    ours.fire()
    assert runs.started == ["web", "ads"]
    clock.now = DUE + DAY
    ours.fire()
    assert runs.started == ["web", "ads"] * 2


def test_runs_missed_while_the_process_was_down_are_made_up_by_one(here: Settings, runs: Runs, clock: Clock) -> None:
    scheduler(here, runs, clock)
    clock.now = DUE + 5 * DAY + HOUR
    ours = scheduler(here, runs, clock)
    ours.fire()
    ours.fire()
    assert runs.started == ["web", "ads"]
    scheduler(here, runs, clock).fire()
    assert runs.started == ["web", "ads"], "the next start knows that it was done"


def test_first_start_ever_has_missed_nothing(here: Settings, runs: Runs, clock: Clock) -> None:
    clock.now = DUE + 60
    scheduler(here, runs, clock).fire()
    assert runs.started == []


def test_due_time_that_passes_during_a_run_is_answered_at_once_afterwards(
    here: Settings, runs: Runs, clock: Clock
) -> None:
    """A run that takes longer than from one due time to the next is followed by one run, not by one for each missed."""

    class SlowClock(Clock):
        def __call__(self) -> float:
            if len(runs.started) == 2:  # the first round took three days
                self.now = DUE + 3 * DAY + HOUR
            return self.now

    slow = SlowClock(MIDNIGHT)
    ours = scheduler(here, runs, slow)
    slow.now = DUE
    ours.fire()
    assert runs.started == ["web", "ads"] * 2


def test_failed_run_keeps_no_other_source_from_its_run_and_is_tried_again_alone(
    here: Settings, runs: Runs, clock: Clock
) -> None:
    """After 5 minutes, then 10, 20, 40, and an hour from then on, until it succeeds."""
    runs.codes["web"] = 3
    ours = scheduler(here, runs, clock)
    clock.now = DUE
    ours.fire()
    ours.fire()
    assert runs.started == ["web", "ads"]
    assert ours.status(clock.now).to_json()["last"]["exit_codes"] == {"web": 3, "ads": 0}
    for tries, pause_s in enumerate([300, 600, 1200, 2400, 3600, 3600], start=1):
        assert ours.status(clock.now).to_json()["next_try"] == clock.now + pause_s
        clock.now += pause_s - 1
        ours.fire()
        assert len(runs.started) == 1 + tries, "too early"
        clock.now += 1
        ours.fire()
        assert runs.started == ["web", "ads", *["web"] * tries]
    runs.codes["web"] = 0
    clock.now += HOUR
    ours.fire()
    assert ours.status(clock.now).to_json()["last"]["exit_codes"] == {"web": 0, "ads": 0}
    assert ours.status(clock.now).to_json()["next_try"] is None
    clock.now = DUE + DAY
    ours.fire()
    assert runs.started[-2:] == ["web", "ads"]
    assert ours.status(clock.now).to_json()["last"]["tries"] == 1


def test_due_time_is_for_every_source_also_while_one_is_tried_again(here: Settings, runs: Runs, clock: Clock) -> None:
    runs.codes["web"] = 3
    ours = scheduler(here, runs, clock)
    clock.now = DUE
    ours.fire()
    clock.now = DUE + DAY
    ours.fire()
    assert runs.started == ["web", "ads"] * 2
    assert ours.status(clock.now).to_json()["next_try"] == clock.now + 300, "the pauses begin anew"


def test_retries_are_remembered_by_the_next_start(here: Settings, runs: Runs, clock: Clock) -> None:
    runs.codes["web"] = 3
    ours = scheduler(here, runs, clock)
    clock.now = DUE
    ours.fire()
    clock.now = DUE + 300
    ours.fire()
    again = scheduler(here, runs, clock)
    again.fire()
    assert (again.next_try(), runs.started) == (clock.now + 600, ["web", "ads", "web"])
    clock.now += 600
    again.fire()
    assert runs.started == ["web", "ads", "web", "web"]


def test_run_that_somebody_made_since_is_not_made_again(here: Settings, runs: Runs, clock: Clock) -> None:
    runs.codes |= {"web": 3, "ads": 3}
    ours = scheduler(here, runs, clock)
    clock.now = DUE
    ours.fire()
    publish(here, "web", 1, DUE + 10)
    publish(here, "ads", 1, DUE - 10, at=DUE + 10)
    clock.now = DUE + 300
    ours.fire()
    assert runs.started == ["web", "ads", "ads"], "a run that began before it was due is older than that"


def test_run_that_found_another_at_work_is_made_after_it(here: Settings, runs: Runs, clock: Clock) -> None:
    runs.codes["web"] = 75
    ours = scheduler(here, runs, clock)
    clock.now = DUE
    ours.fire()
    clock.now = DUE + 300
    ours.fire()
    assert runs.started == ["web", "ads", "web"]


def test_without_a_pause_a_failed_run_waits_for_the_next_due_time(here: Settings, runs: Runs, clock: Clock) -> None:
    runs.codes["web"] = 3
    ours = scheduler(here.model_copy(update={"batch_retry_s": 0.0}), runs, clock)
    for clock.now in (DUE, DUE + HOUR, DUE + DAY - 1):
        ours.fire()
    assert (ours.next_try(), runs.started) == (None, ["web", "ads"])


def test_broken_declarations_are_told_and_tried_again(here: Settings, runs: Runs, clock: Clock) -> None:
    broken = False

    def find() -> list[str]:
        if broken:
            raise ValueError("views/mine.py cannot be loaded")
        return ["web"]

    ours = Scheduler(here, find, runs.command, clock)
    clock.now, broken = DUE, True
    ours.fire()
    assert ours.status(DUE + 60).to_json()["last"]["error"] == "views/mine.py cannot be loaded"
    assert "views/mine.py cannot be loaded" in ours.status(DUE + 60).to_json()["overdue"]
    clock.now = DUE + 300
    ours.fire()
    assert (runs.started, ours.next_try()) == ([], DUE + 900)
    clock.now, broken = DUE + 900, False
    ours.fire()
    assert (runs.started, ours.next_try()) == (["web"], None)


def test_clock_that_was_set_back_does_not_stop_the_runs(here: Settings, runs: Runs, clock: Clock) -> None:
    clock.now = DUE + 400 * DAY
    ours = scheduler(here, runs, clock)
    clock.now = MIDNIGHT
    ours.beat()
    clock.now = DUE
    ours.fire()
    assert runs.started == ["web", "ads"]


def test_run_that_is_stopped_is_made_by_the_next_start(here: Settings, runs: Runs, clock: Clock) -> None:
    def forever(source: str) -> list[str]:
        return [sys.executable, "-S", "-c", f"open({str(runs.note)!r}, 'w').write('x'); import time; time.sleep(600)"]

    stopping = threading.Event()
    ours = Scheduler(here, lambda: ["web"], forever, clock, stopping.is_set)
    clock.now = DUE
    thread = threading.Thread(target=ours.fire)
    thread.start()
    wait_until("the run", lambda: runs.started)
    assert ours.status(DUE).to_json()["running"] == {"source": "web", "since": DUE}
    stopping.set()
    thread.join(30)
    assert not thread.is_alive()
    assert ours.status(DUE).to_json()["running"] is None
    runs.note.unlink()
    scheduler(here, runs, clock).fire()
    assert runs.started == ["web", "ads"]


def test_runs_are_for_sources_that_have_views(tmp_path: Path) -> None:
    fields = "event_id string, event_time timestamp, shop string"
    (tmp_path / "mine.py").write_text(
        "from views.aggregates import Count\nfrom views.source import Source\nfrom views.view import View\n"
        f"clicks = Source('clicks', fields={fields!r})\nidle = Source('idle', fields={fields!r})\n"
        "hits = View('hits', source=clicks, keys={'shop': 'shop'}, grain='1h', answers={'hits': Count()})\n"
    )
    assert sources_with_views(load_settings(views_dir=tmp_path, with_examples=False)) == ["clicks"]


def test_source_of_which_nothing_was_archived_has_no_runs_and_lacks_none(here: Settings) -> None:
    """A new home that waits for its first events is in order."""
    assert sources_with_views(here) == ["web"]
    table = table_path(here, "web")
    log = table / "_delta_log"
    assert sources_to_run(here) == []
    log.mkdir(parents=True)
    (log / f"{0:020}.json").touch()  # made by the archiver, before any event
    assert sources_to_run(here) == []
    (log / f"{1:020}.json").touch()
    assert sources_to_run(here) == ["web"]
    (log / f"{1:020}.json").unlink()
    ledger_file(table).parent.mkdir()
    ledger_file(table).touch()
    assert sources_to_run(here) == ["web"], "commits that were lost are for the run to tell"


def test_command_is_one_that_the_command_line_knows() -> None:
    command = run_command("web")
    assert command[:4] == [sys.executable, "-P", "-m", "tidemark"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, "--source" in done.stdout) == (0, True), done.stderr


def test_child_that_does_not_want_to_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batch_layer.run_child.STOP_S", 0.2)
    mark = tmp_path / "deaf"
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'w'); time.sleep(600)"
    )
    assert run_child([sys.executable, "-S", "-c", code, str(mark)], {}, mark.exists) == -signal.SIGKILL


@pytest.mark.parametrize("is_stopped", [False, True], ids=["deaf", "stopped"])
def test_run_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """Its JVM would otherwise hold memory and files for ever."""
    monkeypatch.setattr("batch_layer.run_child.STOP_S", 0.2)
    mark = tmp_path / "grandchild"
    code = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "below = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open(sys.argv[1] + '.partial', 'w').write(str(below.pid)); os.rename(sys.argv[1] + '.partial', sys.argv[1])\n"
        "os.kill(os.getpid(), signal.SIGSTOP) if sys.argv[2] == 'True' else time.sleep(600)"
    )
    command = [sys.executable, "-S", "-c", code, str(mark), str(is_stopped)]
    assert run_child(command, dict(os.environ), lambda: False, limit_s=3) == -signal.SIGKILL
    below = int(mark.read_text())
    wait_until("the grandchild to be gone", lambda: not psutil.pid_exists(below) or _is_zombie(below))


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# ---- what it says ----------------------------------------------------------------


def check(here: Settings, ours: Scheduler, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> str:
    """What `tidemark status` would say at this clock of a scheduler that is well itself."""
    ours.beat()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", clock)
        assert check_alive(status_file(here)) is None, "no run is missed by starting another process"
        return missing_runs(status_file(here))


def test_overdue_run_is_told_by_the_check_until_there_is_one(
    here: Settings, runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(here, "web", 1, MIDNIGHT - 60)
    publish(here, "ads", 1, DUE + 1)
    ours = scheduler(here, runs, clock)
    assert check(here, ours, monkeypatch, clock) == ""
    clock.now = DUE + HOUR
    assert check(here, ours, monkeypatch, clock) == (
        "source 'web': overdue: no run since the one due at 2026-06-01 03:15 UTC"
    )
    found = ours.status(clock.now).to_json()["sources"]
    assert found["web"] == {
        "run": 1,
        "data_from": MIDNIGHT - 60,
        "published": MIDNIGHT - 50,
        "seconds": 9.0,
        "behind": None,
        "overdue_s": HOUR,
        "failed_runs": 0,
        "failing_since": None,
        "backlog": {"action": "none", "behind": None, "catch_up_s": None, "reason": ""},
        "trouble": found["web"]["trouble"],
    }
    assert (found["ads"]["overdue_s"], found["ads"]["trouble"]) == (0.0, "")
    publish(here, "web", 2, DUE + 2)
    assert check(here, ours, monkeypatch, clock) == "", "whoever made the run"


def test_run_that_began_before_it_was_due_does_not_answer_for_it(here: Settings, runs: Runs, clock: Clock) -> None:
    ours = scheduler(here, runs, clock)
    for source in runs.codes:
        publish(here, source, 1, DUE - 60, at=DUE + 60)
    assert "overdue" in ours.status(DUE + HOUR).to_json()["overdue"]


def test_failed_run_is_told_at_once(here: Settings, runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.codes["ads"] = 1
    ours = scheduler(here, runs, clock)
    clock.now = DUE
    ours.fire()
    publish(here, "web", 1, DUE)
    assert check(here, ours, monkeypatch, clock) == (
        "source 'ads': overdue: no run since the one due at 2026-06-01 03:15 UTC, which failed and is tried again at "
        "03:20 UTC; the last run failed, at 2026-06-01 03:15:00 UTC: it ended with exit code 1 "
        "(`tidemark logs scheduler`)"
    )


def test_schedule_that_fails_is_told_loudly_with_its_count_and_since_when(
    here: Settings, runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For days, over restarts of the scheduler; until a run succeeds."""
    runs.codes["web"] = 3
    publish(here, "ads", 1, MIDNIGHT)
    with structlog.testing.capture_logs() as logged:
        for day in range(4):
            ours = scheduler(here, runs, clock)
            clock.now = DUE + day * DAY
            ours.fire()
    failed = [entry for entry in logged if entry["event"] == "run_failed"]
    assert [entry["in_a_row"] for entry in failed] == [1, 2, 3, 4]
    assert failed[-1] == {
        "event": "run_failed", "log_level": "error", "source": "web", "in_a_row": 4,
        "since": "2026-06-01 03:15:00 UTC", "reason": "it ended with exit code 3",
    }  # fmt: skip
    clock.now += 60
    said = check(here, ours, monkeypatch, clock)
    assert "4 runs in a row failed, since 2026-06-01 03:15:00 UTC. The last one: it ended with exit code 3" in said
    found = metrics(ours, clock.now)
    assert (found["failed_runs web"], found["failed_runs ads"]) == (4, 0)
    assert found["last_success_timestamp_seconds ads"] == MIDNIGHT + 10
    assert "last_success_timestamp_seconds web" not in found
    with noted(BatchFolder.of(here, "web")):
        publish(here, "web", 1, clock.now)
    assert "web" not in check(here, ours, monkeypatch, clock)
    assert metrics(ours, clock.now)["failed_runs web"] == 0


def test_reason_that_a_run_noted_itself_is_told(here: Settings, runs: Runs, clock: Clock) -> None:
    """Whoever started the run; a run that could not note anything is counted once."""

    class NotingRuns(Runs):
        def command(self, source: str) -> list[str]:
            note_failure(BatchFolder.of(here, source), "The table is torn.", clock.now)
            return super().command(source)

    runs = NotingRuns(runs.note.parent, {"web": 1})
    BatchFolder.of(here, "web").root.mkdir(parents=True)
    ours = scheduler(here, runs, clock)
    clock.now = DUE
    ours.fire()
    assert read_failures(BatchFolder.of(here, "web")) == Failures(1, DUE, DUE, "The table is torn.")
    assert "The table is torn." in ours.status(DUE).to_json()["overdue"]


def test_source_without_any_run_is_overdue_from_its_first_sight_on(here: Settings, runs: Runs, clock: Clock) -> None:
    ours = scheduler(here, runs, clock)
    clock.now = DUE + 10 * DAY
    runs.codes["new"] = 0
    ours.fire()
    publish(here, "web", 1, clock.now)
    publish(here, "ads", 1, clock.now)
    assert ours.status(clock.now + HOUR).to_json()["overdue"] == "", "declared just now"
    later = ours.status(DUE + 11 * DAY + HOUR).to_json()
    assert later["sources"]["new"]["overdue_s"] == HOUR
    assert later["sources"]["new"]["run"] == 0


def test_damaged_log_of_a_source_is_told_and_the_scheduler_goes_on(here: Settings, runs: Runs, clock: Clock) -> None:
    ours = scheduler(here, runs, clock)
    folder = BatchFolder.of(here, "web")
    publish(here, "web", 1, MIDNIGHT)
    damage_newest(folder)
    status = ours.status(MIDNIGHT).to_json()
    assert "Entry 1 of the publish log" in status["overdue"]
    assert status["sources"]["ads"]["trouble"] == ""


def test_status_names_the_next_due_time(here: Settings, runs: Runs, clock: Clock) -> None:
    status = scheduler(here, runs, clock).status(MIDNIGHT).to_json()
    assert (status["next_due"], status["schedule"], status["last"]) == (DUE, "15 3 * * * UTC", None)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (None, "it has not written its status yet"),
        ({"at": 0.0, "error": "", "overdue": ""}, "its last heartbeat is"),
        ({"at": 9e9, "error": "no\nwhere", "overdue": ""}, "no"),
        ({"at": 9e9, "error": "", "overdue": "source 'web': overdue"}, None),
        ({"at": 9e9, "error": "", "overdue": ""}, None),
    ],
)
def test_check_of_the_service(here: Settings, status: dict[str, Any] | None, said: str | None) -> None:
    """A run that is missing is a problem that the status names; the process is well."""
    service = scheduler_service(here, ())
    if status is not None:
        write_json(status_file(here), status)
    found = service.check()
    assert found is None if said is None else (found or "").startswith(said)
    assert service.problems() == (status or {}).get("overdue", "")


def test_what_an_earlier_scheduler_said_is_no_sign_of_life(here: Settings) -> None:
    service = scheduler_service(here, ())
    write_json(status_file(here), {"at": time.time(), "error": "", "overdue": ""})
    assert service.check() is None
    service.prepare()
    assert service.check() == "it has not written its status yet"
    assert not service.is_needed


# ---- metrics ---------------------------------------------------------------------


def metrics(ours: Scheduler, now: float) -> dict[str, float]:
    """What a scrape at this moment finds, without the common beginning of the names."""
    registry = CollectorRegistry()
    registry.register(ScheduleMetrics(lambda: ours.status(now)))
    return {
        " ".join([sample.name.removeprefix("tidemark_batch_"), *sample.labels.values()]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_overdue_run_is_in_the_metrics_until_there_is_one(here: Settings, runs: Runs, clock: Clock) -> None:
    publish(here, "web", 5, MIDNIGHT - 60)
    ours = scheduler(here, runs, clock)
    assert metrics(ours, MIDNIGHT) == {
        "run web": 5, "run ads": 0, "run_age_seconds web": 60, "run_duration_seconds web": 9,
        "overdue_seconds web": 0, "overdue_seconds ads": 0, "overtaking web": 0, "overtaking ads": 0,
        "trouble web": 0, "trouble ads": 0, "failed_tries": 0,
        "failed_runs web": 0, "failed_runs ads": 0, "last_success_timestamp_seconds web": MIDNIGHT - 50,
    }  # fmt: skip
    late = metrics(ours, DUE + 2 * HOUR)
    assert (late["overdue_seconds web"], late["overdue_seconds ads"], late["trouble web"]) == (2 * HOUR, 2 * HOUR, 1)
    publish(here, "web", 6, DUE + 2)
    late = metrics(ours, DUE + 2 * HOUR)
    assert (late["run web"], late["overdue_seconds web"], late["overdue_seconds ads"]) == (6, 0, 2 * HOUR)


def test_failed_tries_and_a_damaged_log_are_in_the_metrics(here: Settings, runs: Runs, clock: Clock) -> None:
    runs.codes["web"] = 3
    ours = scheduler(here, runs, clock)
    for clock.now in (DUE, DUE + 300):
        ours.fire()
    folder = BatchFolder.of(here, "ads")
    publish(here, "ads", 1, DUE)
    damage_newest(folder)
    found = metrics(ours, clock.now)
    assert (found["failed_tries"], found["overdue_seconds web"], found["trouble ads"]) == (2, 300, 1)
    assert "run ads" not in found, "a number that is not known is left out"


def test_metrics_say_how_much_is_archived_and_in_no_run(here: Settings, runs: Runs, clock: Clock) -> None:
    publish(here, "web", 5, MIDNIGHT)  # its cut is {0: 5}
    ours = scheduler(here, runs, clock)
    cut = {"cut": {"0": 45, "1": 7}}
    write_json(Home(here.home).run / "archiver.json", {"at": 0.0, "error": "", "sources": {"web": cut, "ads": cut}})
    found = metrics(ours, MIDNIGHT)
    assert (found["behind_offsets web"], found["behind_offsets ads"]) == (47, 52)


# ---- the process -----------------------------------------------------------------


PROGRAM = """
import pathlib, sys
from batch_layer.scheduler import run_scheduler
from infra.processes import Worker
from infra.settings import load_settings
from tests.process.test_scheduler import Runs

home, folder, code, port = sys.argv[1:]
runs = Runs(pathlib.Path(folder), {"web": int(code)})
settings = load_settings(home=pathlib.Path(home), batch_retry_s=0.2, scheduler_metrics_port=int(port))
worker = Worker(settings, "scheduler")
with worker.signals():
    run_scheduler(worker, lambda: ["web"], runs.command)
"""


@contextmanager
def process(here: Settings, runs: Runs, code: int = 0, port: int = 0) -> Iterator[subprocess.Popen[str]]:
    """The scheduler's process, which has missed a run; each run ends with this code."""
    write_json(progress_file(here), {"handled": time.time() - 3 * DAY, "last": None, "seen": {}})
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(here.home), str(runs.note.parent), str(code), str(port)],
        cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_makes_up_a_missed_run_at_once_and_stops_when_told(
    here: Settings, runs: Runs, number: signal.Signals
) -> None:
    with process(here, runs) as running:
        wait_until("the missed run", lambda: (read_json(status_file(here)) or {}).get("last"))
        first = read_json(status_file(here))
        heartbeat = read_status(status_file(here))
        assert heartbeat is not None
        wait_until("another", lambda: (found := read_status(status_file(here))) and found.at > heartbeat.at)
        assert runs.started == ["web"]
        assert first["last"]["exit_codes"] == {"web": 0}
        assert (check_alive(status_file(here)), missing_runs(status_file(here))) == (None, "")
        running.send_signal(number)
        assert running.wait(20) == 0, running.stdout and running.stdout.read()
    assert read_json(progress_file(here))["handled"] > time.time() - HOUR


def test_process_wakes_up_to_try_again_and_serves_its_metrics(here: Settings, runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with process(here, runs, code=3, port=port):
        wait_until("a third try", lambda: len(runs.started) >= 3)
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).raise_for_status().text
    assert 'tidemark_batch_run{source="web"} 0.0' in text
    assert 'tidemark_info{process="scheduler"' in text


def test_process_without_a_schedule_says_so(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from batch_layer.scheduler import main

    monkeypatch.setenv("TIDEMARK_HOME", str(here.home))
    monkeypatch.setenv("TIDEMARK_BATCH_SCHEDULE", "")
    assert main() == 1
    assert "batch_schedule is empty" in last_error(status_file(here))
