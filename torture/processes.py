"""The processes of an installation: who runs, who is ready, and how they are killed and stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from infra.failpoints import STOP
from infra.settings import Settings
from infra.stack import up
from torture.errors import NotInTime, TortureError
from torture.wait import wait_for

SERVICES = ("redis", "kafka", "collector", "archiver", "speed", "serving", "alerts")
READY_S = 180.0


class Processes:
    """The processes that the supervisor of an installation runs, by the name of their service."""

    def __init__(self, settings: Settings, failpoints_dir: Path) -> None:
        self._settings, self._failpoints_dir = settings, failpoints_dir

    @property
    def services(self) -> tuple[str, ...]:
        """The services that this installation has."""
        return tuple(name for name in SERVICES if getattr(self._settings, f"{name}_enabled", True))

    # ---- what the supervisor says ----

    def status(self) -> dict[str, Any]:
        """The supervisor's status now; TortureError: it does not run."""
        status = up.read_status(self._settings)
        if status is None:
            raise TortureError(f"Nothing runs on {self._settings.home}: its supervisor ended.")
        return status

    def pid(self, service: str) -> int | None:
        """The process of a service now; None while it is being started again."""
        status = next((each for each in self.status()["services"] if each["name"] == service), None)
        if status is None:
            raise TortureError(f"{service} is no part of this installation")
        return int(status["pid"]) if status["pid"] else None

    def pids(self, service: str) -> list[int]:
        """The process of a service and all below it (Spark's JVM, say)."""
        pid = self.pid(service)
        if pid is None:
            return []
        with suppress(psutil.Error):
            return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        return []

    def is_ready(self, services: Iterable[str] = SERVICES) -> bool:
        """Whether these are ready and have nothing to complain about."""
        names = set(services)
        with suppress(TortureError):
            states = [each for each in self.status()["services"] if each["name"] in names]
            return all(each["state"] == "ready" and not each["message"] for each in states)
        return False

    def is_up(self) -> bool:
        """Whether every process is ready, whatever its message."""
        with suppress(TortureError):
            return all(each["state"] == "ready" for each in self.status()["services"])
        return False

    def wait_ready(self, services: Iterable[str] = SERVICES, deadline_s: float = READY_S) -> None:
        """Wait until these are ready again, by themselves."""
        names = tuple(services)
        wait_for(f"{', '.join(names)} to be ready", lambda: self.is_ready(names), deadline_s, every_s=0.2)

    # ---- what is done to them ----

    def signal(self, service: str, number: signal.Signals) -> bool:
        """Send a signal to every process of a service; False: there was none."""
        with suppress(TortureError):
            pids = self.pids(service)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            return bool(pids)
        return False

    def kill(self, service: str) -> bool:
        """Kill the process of a service with SIGKILL; its children end with it. False: there was none."""
        pid = self.pid(service)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def arm_stop(self, failpoint: str) -> Path:
        """Stop the next process that reaches the failpoint; returns the file that vanishes when one does."""
        armed = self._failpoints_dir / failpoint
        new = self._failpoints_dir / f"{failpoint}.new"
        new.write_text(STOP, encoding="utf-8")
        new.replace(armed)  # at once: an empty file would kill
        return armed

    def stop_at(self, service: str, failpoint: str, within_s: float = 25.0) -> None:
        """Stop every process of a service: at the failpoint where it gets there in time, else wherever it is."""
        armed = self.arm_stop(failpoint)
        with suppress(NotInTime):
            wait_for(f"{service} to reach {failpoint}", lambda: not armed.exists(), within_s)
        armed.unlink(missing_ok=True)
        self.signal(service, signal.SIGSTOP)
