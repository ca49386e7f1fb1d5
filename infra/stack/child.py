"""A service at run time: its process, its state, and how it ended before."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from infra.stack.leftovers import created_at
from infra.stack.service import Service, State
from infra.stack.vital_signs import Look, Vitality

TRIES_BEFORE_GIVING_UP = 3
"""Deaths before a service was ever ready, after which `up` fails. A service that was ready is always restarted."""


class Cause(StrEnum):
    """Why a process of a service ended, in the words of the metric."""

    CRASH = "crash"  # it ended by itself, or could not be started
    HANG = "hang"  # no sign of life
    SLOW_START = "slow_start"
    REQUEST = "request"  # `tidemark restart`


class End(NamedTuple):
    """The end of a process, decided or past."""

    cause: Cause
    reason: str


@dataclass
class Child:
    """A service at run time."""

    service: Service
    state: State = State.WAITING
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    ready_at: float = 0.0  # monotonic; 0: this process was not ready yet
    was_ready: bool = False
    deaths_in_row: int = 0
    restarts: int = 0
    slow_starts: int = 0
    failed_checks: int = 0
    message: str = ""
    problems: str = ""  # of one that is ready
    check: Future[Look] | None = None
    next_at: float = 0.0  # monotonic: of the next check, or of the next start while pausing
    life: Vitality = field(default_factory=Vitality)
    end: End | None = None  # decided; its process was told to end
    kill_at: float = 0.0  # monotonic, while it is stopping
    last_end: dict[str, Any] | None = None
    ends: Counter[Cause] = field(default_factory=Counter)
    request: str | None = None  # the last one that was taken

    @property
    def is_whole(self) -> bool:
        """Whether it is ready with everything that it does."""
        return self.state is State.READY and not self.problems

    @property
    def is_given_up(self) -> bool:
        """Whether `up` no longer waits for it: it failed again and again, and the others can do without."""
        is_tried = not self.was_ready and self.deaths_in_row >= TRIES_BEFORE_GIVING_UP
        return is_tried and not self.service.is_needed

    def was_ready_for(self, now: float) -> float:
        """For how long the process that ends now was ready; the silence before a hang does not count."""
        return now - self.life.silent_s - self.ready_at if self.ready_at else 0.0

    def note_end(self, end: End) -> None:
        """Remember it for the status and the metrics."""
        self.restarts += 1
        self.ends[end.cause] += 1
        self.last_end = {"at": round(time.time(), 3), "cause": str(end.cause), "reason": end.reason}

    def describe(self) -> dict[str, Any]:
        """This child's line in the status file."""
        pid = self.process.pid if self.process and self.state not in (State.PAUSING, State.STOPPED) else None
        return {
            "name": self.service.name,
            "state": str(self.state),
            "address": self.service.address,
            "pid": pid,
            "created": created_at(pid),
            "restarts": self.restarts,
            "message": self.message or self.problems,
            "last_restart": self.last_end,
            "request": self.request,
        }


def exit_text(code: int) -> str:
    """Like `exit code 3` or `signal SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"
