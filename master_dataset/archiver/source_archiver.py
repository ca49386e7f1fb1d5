"""One source of the archiver: opened, archived by a query, and opened again after whatever ended the query.

A source that is refused (its topic was recreated, its table is damaged, ...) stops no other. The archiver retries it
every few seconds with its current declaration, so that a fix takes effect by itself. Opening checks everything and
takes the position from the table; a query that died is opened again in the same way and skips nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from infra.clients.kafka_admin import KafkaAdmin
from infra.errors import is_temporary
from infra.settings import Settings
from master_dataset.archiver.archive import Archive, open_archive
from master_dataset.cut import cut_to_json
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.topics import apply_topics, follow_retention, plan_topics
from views.declarations import declared_by
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RETRY_S = 10.0
"""The minimum time between two attempts to open a source, whether it was refused or its query keeps dying."""

log = structlog.get_logger()


class NothingArchived(MasterDatasetError):
    """Every source is refused."""

    def __init__(self, refusals: dict[str, Exception]) -> None:
        each = "\n".join(f"  {name}: {reason}" for name, reason in refusals.items())
        super().__init__(f"No source can be archived; all {len(refusals)} are refused:\n{each}")
        self.refusals = refusals
        # A process has one status: a source that will be archived again is not to fail for one that will not.
        self.is_temporary = any(is_temporary(reason) for reason in refusals.values())


@dataclass
class SourceArchiver:
    """A source, and its query while it is archived. `refusal` is the reason why it is not."""

    settings: Settings
    bootstrap: str
    spark: SparkSession
    source: Source
    archive: Archive | None = None
    query: StreamingQuery | None = None
    refusal: Exception | None = None
    locks: ExitStack = field(default_factory=ExitStack)
    next_try: float = 0.0  # monotonic

    def attend(self) -> None:
        """Notice that its query died, and open it when it is due. Called at every heartbeat."""
        if self.query is not None and not self.query.isActive:
            died: Exception = self.query.exception() or RuntimeError(f"Query {self.query.name} ended by itself.")
            self._release(died)
        if self.query is None and time.monotonic() >= self.next_try:
            self._open()

    def _open(self) -> None:
        try:
            if self.refusal is not None:  # the fix may be a new declaration
                self.source = declared_by(self.settings).sources.get(self.source.name, self.source)
            with KafkaAdmin(self.settings, self.bootstrap) as admin:
                days = self.settings.dead_letter_retention_days
                apply_topics(admin, plan_topics([self.source], days))
                if changed := follow_retention(admin, [self.source], days):
                    log.info("retention_changed", source=self.source.name, topics=changed, days=days)
            self.archive = open_archive(self.settings, self.bootstrap, self.source, self.spark, self.locks)
            self.query = self.archive.start(self.spark)
            self.refusal = None
        except Exception as error:  # whatever it is, it concerns this source alone
            self._release(error)
        self.next_try = time.monotonic() + RETRY_S

    def _release(self, reason: Exception) -> None:
        """Release its table: others, such as a repair, may lock it now."""
        if str(reason) != str(self.refusal):  # logged once, not at every attempt
            is_expected = hasattr(reason, "exit_code")
            log.error("refused", source=self.source.name, reason=str(reason), exc_info=None if is_expected else reason)
        self.refusal, self.query = reason, None
        self.locks.close()

    def stop(self) -> None:
        """Stop its query and release its table."""
        if self.query is not None and self.archive is not None:
            self.archive.stop_waiting()
            self.query.stop()
        self.locks.close()

    def describe(self) -> dict[str, Any]:
        """Its part of the archiver's status."""
        held = self.archive
        return {
            "cut": cut_to_json(held.cut) if held else {},
            "rows": held.rows if held else 0,
            "commits": held.commits if held else 0,
            "invalid": held.invalid if held else 0,
            "last_commit_at": held.last_commit_at if held else 0.0,
            "refused": "" if self.refusal is None else str(self.refusal),
            "is_temporary": self.refusal is not None and is_temporary(self.refusal),
        }


def check_any_is_archived(archivers: Sequence[SourceArchiver]) -> None:
    """Raise if all are refused: the process ends then, and the supervisor starts a new one."""
    refusals = {each.source.name: each.refusal for each in archivers if each.refusal is not None}
    if len(refusals) == 1 == len(archivers):
        raise next(iter(refusals.values()))
    if archivers and len(refusals) == len(archivers):
        raise NothingArchived(refusals)
