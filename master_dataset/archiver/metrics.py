"""The archiver's metrics: what it archived of each source, its lag behind Kafka, and dead letters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from infra.clients.kafka_admin import KafkaAdmin
from infra.metrics import PerSource, SourceMetrics
from infra.process_status import ProcessStatus
from master_dataset.cut import count_between
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.offset_base import to_logical
from master_dataset.kafka.topics import LATEST, read_offsets

if TYPE_CHECKING:
    from master_dataset.archiver.source_archiver import SourceArchiver

KAFKA_TIMEOUT_S = 2.0

PER_SOURCE = (
    PerSource("rows", "Records in the master dataset.", lambda source, _now: source["rows"], is_counter=True),
    PerSource("commits", "Commits since the start.", lambda source, _now: source["commits"], is_counter=True),
    PerSource(
        "dead_letters",
        "Invalid records since the start; each is in the dead-letter topic too.",
        lambda source, _now: source["invalid"],
        is_counter=True,
    ),
    PerSource("behind_offsets", "Offsets that Kafka has and no commit holds.", lambda source, _now: source["behind"]),
    PerSource(
        "last_commit_age_seconds",
        "Seconds since the last commit; they also grow while there are no new events.",
        lambda source, now: now - source["last_commit_at"] if source["last_commit_at"] else None,
    ),
    PerSource("refused", "1 while the source cannot be archived.", lambda source, _now: float(bool(source["refused"]))),
)


def archiver_metrics(archivers: Sequence[SourceArchiver], admin: KafkaAdmin) -> SourceMetrics:
    """The status of each source, and how far Kafka is ahead of it."""
    probe = admin.with_timeout(KAFKA_TIMEOUT_S)

    def status() -> ProcessStatus:
        sources = {each.source.name: {**each.describe(), "behind": _behind(each, probe)} for each in archivers}
        return ProcessStatus(time.time(), sources=sources)

    return SourceMetrics("tidemark_archiver", PER_SOURCE, status)


def _behind(archiver: SourceArchiver, admin: KafkaAdmin) -> int | None:
    """How many offsets Kafka has beyond the table's end; None where Kafka does not answer."""
    archive = archiver.archive
    if archive is None:
        return None
    locations = [(archive.source.topic, partition) for partition in archive.cut]
    with suppress(MasterDatasetError):
        latest = read_offsets(admin, locations, LATEST)
        ends = {partition: offset for (_, partition), offset in latest.items()}
        return count_between(archive.cut, to_logical(archive.base, ends))
    return None
