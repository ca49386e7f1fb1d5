"""Processes that an earlier supervisor of a home left running: recognised by number and start time, and ended."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil
import structlog

from infra.home import Home, read_json

GONE_S = 10.0
PAUSE_S = 0.05

log = structlog.get_logger()


def end_leftovers(home: Home) -> list[str]:
    """Kill what an earlier supervisor of this home left running, and wait until it is gone.

    Returns the names of the services. The caller holds the home's lock.
    """
    status = read_json(home.status_file) or {}
    ended = []
    for service in status.get("services", []):
        for process in _left_of(service["pid"], service.get("created"), home):
            with suppress(psutil.Error):
                process.kill()
            _wait_until_gone(process.pid)
            ended.append(service["name"])
            log.warning("ended_leftover", service=service["name"], pid=process.pid)
    return ended


def _left_of(leader: int | None, created: float | None, home: Home) -> list[psutil.Process]:
    """What still runs of the session that a service led: itself, and a child of it such as Spark's JVM.

    A pid that was given to another process is recognised by its start time. Where the leader is gone, only those
    processes of its session are ours that were started for this home.
    """
    if leader is None or (psutil.pid_exists(leader) and not is_same_process(leader, created)):
        return []
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if process.pid == leader or (os.getsid(process.pid) == leader and _is_of(process, home)):
                found.append(process)
    return found


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + GONE_S
    while created_at(pid) is not None and time.monotonic() < deadline:
        time.sleep(PAUSE_S)


def _is_of(process: psutil.Process, home: Home) -> bool:
    return process.environ().get("TIDEMARK_HOME") == str(home.root)


def is_same_process(pid: int, created: float | None) -> bool:
    """Whether `pid` is still the process that was started at `created`, not another one with its number."""
    now = created_at(pid)
    return now is not None and created is not None and abs(now - created) < 1


def created_at(pid: int | None) -> float | None:
    """When a process was started, in seconds since 1970; None where none of that number runs."""
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else round(process.create_time(), 2)
    except psutil.Error:
        return None
