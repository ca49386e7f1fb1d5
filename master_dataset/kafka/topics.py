"""Kafka topics as the sources declare them: created where they are missing, compared where they exist.

A difference between a declaration and the broker is reported and left alone: changing partitions moves keys, and
changing retention may delete records. Both are for a person to decide. The retention of dead letters alone follows its
setting, because no declaration has it.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import kafka.errors
from kafka import TopicPartition
from kafka.admin import ConfigResource, OffsetSpec

from infra.clients.kafka_admin import KafkaAdmin
from master_dataset.kafka.errors import TopicError, refuse, translating
from views.source import Source

NO_LIMIT = "-1"
EARLIEST: OffsetSpec = OffsetSpec.EARLIEST
LATEST: OffsetSpec = OffsetSpec.LATEST
MS_PER_HOUR = 3_600_000
RETENTION = "retention.ms"
DEAD_PARTITIONS = 1
DEAD_MAX_BYTES = 16 * 1024 * 1024
"""Of one message. More than Kafka's usual 1 MiB: a dead letter is its record and the headers with the reason."""
PARTITIONER = "murmur2_random"
"""The partitioner of Java and kafka-python, for all our producers: a key keeps its partition, whoever sends it."""
PAUSE_S = 0.05
PROPAGATION_S = 5.0
"""How long the brokers may take to tell each other about a new topic or leader."""
Reply = TypeVar("Reply")
NO_LEADER_YET = (
    kafka.errors.NotLeaderForPartitionError,
    kafka.errors.LeaderNotAvailableError,
    kafka.errors.UnknownTopicOrPartitionError,
    kafka.errors.UnknownLeaderEpochError,
    kafka.errors.FencedLeaderEpochError,
    kafka.errors.UnknownBrokerIdError,
)
"""What a broker replies until it knows the leader of a partition that is new, or whose leader was away."""
SHOWN_CONFIGS = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "min.insync.replicas")


@dataclass(frozen=True)
class TopicPlan:
    """A topic as it should be. `configs` has Kafka's own names and texts."""

    name: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True)
class TopicDifference:
    """One value of a topic that is not as declared."""

    topic: str
    what: str
    declared: str
    found: str

    def __str__(self) -> str:
        return f"topic {self.topic!r}: {self.what} is {self.found}, declared is {self.declared}"


def topic_configs(retention_hours: float | None, retention_bytes: int | None, *, compacted: bool) -> dict[str, str]:
    """The configuration by Kafka's names; None is no limit."""
    return {
        "cleanup.policy": "compact" if compacted else "delete",
        "retention.ms": NO_LIMIT if retention_hours is None else str(round(retention_hours * MS_PER_HOUR)),
        "retention.bytes": NO_LIMIT if retention_bytes is None else str(retention_bytes),
    }


def plan_topics(sources: Iterable[Source], dead_letter_days: float = 0) -> list[TopicPlan]:
    """The topics of the sources: each one's own, and the one for its invalid records, kept for so many days.

    0 days: they are kept until a person looks at them.
    """
    plans = []
    for source in sources:
        configs = topic_configs(source.retention_hours, source.retention_bytes, compacted=source.compacted)
        plans.append(TopicPlan(source.topic, source.partitions, configs))
        dead = topic_configs(dead_letter_days * 24 or None, None, compacted=False)
        dead["max.message.bytes"] = str(DEAD_MAX_BYTES)
        plans.append(TopicPlan(source.dead_topic, DEAD_PARTITIONS, dead))
    return plans


def apply_topics(admin: KafkaAdmin, plans: Iterable[TopicPlan]) -> list[str]:
    """Create the topics that do not exist and return their names. Existing topics are not changed."""
    existing = existing_topics(admin)
    missing = [plan for plan in plans if plan.name not in existing]
    return [plan.name for plan in missing if create_topic(admin, plan)]


def follow_retention(admin: KafkaAdmin, sources: Iterable[Source], dead_letter_days: float) -> list[str]:
    """Give the topics of dead letters the retention of the setting, and return the names of those that had another.

    0 days is no wish: whatever a person set stays.
    """
    if not dead_letter_days:
        return []
    wanted = {plan.name: plan.configs[RETENTION] for plan in plan_topics(sources, dead_letter_days)[1::2]}
    existing = existing_topics(admin)
    found = describe_configs(admin, [name for name in wanted if name in existing])
    changed = [name for name, configs in found.items() if configs.get(RETENTION) != wanted[name]]
    for name in changed:
        alter_topic(admin, name, None, {RETENTION: wanted[name]})
    return changed


def create_topic(admin: KafkaAdmin, plan: TopicPlan) -> bool:
    """Create one topic, with the broker's own replication. False where it exists already."""
    what = f"Topic {plan.name!r} could not be created"
    new = {plan.name: {"num_partitions": plan.partitions, "configs": dict(plan.configs)}}
    with translating(what):
        reply = admin.change(lambda client: client.create_topics(new, raise_errors=False))["topics"][0]
    if reply["error_code"] == kafka.errors.TopicAlreadyExistsError.errno:
        return False
    refuse(reply["error_code"], reply["error_message"], what)
    deadline = time.monotonic() + admin.timeout_s
    while plan.name not in existing_topics(admin):  # the brokers tell each other a moment later
        if time.monotonic() > deadline:
            raise TopicError(f"Topic {plan.name!r} was created, but is not listed after {admin.timeout_s:g} s.")
        time.sleep(PAUSE_S)
    return True


def compare_topics(admin: KafkaAdmin, plans: Iterable[TopicPlan]) -> list[TopicDifference]:
    """Every value in which the broker differs from the plans; a topic that is missing differs in its existence."""
    declared = list(plans)
    existing = existing_topics(admin)
    present = [plan for plan in declared if plan.name in existing]
    configs = describe_configs(admin, [plan.name for plan in present])
    missing = [plan for plan in declared if plan.name not in existing]
    differences = [TopicDifference(plan.name, "existence", "true", "false") for plan in missing]
    for plan in present:
        pairs = [("partitions", str(plan.partitions), str(existing[plan.name]))]
        pairs += [(name, value, configs[plan.name].get(name, "")) for name, value in plan.configs.items()]
        differences += [TopicDifference(plan.name, *pair) for pair in pairs if pair[1] != pair[2]]
    return differences


def existing_topics(admin: KafkaAdmin) -> dict[str, int]:
    """The partition count of each topic that the brokers have, internal ones included."""
    with translating("The list of topics could not be read"):
        topics = admin.read(lambda client: client.describe_topics())
    return {topic["name"]: len(topic["partitions"]) for topic in topics if not topic["error_code"]}


def read_topic_id(admin: KafkaAdmin, topic: str) -> str:
    """The id that tells a topic from a later one of the same name, as the Java clients print it, but with + and /.

    Commits of the master dataset hold ids in this form, which is librdkafka's.
    """
    what = f"Topic {topic!r} could not be described"
    with translating(what):
        found = admin.read(lambda client: client.describe_topics([topic]))[0]
    refuse(found["error_code"], None, what)
    return base64.b64encode(uuid.UUID(str(found["topic_id"])).bytes).decode().rstrip("=")


def describe_configs(admin: KafkaAdmin, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The configuration of topics, by Kafka's own names."""
    resources = [ConfigResource("topic", topic) for topic in topics]
    if not resources:
        return {}

    def describe() -> dict[str, dict[str, str]]:
        found = admin.read(lambda client: client.describe_configs(resources, config_filter="all"))["topic"]
        if missing := sorted(topic for topic, configs in found.items() if not configs):
            # kafka-python drops the error of a topic; one without any value is one that the broker does not know.
            raise kafka.errors.UnknownTopicOrPartitionError(f"{', '.join(missing)}: this broker knows no such topic")
        return {
            topic: {name: str(config["value"]) for name, config in configs.items()} for topic, configs in found.items()
        }

    return _propagated(describe, "The configuration of topics could not be read")


def _propagated(ask: Callable[[], Reply], what: str) -> Reply:
    """The reply, asked for again while the brokers are still telling each other who leads what."""
    deadline = time.monotonic() + PROPAGATION_S
    while True:
        with translating(what):
            try:
                return ask()
            except NO_LEADER_YET:
                if time.monotonic() > deadline:
                    raise
        time.sleep(PAUSE_S)


# ---- one topic, for an administrator -----------------------------------------


def describe_topic(admin: KafkaAdmin, topic: str) -> dict[str, Any]:
    """Its partitions with their offsets, and its configuration."""
    locations = [(topic, number) for number in range(existing_topics(admin).get(topic, 0))]
    first = read_offsets(admin, locations, EARLIEST)
    end = read_offsets(admin, locations, LATEST)
    configs = describe_configs(admin, [topic])[topic]
    return {
        "topic": topic,
        "partitions": [
            {"partition": number, "earliest": first[topic, number], "latest": end[topic, number]}
            for _, number in locations
        ],
        "configs": {name: value for name, value in configs.items() if name in SHOWN_CONFIGS},
    }


def alter_topic(admin: KafkaAdmin, topic: str, partitions: int | None, configs: Mapping[str, str]) -> None:
    """Give a topic more partitions, or another configuration. Returns when the brokers show the change."""
    what = f"Topic {topic!r} could not be altered"
    with translating(what):
        if partitions is not None:
            more = {topic: partitions}
            reply = admin.change(lambda client: client.create_partitions(more, raise_errors=False)).results[0]
            refuse(reply.error_code, reply.error_message, what)
        if configs:
            resource = ConfigResource("topic", topic, dict(configs))
            replies = admin.change(
                lambda client: client.alter_configs([resource], raise_on_unknown=False, incremental=True)
            )
            if (text := replies["topic"][topic]) != "OK":  # "[Error 40] InvalidConfigurationError: the broker's text"
                raise TopicError(f"{what}: {text.split(': ', 1)[-1].rstrip('.')}.")
    deadline = time.monotonic() + PROPAGATION_S
    while time.monotonic() < deadline:
        found = describe_configs(admin, [topic])[topic]
        has_partitions = partitions is None or existing_topics(admin).get(topic) == partitions
        if has_partitions and all(found.get(name) == value for name, value in configs.items()):
            return
        time.sleep(PAUSE_S)


def delete_topic(admin: KafkaAdmin, topic: str) -> None:
    """Delete a topic and its records."""
    what = f"Topic {topic!r} could not be deleted"
    with translating(what):
        reply = admin.change(lambda client: client.delete_topics([topic], raise_errors=False))["topics"][0]
    refuse(reply["error_code"], reply["error_message"], what)


def delete_records(admin: KafkaAdmin, topic: str, ends: Mapping[int, int]) -> None:
    """Delete the records before these offsets, as retention does."""
    ends_exclusive = {TopicPartition(topic, partition): offset for partition, offset in ends.items()}
    with translating(f"Records of topic {topic!r} could not be deleted"):
        admin.change(lambda client: client.delete_records(ends_exclusive))


def read_offsets(
    admin: KafkaAdmin, locations: Iterable[tuple[str, int]], at: OffsetSpec | int, *, committed: bool = False
) -> dict[tuple[str, int], int]:
    """The offset at the beginning, the end or a time in ms of partitions; `committed` ends at an open transaction."""
    specs = {TopicPartition(topic, number): at for topic, number in locations}
    if not specs:
        return {}
    isolation = "read_committed" if committed else "read_uncommitted"

    def ask() -> dict[tuple[str, int], int]:
        found = admin.read(lambda client: client.list_partition_offsets(specs, isolation_level=isolation))
        return {(location.topic, location.partition): int(result.offset) for location, result in sorted(found.items())}

    return _propagated(ask, "Offsets could not be read")
