"""One source in the archiver's hands, for itself: opened, followed, and opened again after whatever ended that.

A source that is refused (its topic was made again, its table is damaged...) stops no other. It is tried again every few
seconds with its declaration as it is by then, so that the remedy takes effect by itself. Opening is where everything is
checked, and where the position comes from the table: a query that died is opened again likewise, and skips nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings
from master_dataset.archiver.archive import Archive, open_archive
from master_dataset.cut import cut_to_json
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.topics import apply_topics, plan_topics
from views.declarations import declared_by
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RETRY_S = 10.0
"""A source is opened at most once in this time, whether it was refused or its query dies again and again."""

log = structlog.get_logger()


class NothingArchived(MasterDatasetError):
    """Every source is refused."""

    def __init__(self, refusals: dict[str, Exception]) -> None:
        each = "\n".join(f"  {name}: {why}" for name, why in refusals.items())
        super().__init__(f"No source can be archived, all {len(refusals)} are refused:\n{each}")
        self.refusals = refusals


@dataclass
class SourceArchiver:
    """A source, and its query while it is followed. `refusal` is why it is not."""

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
        """Look after it once: notice that its query died, and open it when it is time."""
        if self.query is not None and not self.query.isActive:
            died: Exception = self.query.exception() or RuntimeError(f"Query {self.query.name} ended by itself.")
            self._let_go(died)
        if self.query is None and time.monotonic() >= self.next_try:
            self._open()

    def _open(self) -> None:
        try:
            if self.refusal is not None:  # what was declared at the start may be what had to be mended
                self.source = declared_by(self.settings).sources.get(self.source.name, self.source)
            with KafkaAdmin(self.settings, self.bootstrap) as admin:
                apply_topics(admin, plan_topics([self.source]))
            self.archive = open_archive(self.settings, self.bootstrap, self.source, self.spark, self.locks)
            self.query = self.archive.start(self.spark)
            self.refusal = None
        except Exception as error:  # whatever it is, it is this source's: the others go on
            self._let_go(error)
        self.next_try = time.monotonic() + RETRY_S

    def _let_go(self, why: Exception) -> None:
        """Nobody follows it now: others, such as a repair, may have its table."""
        if str(why) != str(self.refusal):  # said once, not at every try
            is_expected = hasattr(why, "exit_code")
            log.error("refused", source=self.source.name, why=str(why), exc_info=None if is_expected else why)
        self.refusal, self.query = why, None
        self.locks.close()

    def stop(self) -> None:
        """Whatever its query does now ends, and its table is free."""
        if self.query is not None:
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
        }


def check_any_is_archived(followers: Sequence[SourceArchiver]) -> None:
    """Raise if all are refused: the process may end then, and a new one starts with everything anew."""
    refusals = {each.source.name: each.refusal for each in followers if each.refusal is not None}
    if len(refusals) == 1 == len(followers):
        raise next(iter(refusals.values()))
    if followers and len(refusals) == len(followers):
        raise NothingArchived(refusals)
