"""What Kafka holds of a source's topic now: its id, its partitions, its first and next offsets."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from infra.settings import Settings
from master_dataset.cut import OffsetRange
from master_dataset.errors import MasterDatasetError
from master_dataset.topics import EARLIEST, LATEST, existing_topics, librdkafka_config, read_offsets, translated
from views.source import Source


class Positions(NamedTuple):
    """A topic as the brokers have it."""

    topic_id: str
    earliest: dict[int, int]
    latest: dict[int, int]


class TopicMissing(MasterDatasetError):
    """A source's topic is not there."""


class PartitionsDiffer(MasterDatasetError):
    """A topic has another number of partitions than its source declares."""


class TopicReplaced(MasterDatasetError):
    """A topic was deleted and made again: its offsets mean other records now."""


class OffsetsGone(MasterDatasetError):
    """Kafka no longer holds offsets that the master dataset lacks."""

    def __init__(self, source: Source, gone: list[OffsetRange]) -> None:
        super().__init__(
            f"Kafka no longer holds offsets of topic {source.topic!r} that the master dataset lacks: "
            f"{'; '.join(map(str, gone))}. Retention or a deletion took them before they were archived. "
            f"Bring them back into Kafka, or accept the loss, which is recorded for ever: "
            f"`tidemark master repair {source.name} --accept-loss`."
        )
        self.gone = gone


def read_positions(settings: Settings, bootstrap: str, source: Source, timeout_s: float = 15) -> Positions:
    """Ask the brokers."""
    admin = AdminClient(librdkafka_config(settings, bootstrap))
    count = existing_topics(admin, timeout_s).get(source.topic)
    if count is None:
        raise TopicMissing(
            f"Source {source.name!r} reads the topic {source.topic!r}, which is not there. "
            "`tidemark topics apply` makes the topics of all sources."
        )
    places = [(source.topic, number) for number in range(count)]
    earliest = read_offsets(admin, places, EARLIEST, timeout_s)
    latest = read_offsets(admin, places, LATEST, timeout_s)
    return Positions(
        topic_id=_topic_id(admin, source.topic, timeout_s),
        earliest={number: offset for (_, number), offset in earliest.items()},
        latest={number: offset for (_, number), offset in latest.items()},
    )


def check_positions(source: Source, found: Positions, cut: dict[int, int], topic_id: str) -> dict[int, int]:
    """Where to go on from. Refuses whatever would skip a record or read another one in its place."""
    if topic_id and topic_id != found.topic_id:
        raise TopicReplaced(
            f"Topic {source.topic!r} was deleted and made again (its id was {topic_id}, now it is {found.topic_id}): "
            f"its offsets mean other records now. Declare a source with another name and topic for the new records; "
            f"the table of {source.name!r} stays readable."
        )
    if len(found.latest) != source.partitions:
        raise PartitionsDiffer(
            f"Topic {source.topic!r} has {len(found.latest)} partitions, but source {source.name!r} declares "
            f"{source.partitions}. Records with one key may have moved to another partition. "
            f"If that is meant, set partitions={len(found.latest)} in the declaration; nothing is lost meanwhile."
        )
    behind = {p: cut[p] for p in cut if cut[p] > found.latest.get(p, 0)}
    if behind:
        raise OffsetsGone(source, [OffsetRange(p, found.latest.get(p, 0), cut[p]) for p in sorted(behind)])
    gone = [OffsetRange(p, cut[p], found.earliest[p]) for p in sorted(cut) if found.earliest[p] > cut[p]]
    if gone:
        raise OffsetsGone(source, gone)
    return {p: cut.get(p, found.earliest[p]) for p in sorted(found.latest)}


def _topic_id(admin: AdminClient, topic: str, timeout_s: float) -> str:
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[topic].result()
    except KafkaException as error:
        raise translated(error, f"Topic {topic!r} could not be described") from None
    return str(described.topic_id)
