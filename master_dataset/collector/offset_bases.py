"""The bases of the sources' topics, for acknowledgements: those of events name logical offsets, like answers do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from infra.clients.kafka_admin import KafkaAdmin
from infra.disk import FileStamp, file_stamp
from infra.settings import Settings
from master_dataset.collector.producer import Ack, Outcome
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.offset_base import OffsetBase
from master_dataset.kafka.topics import read_topic_id
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from views.source import Source

LOOK_EVERY_S = 1.0
KAFKA_TIMEOUT_S = 2.0

log = structlog.get_logger()


class OffsetBases:
    """What Kafka's offsets are raised by, by topic. One task looks; requests only read what it found."""

    def __init__(self, settings: Settings, admin: KafkaAdmin, sources: Iterable[Source]) -> None:
        self._tables = {source.topic: table_path(settings, source.name) for source in sources}
        self._admin = admin.with_timeout(KAFKA_TIMEOUT_S)
        self._stamps: dict[str, FileStamp | None] = {}
        self._bases: dict[str, OffsetBase] = {}
        self._replaced: frozenset[str] = frozenset()
        """Topics that are not those of their tables any more, until a rebase. Replaced, never changed."""

    async def watch(self) -> None:
        """Look every second, in a thread."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Read what changed in the tables, and whether the topics are still theirs."""
        for topic, table in self._tables.items():
            stamp = file_stamp(table / "_delta_log")
            if stamp is not None and stamp != self._stamps.get(topic):
                try:
                    self._bases[topic] = coverage.of(table).offset_base
                    self._stamps[topic] = stamp
                except (MasterDatasetError, OSError, ValueError) as error:  # the archiver says more about it
                    log.warning("base_not_read", topic=topic, reason=str(error))
        self._replaced = frozenset(topic for topic in self._bases if self._is_replaced(topic))

    def _is_replaced(self, topic: str) -> bool:
        try:
            return not self._bases[topic].is_of(read_topic_id(self._admin, topic))
        except MasterDatasetError:  # Kafka does not answer, or has no such topic at this moment
            return topic in self._replaced

    def logical(self, topic: str, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Outcomes with logical offsets; None where the topic was made again, and nobody can tell before a rebase."""
        known = self._bases.get(topic)
        if known is None or not (known.base or self._replaced):
            return outcomes
        is_unknown = topic in self._replaced
        return [
            outcome._replace(offset=None if is_unknown else outcome.offset + known.base.get(outcome.partition, 0))
            if isinstance(outcome, Ack) and outcome.offset is not None
            else outcome
            for outcome in outcomes
        ]
