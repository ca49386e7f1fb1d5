"""The pace of commits: often while much arrives, seldom while little does, and at once when somebody waits for one.

Each commit costs a file, a line of the log and a line of the ledger, however few records it has. So after a commit the
archiver waits before it plans the next one, and that one holds everything that came meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infra.disk import FileStamp, file_stamp
from infra.settings import Settings
from master_dataset.archiver.commit_request import request_file
from master_dataset.errors import MasterDatasetError

LOOK_S = 0.2
"""How often the archiver looks whether somebody asked for a commit."""


@dataclass
class Pace:
    """When the next commit of a source may be planned. `pending` says how many offsets no commit holds yet."""

    settings: Settings
    table: Path
    pending: Callable[[], int]
    stopping: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    served: FileStamp | None = None
    """The request for a commit that the next one serves: all that was there when it was made is in it."""

    @property
    def trigger_s(self) -> float:
        """How often Spark looks for records while there are none: those after a pause are committed at once."""
        return min(1.0, self.settings.archive_interval_s)

    def wait(self, began: float) -> None:
        """Wait after a commit that began at this time of `clock`, until the next one is due."""
        interval = self.settings.archive_interval_s
        longest = max(interval, self.settings.archive_max_interval_s)
        if not self._has_arrived(self.settings.archive_max_events):  # else it is catching up
            check_at = began + interval
            while not self.stopping.is_set() and (now := self.clock()) < began + longest and not self.is_wanted:
                if now >= check_at:
                    if self._has_arrived(self.settings.archive_min_events):
                        break
                    check_at = now + interval
                self.stopping.wait(min(LOOK_S, max(0.0, began + longest - now), max(0.0, check_at - now)))
        self.served = self._request()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody asked for a commit since the last one was planned."""
        return self._request() != self.served

    def _request(self) -> FileStamp | None:
        return file_stamp(request_file(self.table))

    def _has_arrived(self, count: int) -> bool:
        try:
            return self.pending() >= count
        except MasterDatasetError:  # Kafka does not answer; the next micro-batch reports it
            return False
