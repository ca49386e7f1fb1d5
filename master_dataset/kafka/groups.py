"""Kafka consumer groups: who is in them, how far they are, and how far behind."""

from __future__ import annotations

from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from master_dataset.kafka.topics import LATEST, existing_topics, read_offsets, translated

TIMEOUT_S = 15.0


def list_groups(admin: AdminClient) -> list[dict[str, Any]]:
    """Every group and its state."""
    try:
        found = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result()
    except KafkaException as error:
        raise translated(error, "The consumer groups could not be listed") from None
    return sorted(
        ({"group": group.group_id, "state": group.state.name.lower()} for group in found.valid),
        key=lambda group: str(group["group"]),
    )


def describe_group(admin: AdminClient, group: str) -> dict[str, Any] | None:
    """A group's members and lag; None where there is no such group."""
    if all(known["group"] != group for known in list_groups(admin)):
        return None
    try:
        described = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
        asked = [ConsumerGroupTopicPartitions(group)]
        offsets = admin.list_consumer_group_offsets(asked, request_timeout=TIMEOUT_S)[group].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise translated(error, f"Consumer group {group!r} could not be described") from None
    committed = {(place.topic, place.partition): place.offset for place in offsets.topic_partitions}
    existing = existing_topics(admin)
    places = [place for place in committed if place[1] < existing.get(place[0], 0)]
    ends = read_offsets(admin, places, LATEST)
    partitions = [
        {
            "topic": topic,
            "partition": number,
            "committed": max(0, committed[topic, number]),
            "end": ends[topic, number],
            "lag": ends[topic, number] - max(0, committed[topic, number]),
        }
        for topic, number in sorted(places)
    ]
    return {
        "group": group,
        "state": described.state.name.lower(),
        "members": [
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": [
                    {"topic": place.topic, "partition": place.partition}
                    for place in (member.assignment.topic_partitions if member.assignment else ())
                ],
            }
            for member in described.members
        ],
        "partitions": partitions,
        "lag": sum(partition["lag"] for partition in partitions),
    }


def delete_group(admin: AdminClient, group: str) -> None:
    """Forget a group that has no members."""
    try:
        admin.delete_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    except KafkaException as error:
        raise translated(error, f"Consumer group {group!r} could not be deleted") from None
