"""Whether a writer could go on from where the speed views are. One that cannot must not start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hand_off.errors import SpeedError
from hand_off.publish_log import Entry
from master_dataset.cut import Cut, join, ranges
from master_dataset.kafka.positions import Positions
from views.source import Source

if TYPE_CHECKING:
    from redis import Redis

    from hand_off.speed_views import SpeedReader


def begin_at(source: Source, applied: Cut, positions: Positions) -> Cut:
    """Where to read from: what is applied, for every partition. Refuses what would skip a record."""
    if behind := list(ranges(positions.latest, applied)):
        raise SpeedError(
            f"Source {source.name!r}: Kafka ends before what the speed views have applied: it no longer has "
            f"{'; '.join(map(str, behind))}. Topic {source.topic!r} was created again, or the broker lost its "
            f"newest records. Put them back, or go on with what Kafka has: `tidemark master rebase {source.name}`."
        )
    begin = {partition: applied.get(partition, 0) for partition in positions.latest}
    gone = list(ranges(begin, positions.earliest))
    if gone and not applied:  # Kafka deleted them before anybody read them
        return join(begin, positions.earliest)
    if gone:
        raise SpeedError(
            f"Source {source.name!r}: Kafka no longer holds {'; '.join(map(str, gone))}, which come next for "
            f"the speed views. A batch run takes them from the master dataset: "
            f"`tidemark batch run --source {source.name}`."
        )
    return begin


def check_rebuild(source: Source, reader: SpeedReader, newest: Entry, positions: Positions) -> None:
    """Refuse to drop speed views of an older version, which have long keys, where Kafka cannot rebuild them.

    They would be rebuilt from the cut of the newest run. Readers have them until a run takes over.
    """
    begin = {partition: newest.cut.get(partition, 0) for partition in positions.latest}
    if (gone := list(ranges(begin, positions.earliest))) and reader.has_long_keys():
        raise SpeedError(
            f"Source {source.name!r}: an older version wrote speed views with keys that are too long now. They have to "
            f"be rebuilt from the cut of run {newest.run}, and Kafka no longer holds {'; '.join(map(str, gone))}. They "
            f"are served as they are until a batch run takes over: `tidemark batch run --source {source.name}`."
        )


def check_eviction(client: Redis) -> None:
    """A Redis that evicts would drop states silently: answers would be wrong."""
    memory: Any = client.info("memory")
    policy = str(memory.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        raise SpeedError(
            f"Redis drops keys when its memory is full (maxmemory-policy {policy}), so speed views would silently "
            "become wrong. Set its maxmemory-policy to noeviction."
        )
