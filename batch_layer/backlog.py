"""When a run should overtake the speed layer: pure functions of what was seen of its backlog, all times in seconds.

The speed layer works through a backlog event by event; a run computes history much faster, but takes a while to begin.
So a run is worth it only if the speed layer, at the rate that it is seen to have, would take longer than the run. While
events still pour in faster than they are worked off, a run would end before the last of them: it waits, for a while.
An import says how many events it has yet to send: they count as if they were there, and the run itself waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from infra.settings import Settings

WINDOW_S = 30.0
"""How far back rates are measured."""
SETTLING_S = 3.0
"""So long Kafka's end has to be calm before a run begins."""
MAX_WAIT_S = 120.0
"""After so long a run begins though events still pour in."""
CALM = 0.02
"""Of the backlog: what may come in while Kafka's end counts as calm."""
FIRST_RUN_S, START_S, RUN_EVENTS_S = 20.0, 10.0, 20_000
"""What a run takes: where none was made yet, until its process works, and how many events a second it then adds."""
LOAD_OBSERVED_S = 3.0
"""How long the speed layer is watched while an import says what it has yet to send."""
REST_S = 600.0
"""Between two runs that were started because of the size of the speed views."""


class Action(StrEnum):
    """What to do about the backlog of a source."""

    NONE = "none"
    WAIT = "wait"
    """A run will overtake, once the events that pour in are all there."""
    OVERTAKE = "overtake"
    RUN = "run"
    """An ordinary run, which frees speed views that have grown large."""


@dataclass(frozen=True)
class Limits:
    """The settings."""

    behind_events: int
    behind_s: float
    redis_share: float
    states: int = 0
    """0: of any number."""

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """By the settings."""
        return cls(
            settings.overtake_behind_events, settings.overtake_behind_s, settings.overtake_redis_share,
            settings.overtake_states,
        )  # fmt: skip

    @property
    def observed_s(self) -> float:
        """How long a backlog is watched before its rate means anything."""
        return min(self.behind_s / 3, WINDOW_S)


class Sample(NamedTuple):
    """The speed layer at a moment: events applied and events in Kafka since its beginning, the share of Redis that its
    states take, and how many these are.
    """

    at: float
    applied: int
    end: int
    redis_share: float = 0.0
    to_come: int | None = None
    """About what an import has yet to send; None: no import is at work."""
    states: int = 0
    """0: not known, and surely not above the limit."""

    @property
    def behind(self) -> int:
        """Events that wait."""
        return max(self.end - self.applied, 0)

    @property
    def ahead(self) -> int:
        """Events that the speed layer has before it: those that wait, and those that an import has yet to send."""
        return self.behind + (self.to_come or 0)


class Verdict(NamedTuple):
    """What to do, and how long the speed layer would take by itself; None: not known, or for ever."""

    action: Action
    behind: int = 0
    catch_up_s: float | None = None
    reason: str = ""


@dataclass
class Backlog:
    """What was seen of the backlog of one source."""

    limits: Limits
    samples: list[Sample] = field(default_factory=list)
    waiting_since: float | None = None
    quiet_until: float = 0.0
    """No run is started before: one has just ended, or failed."""

    def add(self, sample: Sample) -> None:
        """One more. A backlog begins where the speed layer was last abreast, or went back."""
        if not sample.behind or (self.samples and sample.applied < self.samples[-1].applied):
            self.samples, self.waiting_since = [], None
        self.samples.append(sample)
        while len(self.samples) > 1 and sample.at - self.samples[1].at >= WINDOW_S:
            del self.samples[0]

    def forget(self) -> None:
        """After a run, or while nobody writes."""
        self.samples, self.waiting_since = [], None

    def judge(self, last_run_s: float | None, since_run_s: float | None = None) -> Verdict:
        """What to do now. `last_run_s`: how long the newest run took; `since_run_s`: how long ago it was published."""
        if not self.samples:
            return Verdict(Action.NONE)
        now = self.samples[-1]
        catch_up_s = catch_up(self.samples)
        if now.at < self.quiet_until:
            return Verdict(Action.NONE, now.behind, catch_up_s)
        if self.waiting_since is not None or self._is_worth_it(now, catch_up_s, last_run_s):
            # Once decided it stays so: while it is waited for, the speed layer stands still.
            self.waiting_since = now.at if self.waiting_since is None else self.waiting_since
            is_calm = self.is_calm() or now.at - self.waiting_since > MAX_WAIT_S
            action = Action.OVERTAKE if is_calm else Action.WAIT
            return Verdict(action, now.behind, catch_up_s, f"{now.behind:,} events behind")
        reason = self._why_too_large(now)
        if reason and (since_run_s is None or since_run_s > REST_S):
            return Verdict(Action.RUN, now.behind, catch_up_s, reason)
        return Verdict(Action.NONE, now.behind, catch_up_s)

    def _why_too_large(self, now: Sample) -> str:
        """Why the speed views should be freed; empty: they need not."""
        if now.redis_share > self.limits.redis_share:
            return f"{now.redis_share:.0%} of Redis taken"
        if self.limits.states and now.states > self.limits.states:
            return f"{now.states:,} states"
        return ""

    def _is_worth_it(self, now: Sample, catch_up_s: float | None, last_run_s: float | None) -> bool:
        if not self.limits.behind_events or now.ahead < self.limits.behind_events:
            return False
        # One that has not moved yet may just be at its first micro-batch: that says nothing within three seconds.
        is_known_soon = now.to_come is not None and catch_up_s is not None
        if now.at - self.samples[0].at < (LOAD_OBSERVED_S if is_known_soon else self.limits.observed_s):
            return False
        if catch_up_s is None:
            return True
        # behind_s 0 is for those who want it at once, whatever a run takes
        least_s = max(self.limits.behind_s, run_seconds(now.ahead, last_run_s)) if self.limits.behind_s else 0.0
        return catch_up_s > least_s

    def is_calm(self) -> bool:
        """Whether a run may begin: nothing much came to Kafka lately, or what pours in is an import. The run starts
        meanwhile, and waits for the import's end by itself.
        """
        now = self.samples[-1]
        if any(sample.to_come is not None for sample in self.samples):
            return True
        before = [sample for sample in self.samples if now.at - sample.at >= SETTLING_S]
        if not before:
            return False
        return now.end - before[-1].end <= CALM * now.behind


def catch_up(samples: Sequence[Sample]) -> float | None:
    """How long the speed layer would take at the rate of these samples; None where it does not move."""
    first, last = samples[0], samples[-1]
    if not last.ahead:
        return 0.0
    moved = last.applied - first.applied
    return last.ahead * (last.at - first.at) / moved if moved > 0 else None


def run_seconds(behind: int, last_run_s: float | None) -> float:
    """About how long a run would take that also computes so many events."""
    return START_S + (FIRST_RUN_S if last_run_s is None else last_run_s) + behind / RUN_EVENTS_S
