"""What the routes of the serving layer share: made once by `create_app`, for one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from infra.rest.bodies import BodyLimits
from infra.rest.problems import Problem
from infra.settings import Settings
from infra.threads import P, T, Threads
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError, TooLong
from serving_layer.metrics import ServingMetrics
from serving_layer.query.limits import QueryLimits
from serving_layer.rest.access import ViewAccess
from views.declarations import Declarations

GRACE_S = 1.0
"""QueryEngine ends by itself when its time is over; this much later nobody waits for it any more."""
RETRY_AFTER_S = 1


@dataclass(frozen=True)
class Serving:
    """The parts of the serving layer."""

    settings: Settings
    declarations: Declarations
    access: ViewAccess
    limits: QueryLimits
    engine: QueryEngine
    answers: Threads
    waits: Threads
    """For questions that wait until the views are as fresh as they ask for: others do not wait behind them."""
    metrics: ServingMetrics

    @property
    def body_limits(self) -> BodyLimits:
        """Of one request."""
        size = int(self.settings.serving_max_body_kb * 1000)
        return BodyLimits(size, self.settings.serving_timeout_s, "serving_max_body_kb")

    async def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Do it in a thread, now or within a bounded queue: the problem 429 beyond that, TooLong when it takes long."""
        return await self._run(self.answers, 0.0, work, *arguments, **named)

    async def run_waiting(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The same for what may wait for fresher views first."""
        return await self._run(self.waits, self.settings.serving_max_wait_s, work, *arguments, **named)

    async def _run(
        self, threads: Threads, wait_s: float, work: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> T:
        timeout_s = self.settings.serving_timeout_s
        try:
            async with asyncio.timeout(wait_s + timeout_s + GRACE_S) as limit:
                return await threads.run_now(work, *arguments, **named)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TooLong(
                f"There was no answer after {timeout_s:g} s (serving_timeout_s). Ask for fewer keys, a shorter range "
                "or a coarser grain, or try again when less is asked."
            ) from None


def problem_of(error: ServingError) -> Problem:
    """What the client gets to see."""
    more = {name: value for name, value in error.more.items() if value is not None}
    retry_after_s = RETRY_AFTER_S if error.status == 503 else None
    return Problem(error.status, error.kind, error.detail, retry_after_s=retry_after_s, **more)
