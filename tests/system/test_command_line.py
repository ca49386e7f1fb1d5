"""`tidemark` as a person runs it: up, status, logs and down, signals at every moment, and nothing left behind.

Most of it runs Redis alone, because that starts in a moment; what the commands do does not depend on the service.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra.home import Home, read_json
from infra.stack.leftovers import is_same_process
from tests.conftest import Stack, wait_until

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))


class Shell:
    """A person's shell: a home, an environment, a folder."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.folder = folder
        self.environment = {
            **os.environ,
            "TIDEMARK_HOME": str(self.home.root),
            "TIDEMARK_KAFKA_BOOTSTRAP": "127.0.0.1:1",
            "TIDEMARK_COLLECTOR_ENABLED": "false",
            "TIDEMARK_ARCHIVER_ENABLED": "false",
            "TIDEMARK_SCHEDULER_ENABLED": "false",
            "TIDEMARK_SPEED_ENABLED": "false",
            "TIDEMARK_SERVING_ENABLED": "false",
            "TIDEMARK_ALERTS_ENABLED": "false",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TIDEMARK, *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    @contextmanager
    def start(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [TIDEMARK, *arguments]
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **pipes) as process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    process.kill()

    def redis_that(self, script: str) -> None:
        """Put a `redis-server` in front of PATH that does something else."""
        (self.folder / "bin").mkdir()
        program = self.folder / "bin" / "redis-server"
        version = 'if [ "$1" = --version ]; then echo "Redis server v=7.0.15"; exit 0; fi'
        program.write_text(f"#!/bin/sh\n{version}\n{script}\n")
        program.chmod(0o755)
        self.environment["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    def wait_for(self, state: str) -> dict[str, Any]:
        """The status once Redis is in this state."""

        def reached() -> dict[str, Any] | None:
            status = read_json(self.home.status_file)
            return status if status and status["services"][0]["state"] == state and self.home.is_locked() else None

        found: dict[str, Any] = wait_until(f"Redis to be {state}", reached)
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    if made.home.holder():
        made.run("down")
    assert made.home.holder() is None


def assert_nothing_runs(shell: Shell, *statuses: dict[str, Any]) -> None:
    those = [(each["pid"], each["created"]) for status in statuses for each in (status, *status["services"])]
    assert those

    def none_left() -> bool:
        return shell.home.holder() is None and not [each for each in those if is_same_process(*each)]

    wait_until("everything to be gone", none_left, 30)


# ---- detached ----------------------------------------------------------------


def test_up_status_logs_down(shell: Shell) -> None:
    up = shell.run("up", "--detach")
    assert up.returncode == 0, up.stderr
    assert "redis ready redis://tidemark@127.0.0.1:" in up.stdout
    assert up.stderr == ""

    table = shell.run("status")
    assert table.returncode == 0
    assert "redis" in table.stdout
    assert "supervisor: process" in table.stdout
    status = json.loads(shell.run("status", "--output", "json").stdout)
    assert status["ready"] is status["running"] is True
    line = next(service for service in status["services"] if service["name"] == "redis")
    assert (line["state"], line["restarts"], line["message"]) == ("ready", 0, "")
    assert psutil.pid_exists(line["pid"])

    assert "Ready to accept connections" in shell.run("logs", "redis").stdout
    everything = shell.run("logs").stdout
    assert "==> redis <==" in everything
    assert "==> supervisor <==" in everything
    doctor = shell.run("doctor", "-o", "json").stdout
    assert f"answers on {line['address']}" in doctor
    secret = shell.home.redis_secret.read_text().strip()
    config = shell.run("config", "-o", "json").stdout
    assert secret not in "".join((up.stdout, table.stdout, json.dumps(status), everything, doctor, config))

    down = shell.run("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert down.stdout.endswith(f"Stopped {shell.home.root}.\n")
    assert_nothing_runs(shell, status)
    assert shell.run("status").returncode == 1
    assert shell.run("down").returncode == 1


def test_up_restart_logs_down_as_json(shell: Shell) -> None:
    up = json.loads(shell.run("up", "--detach", "-o", "json").stdout)
    assert (up["ready"], up["first_key"]["name"]) == (True, "admin")
    before = up["services"][0]
    line = json.loads(shell.run("restart", "redis", "-o", "json").stdout)
    assert (line["state"], line["restarts"], line["last_restart"]["cause"]) == ("ready", 1, "request")
    assert line["pid"] != before["pid"]
    again = shell.run("restart", "redis")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1].startswith("Restarted redis (process ")
    unknown = shell.run("restart", "zookeeper")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "There is no service 'zookeeper' in the stack of" in unknown.stderr
    assert "There are: redis." in unknown.stderr
    assert "redis was last restarted at" in shell.run("status").stdout
    logs = [json.loads(line) for line in shell.run("logs", "-o", "json").stdout.splitlines()]
    assert {line["service"] for line in logs} == {"redis", "supervisor"}
    assert any("Ready to accept connections" in line["line"] for line in logs)
    assert json.loads(shell.run("down", "-o", "json").stdout) == {"home": str(shell.home.root), "running": False}


def test_stopped_service_is_killed_and_restarted(shell: Shell) -> None:
    shell.environment |= {"TIDEMARK_HANG_TIMEOUT_S": "4", "TIDEMARK_STOP_TIMEOUT_S": "1"}
    shell.run("up", "--detach")
    (line,) = shell.wait_for("ready")["services"]
    os.kill(line["pid"], signal.SIGSTOP)
    wait_until("the stopped one to be gone", lambda: not is_same_process(line["pid"], line["created"]), 60)
    wait_until("another one", lambda: (shell.wait_for("ready")["services"][0]["restarts"]) >= 1)
    (line,) = shell.wait_for("ready")["services"]
    assert line["last_restart"]["cause"] == "hang"
    assert "it hung and was killed: no sign of life for" in shell.run("status").stdout
    assert "cause=hang" in shell.home.log_file("supervisor").read_text()
    ports = read_json(shell.home.ports_file)
    metrics = httpx.get(f"http://127.0.0.1:{ports['supervisor_metrics_port']}/metrics").text
    assert 'tidemark_service_restarts_total{cause="hang",service="redis"} 1.0' in metrics.splitlines()


@pytest.mark.parametrize("arguments", [("up",), ("up", "--detach")])
def test_second_up_on_a_home_is_refused_with_exit_code_75(shell: Shell, arguments: tuple[str, ...]) -> None:
    shell.run("up", "--detach")
    status = shell.wait_for("ready")
    second = shell.run(*arguments)
    assert second.returncode == 75
    assert f"is in use by process {status['pid']}" in second.stderr
    assert "`tidemark down` stops it" in second.stderr
    assert second.stderr.count("\n") == 1
    assert shell.wait_for("ready")["services"][0]["pid"] == status["services"][0]["pid"]


def test_second_up_beside_the_whole_stack_is_refused_too(bare_stack: Stack, shell: Shell) -> None:
    shell.environment["TIDEMARK_HOME"] = str(bare_stack.settings.home)
    before = bare_stack.status()
    assert shell.run("up").returncode == 75
    assert bare_stack.status() == before


def test_folder_named_like_ours_where_the_user_stands_is_not_imported(shell: Shell) -> None:
    (shell.folder / "infra").mkdir()
    (shell.folder / "infra" / "__init__.py").write_text("raise SystemExit('the wrong infra')")
    up = shell.run("up", "--detach")
    assert (up.returncode, up.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_detached_up_that_is_interrupted_before_ready_leaves_nothing(shell: Shell, number: signal.Signals) -> None:
    shell.redis_that("exec sleep 600")
    with shell.start("up", "--detach") as starting:
        status = shell.wait_for("starting")
        starting.send_signal(number)
        starting.communicate(timeout=120)
        assert starting.returncode != 0
    assert_nothing_runs(shell, status)


def test_detached_supervisor_does_not_end_with_the_command_that_started_it(shell: Shell) -> None:
    """Neither with its process group, as when a terminal is closed."""
    with shell.start("up", "--detach", start_new_session=True) as command:
        command.communicate(timeout=120)
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
    assert shell.run("status").returncode == 0


def test_down_reaches_a_stack_that_is_still_starting(shell: Shell) -> None:
    shell.redis_that("exec sleep 600")
    with shell.start("up", "--detach") as starting:
        status = shell.wait_for("starting")
        assert shell.run("status").returncode == 1
        assert shell.run("down").returncode == 0
        _, said = starting.communicate(timeout=120)
    assert starting.returncode == 1
    assert "ended before everything was ready" in said
    assert_nothing_runs(shell, status)


# ---- in the foreground -------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_a_foreground_up_cleanly(shell: Shell, number: signal.Signals) -> None:
    with shell.start("up") as running:
        status = shell.wait_for("ready")
        running.send_signal(number)
        out, err = running.communicate(timeout=120)
    assert (running.returncode, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("redis")] == [
        "waiting", "starting", "ready", "stopping", "stopped",
    ]  # fmt: skip
    assert_nothing_runs(shell, status)
    assert "ready to exit, bye bye" in shell.run("logs", "redis").stdout


def test_signal_while_starting_stops_a_foreground_up_cleanly(shell: Shell) -> None:
    shell.redis_that("exec sleep 600")
    with shell.start("up") as running:
        status = shell.wait_for("starting")
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=120)
    assert (running.returncode, err) == (0, "")
    assert_nothing_runs(shell, status)


def test_killed_foreground_up_takes_its_children_along(shell: Shell) -> None:
    with shell.start("up") as running:
        status = shell.wait_for("ready")
        running.kill()
        running.communicate()
    assert_nothing_runs(shell, status)


def test_terminal_shows_a_live_table_and_ctrl_c_stops_it(shell: Shell) -> None:
    """In a terminal Ctrl-C reaches the whole process group; the children must still be stopped in order, by us."""
    ours, theirs = pty.openpty()
    shell.environment |= {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    screen = bytearray()

    def read_screen() -> None:
        with suppress(OSError):  # the other end was closed
            while text := os.read(ours, 65536):
                screen.extend(text)

    reader = threading.Thread(target=read_screen)
    terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with shell.start("up", **terminal, start_new_session=True, preexec_fn=lambda: _take_terminal(theirs)) as running:
        os.close(theirs)
        reader.start()
        status = shell.wait_for("ready")
        wait_until("the table", lambda: "ready" in screen.decode(errors="replace"))
        os.write(ours, b"\x03")
        assert running.wait(120) == 0
    reader.join(10)
    os.close(ours)
    shown = screen.decode(errors="replace")
    assert "Tidemark" in shown
    assert "restarts" in shown
    assert "Traceback" not in shown
    assert_nothing_runs(shell, status)


def _take_terminal(terminal: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


# ---- services that do not start, logs that are followed ----------------------


@pytest.mark.parametrize("arguments", [("up",), ("up", "--detach")])
def test_service_that_cannot_start_is_reported_with_its_error(shell: Shell, arguments: tuple[str, ...]) -> None:
    shell.redis_that("echo the disk of the vault is full >&2; exit 3")
    done = shell.run(*arguments)
    assert done.returncode == 1
    assert "redis did not start: ended with exit code 3, 3 times. Everything was stopped again." in done.stderr
    assert "| the disk of the vault is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert shell.home.holder() is None


def test_followed_logs_go_on_until_interrupted(shell: Shell) -> None:
    shell.home.prepare()
    log_file = shell.home.log_file("kafka")
    log_file.write_text("before\n")
    with shell.start("logs", "--follow", "kafka") as following:
        assert following.stdout
        assert following.stdout.readline() == "before\n"

        def append_and_see() -> bool:
            with log_file.open("a") as file:
                file.write("after\n")
            return bool(lines)

        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(following.stdout.readline()))
        reader.start()
        wait_until("a new line", append_and_see)
        assert lines == ["after\n"]
        following.send_signal(signal.SIGINT)
        _, err = following.communicate(timeout=120)
    assert following.returncode == 130
    assert "Traceback" not in err
