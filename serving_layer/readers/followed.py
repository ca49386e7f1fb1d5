"""Follow the numbers by which very many keys are ranked: read once, then only what micro-batches change.

Numbers are kept of the views and answers that were last asked for, as many as `followed_states` allows. Each read is of
the cut that Redis has applied by then, exactly as if all headers had been read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from hand_off.speed_views import FollowedNumbers, Outcome, SpeedAnswer, SpeedViews, StateRange, WideLimits
from master_dataset.cut import Cut
from serving_layer.readers.limits import ExecutionLimits
from serving_layer.readers.selection import Period
from views.states import HeadReader
from views.view import View

MAX_IDLE_S = 600
"""Numbers that nobody asked for in so long are let go when others are asked for."""
MAX_BYTES = 2**62
"""Of the states. Only their headers are read, so the number of these is the limit."""
TRIES = 3
"""How often all headers are read again where the writer or a batch run was faster."""

Chosen = TypeVar("Chosen")


class Following(NamedTuple):
    """What is followed: an answer of a version of a view."""

    view: View
    answer: str

    @property
    def name(self) -> tuple[str, str]:
        """One name for equal ones."""
        return self.view.hash, self.answer


class Followed(NamedTuple, Generic[Chosen]):
    """What was chosen by the numbers, and at which cut of which speed views."""

    chosen: Chosen
    applied: Cut
    made: str


class _Entry:
    """The numbers of one answer. Whoever reads or changes them holds the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers: FollowedNumbers | None = None
        self.size = 0
        self.used_at = time.monotonic()


class FollowedViews:
    """The numbers that are kept of the speed views of one source. Threads share it."""

    def __init__(self, speed_views: SpeedViews, limits: ExecutionLimits) -> None:
        self._speed_views, self._limits = speed_views, limits
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """How many numbers are kept."""
        with self._lock:
            return sum(entry.size for entry in self._entries.values())

    def follows(self, run: int, what: Following, period: Period) -> bool:
        """Whether the sums of this period are kept since this run."""
        entry = self._entries.get(what.name)
        numbers = entry.numbers if entry is not None else None
        return numbers is not None and numbers.run == run and numbers.has_sums(period)

    def choose(
        self, run: int, cut: Cut, what: Following, period: Period, choice: Callable[[Mapping[bytes, int]], Chosen]
    ) -> Followed[Chosen] | None:
        """What `choice` makes of the sums of a period, by key, at the cut that is applied now. It must not keep them.

        None where the speed views do not continue the run, are lost, have more states than may be kept, or change too
        fast.
        """
        entry = self._hold(what.name)
        if entry is None:
            return None
        try:
            answer = self._read(entry, run, cut, what, period)
            if answer is None or entry.numbers is None:
                return None
            return Followed(choice(entry.numbers.sums(period)), answer.applied, answer.made)
        finally:
            if entry.numbers is not None:  # sums are made again of the numbers; those only by reading all headers
                entry.numbers.shrink(self._limits.followed_states)
            entry.size = entry.numbers.size if entry.numbers is not None else 0
            entry.lock.release()
            self._let_go()

    def _hold(self, name: tuple[str, str]) -> _Entry | None:
        """The entry of this name, with its lock; None where others held it for too long."""
        deadline = time.monotonic() + self._limits.timeout_s
        while True:
            with self._lock:
                entry = self._entries.setdefault(name, _Entry())
                entry.used_at = time.monotonic()
            if not entry.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return None
            with self._lock:
                is_kept = self._entries.get(name) is entry
            if is_kept:  # it may have been let go while we waited
                return entry
            entry.lock.release()

    def _read(self, entry: _Entry, run: int, cut: Cut, what: Following, period: Period) -> SpeedAnswer | None:
        """What changed since the last read; all headers where that is not known."""
        numbers = entry.numbers
        if numbers is not None and numbers.run == run and numbers.begin <= period[0]:
            found = numbers.catch_up()
            if found is not None:
                return found
        entry.numbers = numbers = None  # so that its memory is free before the next one takes as much
        numbers = self._speed_views.followed_numbers(
            run, cut, StateRange(what.view.hash, period[0]), HeadReader(what.view.algebras, what.answer).read,
            self._wide_limits(),
        )  # fmt: skip
        found = numbers.read(TRIES)
        if found is None or found.outcome != Outcome.OK:
            return None
        entry.numbers = numbers
        return found

    def _wide_limits(self) -> WideLimits:
        limits = self._limits
        return WideLimits(
            limits.speed_buckets, min(limits.speed_states, limits.followed_states), MAX_BYTES,
            time.monotonic() + limits.timeout_s,
        )  # fmt: skip

    def _let_go(self) -> None:
        """Numbers that nobody asks for any more go; so do those last asked for longest ago, where all are too many."""
        with self._lock:
            oldest = sorted(self._entries.items(), key=lambda each: each[1].used_at)
            count = sum(entry.size for _, entry in oldest)
            until = time.monotonic() - MAX_IDLE_S
            for name, entry in oldest:
                if entry.used_at < until or count > self._limits.followed_states:
                    count -= entry.size
                    del self._entries[name]
