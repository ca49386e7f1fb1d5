"""Follow what micro-batches touch, and let alerts and feeds of a source look at it; begin again whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from redis import Redis
from redis.exceptions import RedisError

from hand_off.change_log import Changes, read_since
from infra.backoff import pause_after
from master_dataset.cut import Cut
from master_dataset.errors import MasterDatasetError
from serving_layer.alerts.answers import NotNow
from serving_layer.alerts.journal import Journal

WAIT_S = 0.25
"""For the next micro-batch; then time alone may decide something."""
CLOCK_S = 1.0
"""However busy a source is, what time decides is looked at so often."""
PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0

log = structlog.get_logger()
Since = Callable[[Cut, bytes], Changes | None]


class Looking(Protocol):
    """Who looks at what was touched."""

    def begin(self) -> None:
        """Take up what the journal has."""

    def look(self, touched: Changes | None, since: Since) -> bytes | None:
        """Look at it, or without it at what time decides. The place in the stream up to where it has looked."""


@dataclass
class Follower:
    """One that looks, of one source. `run` returns when `stopping` is set."""

    name: str
    """Of its position in the journal."""
    source: str
    looking: Looking
    journal: Journal
    client: Redis
    stopping: threading.Event
    error: str = ""
    begun: int = 0
    _place: bytes = field(default=b"0")

    def run(self) -> None:
        """Follow until told to stop. After whatever went wrong it begins again from the journal."""
        failures = 0
        while not self.stopping.is_set():
            try:
                self._place = b"0"
                self.looking.begin()
                self.begun += 1
                while not self.stopping.is_set():
                    self._follow()
                    failures, self.error = 0, ""
            except (NotNow, RedisError, OSError, MasterDatasetError) as error:  # it passes
                if self.error != str(error):
                    log.warning("waits", follower=self.name, why=str(error))
                self.error = str(error)
            except Exception as error:  # a defect, or the disk: it is said, and tried again
                self.error = f"{type(error).__name__}: {error}"
                log.exception("begins_again", follower=self.name, why=self.error)
            failures += 1
            self.stopping.wait(pause_after(failures, PAUSE_S, LONGEST_PAUSE_S))

    def _follow(self) -> None:
        """Look at what comes for about a second, and then at what time decides."""
        until = time.monotonic() + CLOCK_S
        while not self.stopping.is_set():
            touched = self._touched()
            if touched is not None:
                place = self.looking.look(touched, self._since)
                self._place = place or self._place
            if touched is None or time.monotonic() > until:
                self.looking.look(None, self._since)
                return

    def _touched(self) -> Changes | None:
        known = self.journal.position(self.name)
        if known is None:  # the first time: everything of late
            newest = self._since({}, b"0")
            return Changes({}, None) if newest is None else Changes(newest.cut, None, newest.entry_id)
        found = read_since(self.client, self._prefix, known.cut, self._place, WAIT_S)
        if found is not None and found.cut == known.cut:  # only what we know: the next time we wait behind it
            self._place = found.entry_id
            return None
        return found

    def _since(self, cut: Cut, place: bytes) -> Changes | None:
        found = read_since(self.client, self._prefix, cut, place, 0.001)
        return None if found is None or found.cut == cut else found

    @property
    def _prefix(self) -> str:
        return f"tidemark:{{{self.source}}}:"
