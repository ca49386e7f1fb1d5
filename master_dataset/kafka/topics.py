"""Kafka topics as the sources declare them: made where they are missing, compared where they exist.

A difference between a declaration and the broker is reported and left alone: changing partitions moves keys, and
changing retention may delete facts. Both are for a person to decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented there, exported without __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from views.source import Source

NO_LIMIT = "-1"
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
MS_PER_HOUR = 3_600_000
DEAD_PARTITIONS = 1
DEAD_MAX_BYTES = 16 * 1024 * 1024
"""Of one message. More than Kafka's usual 1 MiB: a dead letter is its record and the headers that say why."""
PARTITIONER = "murmur2_random"
"""As Java and kafka-python do, for every producer of ours: a key keeps its partition, whoever sends it."""
PAUSE_S = 0.05
NEWS_TAKE_S = 5.0
Answer = TypeVar("Answer")
NO_LEADER_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
)
"""What a broker answers until it knows the leader of a partition that is new, or whose leader was away."""


class TopicError(MasterDatasetError):
    """Kafka did not do what was asked of a topic."""


class KafkaUnreachable(MasterDatasetError):
    """No broker answered in time."""


@dataclass(frozen=True)
class TopicPlan:
    """A topic as it should be. `configs` are Kafka's own names and texts."""

    name: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True)
class Difference:
    """One value of a topic that is not as declared."""

    topic: str
    what: str
    declared: str
    found: str

    def __str__(self) -> str:
        return f"topic {self.topic!r}: {self.what} is {self.found}, declared is {self.declared}"


def librdkafka_config(settings: Settings, bootstrap: str) -> dict[str, Any]:
    """Connection settings for confluent-kafka's clients."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": settings.kafka_security_protocol,
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 3,
    }
    if settings.kafka_security_protocol.endswith("SSL") and settings.kafka_ca_file:
        config["ssl.ca.location"] = str(settings.kafka_ca_file)
    if settings.kafka_security_protocol.startswith("SASL") and settings.kafka_password:
        config |= {
            "sasl.mechanism": settings.kafka_sasl_mechanism,
            "sasl.username": settings.kafka_username,
            "sasl.password": settings.kafka_password.get_secret_value(),
        }
    return config


def topic_configs(retention_hours: float | None, retention_bytes: int | None, *, compacted: bool) -> dict[str, str]:
    """What Kafka calls these; None is no limit."""
    return {
        "cleanup.policy": "compact" if compacted else "delete",
        "retention.ms": NO_LIMIT if retention_hours is None else str(round(retention_hours * MS_PER_HOUR)),
        "retention.bytes": NO_LIMIT if retention_bytes is None else str(retention_bytes),
    }


def plan_topics(sources: Iterable[Source]) -> list[TopicPlan]:
    """The topics of the sources: each one's own, and the one for its invalid records."""
    plans = []
    for source in sources:
        configs = topic_configs(source.retention_hours, source.retention_bytes, compacted=source.compacted)
        plans.append(TopicPlan(source.topic, source.partitions, configs))
        dead = topic_configs(None, None, compacted=False)  # a person looks at these, some day
        dead["max.message.bytes"] = str(DEAD_MAX_BYTES)
        plans.append(TopicPlan(source.dead_topic, DEAD_PARTITIONS, dead))
    return plans


def apply_topics(admin: AdminClient, plans: Iterable[TopicPlan], timeout_s: float = 15) -> list[str]:
    """Make the topics that do not exist. Returns their names; existing ones are not touched."""
    existing = existing_topics(admin, timeout_s)
    missing = [plan for plan in plans if plan.name not in existing]
    return [plan.name for plan in missing if create_topic(admin, plan, timeout_s)]


def create_topic(admin: AdminClient, plan: TopicPlan, timeout_s: float = 15) -> bool:
    """Make one topic, with the broker's own replication. False where it exists already."""
    new = NewTopic(plan.name, plan.partitions, replication_factor=-1, config=dict(plan.configs))
    try:
        admin.create_topics([new], operation_timeout=timeout_s, request_timeout=timeout_s)[plan.name].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise translated(error, f"Topic {plan.name!r} could not be made") from None
    deadline = time.monotonic() + timeout_s
    while plan.name not in existing_topics(admin, timeout_s):  # the brokers tell each other a moment later
        if time.monotonic() > deadline:
            raise TopicError(f"Topic {plan.name!r} was made, but is not listed after {timeout_s:g} s.")
        time.sleep(PAUSE_S)
    return True


def compare_topics(admin: AdminClient, plans: Iterable[TopicPlan], timeout_s: float = 15) -> list[Difference]:
    """Every value in which the broker differs from the plans; a topic that is missing differs in its existence."""
    wanted = list(plans)
    existing = existing_topics(admin, timeout_s)
    present = [plan for plan in wanted if plan.name in existing]
    found = describe_configs(admin, [plan.name for plan in present], timeout_s)
    differences = [Difference(plan.name, "existence", "true", "false") for plan in wanted if plan.name not in existing]
    for plan in present:
        pairs = [("partitions", str(plan.partitions), str(existing[plan.name]))]
        pairs += [(name, value, found[plan.name].get(name, "")) for name, value in plan.configs.items()]
        differences += [Difference(plan.name, *pair) for pair in pairs if pair[1] != pair[2]]
    return differences


def existing_topics(admin: AdminClient, timeout_s: float = 15) -> dict[str, int]:
    """The partition count of each topic that the brokers have, internal ones included."""
    try:
        metadata = admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise translated(error, "The list of topics could not be read") from None
    return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}


def describe_configs(admin: AdminClient, topics: Iterable[str], timeout_s: float = 15) -> dict[str, dict[str, str]]:
    """The configuration of topics, by Kafka's own names."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    if not resources:
        return {}

    def ask() -> dict[str, dict[str, str]]:
        futures = admin.describe_configs(resources, request_timeout=timeout_s)
        return {
            resource.name: {name: str(entry.value) for name, entry in future.result().items()}
            for resource, future in futures.items()
        }

    return _patiently(ask, "The configuration of topics could not be read")


def _patiently(ask: Callable[[], Answer], what: str) -> Answer:
    """The answer, asked for again while the brokers are still telling each other who leads what."""
    deadline = time.monotonic() + NEWS_TAKE_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in NO_LEADER_YET or time.monotonic() > deadline:
                raise translated(error, what) from None
        time.sleep(PAUSE_S)


def translated(error: KafkaException, what: str) -> MasterDatasetError:
    """Kafka's error with what was asked before it."""
    reason: KafkaError = error.args[0]
    unreachable = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
    kind = KafkaUnreachable if reason.code() in unreachable else TopicError
    return kind(f"{what}: {reason.str()}.")


# ---- one topic, by an administrator's hand -----------------------------------


def describe_topic(admin: AdminClient, topic: str, timeout_s: float = 15) -> dict[str, Any]:
    """Its partitions with their offsets, and its configuration."""
    partitions = range(existing_topics(admin, timeout_s).get(topic, 0))
    first = read_offsets(admin, [(topic, number) for number in partitions], EARLIEST, timeout_s)
    end = read_offsets(admin, [(topic, number) for number in partitions], LATEST, timeout_s)
    return {
        "topic": topic,
        "partitions": [
            {"partition": number, "earliest": first[topic, number], "latest": end[topic, number]}
            for number in partitions
        ],
        "configs": {
            name: value
            for name, value in describe_configs(admin, [topic], timeout_s)[topic].items()
            if name in ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "min.insync.replicas")
        },
    }


def alter_topic(
    admin: AdminClient, topic: str, partitions: int | None, configs: Mapping[str, str], timeout_s: float = 15
) -> None:
    """Give a topic more partitions, or another configuration. Returns when the brokers say so too."""
    try:
        if partitions is not None:
            new = NewPartitions(topic, partitions)
            admin.create_partitions([new], operation_timeout=timeout_s, request_timeout=timeout_s)[topic].result()
        if configs:
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            for future in admin.incremental_alter_configs([resource], request_timeout=timeout_s).values():
                future.result()
    except KafkaException as error:
        raise translated(error, f"Topic {topic!r} could not be altered") from None
    deadline = time.monotonic() + NEWS_TAKE_S
    while time.monotonic() < deadline:
        found = describe_configs(admin, [topic], timeout_s)[topic]
        has_partitions = partitions is None or existing_topics(admin, timeout_s).get(topic) == partitions
        if has_partitions and all(found.get(name) == value for name, value in configs.items()):
            return
        time.sleep(PAUSE_S)


def delete_topic(admin: AdminClient, topic: str, timeout_s: float = 15) -> None:
    """Delete a topic and what is in it."""
    try:
        admin.delete_topics([topic], operation_timeout=timeout_s, request_timeout=timeout_s)[topic].result()
    except KafkaException as error:
        raise translated(error, f"Topic {topic!r} could not be deleted") from None


def read_offsets(
    admin: AdminClient,
    places: Iterable[tuple[str, int]],
    at: OffsetSpec,
    timeout_s: float = 15,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[tuple[str, int], int]:
    """The offset at the beginning or end of partitions; with READ_COMMITTED an open transaction is an end."""
    asked = {TopicPartition(topic, number): at for topic, number in places}
    if not asked:
        return {}

    def ask() -> dict[tuple[str, int], int]:
        futures = admin.list_offsets(asked, isolation_level=isolation, request_timeout=timeout_s)
        return {(place.topic, place.partition): int(future.result().offset) for place, future in futures.items()}

    return _patiently(ask, "Offsets could not be read")
