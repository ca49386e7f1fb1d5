"""Read speed views: what Redis holds since the cut of a run, in one step, or the reason why there is nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from hand_off.batch_folder import BatchFolder
from hand_off.speed_floor import first_run, floor_file, waiting_for_run
from hand_off.speed_views import Outcome, ReadLimits, RedisSnapshot, SpeedAnswer, SpeedViews, StateRange, WideLimits
from infra.disk import FileStamp, file_stamp
from master_dataset.cut import Cut, count_between, cut_to_json, is_below, join
from serving_layer.errors import TooLarge
from serving_layer.readers.followed import Chosen, Followed, FollowedViews, Following
from serving_layer.readers.limits import ExecutionLimits
from serving_layer.readers.selection import Period
from views.grain import parse_grain
from views.view import View

Reply = TypeVar("Reply")
RETRY_AFTER_S = 0.5
"""After Redis did not reply, results are made without it for so long, at once."""
MAX_STATES_AT_ONCE, MAX_MB_AT_ONCE = 100_000, 64
"""What Redis reads in one call at the most, where reading in parts fails: it does nothing else for 0.2 s."""


class SpeedSnapshot(NamedTuple):
    """What a speed view holds, all of one moment, or the reason why it holds nothing."""

    answer: SpeedAnswer | None
    reason: str | None
    highest_cut: Cut
    """Of all results before this one."""

    @property
    def is_refused(self) -> bool:
        """Whether it does not continue the run that was named: another run has to be read."""
        return self.answer is not None and self.answer.outcome == Outcome.REFUSED


class SpeedStatus(NamedTuple):
    """What Redis holds of a source, and whether a writer is alive."""

    kept: RedisSnapshot
    is_written: bool


class SpeedViewReader:
    """Reads the speed views of one source. Threads share it."""

    def __init__(self, client: Redis, folder: BatchFolder, limits: ExecutionLimits) -> None:
        self._speed_views, self._limits, self._folder = SpeedViews(client, folder.source), limits, folder
        self._views = self._speed_views.reader
        self.followed = FollowedViews(self._speed_views, limits)
        self._floor_file = floor_file(folder)
        self._floor: tuple[FileStamp | None, int] = (None, 0)
        self._lock = threading.Lock()
        self._highest: Cut = {}
        self._away: tuple[float, str] = (0.0, "")
        """Until when Redis is not asked, and the reason."""

    def read(self, run: int, cut: Cut, ranges: Sequence[StateRange], *, in_parts: bool = True) -> SpeedSnapshot:
        """The states since the cut of a run, all of one moment. TooLarge where they are too many.

        `in_parts`: states that are too many for one call are read in several; else they are too many.
        """
        highest, (until, reason) = self._highest, self._away
        if run < self._first_run():
            return SpeedSnapshot(None, waiting_for_run(self._folder.source), highest)
        if time.monotonic() < until:
            return SpeedSnapshot(None, reason, highest)
        try:
            answer = self._answer(run, cut, ranges, self._limits.speed_states_at_once, self._limits.speed_mb_at_once)
            if answer.outcome == Outcome.TOO_MANY and in_parts:
                answer = self._answer_in_parts(run, cut, ranges)
        except (RedisError, OSError) as error:
            reason = f"Redis does not reply ({error})"
            self.record_failure(error)
            return SpeedSnapshot(None, reason, highest)
        return self._snapshot(answer, highest)

    def choose(
        self, run: int, cut: Cut, what: Following, period: Period, choice: Callable[[Mapping[bytes, int]], Chosen]
    ) -> Followed[Chosen] | None:
        """What `choice` makes of the numbers of very many keys (followed.py); None where these cannot be followed."""
        if not self.can_read(run):
            return None
        try:
            return self.followed.choose(run, cut, what, period, choice)
        except (RedisError, OSError) as error:
            self.record_failure(error)
            return None

    def encoded_read(self, run: int, cut: Cut, ranges: Sequence[StateRange]) -> bytes:
        """The one call of `read` as Redis reads it, for a client that sends bytes."""
        return self._views.encoded_answer(run, cut, ranges, self._read_limits())

    def can_read(self, run: int) -> bool:
        """Whether Redis is asked at all for what continues a run."""
        return run >= self._first_run() and time.monotonic() >= self._away[0]

    @property
    def highest_cut(self) -> Cut:
        """The highest cut of all results so far. Take it before you read."""
        return self._highest

    def snapshot_from(self, reply: Sequence[Any], highest: Cut) -> SpeedSnapshot:
        """What Redis replied to an encoded read. TooLarge where there are too many states."""
        return self._snapshot(self._views.answer_from(reply), highest)

    def record_failure(self, error: Exception) -> None:
        """Redis did not reply: it is not asked again for a moment."""
        self._away = time.monotonic() + RETRY_AFTER_S, f"Redis does not reply ({error})"

    def _snapshot(self, answer: SpeedAnswer, highest: Cut) -> SpeedSnapshot:
        if answer.outcome == Outcome.TOO_MANY:
            raise self._too_many()
        if answer.outcome == Outcome.LOST:
            reason = "Redis holds no speed views of this source: they were lost, or not written yet"
            return SpeedSnapshot(None, reason, highest)
        return SpeedSnapshot(answer, None, highest)

    def _first_run(self) -> int:
        """The first run that speed views may continue. The file is read only when its stamp has changed."""
        stamp = file_stamp(self._floor_file)  # before it is read: what comes meanwhile is seen next time
        known, found = self._floor
        if stamp != known:
            found = first_run(self._folder)
            self._floor = stamp, found
        return found

    def _answer(self, run: int, cut: Cut, ranges: Sequence[StateRange], max_states: int, max_mb: float) -> SpeedAnswer:
        limits = self._limits
        return self._views.answer(
            run, cut, ranges, max_buckets=limits.speed_buckets, max_states=min(max_states, limits.speed_states),
            max_bytes=int(min(max_mb, limits.max_state_mb) * 1_000_000),
        )  # fmt: skip

    def _read_limits(self) -> ReadLimits:
        limits = self._limits
        max_bytes = int(min(limits.speed_mb_at_once, limits.max_state_mb) * 1_000_000)
        return ReadLimits(limits.speed_buckets, min(limits.speed_states_at_once, limits.speed_states), max_bytes)

    def _answer_in_parts(self, run: int, cut: Cut, ranges: Sequence[StateRange]) -> SpeedAnswer:
        """In several calls; in one where the writer was faster each time, or does not record what it changes."""
        limits = self._limits
        wide = WideLimits(
            limits.speed_buckets, limits.speed_states, int(limits.max_state_mb * 1_000_000),
            time.monotonic() + limits.timeout_s,
        )  # fmt: skip
        found = self._speed_views.answer_in_parts(run, cut, ranges, wide)
        return found or self._answer(run, cut, ranges, MAX_STATES_AT_ONCE, MAX_MB_AT_ONCE)

    def _too_many(self) -> TooLarge:
        limits = self._limits
        return TooLarge(
            f"The query needs more than {limits.speed_states} states (serving_max_speed_states), "
            f"{limits.max_state_mb:g} MB (serving_max_state_mb) or {limits.speed_buckets} buckets of the speed view, "
            "or the speed view changed faster than it could be read. Ask for fewer keys or a shorter range, or start a "
            "batch run (`tidemark batch run`), which takes them over.",
            limit="serving_max_speed_states",
        )

    def status(self) -> SpeedStatus | None:
        """None where Redis does not reply."""
        return self._reply(lambda: SpeedStatus(self._views.snapshot(), self._views.living_writer() is not None))

    def data_range(self, view: View, run: int) -> tuple[int, int] | None:
        """The times of the states since a run, [begin, end) in seconds; None where there are none or no reply."""

        def buckets_since_run() -> tuple[int, int] | None:
            gids = [each.gid for each in self._views.snapshot().generations if each.run >= run]
            return self._views.bucket_range(gids, view.hash)

        buckets = self._reply(buckets_since_run)
        return None if buckets is None else (buckets[0], buckets[1] + parse_grain(view.grain).seconds)

    def _reply(self, read: Callable[[], Reply]) -> Reply | None:
        """What Redis replies; None where it does not, and for a moment after that."""
        if time.monotonic() < self._away[0]:
            return None
        try:
            return read()
        except (RedisError, OSError) as error:
            self.record_failure(error)
            return None

    def record_cut(self, cut: Cut) -> None:
        """Remember the cut of a result: a later one below it is degraded."""
        if not is_below(cut, self._highest):
            with self._lock:
                self._highest = join(self._highest, cut)


def why_behind(answer: SpeedAnswer) -> str | None:
    """Why a speed view lacks events for longer than a moment, and how many; None where it keeps up, or nobody writes.

    A writer that is merely busy is no reason: the lag of an answer says how far it is.
    """
    events = None if answer.lag is None else answer.lag.events
    seconds = None if answer.lag is None else answer.lag.seconds
    if not answer.problem and (not events or seconds is not None):
        return None
    count = f"At least {events:,} events" if events else "An unknown number of events"
    age = f"is {seconds:,.0f} s old" if seconds is not None else "is of an unknown age"
    problem = f"The speed layer cannot go on: {answer.problem.rstrip('.')}" if answer.problem else "It is catching up"
    return f"{problem}. {count} of Kafka are not in this answer, which {age}."


def behind(cut: Cut, before: Cut) -> str:
    """Why a result at a cut is degraded after one that held more."""
    return (
        f"An earlier answer held {count_between(cut, before)} more events: it was at {cut_to_json(before)}. "
        "Redis was restored to an older state or emptied, and is catching up."
    )
