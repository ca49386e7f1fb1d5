"""The publish log for a process that asks again and again: what did not change is not read again."""

from __future__ import annotations

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.publish_log import Entry, LogStamp, Pin


class LogFollower:
    """The entries of one log that somebody needs now.

    While nothing changes, a question takes as long for a log of many years as for a new one. After a change the newest
    entry is read; all entries only for a rollback, or for a run that is not the newest.
    """

    def __init__(self, folder: BatchFolder) -> None:
        self.folder = folder
        self._stamp: LogStamp | None = None
        self._newest: Entry | None = None
        self._older: dict[int, Entry | None] = {}
        self._pinned: tuple[Pin, Entry | None] | None = None

    def newest(self) -> Entry:
        """The newest entry. BatchError where it is damaged and cannot be rebuilt."""
        stamp = publish_log.stamp(self.folder, self._stamp)  # before reading: a later change then shows next time
        if self._newest is None or stamp is None or stamp != self._stamp:
            self._older, self._pinned = {}, None
            self._newest = publish_log.last(self.folder)
            self._stamp = stamp
        return self._newest

    def find(self, run: int) -> Entry | None:
        """The entry of a run; None where it was not published."""
        newest = self.newest()
        if run >= newest.run:
            return newest if run == newest.run else None
        if run not in self._older:
            self._older = {run: next((entry for entry in publish_log.read(self.folder) if entry.run == run), None)}
        return self._older[run]

    def pinned(self) -> Entry | None:
        """The older run that readers are pinned to, as `publish_log.pinned` says."""
        self.newest()
        pin = publish_log.read_pin(self.folder)
        if self._pinned is None or self._pinned[0] != pin:
            self._pinned = pin, publish_log.pinned(self.folder)
        return self._pinned[1]
