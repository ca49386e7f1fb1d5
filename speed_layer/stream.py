"""One streaming query: from Kafka, through the views' expressions, into the speed views, each offset exactly once.

The query begins at the cut that Redis has applied. Spark's checkpoint is disposable: it only tells where a micro-batch
ends. A micro-batch that Redis does not take ends the query; whoever runs it begins again from what Redis says.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql import DataFrame, SparkSession

from hand_off.bucket_totals import by_name
from hand_off.change_log import MOST_ENTRIES, written
from hand_off.errors import SpeedError
from hand_off.ranks import numbers, ranked
from hand_off.speed_views import Group, MicroBatch, Outcome, SpeedViews, new_id
from infra.clients.kafka import spark_kafka_options
from infra.failpoints import reach
from infra.settings import Settings
from infra.spark.session import BARE_FILE_SYSTEM, planned_end
from master_dataset.cut import Cut, count_between, cut_to_json, is_below
from speed_layer.micro_batch import Delta, delta_of
from speed_layer.seen_ids import Marks, Named, to_bytes
from views.columns import Columns
from views.on_spark.columns import evaluated
from views.on_spark.events import with_event
from views.source import Source
from views.states import pack, unpack
from views.view import View

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

RECORDS_A_TASK = 20_000
"""Large micro-batches are read by tasks of this size, however few partitions the topic has."""
ONE_TASK = 3_000
"""Up to so many records one task reads all partitions: several would each cost more than they save."""
INTERPRETED = 500
"""Up to so many records Spark's plan is interpreted: writing code for it, for each task anew, takes longer."""
MOST_BYTES = 32 * 2**20
"""Packed size of the states that are kept to spare reading them; unpacked they take several times as much."""
SPARK_CONF = {
    "spark.sql.adaptive.enabled": "false",  # plans each stage anew, for micro-batches that have one
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    # Plans are written out for Spark's own pages, which nobody looks at here, in each micro-batch.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "100",
    "spark.sql.debug.maxToStringFields": "1",
}

log = structlog.get_logger()


def session_conf(settings: Settings) -> dict[str, str]:
    """For the session of the speed layer, which writes no Delta table."""
    return SPARK_CONF | (BARE_FILE_SYSTEM if settings.spark_master.startswith("local") else {})


def _compile(spark: SparkSession, wanted: bool) -> None:
    """Whether Spark shall write code for the next plan of this session."""
    if spark.conf.get("spark.sql.codegen.wholeStage") != str(wanted).lower():
        spark.conf.set("spark.sql.codegen.wholeStage", str(wanted).lower())
        spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if wanted else "NO_CODEGEN")


class Refused(Exception):
    """Redis did not take a micro-batch; the outcome says what to do."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass
class Pace:
    """How the last micro-batches went, for people."""

    micro_batches: int = 0
    events: int = 0
    copies: int = 0
    seconds: float = 0.0
    """Of the last micro-batch, from where Spark hands it over until Redis has it."""
    all_seconds: float = 0.0
    """Of all of them."""
    newest_ms: int = 0
    """Kafka's timestamp of the newest record that is applied."""


@dataclass
class Stream:
    """The query of one source. `applied` and `gid` are Redis's, as far as we know."""

    settings: Settings
    source: Source
    columns: Columns
    speed_views: SpeedViews
    token: str
    applied: Cut
    gid: str
    marks: Marks | None
    checkpoint: Path
    limit: int
    """Most events of a micro-batch."""
    pace: Pace = field(default_factory=Pace)
    refused: Outcome | None = None
    size: int = 0
    """Of the micro-batch that was tried last."""
    applied_well: int = 0
    """How many micro-batches went through."""
    failure: Exception | None = None
    states: dict[Group, tuple[dict[str, Any], int]] = field(default_factory=dict)
    kept_bytes: int = 0
    """States that we wrote lately, with their packed sizes, to spare reading them again; the last written are last.
    Nobody else writes them."""
    followed: frozenset[str] = frozenset()
    """Names of the views whose changes somebody follows."""
    applying: threading.Lock = field(default_factory=threading.Lock)
    """Held while `applied` may be another than Redis's."""
    failpoint: Callable[[str], None] = field(default=reach)

    @cached_property
    def _views(self) -> dict[str, View]:
        return by_name(self.columns.views)

    @cached_property
    def _ranked(self) -> dict[str, tuple[str, ...]]:
        return {view.hash: ranked(view) for view in self.columns.views}

    @cached_property
    def _followed_hashes(self) -> list[str]:
        return [view.hash for view in self.columns.views if view.name in self.followed]

    def start(self, spark: SparkSession, bootstrap: str, begin: Cut) -> StreamingQuery:
        """Follow Kafka from `begin` on, which is what is applied, for every partition."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        records = (
            spark.readStream.format("kafka")
            .options(**spark_kafka_options(self.settings, bootstrap))
            .option("subscribe", self.source.topic)
            .option("startingOffsets", json.dumps({self.source.topic: cut_to_json(begin)}))
            .option("maxOffsetsPerTrigger", self.limit)
            .option("maxRecordsPerPartition", RECORDS_A_TASK)
            .option("failOnDataLoss", "true")
            .load()
        )
        return (
            evaluated(with_event(records, self.source, reasons=False), self.columns)
            .writeStream.queryName(f"speed-{self.source.name}")
            .foreachBatch(self.take)
            .option("checkpointLocation", self.checkpoint.as_uri())  # the driver's disk, whatever the default is
            .start()
        )

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """One micro-batch, which begins where the last one that Redis took ended."""
        try:
            self._take(rows, batch_id)
        except Exception as error:
            self.failure = error  # what Spark makes of it is a page of Java
            raise

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        end = planned_end(self.checkpoint, batch_id, self.source.topic)
        self.failpoint("speed.before_read")
        if not is_below(self.applied, end):
            raise SpeedError(
                f"Source {self.source.name!r}: Kafka ends at {cut_to_json(end)}, before {cut_to_json(self.applied)}, "
                f"which is applied. Topic {self.source.topic!r} was made again, or lost its end."
            )
        self.size = size = count_between(self.applied, end)
        is_small = size <= self.settings.speed_fold_events
        _compile(rows.sparkSession, size > INTERPRETED)
        delta = delta_of(rows.coalesce(1) if size <= ONE_TASK else rows, self.columns, self.marks, is_small=is_small)
        log.debug("computed", source=self.source.name, records=size, ms=round((time.monotonic() - began) * 1000))
        self.failpoint("speed.before_apply")
        self._apply(delta, end)
        self.failpoint("speed.after_apply")
        pace = self.pace
        self.applied_well += 1
        pace.micro_batches += 1
        pace.events += delta.events
        pace.copies += delta.copies
        pace.newest_ms = max(pace.newest_ms, delta.newest_ms)
        pace.seconds = time.monotonic() - began
        pace.all_seconds += pace.seconds

    def _apply(self, delta: Delta, end: Cut) -> None:
        name = new_id()
        while True:
            began = time.monotonic()
            states = {group: delta.add(group, known) for group, known in self._known(delta.groups)}
            packed = {group: pack(self._views[group.view].algebras, state) for group, state in states.items()}
            ranks = {
                group: numbers(self._ranked[group.view], state)
                for group, state in states.items()
                if group.view in self._ranked
            }
            touched = written(delta.groups, self._followed_hashes)
            marks = self._marks_of(name, delta)
            batch = MicroBatch(self.applied, end, self.gid, packed, *marks, ranks, touched, MOST_ENTRIES)
            was_merged = time.monotonic()
            with self.applying:
                outcome = self.speed_views.apply(self.token, batch)
                if outcome in (Outcome.OK, Outcome.ALREADY):
                    self.applied = end
            log.debug(
                "applied",
                source=self.source.name,
                said=str(outcome),
                groups=len(states),
                merge_ms=round((was_merged - began) * 1000),
                apply_ms=round((time.monotonic() - was_merged) * 1000),
            )
            if outcome == Outcome.RETRY and self._next_generation():
                continue
            if outcome not in (Outcome.OK, Outcome.ALREADY):
                self.refused = outcome
                raise Refused(outcome)
            break
        if outcome == Outcome.OK:
            for group, state in states.items():
                self.states[group] = (state, len(packed[group]))
                self.kept_bytes += len(packed[group])
        while self.kept_bytes > MOST_BYTES:
            self._take_out(next(iter(self.states)))
        if self.marks is not None:
            self.marks.forget(delta.oldest_ms)
            if len(delta.hashes):
                self.marks.add(Named(name, self._until(delta), delta.hashes))

    def _known(self, groups: list[Group]) -> Iterator[tuple[Group, dict[str, Any] | None]]:
        """The states of groups as Redis has them: those that we wrote lately are taken out of our copy."""
        missing = [group for group in groups if group not in self.states]
        read = dict(zip(missing, self.speed_views.read(self.gid, missing), strict=True))
        for group in groups:
            if group in read:
                state = read[group]
                yield group, None if state is None else unpack(self._views[group.view].algebras, state)
            else:
                yield group, self._take_out(group)

    def _take_out(self, group: Group) -> dict[str, Any]:
        state, size = self.states.pop(group)
        self.kept_bytes -= size
        return state

    def _marks_of(self, name: str, delta: Delta) -> tuple[str, bytes, int, tuple[str, ...]]:
        if self.marks is None:
            return name, b"", 0, ()
        marks = to_bytes(self._until(delta), delta.hashes) if len(delta.hashes) else b""
        return name, marks, self.marks.horizon_ms, self.marks.outdated(delta.oldest_ms)

    def _until(self, delta: Delta) -> int:
        """When its marks were new: not before the others', though records that are sent again have old timestamps."""
        return max(delta.newest_ms, self.marks.newest_ms if self.marks is not None else 0)

    def _next_generation(self) -> bool:
        """A run opened a generation since. If it computes what we do, the micro-batch goes into that one."""
        generations = self.speed_views.look().generations
        if not generations or set(generations[-1].views) != {view.hash for view in self.columns.views}:
            return False
        self.gid = generations[-1].gid
        self.states.clear()
        self.kept_bytes = 0
        return True
