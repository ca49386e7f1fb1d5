"""The time by which keys expire: it never goes back, so that a key that has expired does not become valid again.

A clock may be set back, by a person or by a machine that starts without one. So the time here is the latest of three:
the clock, the time since this process first looked, and what any server of the home noted in `access_clock.json`. It
is noted at most every few minutes, and only in a home where a key or an old secret expires. A clock that is ahead
makes keys expire early: that is safe. Once it is right again, a person deletes the note and restarts the servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from infra.home import read_json, write_json

FILE_NAME = "access_clock.json"
NOTE_EVERY_S = 300.0
TOLERANCE_S = 60.0
"""How far a clock may be behind the note before a command refuses it: several machines may share a home."""


def clock_file(home: Path) -> Path:
    """The note of the latest time that a server of a home has seen."""
    return home / FILE_NAME


def latest_seen(home: Path) -> float:
    """The noted time, in seconds since 1970; 0 where there is none."""
    noted = read_json(clock_file(home))
    latest = noted.get("latest") if isinstance(noted, dict) else None
    return float(latest) if isinstance(latest, int | float) else 0.0


class KeyClock:
    """The time for the keys of a home, in seconds since 1970."""

    def __init__(
        self,
        home: Path,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home, self._wall_s, self._monotonic_s = home, wall_s, monotonic_s
        self._latest, self._at = 0.0, monotonic_s()
        self._noted = 0.0

    def now(self) -> float:
        """The time now, at least as late as every time before it."""
        at = self._monotonic_s()
        if not self._latest:
            self._latest = self._noted = latest_seen(self._home)
        self._latest, self._at = max(self._wall_s(), self._latest + max(0.0, at - self._at)), at
        if self._latest - self._noted >= NOTE_EVERY_S:
            self._note()
        return self._latest

    def _note(self) -> None:
        """Another process may have noted a later time: that one counts, for this process too."""
        self._latest = max(self._latest, latest_seen(self._home))
        self._noted = self._latest
        with suppress(OSError):  # a home that is mounted read-only: this process still knows
            write_json(clock_file(self._home), {"latest": round(self._latest, 3)}, mode=0o600)
