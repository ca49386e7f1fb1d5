"""The leash: a command ends when its parent ends, by either way of holding it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import infra.stack.leash
from infra.stack.leash import LEASH
from infra.stack.leftovers import is_same_process
from tests.conftest import wait_until

WATCHING = (
    "import sys; from infra.stack.leash import leash_by_watching; "
    "sys.exit(leash_by_watching(int(sys.argv[1]), sys.argv[2:], pause_s=0.02))"
)
LEASHES = {
    "kernel": [*LEASH],
    "watching": [sys.executable, "-c", WATCHING],
}
PARENT = """
import os, subprocess, sys
leashed = subprocess.Popen([*sys.argv[1:], str(os.getpid()), "sh", "-c", "echo $$; exec sleep 600"])
leashed.wait()
"""


@pytest.fixture(params=["kernel", "watching"])
def leash(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "kernel" and sys.platform != "linux":
        pytest.skip("only Linux has a parent-death signal")
    return LEASHES[request.param]


def run(leash: list[str], *command: str, parent: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*leash, str(parent or os.getpid()), *command], capture_output=True, text=True, timeout=30, check=False
    )


def test_command_runs_with_its_arguments_and_exit_code(leash: list[str]) -> None:
    done = run(leash, "sh", "-c", 'echo "$1"; exit 7', "sh", "a b 'c' ü")
    assert (done.stdout, done.returncode) == ("a b 'c' ü\n", 7)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_command_ends_with_its_parent_however_that_ends(leash: list[str], number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *leash], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        created = psutil.Process(pid).create_time()
        assert is_same_process(pid, created)
        parent.send_signal(number)
        parent.wait()
        wait_until("the command to be gone", lambda: not is_same_process(pid, created), deadline_s=10)


def test_command_gets_the_terminating_signal(leash: list[str]) -> None:
    script = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    command = [*leash, str(os.getpid()), "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as leashed:
        assert leashed.stdout
        assert leashed.stdout.readline() == "ready\n"
        leashed.terminate()
        assert leashed.stdout.readline() == "cleaned\n"
        assert leashed.wait(10) == 0


def test_signal_in_the_first_moment_does_not_leave_the_command_alone() -> None:
    """The worst moment: the command is started, and its watcher has not even been given its process."""
    code = """
import os, signal, subprocess, sys
from infra.stack import leash
class Popen(subprocess.Popen):
    def __init__(self, command):
        super().__init__(command)
        os.kill(os.getpid(), signal.SIGTERM)
leash.subprocess.Popen = Popen
sys.exit(leash.leash_by_watching(os.getppid(), ["sleep", "20"], pause_s=0.02))
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=15, check=False)
    assert done.returncode == 256 - signal.SIGTERM, "the command got the signal, and its watcher waited for it"


def test_command_of_a_parent_that_is_already_gone_does_no_work(leash: list[str], tmp_path: Path) -> None:
    """The parent may die between starting the leash and the leash taking hold."""
    done = run(leash, "sh", "-c", f"sleep 5; touch {tmp_path}/worked", parent=2**22 + 1)
    assert done.returncode != 0
    assert not (tmp_path / "worked").exists()


def test_missing_command_is_told_in_one_line() -> None:
    done = run(LEASHES["kernel"], "no-such-program-anywhere")
    assert done.stderr == "no-such-program-anywhere cannot be started: No such file or directory\n"
    assert done.returncode == 127


def test_our_modules_hide_none_of_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """leash.py runs from our folder: a module named like one of Python's must not be taken for it."""
    (tmp_path / "leash.py").write_text(Path(infra.stack.leash.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "signal.py").write_text("raise SystemExit('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    leash = [*LEASH[:-1], str(tmp_path / "leash.py")]
    assert run(leash, "true").returncode == 0
