"""Limits of the collector: the size of one body, and of all bodies together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from infra.rest.bodies import BodyLimits
from infra.rest.problems import Problem
from infra.settings import Settings

BYTES_PER_RECORD = 256
"""The overhead of a record, here and in librdkafka. It keeps many tiny records from evading the limit."""


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, and the number of records in one request."""

    body: int
    event: int
    batch: int
    buffer: int
    body_timeout_s: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits that the settings give."""
        return cls(
            body=int(settings.collector_max_body_mb * 1_000_000),
            event=int(settings.collector_max_event_kb * 1000),
            batch=settings.collector_max_batch,
            buffer=int(settings.collector_buffer_mb * 1_000_000),
            body_timeout_s=settings.collector_body_timeout_s,
        )

    @property
    def of_body(self) -> BodyLimits:
        """The limits of one body."""
        return BodyLimits(self.body, self.body_timeout_s, "collector_max_body_mb", "Nothing was stored.")


class Budget:
    """Bounds what all requests hold together, from the first byte of a body until Kafka acknowledged it.

    Used by the event loop alone, so it needs no lock.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0

    @contextmanager
    def charge(self) -> Iterator[Charge]:
        """A request's share, given back when it ends."""
        share = Charge(self)
        try:
            yield share
        finally:
            self.held -= share.held


class Charge:
    """What one request holds of the budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0

    def add(self, size: int) -> None:
        """Charge more, or raise the problem 429.

        A request that is alone is admitted however large it is: its own limits bound it.
        """
        budget = self.budget
        if budget.held > self.held and budget.held + size > budget.size:
            raise Problem(
                429,
                "buffer-full",
                f"The collector holds {budget.held} bytes that Kafka has not acknowledged yet; with this request it "
                f"would be more than {budget.size} (collector_buffer_mb). Nothing was stored. Send it again later.",
                retry_after_s=1,
            )
        budget.held += size
        self.held += size
