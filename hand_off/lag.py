"""How old the speed views are: what the writer reports about Kafka's end, and what a reader concludes from it.

The writer reads Kafka's end now and then. Once the applied cut has passed an end that it read, everything that Kafka
held at that time is applied: from then on answers are no older than that time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from master_dataset.cut import Cut, count_between, is_below

MAX_ENDS = 1_000
"""Kept while none of them is passed; beyond that every second one is dropped."""


class KafkaEnd(NamedTuple):
    """A writer's report: the end of Kafka that it read last, and how long ago `applied` was all that Kafka held."""

    end: Cut
    age_s: float
    applied: Cut
    applied_age_s: float | None


class Lag(NamedTuple):
    """`events`: how many are known and not applied. `seconds`: answers hold all that Kafka held so long ago."""

    events: int
    seconds: float | None


@dataclass
class EndHistory:
    """The ends of Kafka that a writer read, oldest first; of those that are passed only the newest.

    One thread adds, another reports.
    """

    ends: list[tuple[Cut, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_read(self) -> bool:
        """Whether an end was read."""
        return bool(self.ends)

    def add(self, end: Cut, at: float) -> None:
        """Kafka ended there. Times are of one clock, in seconds."""
        with self._lock:
            self.ends.append((end, at))
            if len(self.ends) > MAX_ENDS:
                del self.ends[1:-1:2]

    def report(self, applied: Cut, now: float) -> KafkaEnd | None:
        """What to report while this cut is applied; None before the first end was read."""
        with self._lock:
            if not self.ends:
                return None
            passed = [number for number, (end, _) in enumerate(self.ends) if is_below(end, applied)]
            if passed:
                del self.ends[: passed[-1]]
            end, at = self.ends[-1]
            return KafkaEnd(end, now - at, applied, now - self.ends[0][1] if passed else None)


def lag(applied: Cut, reported: KafkaEnd) -> Lag:
    """What a reader concludes. `applied` is of now, the report a little older."""
    events = count_between(applied, reported.end)
    if is_below(reported.end, applied):
        return Lag(events, reported.age_s)
    # If Redis was rolled back since the report, nothing is known.
    return Lag(events, reported.applied_age_s if is_below(reported.applied, applied) else None)
