"""Consumer instances that the collector keeps for its clients, each a member of a Kafka consumer group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Any

import structlog
from confluent_kafka import Consumer, TopicPartition

from infra.rest.problems import Problem
from infra.threads import P, T, Threads
from master_dataset.collector.kafka_rest.instance import DEFAULT_ISOLATION, Instance

SWEEP_EVERY_S = 5.0
DEFAULT_RESET = "earliest"

log = structlog.get_logger()


class Consumers:
    """All instances by (group, name). Unused ones are closed after a while."""

    def __init__(
        self,
        config: dict[str, Any],
        max_instances: int,
        idle_s: float,
        max_bytes: float = inf,
        max_of_key: int | None = None,
    ) -> None:
        self._limit_of_key = max_instances if max_of_key is None else max_of_key
        self._max_bytes = max_bytes
        self._config = config
        self._limit = max_instances
        self._idle_s = idle_s
        self._instances: dict[tuple[str, str], Instance] = {}
        self._closing = 0  # deleted, but still a member of its group until Kafka has let it go
        self.threads = Threads("consume", max(1, max_instances))  # an instance uses one at a time: none waits

    def get(
        self, group: str, name: str, offset_reset: str | None = None, isolation: str | None = None, owner: str = ""
    ) -> Instance:
        """The instance, created where there is none yet. Another offset reset or isolation is the problem 409.

        `owner` is the key that it is created for.
        """
        instance = self._instances.get((group, name))
        if instance is not None and offset_reset not in (None, instance.offset_reset):
            raise Problem(
                409,
                "offset-reset-differs",
                f"The consumer instance {name!r} of group {group!r} was created with Kafka-Auto-Offset-Reset "
                f"{_named(instance.offset_reset)!r}; {_named(offset_reset)!r} was asked for. Leave the header out, or "
                "delete the instance with /delete-consumer/{group}/{instance}: the next /consume creates it again.",
            )
        if instance is not None and isolation not in (None, instance.isolation):
            raise Problem(
                409,
                "isolation-differs",
                f"The consumer instance {name!r} of group {group!r} was created with isolation={instance.isolation}; "
                f"{isolation} was asked for. Leave it out, or delete the instance with "
                "/delete-consumer/{group}/{instance}: the next /consume creates it again.",
            )
        if instance is None:
            reset, isolation = offset_reset or DEFAULT_RESET, isolation or DEFAULT_ISOLATION
            instance = self._create(group, name, reset, isolation, owner, {})
        instance.used_at = time.monotonic()
        return instance

    def create(
        self, group: str, name: str, offset_reset: str, owner: str, proxied: Any, config: dict[str, Any]
    ) -> Instance:
        """A new instance for a client of REST Proxy v2. The problem 409 where there is one of the name."""
        if (group, name) in self._instances:
            raise Problem(
                409,
                "consumer-exists",
                f"There is a consumer instance {name!r} in group {group!r} already. Delete it, or choose another name.",
            )
        instance = self._create(group, name, offset_reset, DEFAULT_ISOLATION, owner, config)
        instance.proxied = proxied
        return instance

    def _create(
        self, group: str, name: str, offset_reset: str, isolation: str, owner: str, config: dict[str, Any]
    ) -> Instance:
        if len(self._instances) + self._closing >= self._limit:
            raise Problem(
                429,
                "too-many-consumers",
                f"The collector keeps {self._limit} consumer instances already (collector_max_consumers), of which "
                f"{self._closing} are being closed. Delete one with /delete-consumer/{{group}}/{{instance}}, or "
                "wait until an unused one is closed.",
                retry_after_s=1 if self._closing else int(self._idle_s) + 1,
            )
        if sum(each.owner == owner for each in self._instances.values()) >= self._limit_of_key:
            raise Problem(
                429,
                "too-many-consumers",
                f"The key {owner!r} has {self._limit_of_key} consumer instances already "
                "(collector_max_consumers_per_key). Delete one, or wait until an unused one is closed.",
                retry_after_s=int(self._idle_s) + 1,
            )
        consumer = self._consumer(group, name, offset_reset, isolation, config)
        instance = Instance(group, name, offset_reset, consumer, self._max_bytes, isolation, owner=owner)
        self._instances[group, name] = instance
        return instance

    def known(self, group: str, name: str) -> Instance:
        """The instance, or the problem 404."""
        if (group, name) not in self._instances:
            raise Problem(
                404,
                "unknown-consumer",
                f"There is no consumer instance {name[:100]!r} in group {group[:100]!r}. /consume creates it.",
            )
        return self.get(group, name)

    async def committed(self, group: str, name: str, locations: list[TopicPartition]) -> list[dict[str, Any]]:
        """What a group has committed, asked through the instance if there is one. Only /consume creates instances."""
        if (group, name) in self._instances:
            instance = self.get(group, name)
            return await self.use(instance, instance.committed, locations)
        return await self.threads.run(self._committed, group, name, locations)

    def _committed(self, group: str, name: str, locations: list[TopicPartition]) -> list[dict[str, Any]]:
        consumer = self._consumer(group, name, DEFAULT_RESET, DEFAULT_ISOLATION)
        try:
            return Instance(group, name, DEFAULT_RESET, consumer).committed(locations)
        finally:
            consumer.close()

    def group_metadata(self, group: str) -> Any:
        """What a transaction needs to commit offsets of a group for nobody who is a member. Waits: use a thread."""
        consumer = self._consumer(group, "transaction", DEFAULT_RESET, DEFAULT_ISOLATION)
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    async def use(self, instance: Instance, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run `work`, a method of the instance, exclusively. If it was deleted meanwhile: the problem 409."""
        async with instance.lock:
            if instance.is_closed:
                raise Problem(
                    409,
                    "consumer-deleted",
                    f"The consumer instance {instance.name!r} of group {instance.group!r} was deleted while this "
                    "request waited for it. Nothing was read or committed; the next /consume creates a new one.",
                )
            return await self.threads.run(work, *arguments, **named)

    def topics_of(self, group: str, name: str) -> set[str]:
        """The topics that an instance reads, or has read and not committed; none where there is no instance."""
        instance = self._instances.get((group, name))
        if instance is None:
            return set()
        wanted = () if instance.proxied is None else instance.proxied.topics
        return {*instance.topics, *wanted, *(topic for topic, _ in list(instance.uncommitted))}

    def by_group(self, may_see: Callable[[str], bool]) -> list[dict[str, Any]]:
        """For `/consumers`: the instances of which the key may see every topic."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for (group, name), instance in sorted(self._instances.items()):
            if all(map(may_see, self.topics_of(group, name))):
                groups.setdefault(group, []).append(instance.describe())
        return [{"name": group, "instances": instances} for group, instances in groups.items()]

    async def delete(self, group: str, name: str) -> None:
        """Let the instance leave its group. What it did not commit is read again by others."""
        instance = self.known(group, name)
        self._instances.pop((group, name), None)
        self._closing += 1
        try:
            async with instance.lock:
                instance.is_closed = True
                await self.threads.run(instance.consumer.close)
        finally:
            self._closing -= 1

    async def sweep(self) -> None:
        """Close unused instances, until it is cancelled."""
        while True:
            await asyncio.sleep(min(SWEEP_EVERY_S, self._idle_s))
            for key, instance in list(self._instances.items()):
                if time.monotonic() - instance.used_at > self._idle_s and not instance.lock.locked():
                    log.info("closed_idle_consumer", group=key[0], instance=key[1])
                    await self.delete(*key)

    async def close(self) -> None:
        """Close every instance."""
        await asyncio.gather(*(self.delete(*key) for key in list(self._instances)))

    def _consumer(
        self, group: str, name: str, offset_reset: str, isolation: str, more: dict[str, Any] | None = None
    ) -> Consumer:
        return Consumer(
            {
                **self._config,
                "group.id": group,
                "client.id": name,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": offset_reset,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 100,
                # Between two requests a client may take its time; after this one it is closed anyway.
                "max.poll.interval.ms": int(self._idle_s * 1000) + 60_000,
                "session.timeout.ms": 10_000,
                "queued.max.messages.kbytes": 4096,
                **(more or {}),
            }
        )


def _named(offset_reset: str | None) -> str:
    """As the header says it."""
    return "none" if offset_reset == "error" else str(offset_reset)
