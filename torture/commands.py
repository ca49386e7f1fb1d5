"""Commands and batch runs as processes of their own, beside the services of an installation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

BATCH_TIMEOUT_S = 480.0
YIELDS_S = 20.0
"""A run that was under way for longer is not killed for a fault: the fault waits for it."""
MAX_OUTPUT = 2000


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: its exit code, and the end of its output."""

    code: int
    output: str


class RunTurn:
    """Whose turn it is to make batch runs. A fault does not wait long for a run that nobody needs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._yielding: tuple[float, subprocess.Popen[str]] | None = None

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            since, run = self._yielding or (0.0, None)
            if run is not None and run.poll() is None and time.monotonic() - since < YIELDS_S:
                kill_group(run)
            self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._yielding = None
        self._lock.release()

    def locked(self) -> bool:
        """Whether somebody has the turn."""
        return self._lock.locked()

    def yields(self, run: subprocess.Popen[str]) -> None:
        """The holder of the turn gives it away: for a while from now on, this run is killed for whoever needs it."""
        self._yielding = time.monotonic(), run


class Commands:
    """Starts `tidemark` commands and modules of ours with the environment of a batch run.

    `environment` is asked before each start: it may change while the installation runs.
    """

    def __init__(self, folder: Path, source_name: str, environment: Callable[[], Mapping[str, str]]) -> None:
        self._folder, self._source_name, self._environment = folder, source_name, environment

    def spawn(self, *arguments: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start `tidemark <arguments>`; its output can be read from the process."""
        return self._spawn("tidemark", *arguments, output=subprocess.PIPE, more=more)

    def spawn_module(self, module: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a module as a program. Its output goes to `<module>.log` beside the home."""
        with (self._folder / f"{module}.log").open("a", encoding="utf-8") as output:
            return self._spawn(module, output=output, more=more)

    def spawn_batch_run(self, *options: str) -> subprocess.Popen[str]:
        """Start a batch run of the source under torture."""
        return self.spawn("batch", "run", "--source", self._source_name, *options)

    def batch_run(self, *options: str, timeout_s: float = BATCH_TIMEOUT_S) -> CommandResult:
        """Make a batch run and wait for its end; one that does not end is killed."""
        process = self.spawn_batch_run(*options)
        output = output_of(process, timeout_s)
        return CommandResult(process.returncode, output)

    def _spawn(
        self, module: str, *arguments: str, output: int | IO[str], more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            env={**self._environment(), **(more or {})},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip


def output_of(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Wait until a process ends, and return the end of its output; one that does not end is killed with its group."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_group(process)
        output, _ = process.communicate()
        output += f"\nkilled after {timeout_s:g} s"
    return output[-MAX_OUTPUT:]


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a group of its own, and all of the group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
