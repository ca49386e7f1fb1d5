"""The status that each of our processes writes about itself, and what the supervisor concludes from it.

A heartbeat by which nothing has changed only sets the time of the file (`StatusFile`), so that an idle process writes
nothing. The file names its own inode: the time of a copy, as of a home that was restored, is no heartbeat.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.home import Home, replacing
from infra.settings import Settings

MAX_AGE_S = 15.0
"""A status older than this belongs to a process that hangs."""
INODE = "inode"
MEMBERS = ("at", "error", "is_temporary", "sources", "couriers", "overdue")
NO_STATUS = "it has not written its status yet"


@dataclass(frozen=True)
class ProcessStatus:
    """One process's status, as `<home>/run/<name>.json` holds it.

    `details` are members that only one process has; they stand beside the others in the file.
    """

    at: float
    """Seconds since 1970: the heartbeat. The file has the one by which it was written, and later ones as its time."""
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


class StatusFile:
    """The file with the status of this process. Threads take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: tuple[str, int] | None = None
        """The content but for the heartbeat, and the inode."""
        self._at = 0.0
        """The time of the file."""

    def write(self, status: ProcessStatus) -> None:
        """Replace the file where the status has changed; else set its time. The folder must exist."""
        content = json.dumps({**status.to_json(), "at": 0})
        self._at = status.at
        if self._written is None or self._written[0] != content or not self._set_time(self._written[1]):
            self._written = content, write_status(self.path, status)

    def show_life(self) -> None:
        """A sign of life that is no heartbeat, because it is not known whether what the file says is still so.

        The time of the file is another, by a microsecond.
        """
        if self._written is not None:
            self._at += 1e-6
            self._set_time(self._written[1])

    def _set_time(self, inode: int) -> bool:
        """Whether the file is still the one that was written, and has the new time."""
        try:
            if self.path.stat().st_ino != inode:
                return False
            os.utime(self.path, (self._at, self._at))
        except OSError:
            return False
        return True


def write_status(path: Path, status: ProcessStatus) -> int:
    """Replace the status, and give the inode of the file. The folder must exist."""
    with replacing(path) as file:
        inode = os.fstat(file.fileno()).st_ino
        json.dump({**status.to_json(), INODE: inode}, file, indent=1)
        file.flush()
        os.utime(file.fileno(), (status.at, status.at))
    return inode


def read_status(path: Path) -> ProcessStatus | None:
    """The status that is there, with its last heartbeat; None where there is none, or a damaged one."""
    try:
        with path.open(encoding="utf-8") as file:
            stat, found = os.fstat(file.fileno()), json.load(file)
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("at"), int | float):
        return None
    if found.pop(INODE, None) == stat.st_ino:
        found["at"] = stat.st_mtime
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
