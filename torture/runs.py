"""Batch runs and other programs that faults start: in the background, or stopped at a failpoint while a fault strikes.

Each is a context manager. At the end of the block a run is waited for, and any other program is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import psutil

from torture.commands import BATCH_TIMEOUT_S, kill_group, output_of
from torture.errors import NotInTime, TortureError
from torture.installation import Installation
from torture.wait import wait_for

COMES_S = 90.0
"""Within so long a run comes to any of its places."""
STOPS_S = 5.0


@contextmanager
def run_meanwhile(installation: Installation, *, is_long: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A batch run from the block's beginning on; at its end it is waited for. How it ends is its own affair."""
    process = installation.commands.spawn_batch_run(*(["--full"] if is_long else []))
    try:
        yield process
    finally:
        output_of(process, BATCH_TIMEOUT_S)


@contextmanager
def beside(
    installation: Installation, module: str, more: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A module of ours as a program beside the services, for as long as the block; in the end its group is killed."""
    process = installation.commands.spawn_module(module, more)
    try:
        yield process
    finally:
        kill_group(process)
        process.wait()


@contextmanager
def run_under_way(installation: Installation, at: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A batch run that stands still at the failpoint `at` when the block begins: `go_on` lets it go on.

    Nobody else makes a run meanwhile. In the end it is waited for, and noted how it ended, which is its own affair.
    """
    with installation.run_turn:
        run = installation.commands.spawn_batch_run(*options)
        try:
            _stop_at(installation, run, at)
            yield run
        finally:
            go_on(run)
            output_of(run, BATCH_TIMEOUT_S)
            installation.notes.append(f"the run ended with {run.returncode}")


def go_on(run: subprocess.Popen[str]) -> None:
    """Let a run that stands still go on, with all of its group."""
    signal_group(run, signal.SIGCONT)


def _stop_at(installation: Installation, run: subprocess.Popen[str], at: str) -> None:
    armed = installation.processes.arm_stop(at)
    try:
        wait_for(f"the run to come to {at}", lambda: not armed.exists() or run.poll() is not None, COMES_S)
        if run.poll() is not None:
            said = output_of(run, STOPS_S)
            raise TortureError(f"the run ended with {run.returncode} before it came to {at}: {said[-200:]}")
        wait_for("the run to stand still", lambda: _is_still(run.pid), STOPS_S)
    except NotInTime:
        kill_group(run)  # nobody is to wait for its end
        raise
    finally:
        armed.unlink(missing_ok=True)


def _is_still(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def signal_group(run: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a run that is under way, and to all of its group: its JVM too."""
    if run.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, number)
