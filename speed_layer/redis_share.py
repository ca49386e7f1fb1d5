"""The share of Redis that a source may take, so that one source with many groups cannot stop the others.

Half of Redis is divided equally: a source may always take its part of that. What is left of Redis goes to whoever needs
it first, but nobody takes what is still kept for others. A tenth is never given out: seen ids, the change log, and the
overhead of Redis need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from hand_off.errors import SpeedError
from hand_off.speed_views import SpeedViews

GIVEN_OUT = 0.9
GUARANTEED = 0.5
"""Of all memory that Redis may take: what sources may take together, and what is divided among them in advance."""
MB = 1_000_000


class OutOfShare(SpeedError):
    """A micro-batch was not written, because the source would take more of Redis than its share."""


@dataclass(frozen=True)
class RedisShare:
    """What one source may take. `others` are the other sources that write to the same Redis."""

    speed_views: SpeedViews
    others: Sequence[SpeedViews] = ()

    @classmethod
    def of(cls, client: Redis, source: str, sources: Sequence[str]) -> RedisShare:
        """The share of a source, one of those that have views."""
        return cls(SpeedViews(client, source), [SpeedViews(client, name) for name in sources if name != source])

    def check(self, grown: int) -> None:
        """OutOfShare where there is no room for so many bytes more. Redis refuses too, but only when it is over."""
        if grown <= 0:
            return
        memory: Any = self.speed_views.client.info("memory")
        maximum, used = int(memory["maxmemory"]), int(memory["used_memory"])
        if not maximum or used + grown <= maximum * GUARANTEED:
            return
        guaranteed = maximum * GUARANTEED / (len(self.others) + 1)
        own = self.speed_views.reader.state_bytes()
        kept = sum(max(guaranteed - other.reader.state_bytes(), 0) for other in self.others)
        is_own = own + grown <= guaranteed and used + grown <= maximum
        if not is_own and used + grown + kept > maximum * GIVEN_OUT:
            name = self.speed_views.source
            what = f"Source {name!r} has taken its share of Redis" if kept else "Redis is full"
            raise OutOfShare(
                f"{what}: the states of {name!r} take {own / MB:,.1f} MB, and the next micro-batch needs "
                f"{grown / MB:,.1f} MB more. Redis has {used / MB:,.1f} of {maximum / MB:,.1f} MB in use, and "
                f"{kept / MB:,.1f} MB are kept for other sources. Nothing was written. A batch run frees what "
                f"it takes over (`tidemark batch run --source {name}`), or give Redis more: redis_max_memory_mb, or "
                "maxmemory of your own."
            )
