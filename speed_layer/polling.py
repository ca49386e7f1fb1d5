"""How often Spark asks Kafka for new records: every few milliseconds while they arrive, seldom while none do.

Spark reads `spark.sql.streaming.pollingDelay` once, when a query starts. A delay short enough for busy times costs a
tenth of a core for each source in quiet ones, so the delay of the running query is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

BUSY_MS = 5
DELAYS = ((1.0, BUSY_MS), (10.0, 25), (60.0, 100))
"""Until so many seconds after the last micro-batch, Spark waits so many milliseconds between two looks."""
IDLE_MS = 200
"""After that."""

log = structlog.get_logger()


def delay_after(idle_s: float) -> int:
    """The delay, in milliseconds, so long after the last micro-batch."""
    return next((delay_ms for until_s, delay_ms in DELAYS if idle_s < until_s), IDLE_MS)


class Polling:
    """The delay of one query. The thread that watches the query calls `adapt`, Spark's own calls `record`."""

    def __init__(self, set_delay: Callable[[int], None] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._set, self._clock = set_delay, clock
        self._last = clock()
        self.delay_ms = BUSY_MS

    def record(self) -> None:
        """A micro-batch was taken: Spark looks often again."""
        self._last = self._clock()
        self._change(BUSY_MS)

    def adapt(self) -> None:
        """Follow the time since the last micro-batch. Called now and then."""
        self._change(delay_after(self._clock() - self._last))

    def _change(self, delay_ms: int) -> None:
        if self._set is None or delay_ms == self.delay_ms:
            return
        self._set(delay_ms)
        self.delay_ms = delay_ms


def delay_setter(query: StreamingQuery) -> Callable[[int], None] | None:
    """What sets the delay of a running query; None where this Spark has no such field, and the delay stays as it is."""
    try:
        execution: Any = query._jsq.streamingQuery()
        declaring = execution.getClass()
        while declaring.getSimpleName() != "StreamExecution":
            declaring = declaring.getSuperclass()
        found = declaring.getDeclaredField("pollingDelayMs")
        found.setAccessible(True)
    except (Py4JError, AttributeError) as error:
        log.warning("polling_delay_fixed", reason=str(error).partition("\n")[0])
        return None
    return lambda delay_ms: found.setLong(execution, delay_ms)
