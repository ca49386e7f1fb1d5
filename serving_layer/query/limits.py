"""The limits of a query: how large it may be, what its execution may take, and the budget that is left of that."""

from __future__ import annotations

import time
from dataclasses import dataclass

from infra.settings import Settings
from serving_layer.errors import TooLarge, TooLong
from serving_layer.readers.limits import ExecutionLimits

CHECK_EVERY = 512
"""The clock is read once for so many states."""
NARROWER = "Ask for fewer keys, a shorter range, or periods of whole days or months, which need few states"


@dataclass(frozen=True)
class QueryLimits:
    """How large a query may be. It is refused when it is parsed."""

    max_rows: int = 10_000
    """Rows of one page."""
    max_periods: int = 20_000
    """Periods that a range is cut into."""
    max_values: int = 1_000
    """Values that the filters name, all together."""
    max_answer_mb: float = 16
    """Size of the body of an answer. Refused when it is written."""
    max_wait_s: float = 30.0
    """Seconds that a query may wait for the views to be fresh enough."""


def query_limits(settings: Settings) -> QueryLimits:
    """How large the settings let a query be."""
    return QueryLimits(
        max_rows=settings.serving_max_rows,
        max_periods=settings.serving_max_periods,
        max_values=settings.serving_max_values,
        max_answer_mb=settings.serving_max_answer_mb,
        max_wait_s=settings.serving_max_wait_s,
    )


def execution_limits(settings: Settings) -> ExecutionLimits:
    """What the settings let its execution take."""
    return ExecutionLimits(
        max_groups=settings.serving_max_groups,
        max_state_mb=settings.serving_max_state_mb,
        cache_mb=settings.serving_cache_mb / 2,  # the other half is for queries that are asked again
        timeout_s=settings.serving_timeout_s,
        speed_states=settings.serving_max_speed_states,
        speed_states_at_once=settings.serving_speed_states_at_once,
        followed_states=settings.serving_followed_states,
        speed_timeout_s=settings.serving_redis_timeout_s,
        speed_connections=settings.serving_threads + settings.serving_max_waiting,
    )


@dataclass
class QueryBudget:
    """What is left for one query. Threads do not share it."""

    limits: ExecutionLimits
    deadline: float
    """By the monotonic clock."""
    groups: int = 0
    bytes: int = 0

    def spend(self, groups: int, size: int = 0) -> None:
        """Count states or rows, and their bytes. TooLarge or TooLong where the budget is used up."""
        self.groups += groups
        self.bytes += size
        if self.groups > self.limits.max_groups:
            raise TooLarge(
                f"The query needs more than {self.limits.max_groups} states (serving_max_groups). {NARROWER}.",
                limit="serving_max_groups",
            )
        if self.bytes > self.limits.max_state_mb * 1_000_000:
            raise TooLarge(
                f"The query needs states of more than {self.limits.max_state_mb:g} MB (serving_max_state_mb). "
                f"{NARROWER}.",
                limit="max_state_mb",
            )
        self.check_time()

    def check_time(self) -> None:
        """TooLong once the deadline has passed."""
        if time.monotonic() > self.deadline:
            raise timed_out(self.limits.timeout_s)


def timed_out(timeout_s: float) -> TooLong:
    """The error of a query that took longer than `serving_timeout_s`."""
    return TooLong(
        f"The query took longer than {timeout_s:g} s (serving_timeout_s). Ask for fewer keys, a shorter range or a "
        "coarser grain, or try again when the server is less busy."
    )
