"""How old the news of the speed views are: what the writer says of Kafka's end, and what a reader makes of it.

The writer looks at Kafka's end now and then. Everything that Kafka had at a look is applied as soon as the applied cut
has passed the end that was seen: from then on the answers are no older than that look.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from master_dataset.cut import Cut, count_between, is_below

MOST_LOOKS = 1_000
"""Kept while none of them is passed; beyond that every second one is forgotten."""


class Looked(NamedTuple):
    """What a writer says: Kafka's end when it last looked, and how long ago the applied cut was all that Kafka had."""

    end: Cut
    age_s: float
    applied: Cut
    applied_age_s: float | None


class Lag(NamedTuple):
    """`events`: how many are known and not applied. `seconds`: the answers hold all that Kafka had so long ago."""

    events: int
    seconds: float | None


@dataclass
class Looks:
    """The looks of a writer, oldest first; of those that are passed only the newest. One thread looks, one tells."""

    looks: list[tuple[Cut, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, end: Cut, at: float) -> None:
        """Kafka ended there. Times are of one clock, in seconds."""
        with self._lock:
            self.looks.append((end, at))
            if len(self.looks) > MOST_LOOKS:
                del self.looks[1:-1:2]

    def told(self, applied: Cut, now: float) -> Looked | None:
        """What to say while this is applied; None before the first look."""
        with self._lock:
            if not self.looks:
                return None
            passed = [place for place, (end, _) in enumerate(self.looks) if is_below(end, applied)]
            if passed:
                del self.looks[: passed[-1]]
            end, at = self.looks[-1]
            return Looked(end, now - at, applied, now - self.looks[0][1] if passed else None)


def lag(applied: Cut, looked: Looked) -> Lag:
    """What a reader makes of it. `applied` is now, what the writer said a little older."""
    events = count_between(applied, looked.end)
    if is_below(looked.end, applied):
        return Lag(events, looked.age_s)
    # What was applied when the writer spoke: if Redis fell back since, nothing is known.
    return Lag(events, looked.applied_age_s if is_below(looked.applied, applied) else None)
