"""What Kafka holds of a source's topic now: its id, its partitions, its first and end offsets."""

from __future__ import annotations

from typing import NamedTuple

from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings
from master_dataset.cut import OffsetRange, ranges
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.offset_base import OffsetBase, to_logical
from master_dataset.kafka.topics import EARLIEST, LATEST, existing_topics, read_offsets, read_topic_id
from views.source import Source


class Positions(NamedTuple):
    """A topic as the brokers have it, in Kafka's own offsets or in logical ones."""

    topic_id: str
    earliest: dict[int, int]
    latest: dict[int, int]
    """Up to where we can read: an open transaction, and everything after it, is not readable yet."""


class TopicMissing(MasterDatasetError):
    """The topic of a source does not exist."""

    is_temporary = True
    """For the archiver, which creates the topic at each attempt."""


class PartitionsDiffer(MasterDatasetError):
    """A topic has another number of partitions than its source declares."""


class TopicReplaced(MasterDatasetError):
    """A topic was deleted and created again: its offsets mean other records now."""


class KafkaBehind(MasterDatasetError):
    """Kafka ends before the master dataset does: it lost records that it had acknowledged."""

    def __init__(self, source: Source, behind: list[OffsetRange]) -> None:
        super().__init__(
            f"Topic {source.topic!r} ends before the master dataset does: Kafka no longer has {_named(behind)}, which "
            f"the table of {source.name!r} holds. The broker lost its newest records, or runs on an old backup of its "
            f"disk; new records would get these offsets a second time. Put the broker's newer data back, or go on with "
            f"what Kafka has: `tidemark master rebase {source.name}`."
        )
        self.behind = behind


class OffsetsGone(MasterDatasetError):
    """Kafka no longer holds offsets that the master dataset lacks."""

    def __init__(self, source: Source, gone: list[OffsetRange]) -> None:
        super().__init__(
            f"Kafka no longer holds offsets of topic {source.topic!r} that the master dataset lacks: "
            f"{_named(gone)}. Retention or a deletion removed them before they were archived. "
            f"Restore them in Kafka, or accept the loss, which is recorded for ever: "
            f"`tidemark master repair {source.name} --accept-loss`."
        )
        self.gone = gone


def read_positions(settings: Settings, bootstrap: str, source: Source, timeout_s: float = 15) -> Positions:
    """Ask the brokers."""
    with KafkaAdmin(settings, bootstrap, timeout_s) as admin:
        count = existing_topics(admin).get(source.topic)
        if count is None:
            raise TopicMissing(
                f"Source {source.name!r} reads the topic {source.topic!r}, which does not exist. "
                "`tidemark topics apply` creates the topics of all sources."
            )
        earliest = read_offsets(admin, [(source.topic, number) for number in range(count)], EARLIEST)
        return Positions(
            topic_id=read_topic_id(admin, source.topic),
            earliest={number: offset for (_, number), offset in earliest.items()},
            latest=read_end(admin, source.topic, count),
        )


def read_end(admin: KafkaAdmin, topic: str, partitions: int) -> dict[int, int]:
    """Up to where a topic can be read now: an open transaction is an end. Cheap enough to be asked again and again."""
    locations = [(topic, number) for number in range(partitions)]
    ends = read_offsets(admin, locations, LATEST, committed=True)
    return {number: offset for (_, number), offset in ends.items()}


def logical_positions(found: Positions, base: OffsetBase) -> Positions:
    """What `read_positions` found, in logical offsets. Records below the cut where the base begins are not offered."""
    return Positions(found.topic_id, base.logical_earliest(found.earliest), to_logical(base.base, found.latest))


def check_positions(source: Source, found: Positions, cut: dict[int, int], topic_id: str) -> dict[int, int]:
    """The cut to continue from. Refuses whatever would skip a record, or read another record under its offset.

    All offsets are logical ones.
    """
    check_topic_id(source, found.topic_id, topic_id)
    if len(found.latest) != source.partitions:
        raise PartitionsDiffer(
            f"Topic {source.topic!r} has {len(found.latest)} partitions, but source {source.name!r} declares "
            f"{source.partitions}. Records with one key may have moved to another partition. "
            f"If that is intended, set partitions={len(found.latest)} in the declaration; nothing is lost meanwhile."
        )
    behind = list(ranges(found.latest, cut))
    if behind:
        raise KafkaBehind(source, behind)
    # A new table begins with what Kafka has. Later, a partition that the table does not know was added since: it is
    # read from its beginning.
    begin = {p: cut.get(p, 0) for p in sorted(found.latest)} if cut else dict(found.earliest)
    gone = list(ranges(begin, found.earliest))
    if gone:
        raise OffsetsGone(source, gone)
    return begin


def check_topic_id(source: Source, found: str, topic_id: str) -> None:
    """Refuse another topic of the same name than the table's records are from."""
    if topic_id and topic_id != found:
        raise TopicReplaced(
            f"Topic {source.topic!r} was deleted and made again (its id was {topic_id}, now it is {found}): "
            f"its offsets mean other records now. Nothing is read from it before somebody confirms that the old topic "
            f"is gone: `tidemark master rebase {source.name}` goes on with the new one."
        )


def _named(found: list[OffsetRange]) -> str:
    return "; ".join(map(str, found))
