"""Kafka consumer groups: their members, their committed offsets, and their lag."""

from __future__ import annotations

from typing import Any

import kafka.errors
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from master_dataset.kafka.errors import TopicError, translated, translating
from master_dataset.kafka.topics import LATEST, existing_topics, read_offsets

CONSUMERS = ("consumer", "")
"""The protocol types of consumer groups; the empty one commits offsets without members."""
NEW_PROTOCOL = "consumer"
"""The type of groups whose members the broker assigns (KIP-848); all others are classic."""
STATES = {"PreparingRebalance": "preparing_rebalancing", "CompletingRebalance": "completing_rebalancing"}
"""Kafka's names that are not simply written in lower case here."""


def list_groups(admin: KafkaAdmin) -> list[dict[str, Any]]:
    """Every consumer group and its state."""
    groups = [{"group": group["group_id"], "state": _state(group["group_state"])} for group in _consumer_groups(admin)]
    return sorted(groups, key=lambda group: str(group["group"]))


def describe_group(admin: KafkaAdmin, group: str) -> dict[str, Any] | None:
    """A group's members and lag; None where there is no such group."""
    known = next((known for known in _consumer_groups(admin) if known["group_id"] == group), None)
    described = known and (_describe_new if known["group_type"] == NEW_PROTOCOL else _describe_classic)(admin, group)
    if described is None:
        return None
    with translating(f"Consumer group {group!r} could not be described"):
        offsets = admin.read(lambda client: client.list_group_offsets({group: None}))[group]
    committed = {(location.topic, location.partition): max(0, found.offset) for location, found in offsets.items()}
    existing = existing_topics(admin)
    locations = sorted(location for location in committed if location[1] < existing.get(location[0], 0))
    ends = read_offsets(admin, locations, LATEST)
    partitions = [
        {
            "topic": topic,
            "partition": number,
            "committed": committed[topic, number],
            "end": ends[topic, number],
            "lag": ends[topic, number] - committed[topic, number],
        }
        for topic, number in locations
    ]
    return {
        "group": group,
        **described,
        "partitions": partitions,
        "lag": sum(partition["lag"] for partition in partitions),
    }


def delete_group(admin: KafkaAdmin, group: str) -> None:
    """Delete a group that has no members."""
    what = f"Consumer group {group!r} could not be deleted"
    with translating(what):
        name = admin.change(lambda client: client.delete_groups([group]))[group]
    if name != "OK":  # kafka-python gives the name of its error class
        reason = getattr(kafka.errors, name).description
        raise TopicError(f"{what}: {reason.rstrip('.')}.")


def _consumer_groups(admin: KafkaAdmin) -> list[dict[str, Any]]:
    with translating("The consumer groups could not be listed"):
        found = admin.read(lambda client: client.list_groups())
    return [group for group in found if group["protocol_type"] in CONSUMERS]


def _describe_classic(admin: KafkaAdmin, group: str) -> dict[str, Any] | None:
    what = f"Consumer group {group!r} could not be described"
    with translating(what):
        described = admin.read(lambda client: client.describe_groups([group]))[group]
    if error := described["error"]:
        if str(error).startswith(f"[Error {kafka.errors.GroupIdNotFoundError.errno}]"):
            return None
        raise TopicError(f"{what}: {error}.")
    members = [_member(member) for member in described["members"]]
    return {"state": _state(described["group_state"]), "members": members}


def _describe_new(admin: KafkaAdmin, group: str) -> dict[str, Any] | None:
    """A group of the protocol of KIP-848, which kafka-python cannot describe and librdkafka can."""
    client = AdminClient(librdkafka_config(admin.settings, admin.bootstrap))
    try:
        described = client.describe_consumer_groups([group], request_timeout=admin.timeout_s)[group].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise translated(error, f"Consumer group {group!r} could not be described") from None
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.host,
            "partitions": [
                {"topic": location.topic, "partition": location.partition}
                for location in (member.assignment.topic_partitions if member.assignment else ())
            ],
        }
        for member in described.members
    ]
    return {"state": described.state.name.lower(), "members": members}


def _state(name: str) -> str:
    return STATES.get(name, name.lower())


def _member(member: dict[str, Any]) -> dict[str, Any]:
    assignment = member["member_assignment"]
    assigned = assignment["assigned_partitions"] if isinstance(assignment, dict) else ()
    return {
        "member": member["member_id"],
        "client": member["client_id"],
        "host": member["client_host"],
        "partitions": [
            {"topic": topic["topic"], "partition": number} for topic in assigned for number in topic["partitions"]
        ],
    }
