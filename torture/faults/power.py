"""Power loss: every process is gone, and the disks have only what was synced."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from torture import disks
from torture.commands import kill_group
from torture.errors import TortureError
from torture.fault import Fault
from torture.installation import Installation
from torture.runs import run_meanwhile
from torture.wait import wait_for


@contextmanager
def strike(installation: Installation, chance: random.Random) -> Iterator[None]:
    """At any moment; half of the time a batch run is under way."""
    if chance.random() < 0.5:
        lose_power(installation)
    else:
        with run_meanwhile(installation, is_long=chance.random() < 0.5) as run:
            with suppress(subprocess.TimeoutExpired):
                run.wait(chance.uniform(1, 12))
            lose_power(installation)
            kill_group(run)
    yield


def lose_power(installation: Installation) -> None:
    """Stop every process, shut the disks down, kill every process; then mount the disks and start again."""
    if installation.disks is None:
        raise TortureError("The installation has no disks of its own: make it with has_disks=True.")
    pids = all_pids(installation)
    for pid in pids:
        _send(pid, signal.SIGSTOP)  # no process may notice that its disk is gone
    installation.disks.lose_power()
    for pid in pids:
        _send(pid, signal.SIGKILL)
    wait_for("every process to be gone", lambda: not any(map(_is_alive, pids)), deadline_s=30)
    installation.disks.unmount()
    installation.start()  # mounts them again: their journals are played back


def all_pids(installation: Installation) -> list[int]:
    """The supervisor, every service, and all below them; and batch runs of this home."""
    supervisor = int(installation.processes.status()["pid"])
    found = {supervisor: None} | {
        pid: None for name in installation.processes.services for pid in installation.processes.pids(name)
    }
    home = str(installation.settings.home)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TIDEMARK_HOME") == home:
                found[process.pid] = None
    found.pop(os.getpid(), None)
    return list(found)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


FAULTS = [Fault("power lost", "power", strike, recovery_s=180, cost_s=40, is_core=True, missing=disks.missing)]
