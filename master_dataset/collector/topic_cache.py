"""A cache of the topics that exist, so that a wrong name is refused at once instead of after a timeout."""

from __future__ import annotations

import asyncio
import time

from infra.clients.kafka_admin import KafkaAdmin
from infra.rest.problems import Problem
from master_dataset.kafka.errors import KafkaUnreachable, TopicError
from master_dataset.kafka.topics import existing_topics

ASK_AGAIN_AFTER_S = 1.0
TIMEOUT_S = 5.0


class TopicCache:
    """Partition counts by topic. An unknown topic makes it ask Kafka, at most once a second."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin.with_timeout(TIMEOUT_S)
        self._partitions: dict[str, int] = {}
        self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has, or the problem 404 (or 503 where no broker answers)."""
        found = self._partitions.get(topic)
        if found is None:
            await self._refresh()
            found = self._partitions.get(topic)
        if found is None:
            raise Problem(
                404,
                "unknown-topic",
                f"There is no topic {topic[:260]!r}. GET /topics lists them; an administrator can create one with "
                "POST /admin/topics.",
                topic=topic[:260],
            )
        return found

    async def check_partition(self, topic: str, partition: int) -> None:
        """Raise the problem 404 unless the topic has this partition."""
        count = await self.partitions(topic)
        if partition >= count:
            await self._refresh()
            count = await self.partitions(topic)
        if not 0 <= partition < count:
            raise Problem(
                404,
                "unknown-partition",
                f"Topic {topic!r} has the partitions 0 to {count - 1}, not {partition}.",
                topic=topic,
                partition=partition,
            )

    async def names(self) -> list[str]:
        """All topics, as they were a second ago at most."""
        await self._refresh()
        return sorted(self._partitions)

    def forget(self, topic: str) -> None:
        """Forget a topic that was changed."""
        self._partitions.pop(topic, None)
        self._asked_at = float("-inf")

    async def _refresh(self) -> None:
        async with self._lock:
            if time.monotonic() - self._asked_at < ASK_AGAIN_AFTER_S:
                return
            try:
                self._partitions = await asyncio.to_thread(existing_topics, self._admin)
            except (KafkaUnreachable, TopicError) as error:
                raise Problem(
                    503, "kafka-unreachable", f"{error} Nothing was stored. Send it again later.", retry_after_s=2
                ) from None
            self._asked_at = time.monotonic()
