"""The Spark query of one source: appends its records from Kafka to its table, each offset exactly once.

Rows and offsets are one commit, whose proof records both. Each start takes its position from the proofs, not from
Spark: it checks that the chain of proofs is complete, and gives Spark a new checkpoint that begins there. Spark's
checkpoint is disposable.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from infra.clients.kafka import spark_kafka_options
from infra.clients.kafka_admin import KafkaAdmin
from infra.failpoints import reach
from infra.home import Home
from infra.settings import Settings
from infra.spark.session import planned_end
from master_dataset.archiver.commit_size import next_end
from master_dataset.archiver.pace import Pace
from master_dataset.cut import Cut, count_between, cut_to_json, ranges
from master_dataset.dead_letters.outbox import DeadLetters
from master_dataset.kafka.logical_records import with_logical_offsets
from master_dataset.kafka.offset_base import to_kafka, to_logical
from master_dataset.kafka.positions import (
    KafkaBehind,
    PartitionsDiffer,
    check_positions,
    check_topic_id,
    logical_positions,
    read_positions,
)
from master_dataset.kafka.topics import LATEST, read_offsets, read_topic_id
from master_dataset.table import coverage
from master_dataset.table.append import Committed, append, archiver_lock, commit_lock, create_table, remove_files
from master_dataset.table.checks.fsck import TableDamaged, refuse_damage
from master_dataset.table.checks.void_commits import take_out_unsynced
from master_dataset.table.delta_log import remember
from master_dataset.table.history import read_history
from master_dataset.table.ledger import complete_ledger
from master_dataset.table.parsed_columns import with_parsed_columns
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.readings import adopt, first_reading
from master_dataset.writer_schemas.noted import NewSchemas, NotedSchemas
from views.on_spark.framed_records import unknown_frame, unknown_frames
from views.source import Source

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql.streaming.query import StreamingQuery

SMALL_COMMIT = 50_000
"""Up to this many records a commit is one file; larger ones are written in parallel."""

PROBE_TIMEOUT_S = 2.0

log = structlog.get_logger()


@dataclass
class Archive:
    """The archiving of one source into its table."""

    settings: Settings
    source: Source
    path: Path
    bootstrap: str
    cut: dict[int, int]
    topic_id: str
    rows: int
    dead_letters: DeadLetters
    checkpoint: Path
    admin: KafkaAdmin
    base: Cut = field(default_factory=dict)
    """What Kafka's offsets are raised by: `cut` has logical offsets, as the table does."""
    last: Proof = field(default_factory=lambda: Proof(Kind.APPEND))
    last_commit_at: float = 0.0
    commits: int = 0
    invalid: int = 0
    """Invalid records among those that were archived since it was opened."""
    failpoint: Callable[[str], None] = field(default=reach)
    pace: Pace | None = None

    def __post_init__(self) -> None:
        self.schemas = NotedSchemas(self.settings, self.source, self.path)

    def start(self, spark: SparkSession, *, once: bool = False) -> StreamingQuery:
        """Start the query at the table's own position; with `once` it ends at what Kafka holds now."""
        probe = self.admin.with_timeout(PROBE_TIMEOUT_S)  # a pause has to end in time, also while Kafka is away
        self.pace = None if once else Pace(self.settings, self.path, lambda: self._pending(probe))
        pace = {"processingTime": f"{self.pace.trigger_s} seconds"} if self.pace else {"availableNow": True}
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        records = (
            spark.readStream.format("kafka")
            .options(**self._reading_options(spark))
            .option("maxOffsetsPerTrigger", self.settings.archive_max_events)
            .load()
        )
        return (
            records.writeStream.queryName(f"archive-{self.source.name}")
            .foreachBatch(self.append_batch)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**pace)
            .start()
        )

    def append_batch(self, records: DataFrame, batch_id: int) -> None:
        """One micro-batch: one commit, or several if it is too many bytes for one. Then a pause."""
        began = time.monotonic()
        begin, end = self.cut, to_logical(self.base, planned_end(self.checkpoint, batch_id, self.source.topic))
        if set(end) != set(self.cut):
            raise PartitionsDiffer(
                f"Topic {self.source.topic!r} now has the partitions {sorted(end)}; it had {sorted(self.cut)}. "
                f"Set partitions={len(end)} in the declaration of source {self.source.name!r}; nothing was skipped."
            )
        behind = list(ranges(end, self.cut))
        if behind:
            self.check_topic()
            raise KafkaBehind(self.source, behind)
        max_bytes = self.settings.archive_max_mb * 2**20
        while end != self.cut:
            step = next_end(self.cut, end, max_bytes, self.last)
            self._commit(records if self.cut == begin and step == end else self._read_until(records, step), step)
        if self.pace is not None:
            self.pace.wait(began)

    def stop_waiting(self) -> None:
        """End the pause between two commits: Spark cannot interrupt it."""
        if self.pace is not None:
            self.pace.stopping.set()

    def _commit(self, records: DataFrame, end: dict[int, int]) -> None:
        """Append the records from the table's end up to the cut `end`."""
        began, size = time.monotonic(), count_between(self.cut, end)
        proof = Proof(Kind.APPEND, self.source.topic, self.topic_id, start=self.cut, end=end, base=self.base)
        self.failpoint("archiver.before_commit")
        done = self._append(records, proof, size)
        self.failpoint("archiver.after_commit")
        self.cut, self.rows, self.last_commit_at = end, self.rows + done.proof.rows, time.time()
        self.last = done.proof if done.proof.rows else self.last  # a commit without rows says nothing about sizes
        self.commits += 1
        self.invalid += done.proof.invalid
        self.dead_letters.send(done.version, done.proof)
        log.info(
            "archived",
            source=self.source.name,
            version=done.version,
            rows=done.proof.rows,
            invalid=done.proof.invalid,
            seconds=round(time.monotonic() - began, 2),
            cut=self.cut,
        )

    def _append(self, records: DataFrame, proof: Proof, size: int) -> Committed:
        """Commit, after the registry was asked for schemas of the records that nobody has met yet.

        Where it does not answer, nothing is committed: the query ends, and the source is opened again later.
        """
        asked: set[bytes] = set()
        while True:
            try:
                return self._try_append(records, proof, size, asked)
            except NewSchemas as new:
                self.schemas.resolve(new.frames)
                asked |= new.frames

    def _try_append(self, records: DataFrame, proof: Proof, size: int, asked: set[bytes]) -> Committed:
        """One attempt. NewSchemas: nothing was committed, because what is in the files may be wrong."""
        logical, writers = with_logical_offsets(records, self.base), self.schemas.known()
        rows, unknown = with_parsed_columns(logical, self.path, self.source, writers), Observation()
        if self.source.needs_writer_schemas:
            rows = rows.observe(unknown, f.count(unknown_frame(writers)).alias("records"))

        def check(names: list[str]) -> None:
            if self.source.needs_writer_schemas and unknown.get["records"]:
                new = self.schemas.without_answer(unknown_frames(logical, writers), asked)
                if new:
                    remove_files(self.path, names)
                    raise NewSchemas(new)
            self.check_topic()

        with commit_lock(self.path):
            files = 1 if size <= SMALL_COMMIT else None
            return append(records.sparkSession, self.path, rows, proof, files=files, check=check)

    def check_topic(self) -> None:
        """Before each commit: a topic that was recreated meanwhile starts at 0, and may soon reach our offsets."""
        check_topic_id(self.source, read_topic_id(self.admin, self.source.topic), self.topic_id)

    def _pending(self, admin: KafkaAdmin) -> int:
        """How many offsets Kafka has that no commit holds. Those of an open transaction do not count."""
        locations = [(self.source.topic, partition) for partition in self.cut]
        latest = read_offsets(admin, locations, LATEST, committed=True)
        ends = {partition: offset for (_, partition), offset in latest.items()}
        return count_between(self.cut, to_logical(self.base, ends))

    def _reading_options(self, spark: SparkSession) -> dict[str, str]:
        """How Spark reads Kafka from the end of the table. It fails where records are gone."""
        return {
            **spark_kafka_options(self.settings, self.bootstrap),
            "subscribe": self.source.topic,
            "startingOffsets": json.dumps({self.source.topic: cut_to_json(to_kafka(self.base, self.cut))}),
            # Three tasks a core: with one, the core that got the smaller partitions waits for the other.
            "minPartitions": str(3 * spark.sparkContext.defaultParallelism),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
        }

    def _read_until(self, batch: DataFrame, end: dict[int, int]) -> DataFrame:
        """A part of a micro-batch, read by itself: a filter on the micro-batch would read all of it for each part."""
        spark = batch.sparkSession
        ending = json.dumps({self.source.topic: cut_to_json(to_kafka(self.base, end))})
        options = {**self._reading_options(spark), "endingOffsets": ending}
        return spark.read.format("kafka").options(**options).load()


def checkpoint_folder(settings: Settings, source: str) -> Path:
    """Where Spark keeps its checkpoint of a source's query."""
    return Home(settings.home).spark / "checkpoints" / f"archive-{source}"


def open_archive(settings: Settings, bootstrap: str, source: Source, spark: SparkSession, locks: ExitStack) -> Archive:
    """Check the table and Kafka, and continue where the table ends. Refuses whatever would lose or repeat a row."""
    path = table_path(settings, source.name)
    locks.enter_context(archiver_lock(path))
    try:
        refuse_damage(source.name, path)
    except TableDamaged:
        with commit_lock(path):
            taken = take_out_unsynced(path)
        if not taken:
            raise
        log.warning(
            "files_taken_out", source=source.name, files=taken, reason="unreadable, and no commit depends on them"
        )
        refuse_damage(source.name, path)
    create_table(spark, path, first_reading(path, source))
    adopt(path, source)
    with commit_lock(path):
        newest = read_history(path).in_log
        complete_ledger(path, newest)
        remember(path, newest)
        history = read_history(path)
    held = coverage.of_history(history)
    positions = logical_positions(read_positions(settings, bootstrap, source), held.offset_base)
    cut = check_positions(source, positions, held.cut, held.topic_id)
    log.info("opened", source=source.name, cut=cut, rows=held.rows)
    dead_letters = DeadLetters(settings, bootstrap, source, path)
    dead_letters.catch_up(history)
    reach("archiver.opened")
    return Archive(
        settings=settings,
        source=source,
        path=path,
        bootstrap=bootstrap,
        cut=cut,
        topic_id=positions.topic_id,
        rows=held.rows,
        dead_letters=dead_letters,
        checkpoint=checkpoint_folder(settings, source.name),
        admin=KafkaAdmin(settings, bootstrap),
        base=held.base,
        last=held.last_with_rows or Proof(Kind.APPEND),
    )
