"""The scheduler is started, killed while it makes a run, and started again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from batch_layer.scheduler import progress_file
from infra.home import write_json
from infra.process_status import read_status
from torture.errors import BrokenPromise, NotInTime
from torture.fault import RUN_S, Fault
from torture.installation import Installation
from torture.runs import beside
from torture.wait import wait_for

MODULE = "batch_layer.scheduler"
EVERY_MINUTE = {"TIDEMARK_BATCH_SCHEDULE": "* * * * *"}
BEGINS_S, ENDS_S, MADE_S = 120.0, 20.0, 480.0
MAX_DELAY_S = 10.0
OVERDUE_S = 120.0


@contextmanager
def kill_scheduler(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Its run ends with it; the next scheduler makes the run at once, because it is still due."""
    with installation.run_turn:
        write_json(progress_file(installation.settings), _due(installation))
        with beside(installation, MODULE, EVERY_MINUTE) as scheduler:
            since = time.time()
            wait_for("the scheduler to start a run", lambda: _status(installation, since).get("running"), BEGINS_S)
            time.sleep(chance.uniform(0, MAX_DELAY_S))
            below = psutil.Process(scheduler.pid).children(recursive=True)
            os.kill(scheduler.pid, signal.SIGKILL)
            _, left = psutil.wait_procs(below, ENDS_S)
            if left:
                raise BrokenPromise(f"The scheduler was killed; {ENDS_S:g} s later its run goes on: {left}")
        with beside(installation, MODULE, EVERY_MINUTE):
            _check_made(installation, time.time())
    yield


def _check_made(installation: Installation, since: float) -> None:
    try:
        wait_for("the run of the next scheduler", lambda: _has_made(installation, since), MADE_S, every_s=0.5)
    except NotInTime:
        raise BrokenPromise(
            "A scheduler was killed in its run. The next one should make it at once, and says after "
            f"{MADE_S:g} s: {_status(installation, since)}"
        ) from None


def _has_made(installation: Installation, since: float) -> bool:
    last = _status(installation, since).get("last") or {}
    return bool(last.get("started", 0.0) >= since and last["exit_codes"].get(installation.source_name) == 0)


def _due(installation: Installation) -> dict[str, Any]:
    """What a scheduler remembers that was away when a run was due."""
    then = time.time() - OVERDUE_S
    return {"handled": then, "last": None, "seen": {installation.source_name: then}}


def _status(installation: Installation, since: float) -> dict[str, Any]:
    """The scheduler's status; empty if it is older than `since`."""
    found = read_status(installation.home.run / "scheduler.json")
    return found.to_json() if found is not None and found.at >= since else {}


FAULTS = [Fault("the scheduler is killed in its run", "kill", kill_scheduler, cost_s=RUN_S + 30)]
