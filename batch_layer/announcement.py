"""Announce that a run is going to overtake the speed layer, again and again, as long as the run lives."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from redis.exceptions import RedisError

from hand_off.speed_views import RunHandle

VALID_S = 6.0
"""After so long without news of the run, the speed layer goes on."""
RENEW_S = 1.0


class Announcement:
    """Renewed by a thread of its own until `end`, but not for longer than `max_s`. Redis may refuse it: it only saves
    work.
    """

    def __init__(self, runs: RunHandle, max_s: float) -> None:
        self._runs, self._max_s = runs, max_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="announcement", daemon=True)

    def begin(self) -> None:
        """Announce it now, and from now on."""
        self._announce()
        self._thread.start()

    def end(self) -> None:
        """Withdraw it."""
        self._done.set()
        self._thread.join()
        with suppress(RedisError, OSError):
            self._runs.withdraw()

    def _renew(self) -> None:
        deadline = time.monotonic() + self._max_s
        while not self._done.wait(RENEW_S) and time.monotonic() < deadline:
            self._announce()

    def _announce(self) -> None:
        with suppress(RedisError, OSError):
            self._runs.announce(VALID_S)
