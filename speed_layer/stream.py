"""One streaming query: from Kafka, through the views' expressions, into the speed views, each offset exactly once.

The query starts at the cut that Redis has applied. Spark's checkpoint is disposable: it only says where a micro-batch
ends. If Redis refuses a micro-batch, the query ends; the writer of the source then starts another at what Redis says.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from pyspark.sql import DataFrame, SparkSession

from hand_off.bucket_totals import by_name
from hand_off.change_log import MAX_ENTRIES, entry_of
from hand_off.errors import SpeedError
from hand_off.ranks import numbers, ranked
from hand_off.speed_views import Group, MicroBatch, Outcome, SpeedWriter, cut_text, memory_of, new_id
from infra.clients.kafka import spark_kafka_options
from infra.failpoints import reach
from infra.settings import Settings
from infra.spark.session import BARE_FILE_SYSTEM, planned_end
from master_dataset.cut import Cut, count_between, cut_to_json, is_below
from master_dataset.kafka.logical_records import with_logical_offsets
from master_dataset.kafka.offset_base import to_kafka, to_logical
from master_dataset.writer_schemas.noted import NewSchemas
from master_dataset.writer_schemas.registry import RegistryAway
from speed_layer.batch_size import BatchSize
from speed_layer.framed_source import FramedSource
from speed_layer.micro_batch import Delta, delta_of
from speed_layer.pause import Pause
from speed_layer.polling import BUSY_MS, Polling, delay_setter
from speed_layer.redis_share import RedisShare
from speed_layer.seen_ids import SeenBatch, SeenIds, to_bytes
from views.columns import Columns
from views.on_spark.columns import evaluated
from views.on_spark.events import with_event
from views.source import Source
from views.states import pack_short, unpack
from views.view import View

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PAUSE_LOOK_S = 0.1
"""How often a micro-batch that waits for a run checks whether that is still under way."""
CHECK_S = 0.5
"""How often the stream checks that Redis is where it left it."""
RECORDS_A_TASK = 20_000
"""Large micro-batches are read by tasks of this size, however few partitions the topic has."""
ONE_TASK = 3_000
"""Up to so many records one task reads all partitions: several would each cost more than they save."""
INTERPRETED = 500
"""Up to so many records Spark interprets its plan: generating code for each task takes longer."""
MAX_CACHED_BYTES = 32 * 2**20
"""Packed size of the states that are cached to spare reading them; unpacked they take several times as much."""
SPARK_CONF = {
    "spark.sql.adaptive.enabled": "false",  # plans each stage again, and a micro-batch has one stage
    "spark.sql.streaming.pollingDelay": f"{BUSY_MS}ms",  # while records arrive: see polling.py
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    # Spark writes plans for its own pages in each micro-batch; nobody reads them here.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "100",
    "spark.sql.debug.maxToStringFields": "1",
}

log = structlog.get_logger()


def session_conf(settings: Settings) -> dict[str, str]:
    """For the session of the speed layer, which writes no Delta table."""
    return SPARK_CONF | (BARE_FILE_SYSTEM if settings.spark_master.startswith("local") else {})


def _use_codegen(spark: SparkSession, is_wanted: bool) -> None:
    """Whether Spark generates code for the next plan of this session."""
    if spark.conf.get("spark.sql.codegen.wholeStage") != str(is_wanted).lower():
        spark.conf.set("spark.sql.codegen.wholeStage", str(is_wanted).lower())
        spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if is_wanted else "NO_CODEGEN")


class Refused(Exception):
    """Redis refused a micro-batch; the outcome says what to do."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class EndReason(StrEnum):
    """Why a stream ended."""

    STOPPED = "stopped"
    """The process stops."""
    FENCED = "fenced"
    """Somebody else owns the epoch."""
    MOVED = "moved"
    """Redis is at another cut than ours, or refused a micro-batch, or micro-batches should have another size: a new
    stream starts at what Redis says."""
    FAILED = "failed"


class Ended(NamedTuple):
    """How a stream ended."""

    reason: EndReason
    failure: Exception | None = None
    tried: int = 0
    """Events of the micro-batch that failed; 0 where none did."""
    applied: int = 0
    """How many micro-batches it applied."""


@dataclass
class Pace:
    """Counters over all streams of a source, for its status and metrics."""

    micro_batches: int = 0
    events: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    """Of the last micro-batch, from where Spark hands it over until Redis has it."""
    all_seconds: float = 0.0
    """Of all of them."""
    newest_ms: int = 0
    """Kafka's timestamp of the newest record that is applied."""


@dataclass
class Stream:
    """The query of one source. Only the stream writes its fields; `applied` and `gid` are Redis's, as far as it knows.

    Spark calls `take` from a thread of its own. The thread that calls `run` reads what `take` left.
    """

    settings: Settings
    source: Source
    columns: Columns
    writer: SpeedWriter
    applied: Cut
    gid: str
    seen_ids: SeenIds | None
    checkpoint: Path
    limit: int
    """Maximum of events in a micro-batch."""
    base: Cut = field(default_factory=dict)
    """What Kafka's offsets are raised by: `applied` has logical offsets (master_dataset/kafka/offset_base.py)."""
    batch_size: BatchSize | None = None
    """What the limit should be, by the size of events; None: it is left as it is."""
    pace: Pace = field(default_factory=Pace)
    size: int = 0
    """Of the micro-batch that was tried last."""
    states: dict[Group, tuple[dict[str, Any], int]] = field(default_factory=dict)
    """States that we wrote lately, with their packed sizes, to spare reading them again; the last written are last.
    Nobody else writes them."""
    cached_bytes: int = 0
    followed: frozenset[str] = frozenset()
    """Names of the views whose changes somebody follows."""
    on_applied: Callable[[], None] = lambda: None
    """Called after each micro-batch that Redis took."""
    share: RedisShare | None = None
    """What the source may take of Redis; None: all of it."""
    pause: Pause | None = None
    """Whether micro-batches wait for a run that overtakes; None: they never do."""
    framed: FramedSource | None = None
    """How records are read that name their schema; None: they do not."""
    failpoint: Callable[[str], None] = field(default=reach)
    _ending: threading.Event = field(default_factory=threading.Event, init=False)
    """Set once, before the query is stopped: a micro-batch that waits then is not taken."""
    _query: StreamingQuery | None = field(default=None, init=False)
    _polling: Polling | None = field(default=None, init=False)
    _refused: Outcome | None = field(default=None, init=False)
    _failure: Exception | None = field(default=None, init=False)
    _micro_batches: int = field(default=0, init=False)
    _suits: bool = field(default=True, init=False)
    """Whether the limit is still right."""
    _applying: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while `applied` may differ from Redis's."""

    @cached_property
    def _views(self) -> dict[str, View]:
        return by_name(self.columns.views)

    @cached_property
    def _ranked(self) -> dict[str, tuple[str, ...]]:
        return {view.hash: ranked(view) for view in self.columns.views}

    @cached_property
    def _followed_hashes(self) -> list[str]:
        return [view.hash for view in self.columns.views if view.name in self.followed]

    def start(self, spark: SparkSession, bootstrap: str, begin: Cut) -> None:
        """Start the query at `begin`: what is applied, for every partition."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        framed = self.framed
        records = (
            spark.readStream.format("kafka")
            .options(**spark_kafka_options(self.settings, bootstrap))
            .option("subscribe", self.source.topic)
            .option("startingOffsets", json.dumps({self.source.topic: cut_to_json(to_kafka(self.base, begin))}))
            .option("maxOffsetsPerTrigger", self.limit)
            .option("maxRecordsPerPartition", RECORDS_A_TASK)
            .option("failOnDataLoss", "true")
            .option("includeHeaders", str(self.source.needs_headers).lower())
            .load()
        )
        logical = with_logical_offsets(records, self.base)
        events = framed.with_event(logical) if framed else with_event(logical, self.source, reasons=False)
        self._query = (
            evaluated(events, self.columns, *(framed.columns() if framed else ()))
            .writeStream.queryName(f"speed-{self.source.name}")
            .foreachBatch(self.take)
            .option("checkpointLocation", self.checkpoint.as_uri())  # the driver's disk, whatever the default is
            .start()
        )
        self._polling = Polling(delay_setter(self._query))

    def run(self, stopping: threading.Event, between: Callable[[], None]) -> Ended:
        """Wait until the query that was started ends, or must end, and say how. `between` is called now and then."""
        query, polling = self._query, self._polling
        if query is None or polling is None:
            raise RuntimeError("run was called before start")
        found: EndReason | None = None
        watching: Exception | None = None
        try:
            while not stopping.is_set() and query.isActive and (found := self._check_redis()) is None:
                between()
                polling.adapt()
                stopping.wait(CHECK_S)
        except Exception as error:  # Redis does not answer, say: the query would find out too
            watching = error
        finally:
            self._ending.set()
            query.stop()
            # Spark keeps `take`, and with it the stream and its states, until the JVM has no use for the query.
            self._query = self._polling = None
        if self._refused == Outcome.FENCED or (self._refused is None and found == EndReason.FENCED):
            return Ended(EndReason.FENCED, applied=self._micro_batches)
        if self._refused is not None:
            return Ended(EndReason.MOVED, applied=self._micro_batches)
        if stopping.is_set():
            return Ended(EndReason.STOPPED, applied=self._micro_batches)
        if isinstance(self._failure, NewSchemas):
            return Ended(EndReason.MOVED, applied=self._micro_batches)
        failure = self._failure or watching or query.exception()
        if failure is not None:
            tried = 0 if self._failure is None or isinstance(self._failure, RegistryAway) else self.size
            return Ended(EndReason.FAILED, failure, tried, self._micro_batches)
        return Ended(found or EndReason.STOPPED, applied=self._micro_batches)

    def _check_redis(self) -> EndReason | None:
        """None while Redis is at our epoch and our cut; else it was lost, rolled back or taken over."""
        if not self._suits:
            return EndReason.MOVED
        with self._applying:
            snapshot = self.writer.reader.snapshot()
            if snapshot.epoch != self.writer.token:
                return EndReason.FENCED
            is_ours = snapshot.meta is not None and cut_text(snapshot.meta.applied) == cut_text(self.applied)
            return None if is_ours else EndReason.MOVED

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """One micro-batch, which begins where the last one that Redis took ended."""
        try:
            self._take(rows, batch_id)
        except Exception as error:
            self._failure = error  # Spark turns it into a page of Java
            raise

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        if self._must_end():
            return
        began = time.monotonic()
        end = to_logical(self.base, planned_end(self.checkpoint, batch_id, self.source.topic))
        self.failpoint("speed.before_read")
        if not is_below(self.applied, end):
            raise SpeedError(
                f"Source {self.source.name!r}: Kafka ends at {cut_to_json(end)}, before {cut_to_json(self.applied)}, "
                f"which is applied. Topic {self.source.topic!r} was created again, or lost its end."
            )
        self.size = size = count_between(self.applied, end)
        is_small = size <= self.settings.speed_fold_events
        _use_codegen(rows.sparkSession, size > INTERPRETED)
        delta = delta_of(rows.coalesce(1) if size <= ONE_TASK else rows, self.columns, self.seen_ids, is_small=is_small)
        log.debug("computed", source=self.source.name, records=size, ms=round((time.monotonic() - began) * 1000))
        if self.framed is not None:
            self.framed.check(delta.unknown_frames)
        self.failpoint("speed.before_apply")
        self._apply(delta, end)
        self.failpoint("speed.after_apply")
        if self._polling is not None:
            self._polling.record()
        pace = self.pace
        self._micro_batches += 1
        if self.batch_size is not None:
            self.batch_size.record(size, delta.size)
            self._suits = self.batch_size.suits(self.limit, size, delta.size, self._micro_batches)
        pace.micro_batches += 1
        pace.events += delta.events
        pace.duplicates += delta.duplicates
        pace.newest_ms = max(pace.newest_ms, delta.newest_ms)
        pace.seconds = time.monotonic() - began
        pace.all_seconds += pace.seconds
        self.on_applied()

    def _must_end(self) -> bool:
        """Wait while a run is going to overtake us. True: the stream ends, and this micro-batch is not taken.

        Spark may take that for done and begin the next one, which is not taken either: the checkpoint is disposable.
        """
        while self.pause is not None and not self._ending.is_set() and self.pause.holds():
            self._ending.wait(PAUSE_LOOK_S)
        return self._ending.is_set()

    def _apply(self, delta: Delta, end: Cut) -> None:
        name = new_id()
        while True:
            began = time.monotonic()
            states, grown = {}, 0
            for group, known, size in self._known(delta.groups):
                states[group] = delta.add(group, known)
                grown -= 0 if known is None else self._memory_of(group, size)
            packed = {group: pack_short(self._views[group.view].algebras, state) for group, state in states.items()}
            grown += sum(self._memory_of(group, len(state)) for group, state in packed.items())
            ranks = {
                group: numbers(self._ranked[group.view], state)
                for group, state in states.items()
                if group.view in self._ranked
            }
            changes = entry_of(delta.groups, self._followed_hashes)
            seen_ids = self._seen_ids_of(name, delta)
            batch = MicroBatch(self.applied, end, self.gid, packed, *seen_ids, ranks, changes, MAX_ENTRIES, grown)
            was_merged = time.monotonic()
            if self.share is not None:
                self.share.check(grown)
            with self._applying:
                outcome = self.writer.apply(batch)
                if outcome in (Outcome.OK, Outcome.ALREADY):
                    self.applied = end
            log.debug(
                "applied",
                source=self.source.name,
                outcome=str(outcome),
                groups=len(states),
                merge_ms=round((was_merged - began) * 1000),
                apply_ms=round((time.monotonic() - was_merged) * 1000),
            )
            if outcome == Outcome.RETRY and self._next_generation():
                continue
            if outcome not in (Outcome.OK, Outcome.ALREADY):
                self._refused = outcome
                raise Refused(outcome)
            break
        if outcome == Outcome.OK:
            for group, state in states.items():
                self.states[group] = (state, len(packed[group]))
                self.cached_bytes += len(packed[group])
        while self.cached_bytes > MAX_CACHED_BYTES:
            self._take_out(next(iter(self.states)))
        if self.seen_ids is not None:
            self.seen_ids.forget(delta.oldest_ms)
            if len(delta.hashes):
                self.seen_ids.add(SeenBatch(name, self._until(delta), delta.hashes))

    def _memory_of(self, group: Group, size: int) -> int:
        return memory_of(group, size, len(self._ranked.get(group.view, ())))

    def _known(self, groups: list[Group]) -> Iterator[tuple[Group, dict[str, Any] | None, int]]:
        """The states of groups as Redis has them, and their packed sizes: the cache is emptied of what it has."""
        missing = [group for group in groups if group not in self.states]
        read = dict(zip(missing, self.writer.reader.read_states(self.gid, missing), strict=True))
        for group in groups:
            if group in read:
                state = read[group]
                known = None if state is None else unpack(self._views[group.view].algebras, state)
                yield group, known, len(state or b"")
            else:
                yield group, *self._take_out(group)

    def _take_out(self, group: Group) -> tuple[dict[str, Any], int]:
        state, size = self.states.pop(group)
        self.cached_bytes -= size
        return state, size

    def _seen_ids_of(self, name: str, delta: Delta) -> tuple[str, bytes, int, tuple[str, ...]]:
        if self.seen_ids is None:
            return name, b"", 0, ()
        packed = to_bytes(self._until(delta), delta.hashes) if len(delta.hashes) else b""
        return name, packed, self.seen_ids.horizon_ms, self.seen_ids.outdated(delta.oldest_ms)

    def _until(self, delta: Delta) -> int:
        """The time of its seen ids: not before that of earlier ones, though records sent again have old timestamps."""
        return max(delta.newest_ms, self.seen_ids.newest_ms if self.seen_ids is not None else 0)

    def _next_generation(self) -> bool:
        """A run opened a generation since. If it computes the same views, the micro-batch goes into that one."""
        generations = self.writer.reader.snapshot().generations
        if not generations or set(generations[-1].views) != {view.hash for view in self.columns.views}:
            return False
        self.gid = generations[-1].gid
        self.states.clear()
        self.cached_bytes = 0
        return True
