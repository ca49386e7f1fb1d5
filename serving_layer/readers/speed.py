"""The speed side: what Redis has since the cut of a run, read in one step, or why there is nothing (degraded)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from redis import Redis
from redis.exceptions import RedisError

from hand_off.speed_views import Outcome, RedisSnapshot, SpeedAnswer, SpeedViews, StateRange
from master_dataset.cut import Cut, count_between, cut_to_json, is_below, join
from serving_layer.errors import TooLarge
from serving_layer.query.budget import ExecutionLimits

AGAIN_S = 0.5
"""After Redis did not answer, nobody waits for it for so long: answers are made without it at once."""


class SpeedSnapshot(NamedTuple):
    """What the speed side said, or in words why it said nothing. `before`: the highest cut that was read before it."""

    answer: SpeedAnswer | None
    why: str | None
    before: Cut

    @property
    def is_refused(self) -> bool:
        """Whether it does not go with the run that was named: another run is to be read."""
        return self.answer is not None and self.answer.outcome == Outcome.REFUSED


class SpeedStatus(NamedTuple):
    """The speed views of a source as they are kept, for people who look on."""

    kept: RedisSnapshot
    is_written: bool


class SpeedViewReader:
    """The speed views of one source, as readers see them. Threads share it."""

    def __init__(self, client: Redis, source: str, bounds: ExecutionLimits) -> None:
        self._views, self._source, self._bounds = SpeedViews(client, source).reader, source, bounds
        self._lock = threading.Lock()
        self._highest: Cut = {}
        self._away: tuple[float, str] = (0.0, "")
        """Until when nobody asks Redis, and why."""

    def read(self, run: int, cut: Cut, stretches: Sequence[StateRange]) -> SpeedSnapshot:
        """The states since the cut of a run, all of one moment. TooLarge where they are too many."""
        highest, (until, why) = self._highest, self._away
        if time.monotonic() < until:
            return SpeedSnapshot(None, why, highest)
        bounds = self._bounds
        try:
            answer = self._views.answer(
                run, cut, stretches, max_buckets=bounds.speed_buckets, max_states=bounds.speed_states,
                max_bytes=int(bounds.speed_mb * 1_000_000),
            )  # fmt: skip
        except (RedisError, OSError) as error:
            why = f"Redis does not answer ({error})"
            self._away = time.monotonic() + AGAIN_S, why
            return SpeedSnapshot(None, why, highest)
        if answer.outcome == Outcome.TOO_MANY:
            raise TooLarge(
                f"The speed views have more than {bounds.speed_states} states, {bounds.speed_mb:g} MB of them, or "
                f"{bounds.speed_buckets} buckets for this question. Ask for fewer keys or a shorter range; after the "
                "next batch run (`tidemark batch run`) they have few again.",
                limit="speed_states",
            )
        if answer.outcome == Outcome.LOST:
            why = "Redis holds no speed views of this source: it was lost, or none were made yet"
            return SpeedSnapshot(None, why, highest)
        return SpeedSnapshot(answer, None, highest)

    def look(self) -> SpeedStatus | None:
        """What Redis keeps of the source, and whether somebody writes it now; None where Redis does not answer."""
        if time.monotonic() < self._away[0]:
            return None
        try:
            return SpeedStatus(self._views.snapshot(), self._views.living_writer() is not None)
        except (RedisError, OSError) as error:
            self._away = time.monotonic() + AGAIN_S, f"Redis does not answer ({error})"
            return None

    def passed(self, cut: Cut) -> None:
        """An answer was given at this cut: later ones are not to be below it."""
        if not is_below(cut, self._highest):
            with self._lock:
                self._highest = join(self._highest, cut)


def behind(cut: Cut, before: Cut) -> str:
    """What to say of an answer at a cut where one before it had more."""
    return (
        f"An answer before this one held {count_between(cut, before)} events more: it was at {cut_to_json(before)}. "
        "Redis was set back or emptied, and is being filled again."
    )
