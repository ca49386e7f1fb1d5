"""The status that each of our processes writes about itself, and what the supervisor concludes from it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.home import Home, read_json, write_json
from infra.settings import Settings

MAX_AGE_S = 15.0
"""A status older than this belongs to a process that hangs."""
MEMBERS = ("at", "error", "is_temporary", "sources", "couriers", "overdue")
NO_STATUS = "it has not written its status yet"


@dataclass(frozen=True)
class ProcessStatus:
    """One process's status, as `<home>/run/<name>.json` holds it.

    `details` are members that only one process has; they stand beside the others in the file.
    """

    at: float
    """Seconds since 1970: the heartbeat."""
    error: str = ""
    """Why the process ended, or cannot do anything."""
    is_temporary: bool = False
    """Of `error`: whether the next start may succeed without anybody's help."""
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By source; a member `refused` says why a source is not followed now. The archiver adds `is_temporary`."""
    couriers: Mapping[str, Mapping[str, Any]] | None = None
    """By target, of the alert process; a member `refused` says why notifications do not arrive."""
    overdue: str | None = None
    """Of the scheduler: the runs that are missing, as a sentence."""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        own: dict[str, Any] = {"at": self.at, "error": self.error, "sources": self.sources}
        own |= {"is_temporary": True} if self.is_temporary else {}
        own |= {} if self.couriers is None else {"couriers": self.couriers}
        own |= {} if self.overdue is None else {"overdue": self.overdue}
        return {**own, **self.details}

    def refusals(self) -> list[str]:
        """What is not followed and whom no notification reaches, with the reasons."""
        sources = [f"source {name!r}: {each['refused']}" for name, each in self.sources.items() if each.get("refused")]
        return [*sources, *(each["refused"] for each in (self.couriers or {}).values() if each.get("refused"))]

    def failure(self) -> str | None:
        """The first line of the error, or how old the heartbeat is; None when the process is alive and well."""
        if self.error:
            return self.error.splitlines()[0]
        age_s = time.time() - self.at
        return None if age_s <= MAX_AGE_S else f"its last heartbeat is {age_s:.0f} s old"


def status_path(settings: Settings, process: str) -> Path:
    """Where a process writes its status."""
    return Home(settings.home).run / f"{process}.json"


def write_status(path: Path, status: ProcessStatus) -> None:
    """Replace the status. The folder must exist."""
    write_json(path, status.to_json())


def read_status(path: Path) -> ProcessStatus | None:
    """The status that is there; None where there is none, or a damaged one."""
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("at"), int | float):
        return None
    known = {name: found.pop(name) for name in MEMBERS if name in found}
    return ProcessStatus(**known, details=found)


def check_alive(path: Path) -> str | None:
    """None when the process has a fresh heartbeat and no error; otherwise what is wrong with it."""
    status = read_status(path)
    return NO_STATUS if status is None else status.failure()


def check_heartbeat(path: Path) -> str | None:
    """As `check_alive`, for a process that has started once it names its sources."""
    status = read_status(path)
    if status is None or status.error or status.sources:
        return check_alive(path)
    return "it is starting"


def check_sources(path: Path) -> str | None:
    """As `check_heartbeat`, for a process that is ready when it follows or refuses each of its sources."""
    failure, status = check_heartbeat(path), read_status(path)
    if failure is None and status is not None:
        starting = [name for name, each in status.sources.items() if not each["starts"] and not each["refused"]]
        failure = f"it is starting with {', '.join(starting)}" if starting else None
    return failure


def missing_runs(path: Path) -> str:
    """What the scheduler says of runs that are overdue or failed; empty if there is nothing to say."""
    status = read_status(path)
    return "" if status is None else status.overdue or ""


def refusals(path: Path) -> str:
    """The refusals of the process that writes this status, a line each; empty if there are none."""
    status = read_status(path)
    return "" if status is None else "\n".join(status.refusals())


def last_error(path: Path) -> str:
    """The error that the process named when it ended; empty if there is none."""
    status = read_status(path)
    return "" if status is None else status.error
