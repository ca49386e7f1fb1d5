"""When batch runs are due, and which are overdue: pure functions of times, all in seconds since 1970.

One run answers for every due time up to its start: what was missed while the machine slept or the process was down is
made up by one run, at once. A run that failed is tried again before the next due time, after pauses that grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra.backoff import pause_after
from infra.cron import next_due, parse_cron, parse_zone

if TYPE_CHECKING:
    from apscheduler.triggers.base import BaseTrigger

MAX_PATIENCE_S = 3600.0
SETTLING_S = 30.0
"""A scheduler that has just been started is given this long before a failure of its first run counts against it."""
LONGEST_PAUSE_S = 3600.0
"""Up to which the pause before a failed run is tried again grows."""
IS_BUSY = 75
"""Exit code of a run that found another one at work."""


@dataclass(frozen=True)
class Schedule:
    """The due times of a cron text."""

    trigger: BaseTrigger

    @classmethod
    def of(cls, cron: str, zone: str = "UTC") -> Schedule:
        """As the settings `batch_schedule` and `batch_schedule_tz` give it."""
        return cls(parse_cron(cron, parse_zone(zone)))

    def next_after(self, at: float) -> float | None:
        """The first due time after a moment, not counting the moment itself."""
        due = next_due(self.trigger, datetime.fromtimestamp(at, UTC))
        return None if due is None else due.timestamp()

    def is_due(self, handled: float, now: float) -> bool:
        """Whether a due time has passed since the last run that answers for those before it began."""
        due = self.next_after(handled)
        return due is not None and due <= now

    def patience_s(self, due: float) -> float:
        """How long after its due time a run may finish: an hour, or half the time to the next one if that is less."""
        following = self.next_after(due)
        return MAX_PATIENCE_S if following is None else min(MAX_PATIENCE_S, (following - due) / 2)


@dataclass(frozen=True)
class Attempt:
    """What became of the last time that runs were started. `error` is for what went wrong before any run was.

    Where it tried again what had failed, `exit_codes` has also those of the tries before, and `tries` is their number.
    """

    started: float
    finished: float
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    tries: int = 1

    def has_failed(self, source: str) -> bool:
        """Whether it gave this source no new run. Somebody else's run at work is no failure."""
        return bool(self.error) or self.exit_codes.get(source, 0) not in (0, IS_BUSY)

    def gave_none(self, source: str) -> bool:
        """Whether it gave this source no new run, for whatever reason: the one at work may have begun too early."""
        return bool(self.error) or self.exit_codes.get(source, 0) != 0

    def next_try(self, pause_s: float) -> float:
        """When to try again: `pause_s` after the first failure, and twice the pause before after each further one."""
        # 300 s: an hour from the fifth on.
        return self.finished + pause_after(self.tries, pause_s, max(pause_s, LONGEST_PAUSE_S))


@dataclass(frozen=True)
class Progress:
    """What a scheduler must not forget when it is stopped.

    Due times up to `handled` were answered by a run; `seen` is when each source was first found.
    """

    handled: float
    last: Attempt | None = None
    seen: Mapping[str, float] = field(default_factory=dict)

    def with_sources(self, sources: Iterable[str], now: float) -> Progress:
        """The same, where exactly these sources have been seen."""
        return replace(self, seen={source: self.seen.get(source, now) for source in sources})

    def to_json(self) -> dict[str, Any]:
        """For the file in the home."""
        return asdict(self)


def progress_from_json(value: Any, now: float) -> Progress:
    """The inverse of `Progress.to_json`; of a file that is missing or damaged: nothing is due before now."""
    try:
        last = value["last"]
        return Progress(float(value["handled"]), None if last is None else Attempt(**last), dict(value["seen"]))
    except (TypeError, KeyError, ValueError):
        return Progress(now)


def overdue_since(
    schedule: Schedule, *, data_from: float, began: float, now: float, last: Attempt | None, source: str
) -> float | None:
    """The due time whose run a source lacks, once it should have been there; None where nothing is amiss.

    `data_from` is when its last published run was started, whoever started it, or when the source was first seen;
    `began` is when the scheduler was started.
    """
    due = schedule.next_after(data_from)
    if due is None or due > now:
        return None
    if last is not None and last.started >= due and last.has_failed(source):
        return due if now >= began + SETTLING_S else None
    return due if now >= max(due, began) + schedule.patience_s(due) else None
