"""The outcome of every record that was sent, as its client knows it, logged as it happens."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import IO, Literal, NamedTuple

Outcome = Literal["acknowledged", "refused", "unknown"]
"""`unknown`: it may be stored or not. Such a record is sent again, with the same id."""


class Fate(NamedTuple):
    """One attempt to send one record. `event_id` is empty for poison."""

    number: int
    event_id: str
    route: str
    outcome: Outcome
    partition: int = -1
    offset: int = -1
    reason: str = ""


class Fates:
    """The log of a run. Threads share it."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.acknowledged: dict[tuple[int, int], str] = {}
        """(partition, offset) -> id of what Kafka promised to keep there; empty for poison."""
        self.ids: set[str] = set()
        """The ids of all acknowledged events, wherever they are."""
        self.tries: Counter[str] = Counter()
        """By id, how often an event was sent and may be stored."""
        self.end: dict[int, int] = {}
        """After the last acknowledged offset of each partition."""

    def note(self, fate: Fate) -> None:
        """Log one outcome."""
        with self._lock:
            self.counts[fate.outcome] += 1
            if fate.event_id and fate.outcome != "refused":
                self.tries[fate.event_id] += 1
            if fate.outcome == "acknowledged":
                self.acknowledged[fate.partition, fate.offset] = fate.event_id
                self.ids |= {fate.event_id} - {""}
                self.end[fate.partition] = max(self.end.get(fate.partition, 0), fate.offset + 1)
            self._file.write(json.dumps(fate) + "\n")

    def ends(self) -> dict[int, int]:
        """The cut that has everything acknowledged by now."""
        with self._lock:
            return dict(self.end)

    def close(self) -> None:
        """Close the log."""
        self._file.close()
