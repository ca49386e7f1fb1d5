"""Limits of the collector: the size of one body, and of all bodies together."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property

from infra.rest.bodies import BodyLimits
from infra.rest.problems import Problem
from infra.settings import Settings

BYTES_PER_RECORD = 256
"""The overhead of a record, here and in librdkafka. It keeps many tiny records from evading the limit."""
BYTES_PER_DELIMITER = 8
"""A body as large as allowed may have one comma, colon or opening bracket for this many bytes."""
BYTES_PER_PARSED = 96
"""What parsed JSON is charged for each of them: common events take 65 bytes, the worst 150."""
MAX_SMALL_BODY = 4_000_000
"""For requests that carry no records, such as ten thousand locations in topics."""


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

    @cached_property
    def of_body(self) -> BodyLimits:
        """The limits of one body."""
        return BodyLimits(self.body, self.body_timeout_s, "collector_max_body_mb", "Nothing was stored.")

    @cached_property
    def of_small_body(self) -> BodyLimits:
        """The limits of a body that has no records."""
        size = min(self.body, MAX_SMALL_BODY)
        return BodyLimits(size, self.body_timeout_s, "where it carries no records", "Nothing was done.")


class Budget:
    """Bounds what all requests hold together, from the first byte of a body until Kafka acknowledged it.

    The event loop uses it, and the threads that unpack and parse large bodies.
    """

    def __init__(
        self,
        size: int,
        of_what: str = "of bodies, parsed JSON and events that Kafka has not acknowledged yet",
        setting: str = "collector_buffer_mb",
    ) -> None:
        self.size = size
        self.of_what = of_what
        self.setting = setting
        self.held = 0
        self.lock = threading.Lock()

    def charge(self) -> Charge:
        """A request's share, for a `with` statement: given back when it ends."""
        return Charge(self)


class Charge:
    """What one request holds of the budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0
        self._has_ended = False

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def add(self, size: int) -> None:
        """Charge more, or raise the problem 429.

        A request that is alone is admitted however large it is: its own limits bound it. Once the request has ended, a
        thread may still work on its body; it must charge nothing that nobody would give back.
        """
        budget = self.budget
        with budget.lock:
            if self._has_ended:
                raise Problem(400, "disconnected", "The connection was closed before the body was read.")
            if budget.held > self.held and budget.held + size > budget.size:
                raise Problem(
                    429,
                    "buffer-full",
                    f"The collector holds {budget.held} bytes {budget.of_what}; with this request it would be more "
                    f"than {budget.size}{budget.setting and f' ({budget.setting})'}. Nothing was stored. Send it again "
                    "later.",
                    retry_after_s=1,
                )
            budget.held += size
            self.held += size

    def add_parsed(self, delimiters: int) -> int:
        """Charge for JSON that is about to be parsed. What is charged may be given back when the values are gone.

        A request never takes more than half of the budget for this. Otherwise a large body that is allowed would be
        refused whenever anything else is held.
        """
        size = min(delimiters * BYTES_PER_PARSED, self.budget.size // 2)
        self.add(size)
        return size

    def give_back(self, size: int) -> None:
        """Give back some of what was charged."""
        with self.budget.lock:
            if not self._has_ended:
                self.budget.held -= size
                self.held -= size

    def end(self) -> None:
        """Give everything back."""
        with self.budget.lock:
            self._has_ended = True
            self.budget.held -= self.held
            self.held = 0
