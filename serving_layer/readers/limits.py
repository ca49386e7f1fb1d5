"""What the execution of a query may take; readers stop at their part of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExecutionLimits:
    """What the execution of one query may take at most. Settings have the same names with `serving_` in front."""

    max_groups: int = 1_000_000
    """States that are read and merged, and rows that are made of them."""
    max_state_mb: float = 256
    """Size of these states."""
    cache_mb: float = 32
    """Size of the presentation cache, which all queries share."""
    timeout_s: float = 30.0
    speed_states: int = 100_000
    speed_mb: float = 64
    """What Redis reads in one call: it does nothing else meanwhile, so this is a quarter of a second at most."""
    speed_buckets: int = 100_000
    speed_timeout_s: float = 0.5
    """Of one call to Redis. After that the result is made of the batch view alone."""
    speed_connections: int = 16
