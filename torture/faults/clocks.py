"""A clock that is wrong: one process at a time lives an hour early or late, or two days."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from torture.errors import TortureError
from torture.fault import Fault, Strike
from torture.installation import SERVICES, Installation

FOLDERS = ("/usr/lib", "/usr/local/lib", "/usr/lib64")
LIBRARY = "libfaketime.so.1"
SKEWS_S = (-3600, 3600, 2 * 24 * 3600)


@cache
def library() -> Path | None:
    """Where libfaketime is."""
    for folder in map(Path, FOLDERS):
        for found in sorted((*folder.glob(f"faketime/{LIBRARY}"), *folder.glob(f"*/faketime/{LIBRARY}"))):
            return found
    return None


def missing() -> str:
    """What this machine lacks for wrong clocks."""
    return "" if library() else "needs libfaketime (Debian: apt-get install libfaketime)"


def skewed(seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is so far ahead. Its timers run as always."""
    found = library()
    if found is None:
        raise TortureError(missing())
    return {
        "LD_PRELOAD": str(found),
        "FAKETIME": f"{seconds:+d}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }


@contextmanager
def strike_clock(service: str, seconds: int, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Start one service again with a wrong clock, and at the end once more with the right one."""
    del chance
    usual = installation.environments.get(service, {})
    installation.environments[service] = {**usual, **skewed(seconds)}
    _begin_again(installation, service)
    try:
        yield
    finally:
        installation.environments[service] = usual
        _begin_again(installation, service)


def _begin_again(installation: Installation, service: str) -> None:
    installation.bend()
    installation.kill(service)


def _strike(service: str, seconds: int) -> Strike:
    return partial(strike_clock, service, seconds)


FAULTS = [
    Fault(
        f"clock of {service} {seconds / 3600:+g} h",
        "clock",
        _strike(service, seconds),
        lasting_s=15,
        recovery_s=150,
        cost_s=30,
        missing=missing,
    )
    for service in SERVICES
    for seconds in SKEWS_S
]
