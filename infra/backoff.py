"""How long to wait before the next attempt at something that failed."""

from __future__ import annotations

MAX_DOUBLINGS = 30
"""After a night of failures, 2 ** failures is more than a float can hold."""


def pause_after(failures: int, first_s: float, max_s: float) -> float:
    """`first_s` after the first failure in a row, twice as long after each further one, at most `max_s`."""
    return min(first_s * 2.0 ** min(failures - 1, MAX_DOUBLINGS), max_s)
