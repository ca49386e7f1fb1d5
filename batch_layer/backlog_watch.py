"""Watch how far the speed layer is behind with each source, and what the scheduler should do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from redis import Redis
from redis.exceptions import RedisError

from batch_layer.announcement import VALID_S
from batch_layer.backlog import Action, Backlog, Limits, Sample, Verdict
from batch_layer.schedule import IS_BUSY
from hand_off.speed_views import STATE_BYTES, SpeedViews
from infra.backoff import pause_after
from infra.clients.redis import redis_client
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.cut import count_between

BUSY_S = 10.0
"""After another run was found at work."""
COUNT_S = 60.0
"""Between two counts of the states of a source, one call for each of its buckets."""
RETRY_S, MAX_RETRY_S = 300.0, 3600.0
NOTHING = Verdict(Action.NONE)

log = structlog.get_logger()


class NewestRun(NamedTuple):
    """Of a source: its number, how long it took, and how long ago it was published; None: there is none."""

    run: int
    seconds: float | None
    age_s: float | None
    is_pinned: bool = False
    """Whether readers were rolled back to a run: its speed views are kept, and no run frees anything."""


@dataclass
class _Watched:
    backlog: Backlog
    verdict: Verdict = NOTHING
    failures: int = 0
    is_wasted: bool = False
    """The last run was passed by the speed layer before it could overtake it: the next one is an ordinary one."""
    running_since_run: int | None = None
    """While an overtaking run is at work: the run that was published in Redis before it."""
    has_announced: bool = False
    """Whether that run has announced or declined by itself: from then on, the scheduler says nothing for it."""
    states: int = 0
    """As they were counted last."""
    counted_at: float = float("-inf")


@dataclass
class BacklogWatch:
    """The backlogs of all sources. One thread looks; another says when runs begin and end."""

    settings: Settings
    clock: Callable[[], float] = time.monotonic
    _watched: dict[str, _Watched] = field(default_factory=dict)
    _client: Redis | None = None

    def look(
        self, sources: Sequence[str], newest: Callable[[str], NewestRun], *, is_busy: bool = False
    ) -> Iterator[tuple[str, Action]]:
        """The sources that need a run now, each with the kind of run.

        While another run `is_busy`, none can begin: no writer is asked to wait for one.
        """
        if not self.settings.speed_enabled:
            return
        for source in sources:
            watched = self._of(source)
            before = watched.verdict.action
            try:
                watched.verdict = self._look_at(source, watched, newest(source), is_busy=is_busy)
            except (RedisError, OSError):  # answers say so; a run would not help
                watched.backlog.forget()
                watched.verdict = NOTHING
            action = watched.verdict.action
            if action != before and action != Action.NONE:
                log.info(
                    "backlog_found", source=source, action=str(action), reason=watched.verdict.reason,
                    catch_up_s=watched.verdict.catch_up_s and round(watched.verdict.catch_up_s),
                )  # fmt: skip
            if watched.running_since_run is None and action in (Action.OVERTAKE, Action.RUN):
                yield source, Action.RUN if watched.is_wasted else action

    def begin(self, source: str, action: Action) -> None:
        """A run of this kind is started for the source."""
        if action == Action.OVERTAKE:
            with suppress(RedisError, OSError):
                views, watched = SpeedViews(self._redis(), source), self._of(source)
                meta = views.reader.snapshot().meta
                watched.running_since_run, watched.has_announced = None if meta is None else meta.published, False
                if self._is_forecast(watched):  # in one step: the writer sees no moment without an announcement
                    views.runs.renew_forecast(VALID_S)
                else:
                    views.runs.withdraw()  # what an earlier run declined

    def end(self, source: str, code: int, newest_run: int) -> None:
        """It ended with this exit code; `newest_run` is the last one of the publish log now."""
        watched, now = self._of(source), self.clock()
        was_overtaking = watched.running_since_run is not None
        watched.running_since_run = None
        watched.backlog.forget()
        watched.failures = 0 if code in (0, IS_BUSY) else watched.failures + 1
        watched.is_wasted = False
        if code == IS_BUSY:
            watched.backlog.quiet_until = now + BUSY_S
        elif code:
            pause_s = pause_after(watched.failures, self.settings.batch_retry_s or RETRY_S, MAX_RETRY_S)
            watched.backlog.quiet_until = now + pause_s
        elif was_overtaking:
            watched.is_wasted = self._is_wasted(source, newest_run)
            if watched.is_wasted:
                log.warning("overtake_wasted", source=source, run=newest_run, reason="the speed layer was faster")

    def status(self, source: str) -> dict[str, Any]:
        """What is known of a source, for the scheduler's status."""
        watched = self._watched.get(source)
        if watched is None:
            return {"action": str(Action.NONE), "behind": None, "catch_up_s": None, "reason": ""}
        verdict = watched.verdict
        action = Action.OVERTAKE if watched.running_since_run is not None else verdict.action
        return {
            "action": str(action),
            "behind": verdict.behind,
            "catch_up_s": None if verdict.catch_up_s is None else round(verdict.catch_up_s, 1),
            "reason": verdict.reason,
        }

    def _look_at(self, source: str, watched: _Watched, newest: NewestRun, *, is_busy: bool) -> Verdict:
        views = SpeedViews(self._redis(), source)
        meta = views.reader.snapshot().meta
        if meta is None or views.reader.living_writer() is None:
            watched.backlog.forget()
            return NOTHING
        behind = count_between(meta.applied, views.reader.kafka_end() or {})
        applied = sum(meta.applied.values())
        memory: Any = views.client.info("memory")
        size = views.reader.state_bytes()
        share = size / int(memory["maxmemory"]) if int(memory["maxmemory"]) else 0.0
        to_come, states = views.reader.events_to_come(), self._states(views, watched, size)
        watched.backlog.add(Sample(self.clock(), applied, applied + behind, share, to_come, states))
        verdict = watched.backlog.judge(newest.seconds, newest.age_s)
        if verdict.action == Action.RUN and newest.is_pinned:
            return verdict._replace(action=Action.NONE)
        is_on_its_way = watched.running_since_run == meta.published  # and not yet handed off
        is_wanted = watched.running_since_run is None and verdict.action in (Action.WAIT, Action.OVERTAKE)
        is_about_to = is_wanted and not is_busy
        if is_on_its_way or is_about_to:
            self._forecast(views, watched)
        return verdict

    def _states(self, views: SpeedViews, watched: _Watched, size: int) -> int:
        """How many states there are; 0 where they take too little memory to be more than the limit. So they are counted
        only where they may be, and not every time.
        """
        limit = self.settings.overtake_states
        if not limit or size // STATE_BYTES <= limit:
            return 0
        if self.clock() - watched.counted_at >= COUNT_S:
            watched.counted_at = self.clock()
            with suppress(RedisError, OSError):  # what is overfull may answer late; its backlog is watched all the same
                watched.states = views.reader.size()[0]
        return watched.states

    def _is_forecast(self, watched: _Watched) -> bool:
        """Whether the scheduler announces the run that is to overtake, until that run does so by itself."""
        return not (watched.has_announced or watched.is_wasted) and bool(self.settings.overtake_pause_s)

    def _forecast(self, views: SpeedViews, watched: _Watched) -> None:
        if not self._is_forecast(watched):
            return
        is_ours = views.runs.forecast(VALID_S)
        watched.has_announced = watched.running_since_run is not None and not is_ours

    def _is_wasted(self, source: str, newest_run: int) -> bool:
        with suppress(RedisError, OSError):
            meta = SpeedViews(self._redis(), source).reader.snapshot().meta
            return meta is not None and meta.published < newest_run
        return False

    def _of(self, source: str) -> _Watched:
        return self._watched.setdefault(source, _Watched(Backlog(Limits.of(self.settings))))

    def _redis(self) -> Redis:
        if self._client is None:
            self._client = redis_client(self.settings, addresses(self.settings).redis, timeout_s=5)
        return self._client
