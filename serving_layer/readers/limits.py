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
    speed_states: int = 1_000_000
    """States of the speed view that are read."""
    speed_states_at_once: int = 20_000
    speed_mb_at_once: float = 16
    """What Redis reads in one call: it does nothing else meanwhile. More is read in parts, while the writer goes on."""
    followed_states: int = 250_000
    """States whose numbers are kept to rank very many keys, about 100 bytes each."""
    speed_buckets: int = 100_000
    speed_timeout_s: float = 0.5
    """Of one call to Redis. After that the result is made of the batch view alone."""
    speed_connections: int = 16
