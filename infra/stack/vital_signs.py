"""Whether a service is alive although its check fails: its signs of life, and the work that its processes do.

Nothing here reads the wall clock, and time is counted in small observed steps. A clock that is set, a laptop that
slept and a supervisor that was stopped therefore make no service look silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil

from infra.stack.service import Service

MAX_STEP_S = 1.0
"""The most that one tick adds to a silence. A longer one means that we did not look, not that nothing was there."""
WORK_EVERY_S = 1.0
BUSY_SHARE = 0.05
"""Of one core: a process that uses less does no work worth waiting for. An idle JVM uses about 0.01."""
BUSY_BYTES = 256 * 1024
"""Read or written in a second."""


class Work(NamedTuple):
    """What the processes of a service have done since they were started."""

    cpu_s: float
    io_bytes: int
    waits_for_disk: bool = False
    is_stopped: bool = False


class Look(NamedTuple):
    """What one look at a service found: what its check misses, its sign of life, and, if asked, its work so far."""

    missing: str | None
    sign: Any
    work: Work | None


def look_at(service: Service, pid: int, *, asks_work: bool) -> Look:
    """Run the check of a service, and look for its sign of life. Its work is looked at where the check fails."""
    try:
        missing = service.check()
        sign = service.pulse() if service.pulse is not None else (object() if missing is None else None)
    except Exception as error:
        missing, sign = f"{type(error).__name__}: {error}", None
    return Look(missing, sign, work_of(pid) if asks_work and missing is not None else None)


def work_of(pid: int) -> Work | None:
    """The work of a process and of all below it; None where it is gone."""
    try:
        leader = psutil.Process(pid)
        status = leader.status()
        below = leader.children(recursive=True)
    except psutil.Error:
        return None
    cpu_s, io_bytes = 0.0, 0
    for process in (leader, *below):
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if hasattr(process, "io_counters"):  # not on macOS
                counters = process.io_counters()
                io_bytes += counters.read_bytes + counters.write_bytes
        except (psutil.Error, OSError):  # it ended meanwhile, or is another user's
            continue
    return Work(
        cpu_s,
        io_bytes,
        waits_for_disk=status == psutil.STATUS_DISK_SLEEP,
        is_stopped=status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
    )


@dataclass
class Vitality:
    """For how long a service has been silent, and whether it works meanwhile."""

    silent_s: float = 0.0
    silent_looks: int = 0
    is_working: bool = False
    _sign: Any = None
    _work: Work | None = None
    _work_after_s: float = 0.0
    """Observed seconds since the work was looked at."""

    def pass_time(self, seconds: float) -> None:
        """Count the time since the last tick, as far as it was observed."""
        step_s = min(max(seconds, 0.0), MAX_STEP_S)
        self.silent_s += step_s
        self._work_after_s += step_s

    def note(self, look: Look) -> None:
        """Take in what a look found."""
        if look.sign is not None and look.sign != self._sign:
            self._sign = look.sign
            self.silent_s, self.silent_looks = 0.0, 0
        else:
            self.silent_looks += 1
        if look.missing is None:
            self._work, self.is_working = None, False
        elif look.work is not None:
            before, self._work = self._work, look.work
            seconds, self._work_after_s = self._work_after_s, 0.0
            self.is_working = _has_worked(before, look.work, seconds)

    @property
    def asks_work(self) -> bool:
        """Whether it is time to look at the work again; that reads a file of every process of the machine."""
        return self._work is None or self._work_after_s >= WORK_EVERY_S


def _has_worked(before: Work | None, now: Work | None, seconds: float) -> bool:
    """Whether enough was done between two looks. A process that waits for its disk would not hear a signal either."""
    if before is None or now is None or now.is_stopped:
        return False
    if now.waits_for_disk:
        return True
    used_s, moved = now.cpu_s - before.cpu_s, now.io_bytes - before.io_bytes
    return used_s >= BUSY_SHARE * max(seconds, 0.1) or moved >= BUSY_BYTES * max(seconds, 0.1)
