"""How many events a micro-batch may have: as many as fit into memory, by the size of the events before them.

Spark takes a number of events when a query starts, and keeps to it. So the first micro-batch of a backlog is small;
it shows how large events are, and the next query has the number that their size allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIN_EVENTS = 50
"""Fewer are never tried."""
FIRST_EVENTS = 1_000
"""So many are tried while nobody knows how large events are."""
ENOUGH = 20
"""After so many micro-batches a number that was reduced because one failed is raised again."""
FADING = 0.8
"""How much of a larger size than the last one is remembered for the next micro-batch."""


@dataclass
class BatchSize:
    """The limits of a source's micro-batches, and what is known of the size of its events."""

    max_events: int
    max_bytes: float
    event_bytes: float = 0.0
    """Of the last micro-batches; 0: unknown."""
    allowed: int = field(init=False)
    """`max_events`, or fewer since a micro-batch failed."""

    def __post_init__(self) -> None:
        self.allowed = self.max_events

    def limit(self, waiting: int) -> int:
        """For a query that begins now, while so many events wait."""
        if not self.event_bytes:
            return min(self.allowed, FIRST_EVENTS) if waiting > FIRST_EVENTS else self.allowed
        return min(self.allowed, max(int(self.max_bytes / self.event_bytes), MIN_EVENTS))

    def record(self, events: int, size: int) -> None:
        """A micro-batch of so many events had so many bytes."""
        if events:
            self.event_bytes = max(size / events, FADING * self.event_bytes, 1.0)

    def suits(self, limit: int, events: int, size: int, applied: int) -> bool:
        """Whether a query may go on with its limit after a micro-batch of so many events and bytes, its n-th."""
        if applied > ENOUGH:  # what failed before was not too large, or is gone
            self.allowed = self.max_events
        wanted = self.limit(0)
        # Spark divides the limit among the partitions and rounds each share down, but never below half of it.
        is_full = 2 * events >= limit
        is_slow = is_full and wanted >= 2 * limit and (limit == FIRST_EVENTS or applied > ENOUGH)
        is_too_large = wanted < limit and size > self.max_bytes / 2
        return not is_slow and not is_too_large

    def adapt(self, applied: int, tried: int) -> bool:
        """After a query: how many micro-batches it applied, and the events of one that failed. Whether fewer are tried.

        One that failed may have been too large: the next are smaller, until enough succeeded.
        """
        if applied > ENOUGH:
            self.allowed = self.max_events
        if tried <= MIN_EVENTS:
            return False
        self.allowed = max(min(self.allowed, tried) // 2, MIN_EVENTS)
        return True
