"""The speed views of a source in Redis: one layout, and three roles over it.

`SpeedReader` reads, `SpeedWriter` applies micro-batches as long as it owns the epoch, `RunHandle` does what batch runs
do. Each step of the hand-off (HANDOFF.md) is one atomic script in lua/. Nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hand_off.speed_views.followed_numbers import FollowedNumbers
from hand_off.speed_views.layout import (
    ALL_KEYS,
    CHANGE_LOG,
    META,
    STATE_BYTES,
    VIEW_HASH,
    Generation,
    Group,
    Layout,
    Meta,
    RedisSnapshot,
    State,
    cut_of,
    cut_text,
    generations_of,
    memory_of,
    meta_of,
    new_id,
    totals_of,
)
from hand_off.speed_views.reader import Ranked, ReadLimits, SpeedAnswer, SpeedReader, StateRange
from hand_off.speed_views.run_handle import RunHandle
from hand_off.speed_views.scripts import Outcome, Scripts
from hand_off.speed_views.wide_read import WideLimits, WideReader
from hand_off.speed_views.writer import MicroBatch, SpeedWriter
from master_dataset.cut import Cut

if TYPE_CHECKING:
    from redis import Redis

__all__ = [
    "ALL_KEYS",
    "CHANGE_LOG",
    "META",
    "STATE_BYTES",
    "VIEW_HASH",
    "FollowedNumbers",
    "Generation",
    "Group",
    "Layout",
    "Meta",
    "MicroBatch",
    "Outcome",
    "Ranked",
    "ReadLimits",
    "RedisSnapshot",
    "RunHandle",
    "SpeedAnswer",
    "SpeedReader",
    "SpeedViews",
    "SpeedWriter",
    "State",
    "StateRange",
    "WideLimits",
    "cut_of",
    "cut_text",
    "memory_of",
    "new_id",
    "totals_of",
]  # fmt: skip


class SpeedViews:
    """The speed views of one source, by role."""

    def __init__(self, client: Redis, source: str) -> None:
        self.client, self.source = client, source
        self.layout = Layout(source)
        self._scripts = Scripts(client, self.layout)
        self.reader = SpeedReader(self._scripts)
        self.runs = RunHandle(self._scripts, self.reader)

    def answer_in_parts(
        self, run: int, cut: Cut, ranges: Sequence[StateRange], limits: WideLimits, *, tries: int = 3
    ) -> SpeedAnswer | None:
        """Like `reader.answer`, for very many states: a writer never waits long. None where it was faster each time."""
        return WideReader(self._scripts, run, cut, ranges, limits).read(tries)

    def followed_numbers(
        self, run: int, cut: Cut, states: StateRange, read: Callable[[bytes], int], limits: WideLimits
    ) -> FollowedNumbers:
        """Numbers that a reader keeps of the states of a range. `read` first; then `catch_up` each time."""
        return FollowedNumbers(self._scripts, run, cut, states, read, limits)

    def start_writer(self) -> tuple[SpeedWriter, RedisSnapshot]:
        """Become the only writer: the first step of a writer, before it reads the publish log."""
        token = new_id()
        meta, generations = self._scripts.call("start", token)
        snapshot = RedisSnapshot(token, meta_of(meta, generations), generations_of(generations))
        return self.writer(token), snapshot

    def writer(self, token: str) -> SpeedWriter:
        """The writer that started with this token."""
        return SpeedWriter(self._scripts, self.reader, token)
