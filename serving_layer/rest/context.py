"""What the routes of the serving layer share. `create_app` creates it once, for one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from infra.rest.bodies import BodyLimits
from infra.rest.problems import Problem
from infra.settings import Settings
from infra.threads import P, T, Threads
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError
from serving_layer.metrics import ServingMetrics
from serving_layer.query.limits import QueryLimits, timed_out
from serving_layer.rest.access import ViewAccess
from views.declarations import Declarations

GRACE_S = 1.0
"""QueryEngine ends by itself after `serving_timeout_s`. So much later the request stops waiting for it."""
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
    """For queries that wait until the views are fresh enough: other queries do not wait behind them."""
    metrics: ServingMetrics

    @property
    def body_limits(self) -> BodyLimits:
        """For the body of one request."""
        size = int(self.settings.serving_max_body_kb * 1000)
        return BodyLimits(size, self.settings.serving_timeout_s, "serving_max_body_kb")

    async def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run it in a thread, or queue it: the problem 429 if the queue is full, TooLong if it takes too long."""
        return await self._run(self.answers, 0.0, work, *arguments, **named)

    async def run_waiting(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The same for work that may wait for fresher views first."""
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
            raise timed_out(timeout_s) from None


def problem_of(error: ServingError) -> Problem:
    """The problem document of an error."""
    more = {name: value for name, value in error.more.items() if value is not None}
    retry_after_s = RETRY_AFTER_S if error.status == 503 else None
    return Problem(error.status, error.kind, error.detail, retry_after_s=retry_after_s, **more)
