"""How much one answer may take: whatever is asked, the process goes on answering others."""

from __future__ import annotations

import time
from dataclasses import dataclass

from serving_layer.errors import TooLarge, TooLong

CHECK_EVERY = 512
"""So many states are looked at between two looks at the clock."""


@dataclass(frozen=True)
class ExecutionLimits:
    """What one answer may take at most. Those that are settings are called the same there, after `serving_`."""

    max_groups: int = 1_000_000
    """States that are read and merged, and rows that are made of them."""
    max_state_mb: float = 256
    """Bytes of all these states."""
    cache_mb: float = 32
    """Of all answers together: those that were presented lately."""
    timeout_s: float = 30.0
    speed_states: int = 100_000
    speed_mb: float = 64
    """What Redis looks at in one call: while it does, it does nothing else, for a quarter of a second at most."""
    speed_buckets: int = 100_000
    speed_timeout_s: float = 0.5
    """Of one call to Redis; beyond it the answer is made of the batch side alone."""
    speed_connections: int = 16


@dataclass
class QueryBudget:
    """What is left for one answer. Threads do not share it."""

    bounds: ExecutionLimits
    deadline: float
    """When it must be there, by the monotonic clock."""
    groups: int = 0
    bytes: int = 0

    def spend(self, groups: int, size: int = 0) -> None:
        """Take so many states, or rows. TooLarge or TooLong where that is too much."""
        self.groups += groups
        self.bytes += size
        if self.groups > self.bounds.max_groups:
            raise TooLarge(
                f"The question needs more than {self.bounds.max_groups} states (serving_max_groups). Ask for fewer "
                "keys, a shorter range, or periods that are whole days or months, for which few are read.",
                limit="serving_max_groups",
            )
        if self.bytes > self.bounds.max_state_mb * 1_000_000:
            raise TooLarge(
                f"The question needs states of more than {self.bounds.max_state_mb:g} MB. Ask for fewer keys, a "
                "shorter range, or periods that are whole days or months, for which few are read.",
                limit="max_state_mb",
            )
        self.check_time()

    def check_time(self) -> None:
        """TooLong where the time is over."""
        if time.monotonic() > self.deadline:
            raise TooLong(
                f"There was no answer after {self.bounds.timeout_s:g} s (serving_timeout_s). Ask for fewer keys, a "
                "shorter range or a coarser grain, or try again when less is asked."
            )
