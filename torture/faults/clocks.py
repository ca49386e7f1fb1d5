"""Wrong clocks: one process at a time runs an hour early or late, or two days late."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import cache, partial
from pathlib import Path

import httpx
from redis.exceptions import RedisError

from infra.process_status import read_status
from torture.errors import TortureError
from torture.fault import Fault, Strike
from torture.installation import Installation
from torture.processes import SERVICES
from torture.wait import wait_for

FOLDERS = ("/usr/lib", "/usr/local/lib", "/usr/lib64")
LIBRARY = "libfaketime.so.1"
WAITS = Path(__file__).with_name("waits.c")
COMPILER = "cc"
SKEWS_S = (-3600, 3600, 2 * 24 * 3600)
WORKS_S = 60.0
"""Time for a service to restart and do something, with whatever clock."""
WORK = {"archiver": "commits", "speed": "micro_batches"}
"""The member of a process's status that counts its work since it started."""
CLOSE_S = 120.0


@cache
def library() -> Path | None:
    """Where libfaketime is."""
    for folder in map(Path, FOLDERS):
        for found in sorted((*folder.glob(f"faketime/{LIBRARY}"), *folder.glob(f"*/faketime/{LIBRARY}"))):
            return found
    return None


def missing() -> str:
    """What this machine lacks for wrong clocks."""
    if library() is None:
        return "needs libfaketime (Debian: apt-get install libfaketime)"
    return "" if shutil.which(COMPILER) else f"needs a C compiler, {COMPILER} (Debian: apt-get install gcc libc6-dev)"


def skewed(seconds: int, folder: Path) -> dict[str, str]:
    """The environment of a process whose clock is so far ahead; the library for it is built in the folder.

    Its timers run as always.
    """
    if said := missing():
        raise TortureError(said)
    return {
        "LD_PRELOAD": f"{_compiled_waits(folder)} {library()}",
        "FAKETIME": f"{seconds:+d}",  # both clocks: with one of them alone time.sleep of Python 3.11 fails
        "FAKETIME_DONT_RESET": "1",
    }


def _compiled_waits(folder: Path) -> Path:
    """Compile `waits.c`, which says why it is needed, into the folder."""
    made, making = folder / "waits.so", folder / "waits.so.making"
    if {" ", ":"} & set(str(made)):
        raise TortureError(
            f"A library in {str(folder)!r} cannot be loaded before others: no spaces and no colons, please."
        )
    if not made.exists():
        command = [COMPILER, "-shared", "-fPIC", "-pthread", "-o", str(making), str(WAITS), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TortureError(f"{WAITS.name} cannot be compiled: {done.stderr.strip()[:300]}")
        making.replace(made)
    return made


@contextmanager
def strike_clock(service: str, seconds: int, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Restart a service with a wrong clock, wait until it works, and restart it with the right one at the end."""
    del chance
    usual = installation.environments.more.get(service, {})
    before = installation.processes.pid(service)
    installation.environments.more[service] = {**usual, **skewed(seconds, installation.folder)}
    try:
        _begin_again(installation, service)
        what = f"{service} to work with its clock {seconds:+d} s off"
        wait_for(what, lambda: _works(installation, service, before, seconds), WORKS_S, every_s=0.2)
        yield
    finally:
        installation.environments.more[service] = usual
        _begin_again(installation, service)


def _begin_again(installation: Installation, service: str) -> None:
    installation.environments.write()
    installation.processes.kill(service)


def _works(installation: Installation, service: str, before: int | None, seconds: int) -> bool:
    """Whether a new process of the service works with the wrong time.

    The supervisor, which knows better, may not call one ready that writes down the time of its last sign of life.
    """
    found = next(each for each in installation.processes.status()["services"] if each["name"] == service)
    if found["pid"] in (None, before):
        return False
    if service == "kafka":
        return found["state"] == "ready" and any(map(_has_library, installation.processes.pids(service)))
    if service in ASKED:
        return found["state"] == "ready" and _is_off(ASKED[service](installation), seconds)
    status = read_status(installation.home.run / f"{service}.json")
    if status is None:
        return False
    if service in WORK and not status.sources.get(installation.source_name, {}).get(WORK[service]):
        return False
    return _is_off(status.at, seconds)


def _is_off(status: float, seconds: int) -> bool:
    return abs(status - time.time() - seconds) < CLOSE_S


def _of_redis(installation: Installation) -> float:
    with suppress(RedisError), installation.redis() as client:
        return float(client.time()[0])
    return 0.0


def _of_server(name: str, installation: Installation) -> float:
    with suppress(httpx.HTTPError):
        said = httpx.get(f"{getattr(installation.addresses, name)}/health", timeout=5).headers
        return parsedate_to_datetime(said["date"]).timestamp()
    return 0.0


def _has_library(pid: int) -> bool:
    """The broker does not report its time, but its memory map shows the library."""
    with suppress(OSError):
        return LIBRARY in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return False


ASKED: dict[str, Callable[[Installation], float]] = {
    "redis": _of_redis,
    "collector": partial(_of_server, "collector"),
    "serving": partial(_of_server, "serving"),
}
"""Services that report their time on request. The others write it to their status."""


def _strike(service: str, seconds: int) -> Strike:
    return partial(strike_clock, service, seconds)


FAULTS = [
    Fault(
        f"clock of {service} {seconds / 3600:+g} h",
        "clock",
        _strike(service, seconds),
        lasting_s=4,
        recovery_s=150,
        cost_s=45 if service in WORK else 14,
        of=(service,),
        missing=missing,
    )
    for service in SERVICES
    for seconds in SKEWS_S
]
