"""Follow the change log of a source for its alerts and feeds, and resume from the journal after any error."""

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
from serving_layer.alerts.answers import AnswersIncomplete
from serving_layer.alerts.journal import Journal

WAIT_S = 0.25
"""For the next micro-batch. After that, time alone may decide something."""
CLOCK_S = 1.0
"""However busy a source is, what time decides is evaluated this often."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0

log = structlog.get_logger()
ChangesSince = Callable[[Cut, bytes], Changes | None]
"""What changed after a cut; the bytes say where in the change log to read on."""


class ChangeConsumer(Protocol):
    """Processes the changes of a source."""

    def resume(self) -> None:
        """Load the state of the journal."""

    def evaluate(self, changes: Changes | None, since: ChangesSince) -> bytes | None:
        """Process changes, or without them what time decides. Returns the new location in the change log."""


@dataclass
class ChangeFollower:
    """Reads the change log for one consumer. `run` returns once `stopping` is set."""

    name: str
    """The name of its position in the journal."""
    source: str
    consumer: ChangeConsumer
    journal: Journal
    client: Redis
    stopping: threading.Event
    error: str = ""
    starts: int = 0
    _location: bytes = field(default=b"0")

    def run(self) -> None:
        """Follow until `stopping`. After any error it resumes from the journal."""
        failures = 0
        while not self.stopping.is_set():
            try:
                self._location = b"0"
                self.consumer.resume()
                self.starts += 1
                while not self.stopping.is_set():
                    self._follow()
                    failures, self.error = 0, ""
            except (AnswersIncomplete, RedisError, OSError, MasterDatasetError) as error:  # passes by itself
                if self.error != str(error):
                    log.warning("retrying", follower=self.name, reason=str(error))
                self.error = str(error)
            except Exception as error:  # a defect, or the disk
                self.error = f"{type(error).__name__}: {error}"
                log.exception("restarting", follower=self.name, reason=self.error)
            failures += 1
            self.stopping.wait(pause_after(failures, FIRST_PAUSE_S, MAX_PAUSE_S))

    def _follow(self) -> None:
        """Process changes for about a second, then what time decides."""
        until = time.monotonic() + CLOCK_S
        while not self.stopping.is_set():
            changes = self.next_changes()
            if changes is not None:
                self._location = self.consumer.evaluate(changes, self.changes_since) or self._location
            if changes is None or time.monotonic() > until:
                self.consumer.evaluate(None, self.changes_since)
                return

    def next_changes(self) -> Changes | None:
        """The changes after the position in the journal, waited for; None if there are none yet."""
        known = self.journal.positions.get(self.name)
        if known is None:  # the first time: all recent periods
            newest = self.changes_since({}, b"0")
            return Changes({}, None) if newest is None else Changes(newest.cut, None, newest.entry_id)
        changes = read_since(self.client, self._prefix, known.cut, self._location, WAIT_S)
        if changes is not None and changes.cut == known.cut:  # nothing new: the next read waits behind it
            self._location = changes.entry_id
            return None
        return changes

    def changes_since(self, cut: Cut, location: bytes) -> Changes | None:
        """The changes after a cut that are there now."""
        changes = read_since(self.client, self._prefix, cut, location, 0.001)
        return None if changes is None or changes.cut == cut else changes

    @property
    def _prefix(self) -> str:
        return f"tidemark:{{{self.source}}}:"
