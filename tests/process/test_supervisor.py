"""The supervisor, with small services of the tests' own: start in order, restart, give up, stop, leave nothing."""

from __future__ import annotations

import os
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

from infra.errors import InfraError, ServiceFailed
from infra.home import Home, read_json, write_json
from infra.stack import supervisor as module
from infra.stack.service import Service, State
from infra.stack.supervisor import Supervisor, created_at, end_leftovers, is_same_process
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
        self.supervisor = Supervisor(home, services, on_change=self.history.append, **{**defaults, **options})
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
        supervisor._bury(child, 0.0, "died")
        pauses.append(child.next_at)
    assert pauses[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert set(pauses[8:]) == {30}


def test_backoff_begins_anew_after_a_steady_time(home: Home) -> None:
    supervisor = Watched(home, [service("one")], backoff_max_s=30).supervisor
    (child,) = supervisor.children
    child.was_ready, child.deaths_in_row = True, 5
    for ready_for_s, expected_deaths in ((module.STEADY_AFTER_S - 1, 6), (module.STEADY_AFTER_S + 1, 1)):
        child.state, child.ready_at = State.READY, 100.0
        supervisor._bury(child, 100.0 + ready_for_s, "died")
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


@pytest.mark.usefixtures("_hurried")
def test_grown_log_is_rotated_while_it_is_written(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROTATE_EVERY_S", 0.02)
    talker = shell("talker", "while :; do head -c 300000 /dev/zero | tr '\\0' x; echo; sleep 0.02; done")
    log_file, old = home.log_file("talker"), home.logs / "talker.log.1"
    with running(home, [talker]):
        wait_until("a rotation", lambda: old.exists() and old.stat().st_size > 2**20)
        wait_until("new text", lambda: 0 < log_file.stat().st_size < 2**20)
    assert b"\0" not in log_file.read_bytes()


@pytest.mark.usefixtures("_hurried")
def test_rotation_that_fails_does_not_stop_the_services(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> bool:
        tries.append(1)
        raise OSError(28, "No space left on device")

    tries: list[int] = []
    monkeypatch.setattr(module, "ROTATE_EVERY_S", 0.0)
    monkeypatch.setattr(module, "rotate", fail)
    with running(home, [service("one")]) as watched:
        watched.wait_for("one", State.READY)
        wait_until("several rotations", lambda: len(tries) > 3)
        assert watched.error is None


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
from infra.stack.supervisor import Supervisor
home = Home(pathlib.Path(sys.argv[1]))
services = [Service(name="one", command=("sleep", "600"), address="", check=lambda: None)]
supervisor = Supervisor(home, services, start_timeout_s=9, stop_timeout_s=9, backoff_max_s=9, log_max_mb=1)
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
    assert not ours.is_running() or ours.status() == psutil.STATUS_ZOMBIE
    assert others.is_running()
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
