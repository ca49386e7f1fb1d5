"""The supervisor, with small services of the tests' own: start in order, restart, give up, stop, leave nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.errors import InfraError, NotRunning, ServiceFailed
from infra.home import Home, read_json, write_json
from infra.logs import last_lines
from infra.settings import load_settings
from infra.stack import restart_requests
from infra.stack import supervisor as module
from infra.stack.child import Cause, End
from infra.stack.leftovers import created_at, end_leftovers, is_same_process
from infra.stack.service import Service, State
from infra.stack.supervisor import Limits, Supervisor
from infra.stack.up import read_status
from infra.stack.vital_signs import Vitality
from infra.tables import COLOURS
from tests.conftest import wait_until

SLEEP = ("sleep", "600")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same back-off, fifty times faster."""
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(module, "TICK_S", 0.005)
    monkeypatch.setattr(module, "CHECK_EVERY_S", dict.fromkeys(module.CHECK_EVERY_S, 0.01))


def service(name: str, command: tuple[str, ...] = SLEEP, **options: Any) -> Service:
    return Service(name=name, command=command, address="", **{"check": lambda: None, **options})


def shell(name: str, script: str, **options: Any) -> Service:
    return service(name, ("sh", "-c", script), **options)


class Watched:
    """A supervisor in a thread, and every status it published."""

    def __init__(self, home: Home, services: list[Service], **options: Any) -> None:
        self.history: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        defaults = {"start_timeout_s": 20, "stop_timeout_s": 10, "backoff_max_s": 0.05, "log_max_mb": 1}
        self.supervisor = Supervisor(home, services, Limits(**{**defaults, **options}), self.history.append)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.supervisor.run()
        except Exception as error:
            self.error = error

    def line(self, name: str) -> dict[str, Any]:
        return next(line for line in self.history[-1]["services"] if line["name"] == name)

    def wait_for(self, name: str, state: State, restarts: int = 0, deadline_s: float = 30) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            if self.error:
                raise self.error
            line = self.line(name) if self.history else {}
            return line if line and line["state"] == state and line["restarts"] >= restarts else None

        found: dict[str, Any] = wait_until(f"{name} to be {state}", reached, deadline_s)
        return found

    def states(self, name: str) -> list[str]:
        """The states of one service in the order in which they were seen, repetitions left out."""
        seen = [line["state"] for status in self.history for line in status["services"] if line["name"] == name]
        return [state for state, before in zip(seen, [None, *seen], strict=False) if state != before]

    def pids(self) -> set[tuple[int, float]]:
        """Every process that was ever started."""
        lines = [line for status in self.history for line in status["services"]]
        return {(line["pid"], line["created"]) for line in lines if line["pid"] and line["created"]}


@contextmanager
def running(home: Home, services: list[Service], **options: Any) -> Iterator[Watched]:
    watched = Watched(home, services, **options)
    watched.thread.start()
    try:
        yield watched
    finally:
        watched.supervisor.stop()
        watched.thread.join(30)
        assert not watched.thread.is_alive(), "the supervisor did not stop"
        assert not [pid for pid in watched.pids() if is_same_process(*pid)], "a child outlived the supervisor"


def ends(home: Home, services: list[Service], **options: Any) -> Watched:
    """Run until the supervisor ends by itself."""
    watched = Watched(home, services, **options)
    watched.thread.start()
    watched.thread.join(60)
    assert not watched.thread.is_alive()
    assert not [pid for pid in watched.pids() if is_same_process(*pid)]
    return watched


# ---- starting and stopping ---------------------------------------------------


def test_service_starts_only_when_those_it_stands_on_are_ready(home: Home) -> None:
    door = threading.Event()
    first = service("first", check=lambda: None if door.is_set() else "the door is shut")
    with running(home, [first, service("second", after=("first",))]) as watched:
        wait_until("the first check to fail", lambda: watched.history and watched.line("first")["message"])
        assert watched.line("second")["state"] == State.WAITING
        assert not watched.history[-1]["ready"]
        door.set()
        watched.wait_for("second", State.READY)
        assert watched.history[-1]["ready"]
    assert watched.states("second") == ["waiting", "starting", "ready", "stopping", "stopped"]
    for status in watched.history:
        first_line, second_line = status["services"]
        assert second_line["state"] != "starting" or first_line["state"] == "ready"


def test_services_stop_in_the_reverse_order_and_one_after_the_other(home: Home, tmp_path: Path) -> None:
    script = "trap 'echo {0} >>{1}; exit 0' TERM; echo >{1}.{0}; while :; do sleep 0.02; done"
    ends_file = tmp_path / "ends"
    names = ["a", "b", "c"]
    services = [
        shell(
            name, script.format(name, ends_file), check=lambda n=name: None if Path(f"{ends_file}.{n}").exists() else ""
        )
        for name in names
    ]
    with running(home, services) as watched:
        for name in names:
            watched.wait_for(name, State.READY)
    assert ends_file.read_text().split() == ["c", "b", "a"]


@pytest.mark.usefixtures("_hurried")
def test_service_that_ignores_the_signal_is_killed_after_its_time(home: Home) -> None:
    deaf = shell("deaf", "trap '' TERM; echo up; while :; do sleep 0.02; done")
    with running(home, [deaf], stop_timeout_s=0.2) as watched:
        watched.wait_for("deaf", State.READY)
        wait_until("its trap", lambda: home.log_file("deaf").read_text() == "up\n")
    assert watched.states("deaf")[-2:] == ["stopping", "stopped"]


def test_stop_before_anything_is_ready_leaves_nothing(home: Home) -> None:
    with running(home, [service("slow", check=lambda: "not yet"), service("next", after=("slow",))]) as watched:
        watched.wait_for("slow", State.STARTING)
    assert read_json(home.status_file)["services"][0]["pid"] is None


def test_status_file_says_what_the_status_says(home: Home) -> None:
    with running(home, [service("one")]) as watched:
        watched.wait_for("one", State.READY)
        status = wait_until("the file", lambda: (found := read_json(home.status_file))["ready"] and found)
        line = status["services"][0]
        assert status["pid"] == os.getpid()
        wait_until("the program behind the leash", lambda: psutil.Process(line["pid"]).cmdline() == ["sleep", "600"])
        assert is_same_process(line["pid"], line["created"])
    assert read_json(home.status_file)["services"][0]["state"] == "stopped"


@pytest.mark.usefixtures("_hurried")
def test_problem_of_a_ready_service_is_reported_and_stops_nothing(home: Home) -> None:
    problem = ["source 'shop': partitions=5"]
    with running(home, [service("archiver", problems=lambda: problem[0]), service("other")]) as watched:
        pid = watched.wait_for("archiver", State.READY)["pid"]
        status = wait_until("all to be settled", lambda: watched.history[-1]["settled"] and watched.history[-1])
        assert (status["ready"], watched.line("archiver")["message"]) == (False, problem[0])
        problem[0] = ""
        wait_until("all to be ready", lambda: watched.history[-1]["ready"])
        line = watched.line("archiver")
        assert (line["message"], line["pid"], line["restarts"]) == ("", pid, 0)


def test_children_get_their_environment_folder_and_a_log(home: Home, tmp_path: Path) -> None:
    speaker = shell(
        "speaker", 'echo "$WORD in $PWD"; echo wrong >&2; sleep 600', environment={"WORD": "hello"}, folder=tmp_path
    )
    with running(home, [speaker]):
        wait_until("its words", lambda: home.log_file("speaker").exists() and home.log_file("speaker").read_text())
        wait_until("both lines", lambda: home.log_file("speaker").read_text() == f"hello in {tmp_path}\nwrong\n")


def test_supervisor_that_fails_itself_still_stops_its_children(home: Home) -> None:
    """As when the terminal that is shown the status goes away."""

    def refuse(status: dict[str, Any]) -> None:
        seen.append(status)
        if status["ready"]:
            raise BrokenPipeError

    seen: list[dict[str, Any]] = []
    watched = Watched(home, [service("one"), service("two")])
    watched.supervisor.on_change = refuse
    with pytest.raises(BrokenPipeError):
        watched.supervisor.run()
    for line in seen[-1]["services"]:
        assert not is_same_process(line["pid"] or 0, line["created"])


# ---- dying and restarting ----------------------------------------------------


@pytest.mark.usefixtures("_hurried")
def test_killed_service_is_restarted_again_and_again(home: Home) -> None:
    with running(home, [service("one"), service("two")]) as watched:
        other = watched.wait_for("two", State.READY)["pid"]
        for restarts in range(6):  # more than the deaths that would end a service that was never ready
            pid = watched.wait_for("one", State.READY, restarts)["pid"]
            os.kill(pid, signal.SIGKILL)
        line = watched.wait_for("one", State.READY, 6)
        assert line["restarts"] == 6
        assert watched.line("two")["pid"] == other
        assert watched.line("two")["restarts"] == 0
    messages = {line["message"] for status in watched.history for line in status["services"]}
    assert "ended with signal SIGKILL" in messages


def test_backoff_doubles_to_its_limit_and_never_ends(home: Home) -> None:
    """Two thousand deaths are one bad night: the pause stays at its limit, and the supervisor alive."""
    supervisor = Watched(home, [service("one")], backoff_max_s=30).supervisor
    (child,) = supervisor.children
    child.was_ready = True
    pauses = []
    for _ in range(2000):
        child.state = State.STARTING
        supervisor._bury(child, 0.0, End(Cause.CRASH, "died"))
        pauses.append(child.next_at)
    assert pauses[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert set(pauses[8:]) == {30}


def test_backoff_begins_anew_after_a_steady_time(home: Home) -> None:
    supervisor = Watched(home, [service("one")], backoff_max_s=30).supervisor
    (child,) = supervisor.children
    child.was_ready, child.deaths_in_row = True, 5
    for ready_for_s, expected_deaths in ((module.STEADY_AFTER_S - 1, 6), (module.STEADY_AFTER_S + 1, 1)):
        child.state, child.ready_at = State.READY, 100.0
        supervisor._bury(child, 100.0 + ready_for_s, End(Cause.CRASH, "died"))
        assert child.deaths_in_row == expected_deaths


@pytest.mark.usefixtures("_hurried")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("sh", "-c", "echo cannot open the vault >&2; exit 3"), ["ended with exit code 3", "| cannot open the vault"]),
        (("false",), ["ended with exit code 1"]),
        (("sh", "-c", "kill -SEGV $$"), ["ended with signal SIGSEGV"]),
        (("no-such-program",), ["exit code 127", "no-such-program cannot be started: No such file"]),
    ],
)
def test_service_that_cannot_start_ends_everything_with_its_error(
    home: Home, command: tuple[str, ...], words: list[str]
) -> None:
    watched = ends(home, [service("good"), service("bad", command, check=lambda: "not yet")])
    assert isinstance(watched.error, ServiceFailed)
    for word in ["bad did not start", "3 times", "Everything was stopped again", *words]:
        assert word in str(watched.error)
    assert watched.line("bad")["restarts"] == 2
    assert watched.states("good")[-1] == "stopped"
    assert read_json(home.status_file)["error"] == str(watched.error)


@pytest.mark.usefixtures("_hurried")
def test_service_that_was_too_slow_gets_twice_the_time_the_next_time(home: Home, tmp_path: Path) -> None:
    slow = shell(
        "slow", f"rm -f {tmp_path}/up; sleep 3; touch {tmp_path}/up; sleep 60",
        check=lambda: None if (tmp_path / "up").exists() else "it still starts",
    )  # fmt: skip
    with running(home, [slow], start_timeout_s=2) as watched:
        assert watched.wait_for("slow", State.READY)["restarts"] >= 1


@pytest.mark.usefixtures("_hurried")
def test_service_that_is_never_ready_ends_everything_with_what_is_missing(home: Home) -> None:
    def broken_check() -> str | None:
        raise LookupError("no such door")

    watched = ends(home, [service("one", check=broken_check)], start_timeout_s=0.2)
    assert "one did not start: not ready after 0.8 s: LookupError: no such door, 3 times" in str(watched.error)


@pytest.mark.usefixtures("_hurried")
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), InfraError("no folder")], ids=type)
def test_service_that_cannot_be_prepared_for_a_while_comes_back(home: Home, error: Exception) -> None:
    """A disk that is full for a while stops one restart, not the whole stack for ever."""
    troubles: list[Exception] = []

    def prepare() -> None:
        if troubles:
            raise troubles.pop()

    with running(home, [service("one", prepare=prepare), service("two")]) as watched:
        pid = watched.wait_for("one", State.READY)["pid"]
        watched.wait_for("two", State.READY)
        troubles += [error] * 5
        os.kill(pid, signal.SIGKILL)
        watched.wait_for("one", State.READY, restarts=6)
        assert watched.line("two")["restarts"] == 0
    messages = {line["message"] for status in watched.history for line in status["services"]}
    assert f"could not be started: {error}" in messages


@pytest.mark.usefixtures("_hurried")
def test_service_that_can_never_be_prepared_ends_everything(home: Home) -> None:
    def prepare() -> None:
        raise OSError(28, "No space left on device")

    assert "No space left on device" in str(ends(home, [service("one", prepare=prepare)]).error)


@pytest.mark.usefixtures("_hurried")
def test_what_a_dead_service_leaves_of_its_group_is_ended(home: Home, tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! >{tmp_path}/grandchild; wait"
    with running(home, [shell("one", script)]) as watched:
        wait_until(
            "the grandchild", lambda: (tmp_path / "grandchild").exists() and (tmp_path / "grandchild").read_text()
        )
        grandchild = int((tmp_path / "grandchild").read_text())
        created = psutil.Process(grandchild).create_time()
        os.kill(watched.wait_for("one", State.READY)["pid"], signal.SIGKILL)
        wait_until("the grandchild to be gone", lambda: not is_same_process(grandchild, created))


@pytest.mark.usefixtures("_hurried")
def test_service_that_stops_answering_is_called_unresponsive_until_it_answers(home: Home) -> None:
    troubles = threading.Event()
    with running(home, [service("one", check=lambda: "silent" if troubles.is_set() else None)]) as watched:
        pid = watched.wait_for("one", State.READY)["pid"]
        troubles.set()
        assert watched.wait_for("one", State.UNRESPONSIVE)["message"] == "silent"
        assert not watched.history[-1]["ready"]
        troubles.clear()
        assert watched.wait_for("one", State.READY)["pid"] == pid
    assert watched.history[-1]["services"][0]["restarts"] == 0


# ---- hanging -----------------------------------------------------------------


@pytest.mark.usefixtures("_hurried")
@pytest.mark.parametrize("how", ["deaf", "stopped"])
def test_service_that_hangs_is_killed_and_started_again(home: Home, how: str) -> None:
    """One that ignores SIGTERM, and one that SIGSTOP keeps from hearing it."""
    is_silent = threading.Event()
    deaf = shell("one", "trap '' TERM; echo up; while :; do sleep 0.02; done", check=lambda: _silent_if(is_silent))
    with running(home, [deaf, service("two")], hang_timeout_s=0.5, stop_timeout_s=0.3) as watched:
        pid = watched.wait_for("one", State.READY)["pid"]
        wait_until("its trap", lambda: home.log_file("one").read_text() == "up\n")
        if how == "stopped":
            os.kill(pid, signal.SIGSTOP)
        is_silent.set()
        wait_until("the old one to be gone", lambda: not psutil.pid_exists(pid))
        is_silent.clear()
        line = watched.wait_for("one", State.READY, restarts=1)
        assert line["last_restart"]["cause"] == "hang"
        assert "it hung and was killed: no sign of life for" in line["last_restart"]["reason"]
        assert "(silent)" in line["last_restart"]["reason"]
        assert watched.supervisor.children[0].ends[Cause.HANG] >= 1
        assert watched.line("two")["restarts"] == 0
    assert "stopping" in watched.states("one")[:-2]


def _silent_if(is_silent: threading.Event) -> str | None:
    return "silent" if is_silent.is_set() else None


@pytest.mark.usefixtures("_hurried")
def test_service_that_answers_that_it_is_not_ready_is_left_alone(home: Home) -> None:
    """A collector without Kafka: killing it would not bring Kafka back."""
    looks: list[object] = []

    def pulse() -> object:
        looks.append(object())
        return looks[-1]

    is_silent = threading.Event()
    waiting = service("one", check=lambda: _silent_if(is_silent), pulse=pulse)
    with running(home, [waiting], hang_timeout_s=0.2) as watched:
        pid = watched.wait_for("one", State.READY)["pid"]
        is_silent.set()
        watched.wait_for("one", State.UNRESPONSIVE)
        seen = len(looks)
        wait_until("more looks than the limit needs", lambda: len(looks) > seen + 100)
        assert (watched.line("one")["pid"], watched.line("one")["restarts"]) == (pid, 0)


@pytest.mark.usefixtures("_hurried")
def test_heartbeat_that_stands_still_is_a_hang_whatever_its_check_says(home: Home) -> None:
    """After the clock was set back, an old heartbeat looks like one of the future."""
    beats = [1]
    with running(home, [service("one", pulse=lambda: beats[0])], hang_timeout_s=0.3) as watched:
        wait_until("heartbeats", lambda: watched.history and watched.line("one")["state"] == "ready")
        line = watched.wait_for("one", State.STARTING, restarts=1)
        assert "no new heartbeat" in line["last_restart"]["reason"]


@pytest.mark.usefixtures("_hurried")
def test_service_that_hangs_again_and_again_pauses_longer_each_time(home: Home) -> None:
    supervisor = Watched(home, [service("one")], backoff_max_s=30, hang_timeout_s=60).supervisor
    (child,) = supervisor.children
    child.was_ready = True
    pauses = []
    for _ in range(4):
        child.state, child.ready_at = State.UNRESPONSIVE, 100.0
        child.life.silent_s = 61.0
        supervisor._bury(child, 165.0, End(Cause.HANG, "it hung"))
        pauses.append(child.next_at - 165.0)
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08])


def test_time_that_nobody_observed_is_no_silence(home: Home) -> None:
    """A laptop that slept, a stopped supervisor, a clock that jumps: the next tick comes hours later."""
    supervisor = Watched(home, [service("one")], hang_timeout_s=60).supervisor
    (child,) = supervisor.children
    child.state = State.READY
    child.life.silent_looks = 2
    for now in (0.0, 7200.0, 14400.0):
        supervisor._pass_time(now)
    assert not supervisor._is_hung(child)
    for second in range(100):
        supervisor._pass_time(14400.0 + second)
    assert supervisor._is_hung(child)


@pytest.mark.parametrize(
    ("works_silently", "is_working", "silent_s", "is_hung"),
    [
        (True, True, 299, False),  # a broker that reads its logs
        (True, True, 301, True),  # one that turns in a circle
        (True, False, 59, False),
        (True, False, 61, True),  # stopped, or in a deadlock
        (False, True, 61, True),  # a web server whose event loop is busy answers nobody
    ],
)
def test_service_that_works_silently_gets_more_time(
    home: Home, works_silently: bool, is_working: bool, silent_s: float, is_hung: bool
) -> None:
    supervisor = Watched(home, [service("one", works_silently=works_silently)], hang_timeout_s=60).supervisor
    (child,) = supervisor.children
    child.state = State.UNRESPONSIVE
    child.life = Vitality(silent_s=silent_s, silent_looks=2, is_working=is_working)
    assert supervisor._is_hung(child) == is_hung


@pytest.mark.parametrize(("recovers", "is_working", "is_ended"), [(1, 1, False), (1, 0, True), (0, 1, True)])
def test_recovery_that_works_is_not_ended_however_long_it_takes(
    home: Home, recovers: bool, is_working: bool, is_ended: bool
) -> None:
    supervisor = Watched(home, [service("broker", recovers_silently=recovers)], start_timeout_s=60).supervisor
    (child,) = supervisor.children
    child.state, child.life = State.STARTING, Vitality(is_working=is_working)
    assert supervisor._is_too_slow(child, 7200.0) == is_ended
    assert not supervisor._is_too_slow(child, 59.0)


# ---- restarts that were asked for ----------------------------------------------


@contextmanager
def asked_stack(home: Home, services: list[Service], **options: Any) -> Iterator[Watched]:
    with home.locked(), running(home, services, **options) as watched:
        yield watched


def ask(home: Home, name: str) -> dict[str, Any]:
    settings = load_settings(home=home.root, start_timeout_s=20, stop_timeout_s=10)
    return restart_requests.restart(settings, name, lambda: read_status(settings), lambda _status: None)


@pytest.mark.usefixtures("_hurried")
def test_restart_gives_the_service_a_new_process_and_no_back_off(home: Home) -> None:
    with asked_stack(home, [service("one"), service("two")], backoff_max_s=600) as watched:
        before, other = watched.wait_for("one", State.READY)["pid"], watched.wait_for("two", State.READY)["pid"]
        for restarts in (1, 2, 3, 4):
            line = ask(home, "one")
            assert (line["restarts"], line["state"]) == (restarts, "ready")
            assert line["pid"] != before
            assert line["last_restart"]["cause"] == "request"
            before = line["pid"]
        assert watched.line("two")["pid"] == other
    assert not list(home.run.glob("restart-*"))


@pytest.mark.usefixtures("_hurried")
def test_restart_of_a_service_that_pauses_starts_it_at_once(home: Home, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 3600.0)
    good = tmp_path / "good"
    flaky = shell(
        "one", f"test -e {good} && exec sleep 600", is_needed=False, check=lambda: None if good.exists() else ""
    )
    with asked_stack(home, [flaky], backoff_max_s=3600) as watched:
        watched.wait_for("one", State.PAUSING)
        good.touch()
        assert ask(home, "one")["state"] == "ready"


@pytest.mark.usefixtures("_hurried")
def test_restart_that_cannot_be_done_says_why(home: Home) -> None:
    with pytest.raises(NotRunning, match=r"Nothing runs on .*home', so nothing can be restarted"):
        ask(home, "one")
    with asked_stack(home, [service("one"), service("two")]) as watched:
        watched.wait_for("two", State.READY)
        with pytest.raises(InfraError, match=r"no service 'three' in the stack of .* There are: one, two\."):
            ask(home, "three")


@pytest.mark.usefixtures("_hurried")
def test_request_that_an_earlier_supervisor_did_not_take_is_forgotten(home: Home) -> None:
    write_json(home.run / "restart-0.json", {"service": "one"})
    with running(home, [service("one")]) as watched:
        assert watched.wait_for("one", State.READY)["restarts"] == 0
    assert not list(home.run.glob("restart-*"))


# ---- logs ----------------------------------------------------------------------


@pytest.mark.usefixtures("_hurried")
def test_no_line_is_lost_or_torn_while_a_log_is_rotated(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written as fast as a shell can, through many rotations; the service ends in the middle of them."""
    count = 200_000
    talker = shell("talker", f"seq -f 'line %08.0f of the service that talks' {count}; sleep 600")
    limits = {"log_max_mb": 1, "log_keep_files": 50}
    with running(home, [talker], **limits):
        last = f"line {count:08} of the service that talks"
        wait_until("the last line", lambda: last in "".join(last_lines(home.log_file("talker"), 1)))
    files = sorted(home.logs.glob("talker.log*"), key=lambda path: int(path.suffix[1:]) if path.suffix != ".log" else 0)
    assert len(files) > 5
    text = b"".join(path.read_bytes() for path in reversed(files))
    assert text == b"".join(b"line %08d of the service that talks\n" % number for number in range(1, count + 1))
    assert all(path.stat().st_size <= 2**20 + 100 for path in files)


@pytest.mark.usefixtures("_hurried")
def test_grown_log_of_a_command_is_rotated_and_its_writer_loses_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROTATE_EVERY_S", 0.02)
    path, old = home.log_file("batch"), home.logs / "batch.log.1"
    with path.open("ab", buffering=0) as writer, running(home, [service("one")]):
        writer.write(b"x" * 2**20 + b"\n")
        wait_until("a rotation", old.exists)
        writer.write(b"more\n")
    assert old.read_bytes().endswith(b"x\nmore\n")
    assert not path.exists()


@pytest.mark.usefixtures("_hurried")
def test_last_words_of_a_service_that_ends_are_in_its_log(home: Home) -> None:
    with running(home, [shell("one", "seq 5000; exit 3", is_needed=False)]) as watched:
        watched.wait_for("one", State.PAUSING, restarts=1)
        assert home.log_file("one").read_text().startswith("".join(f"{number}\n" for number in range(1, 5001)))


@pytest.mark.usefixtures("_hurried")
def test_every_line_of_a_log_is_an_object_where_json_is_asked_for(home: Home) -> None:
    script = """echo 'plain "text"'; echo '{"event": "ready", "level": "info"}'; printf '\\377 no newline'"""
    with running(
        home, [shell("one", f"{script}; exit 1", is_needed=False)], log_form="json", backoff_max_s=60
    ) as watched:
        watched.wait_for("one", State.PAUSING, restarts=1)
    lines = [json.loads(line) for line in home.log_file("one").read_text().splitlines()[:3]]
    assert [line["event"] for line in lines] == ['plain "text"', "ready", "\ufffd no newline"]
    assert {line["service"] for line in lines} == {"one"}


# A supervisor in a process of its own, and a service that writes many lines and says how many. Each time it writes more
# than a pipe holds, then pauses, so that a test that waits long neither fills the disk nor sees its log rotated.
SUPERVISED = """
import pathlib, sys
from infra.home import Home
from infra.stack.service import Service
from infra.stack.supervisor import Limits, Supervisor, stop_on_signals
home = Home(pathlib.Path(sys.argv[1]))
command = (sys.executable, "-S", "-c", sys.argv[2], sys.argv[3])
services = [Service(name="talker", command=command, address="", check=lambda: None)]
limits = Limits(start_timeout_s=60, stop_timeout_s=9, backoff_max_s=9, log_max_mb=10_000)
supervisor = Supervisor(home, services, limits)
stop_on_signals(supervisor)
supervisor.run()
"""
TALK = r"""
import os, sys, time
for number in range(sys.maxsize):
    os.write(1, b"line %08d of the service that talks %s\n" % (number, b"." * 200))
    os.pwrite(3 if number else os.dup2(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR), 3), b"%08d" % number, 0)
    if number % 1000 == 999:
        time.sleep(0.04)
    while os.path.exists(sys.argv[1] + ".stop"):
        time.sleep(0.01)
"""
LINE = re.compile(rb"line (\d{8}) of the service that talks \.{200}")


@contextmanager
def a_talker(home: Home, count: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SUPERVISED, str(home.root), TALK, str(count)]) as process:
        try:
            wait_until("the service to talk", lambda: said(count) > 10)
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def said(count: Path) -> int:
    """How many lines the service has written."""
    text = count.read_text() if count.exists() else ""
    return int(text or 0)


def numbers(home: Home, name: str = "talker") -> list[int]:
    """Of the lines in its log. Each must be whole."""
    lines = home.log_file(name).read_bytes().split(b"\n")[:-1]
    assert all(line.endswith(b" " + b"." * 200) for line in lines)
    return [int(line[5:13]) for line in lines]


def log_writer_of(supervisor: subprocess.Popen[bytes]) -> psutil.Process:
    children = psutil.Process(supervisor.pid).children()
    (found,) = [each for each in children if "infra.stack.log_writer" in " ".join(each.cmdline())]
    return found


def has_ended(process: psutil.Process) -> bool:
    """Also where nobody has asked for its exit code yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_service_goes_on_and_no_line_is_lost_while_the_supervisor_is_stopped(home: Home, tmp_path: Path) -> None:
    count = tmp_path / "count"
    with a_talker(home, count) as supervisor:
        supervisor.send_signal(signal.SIGSTOP)
        wait_until("the supervisor to stop", lambda: psutil.Process(supervisor.pid).status() == psutil.STATUS_STOPPED)
        before = said(count)
        wait_until("three pipes full of lines", lambda: said(count) > before + 3 * 2**20 // 230)
        count.with_suffix(".stop").touch()
        supervisor.send_signal(signal.SIGCONT)
        wait_until("the last line", lambda: numbers(home)[-1:] == [said(count)])
    found = numbers(home)
    assert found == list(range(len(found)))


def test_the_last_lines_are_in_the_log_when_the_supervisor_is_killed(home: Home, tmp_path: Path) -> None:
    """Its services are killed with it; whatever they wrote before is in the file, and the log writer ends."""
    count = tmp_path / "count"
    with a_talker(home, count) as supervisor:
        writer = log_writer_of(supervisor)
        supervisor.kill()
        supervisor.wait()
        wait_until("the log writer to end", lambda: has_ended(writer))
    found = numbers(home)
    assert found == list(range(len(found)))
    assert len(found) >= said(count)


def test_a_log_writer_that_is_killed_is_replaced_and_the_service_goes_on(home: Home, tmp_path: Path) -> None:
    count = tmp_path / "count"
    with a_talker(home, count) as supervisor:
        writer = log_writer_of(supervisor)
        (service,) = [each for each in psutil.Process(supervisor.pid).children() if each != writer]
        writer.kill()
        before = said(count)
        wait_until("three pipes full of lines", lambda: said(count) > before + 3 * 2**20 // 230)
        count.with_suffix(".stop").touch()
        wait_until("the last line", lambda: numbers_after_a_gap(home)[-1:] == [said(count)])
        assert not has_ended(service), "it was not even restarted"


def numbers_after_a_gap(home: Home) -> list[int]:
    """What a writer that is killed has read and not written is lost, and two lines become one there."""
    lines = home.log_file("talker").read_bytes().split(b"\n")[:-1]
    found = [LINE.fullmatch(line) for line in lines]
    assert found.count(None) <= 1, [line for line, match in zip(lines, found, strict=True) if match is None]
    return [int(match[1]) for match in found if match]


# ---- what an earlier supervisor left behind ----------------------------------


@contextmanager
def a_process() -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    with subprocess.Popen(SLEEP, start_new_session=True) as process:
        try:
            yield process, psutil.Process(process.pid).create_time()
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def leave_behind(home: Home, pid: int, created: float) -> None:
    write_json(home.status_file, {"services": [{"name": "old", "pid": pid, "created": created}]})


def test_leftover_is_ended(home: Home) -> None:
    with a_process() as (process, created):
        leave_behind(home, process.pid, created)
        assert end_leftovers(home) == ["old"]
        assert process.wait(10) == -signal.SIGKILL


def test_other_process_with_the_same_number_is_left_alone(home: Home) -> None:
    with a_process() as (process, created):
        leave_behind(home, process.pid, created - 100)
        assert end_leftovers(home) == []
        assert process.poll() is None


@pytest.mark.parametrize("status", [None, {}, {"services": []}, {"services": [{"name": "x", "pid": None}]}])
def test_home_without_leftovers_has_none(home: Home, status: Any) -> None:
    if status is not None:
        write_json(home.status_file, status)
    assert end_leftovers(home) == []


# ---- signals -----------------------------------------------------------------

STORM = """
import pathlib, signal, sys
from infra.home import Home
from infra.stack.service import Service
from infra.stack.supervisor import Limits, Supervisor
home = Home(pathlib.Path(sys.argv[1]))
services = [Service(name="one", command=("sleep", "600"), address="", check=lambda: None)]
supervisor = Supervisor(home, services, Limits(start_timeout_s=9, stop_timeout_s=9, backoff_max_s=9))
left = 3000
def handle(number, frame):
    global left
    left -= 1
    supervisor.stop()
    supervisor._is_stopping = left <= 0
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0001)
supervisor.run()
print("stopped")
"""


def test_stop_is_safe_at_any_moment_a_signal_may_come(home: Home) -> None:
    """A lock taken in the handler could be held by the code it interrupts: the supervisor would hang for ever."""
    done = subprocess.run(
        [sys.executable, "-c", STORM, str(home.root)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["stopped"], done.stderr


def test_every_state_has_a_colour() -> None:
    assert {str(state) for state in State} <= COLOURS.keys()


def test_children_that_outlived_their_leader_are_ended_and_strangers_are_not(home: Home) -> None:
    """A Spark driver that was killed may leave its JVM behind: in its session, and started for this home."""
    script = "sleep 60 & echo $!; exec sleep 60"
    orphans = []
    for variables in ({"TIDEMARK_HOME": str(home.root)}, {"TIDEMARK_HOME": "/another/home"}):
        leader = subprocess.Popen(
            ["bash", "-c", script],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert leader.stdout is not None
        orphans.append(psutil.Process(int(leader.stdout.readline())))
        leave_behind(home, leader.pid, created_at(leader.pid) or 0)
        leader.kill()
        leader.wait()
        leader.stdout.close()
        end_leftovers(home)
    ours, others = orphans
    assert has_ended(ours)
    assert not has_ended(others)
    others.kill()


# ---- a supervisor that cannot tell ---------------------------------------------


@pytest.mark.usefixtures("_hurried")
def test_full_disk_keeps_the_status_back_but_not_the_services(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    is_full = threading.Event()

    def write(path: Path, value: Any) -> None:
        if is_full.is_set():
            raise OSError(28, "No space left on device")
        write_json(path, value)

    monkeypatch.setattr(module, "write_json", write)
    with running(home, [service("a")]) as watched:
        first = watched.wait_for("a", State.READY)
        is_full.set()
        os.kill(first["pid"], signal.SIGKILL)
        wait_until(
            "a restart", lambda: watched.supervisor.children[0].restarts and watched.supervisor.children[0].state
        )
        is_full.clear()
        second = watched.wait_for("a", State.READY, restarts=1)
        assert second["pid"] != first["pid"]
    assert watched.error is None


@pytest.mark.usefixtures("_hurried")
def test_terminal_that_went_away_does_not_keep_children_from_a_clean_end(home: Home, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    trapped = tmp_path / "trapped"
    script = f"trap 'echo clean > {ended}; exit 0' TERM; touch {trapped}; while true; do sleep 0.05; done"
    watched = Watched(home, [shell("a", script, check=lambda: None if trapped.exists() else "no trap yet")])

    def vanish(status: dict[str, Any]) -> None:
        watched.history.append(status)
        if status["stopping"]:
            raise OSError(5, "Input/output error")

    watched.supervisor.on_change = vanish
    watched.thread.start()
    watched.wait_for("a", State.READY)
    watched.supervisor.stop()
    watched.thread.join(30)
    assert ended.read_text().strip() == "clean"


# ---- services that the others can do without -----------------------------------


@pytest.mark.usefixtures("_hurried")
def test_service_that_is_not_needed_may_fail_and_the_others_run_on(home: Home) -> None:
    words = "the table is damaged: repair it"
    broken = shell("b", "exit 3", check=lambda: "no", after=("a",), is_needed=False, last_error=lambda: words)
    with running(home, [service("a"), broken]) as watched:
        wait_until("everything to be settled", lambda: watched.history and watched.history[-1]["settled"])
        assert watched.line("a")["state"] == "ready"
        assert words in watched.line("b")["message"]
        assert not watched.history[-1]["ready"]
        watched.wait_for("b", State.PAUSING, restarts=5)
    assert watched.error is None
