"""Give a consumer group other committed offsets: what would change, and changing it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import kafka.errors
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.structs import OffsetAndMetadata

from infra.clients.kafka_admin import KafkaAdmin
from master_dataset.kafka.errors import TopicError, translating
from master_dataset.kafka.groups import describe_group
from master_dataset.kafka.topics import EARLIEST, LATEST, existing_topics, read_offsets

Location = tuple[str, int]
NO_SUCH_OFFSET = -1
"""Kafka's reply where no record of a partition is as late as the time asked for."""


class OffsetMove(NamedTuple):
    """A partition whose committed offset changes; `committed` is None where there is none yet."""

    topic: str
    partition: int
    committed: int | None
    new: int


def plan_rewind(
    admin: KafkaAdmin, group: str, target: OffsetSpec | int | Mapping[Location, int], topics: Collection[str] = ()
) -> list[OffsetMove]:
    """What rewinding a group would change: in these topics, or else in all that it has committed for.

    `target` is the beginning or the end, a time in milliseconds since 1970, or the offset of each partition.
    TopicError if the group has members, is unknown (unless topics are named), or an offset does not exist.
    """
    described = describe_group(admin, group)
    if described is not None and described["members"]:
        count = len(described["members"])
        clients = ", ".join(sorted({str(member["client"]) for member in described["members"]}))
        raise TopicError(
            f"Consumer group {group!r} has {count} member{'s' * (count != 1)} ({clients}), which would go on from "
            "where they are and commit over the new offsets. Stop them, and run the same command again."
        )
    known = described["partitions"] if described is not None else []
    if described is None and not topics and not isinstance(target, Mapping):
        raise TopicError(
            f"There is no consumer group {group!r}. `tidemark groups list` shows those that there are; to give a new "
            "group its first offsets, name the topic."
        )
    committed = {(each["topic"], each["partition"]): int(each["committed"]) for each in known}
    locations = _locations(admin, target, topics, committed)
    new = _new_offsets(admin, target, locations)
    moves = [OffsetMove(*location, committed.get(location), new[location]) for location in locations]
    return [move for move in moves if move.committed != move.new]


def rewind(admin: KafkaAdmin, group: str, moves: Sequence[OffsetMove]) -> None:
    """Commit the new offsets. Kafka refuses if the group has got members meanwhile."""
    if not moves:
        return
    what = f"Consumer group {group!r} could not be rewound"
    offsets = {TopicPartition(move.topic, move.partition): OffsetAndMetadata(move.new, "", -1) for move in moves}
    with translating(what):
        replies = admin.change(lambda client: client.alter_group_offsets(group, offsets))
    if failed := {location: reply for location, reply in replies.items() if reply is not kafka.errors.NoError}:
        (topic, partition), reply = next(iter(sorted(failed.items())))
        reason = (
            "it has got members meanwhile; stop them and run the same command again"
            if reply in (kafka.errors.UnknownMemberIdError, kafka.errors.RebalanceInProgressError)
            else reply.description.rstrip(".")
        )
        raise TopicError(
            f"{what}: {reason}. Kafka refused {len(failed)} of {len(moves)} partitions, {topic}/{partition} the first."
        )


def _locations(
    admin: KafkaAdmin,
    target: OffsetSpec | int | Mapping[Location, int],
    topics: Collection[str],
    committed: Collection[Location],
) -> list[Location]:
    existing = existing_topics(admin)
    if isinstance(target, Mapping):
        for topic, number in target:
            _check_topic(topic, existing)
            if number >= existing[topic]:
                raise TopicError(f"Topic {topic!r} has the partitions 0 to {existing[topic] - 1}, not {number}.")
        return sorted(target)
    for topic in topics:
        _check_topic(topic, existing)
    if topics:
        return [(topic, number) for topic in sorted(set(topics)) for number in range(existing[topic])]
    return sorted(committed)


def _check_topic(topic: str, existing: Collection[str]) -> None:
    if topic not in existing:
        raise TopicError(f"There is no topic {topic!r}. `tidemark topics list` shows those that there are.")


def _new_offsets(
    admin: KafkaAdmin, target: OffsetSpec | int | Mapping[Location, int], locations: Sequence[Location]
) -> Mapping[Location, int]:
    if isinstance(target, Mapping):
        first, end = (read_offsets(admin, locations, at) for at in (EARLIEST, LATEST))
        for location in locations:
            if not first[location] <= target[location] <= end[location]:
                raise TopicError(
                    f"Topic {location[0]!r}, partition {location[1]} has the offsets {first[location]} to "
                    f"{end[location]} (where the next record comes); {target[location]} is not among them."
                )
        return target
    found = read_offsets(admin, locations, target)
    if NO_SUCH_OFFSET not in found.values():
        return found
    end = read_offsets(admin, locations, LATEST)
    return {location: end[location] if offset == NO_SUCH_OFFSET else offset for location, offset in found.items()}
