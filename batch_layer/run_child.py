"""The process of a run, as the scheduler starts and ends it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from batch_layer.deadline import kill_below
from infra.stack.leash import leashed

LOOK_S = 0.2
STOP_S = 10.0
"""How long a run may take to stop when the scheduler is stopped. The supervisor's patience with us is longer."""

log = structlog.get_logger()


def run_child(
    command: Sequence[str], environment: Mapping[str, str], is_stopping: Callable[[], bool], limit_s: float = 0.0
) -> int:
    """Run a command until it ends, or until we are to stop; its output goes where ours goes. Returns its exit code.

    It stays in our process group, so that whoever ends that ends it too. After `limit_s` (0: never) it is killed with
    all that it started: a run has a deadline of its own, and one that is still there hangs or was stopped.
    """
    child = subprocess.Popen(leashed(command), stdin=subprocess.DEVNULL, env=dict(environment))
    began = time.monotonic()
    while not is_stopping():
        try:
            return child.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            if limit_s and time.monotonic() - began > limit_s:
                log.warning("run_hung", pid=child.pid, seconds=round(limit_s), setting="batch_deadline_s")
                break
    child.terminate()
    try:
        return child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        kill_below(child.pid)  # first: once it is gone, nobody knows what it started
        child.kill()
        return child.wait()
