"""A run that does not react to its deadline ends its process, and everything that it started."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.conftest import wait_until

HUNG = """
import subprocess, time
from batch_layer.deadline import deadline
from batch_layer.progress import quiet
below = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(below.pid, flush=True)
with deadline("web", 0.1, quiet, grace_s=0.1, cancel=lambda: time.sleep(600)):  # as a JVM that does not answer
    time.sleep(600)
"""


def test_run_that_does_not_react_ends_with_all_that_it_started() -> None:
    done = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "tidemark: The run of source 'web' did not end within 0.1 s (batch_deadline_s)" in done.stderr
    assert "Traceback" not in done.stderr
    below = int(done.stdout.split()[0])
    wait_until("what it started to be gone", lambda: not psutil.pid_exists(below) or _is_zombie(below))


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
