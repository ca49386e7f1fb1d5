"""The writer of one source's speed views: it goes on from what Redis has, and starts again whenever that changed.

    start (we are the writer) -> publish log -> init if Redis was lost -> seen ids -> query at `applied`
    -> until Redis refuses a micro-batch, or has another cut than ours, or the query fails -> start

Every failure leads back to `start`, except one: where another writer lives, this process ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from pyspark.sql import SparkSession
from redis.exceptions import RedisError

from hand_off import definitions, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError, Fenced, SparkEnded, SpeedError
from hand_off.generations import clean_up, complete
from hand_off.lag import EndHistory, KafkaEnd
from hand_off.log_follower import LogFollower
from hand_off.speed_floor import first_run, waiting_for_run
from hand_off.speed_views import Meta, RedisSnapshot, SpeedViews, SpeedWriter
from infra.backoff import pause_after
from infra.clients.kafka_admin import KafkaAdmin
from infra.clients.redis import redis_client
from infra.failpoints import reach
from infra.home import Home
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.archiver.commit_request import ask_for_commit
from master_dataset.cut import Cut, count_between, cut_to_json, ranges
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.offset_base import OffsetBase, to_logical
from master_dataset.kafka.positions import (
    KafkaBehind,
    Positions,
    check_topic_id,
    logical_positions,
    read_end,
    read_positions,
)
from master_dataset.kafka.topics import existing_topics
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from master_dataset.writer_schemas.noted import NotedSchemas
from speed_layer.batch_size import BatchSize
from speed_layer.failures import has_ended, one_line
from speed_layer.framed_source import FramedSource
from speed_layer.pause import Pause
from speed_layer.redis_share import RedisShare
from speed_layer.seen_id_loader import first_time_ms, is_lacking, load_seen_ids
from speed_layer.seen_ids import SeenIds, from_bytes
from speed_layer.start_checks import begin_at, check_eviction, check_rebuild
from speed_layer.stream import Ended, EndReason, Pace, Stream
from views.columns import Columns
from views.declarations import Declarations
from views.source import Source
from views.view import View

HEARTBEAT_S = 0.5
ALIVE_S = 4.0
"""For how long a heartbeat is valid."""
CLEAN_UP_S = 5.0
KAFKA_TIMEOUT_S = 2.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0

log = structlog.get_logger()


@dataclass
class SourceWriter:
    """One source. `run` returns when `stopping` is set, and raises Fenced where another writer lives."""

    settings: Settings
    spark: SparkSession
    declarations: Declarations
    source: Source
    stopping: threading.Event
    failpoint: Callable[[str], None] = field(default=reach)
    error: str = ""
    stream: Stream | None = None
    pace: Pace = field(default_factory=Pace)
    latest: Cut = field(default_factory=dict)
    ends: EndHistory = field(default_factory=EndHistory)
    starts: int = 0

    def __post_init__(self) -> None:
        self.batch_size = BatchSize(self.settings.speed_max_events, self.settings.speed_max_mb * 1_000_000)
        where = addresses(self.settings)
        self.bootstrap = where.kafka
        self.folder = BatchFolder.of(self.settings, self.source.name)
        self._entries = LogFollower(self.folder)
        self.table = table_path(self.settings, self.source.name)
        self._schemas = NotedSchemas(self.settings, self.source, self.table)
        self.horizon_ms = int(self.settings.speed_dedup_horizon_s * 1000)
        self.speed_views = SpeedViews(redis_client(self.settings, where.redis, timeout_s=30), self.source.name)
        sources = sorted({view.source.name for view in self.declarations.views.values()})
        self._share = RedisShare.of(self.speed_views.client, self.source.name, sources)
        self._pause = Pause(self.settings.overtake_pause_s, self.speed_views.reader.is_overtaken)
        self._writer: SpeedWriter | None = None
        self._cleaned_up = 0.0

    @property
    def token(self) -> str:
        """Our token; empty before the first start."""
        return self._writer.token if self._writer is not None else ""

    def run(self) -> None:
        """Write the speed views until `stopping` is set."""
        failures = 0
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                self._write()
            except Fenced:
                raise
            except Exception as error:  # Redis, Kafka, Spark, the disk: whatever it is, Redis knows where to go on
                self.error = one_line(error)
                self._report_problem()
                if has_ended(self.spark):
                    raise SparkEnded(f"Spark ended under the speed layer: {self.error}") from error
                log.warning("retrying", source=self.source.name, reason=self.error, failures=failures + 1)
                if not isinstance(error, SpeedError | RedisError | BatchError):
                    log.debug("failed", source=self.source.name, exc_info=True)
            failures = 1 if time.monotonic() - began > MAX_PAUSE_S else failures + 1
            self.stopping.wait(pause_after(failures, MIN_PAUSE_S, MAX_PAUSE_S) if self.error else 0)

    def _write(self) -> None:
        """One stream, from its start to its end."""
        self._wait_for_others()
        held = self._held()
        base = held.offset_base
        positions = logical_positions(read_positions(self.settings, self.bootstrap, self.source), base)
        self._check_start(positions, held)
        writer, meta, views, gid = self._become_writer(positions, base)
        with self._reading_kafka_end(len(positions.latest), base), self._heartbeat(writer):
            ended = self._stream(writer, meta, views, gid, positions, base)
        if self.batch_size.adapt(ended.applied, ended.tried):
            log.warning("limit_reduced", source=self.source.name, max_events=self.batch_size.allowed)
        if ended.reason == EndReason.FENCED:
            self._check_fence()
        if ended.failure is not None:
            raise ended.failure

    def _stream(
        self, writer: SpeedWriter, meta: Meta, views: tuple[View, ...], gid: str, positions: Positions, base: OffsetBase
    ) -> Ended:
        begin = begin_at(self.source, meta.applied, positions)
        source = views[0].source if views else self.source  # with the reading that the views are of
        seen_ids = self._seen_ids(writer, meta, source, positions, base)
        limit = self.batch_size.limit(count_between(begin, positions.latest))
        checkpoint = Home(self.settings.home).spark / "checkpoints" / f"speed-{self.source.name}"
        stream = Stream(
            self.settings, source, Columns(views), writer, meta.applied, gid, seen_ids, checkpoint, limit,
            base.base, self.batch_size, self.pace, followed=self.declarations.followed_views(self.source.name),
            on_applied=self._clear_error, share=self._share, pause=self._pause,
            framed=FramedSource.of(source, self._schemas) if source.needs_writer_schemas else None,
            failpoint=self.failpoint,
        )  # fmt: skip
        stream.start(self.spark, self.bootstrap, begin)
        self.stream, self.starts = stream, self.starts + 1
        log.info("started", source=self.source.name, applied=cut_to_json(meta.applied), views=[v.name for v in views])
        return stream.run(self.stopping, self._between)

    def _between(self) -> None:
        """Now and then, while a stream runs. An error is over when a micro-batch was applied, or nothing waits."""
        stream = self.stream
        if self.error and stream is not None and self.ends.has_read and not count_between(stream.applied, self.latest):
            self._clear_error()
        self._clean_up()

    def _clear_error(self) -> None:
        self.error = ""

    def _report_problem(self) -> None:
        """Answers say why they are behind. Where Redis cannot be reached, they know that by themselves."""
        if self._writer is not None:
            with suppress(RedisError, OSError):
                self._writer.report_problem(self.error)

    @contextmanager
    def _heartbeat(self, writer: SpeedWriter) -> Iterator[None]:
        """Report that we live, from a thread of its own: loading seen ids or a slow Kafka must not look like death."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(HEARTBEAT_S):
                with suppress(RedisError, OSError):
                    writer.heartbeat(ALIVE_S, self._kafka_end(writer), self.error)

        thread = threading.Thread(target=beat, name=f"heartbeat-{self.source.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _kafka_end(self, writer: SpeedWriter) -> KafkaEnd | None:
        """How far we are, for readers; None before a stream of ours has started."""
        stream = self.stream
        if stream is None or stream.writer is not writer:
            return None
        return self.ends.report(stream.applied, time.monotonic())

    @contextmanager
    def _reading_kafka_end(self, partitions: int, base: OffsetBase) -> Iterator[None]:
        """Read where Kafka ends, from a thread of its own: a slow Kafka must stop neither heartbeat nor stream."""
        done, topic = threading.Event(), self.source.topic
        admin = KafkaAdmin(self.settings, self.bootstrap, KAFKA_TIMEOUT_S)
        ends = self.ends

        def read() -> None:
            count, counted = partitions, time.monotonic()
            while not done.wait(HEARTBEAT_S):
                at = time.monotonic()
                with suppress(MasterDatasetError):  # it is asked again; until then the last end only gets older
                    if at - counted > CLEAN_UP_S:  # some may have been added
                        count, counted = existing_topics(admin).get(topic, count), at
                    end = to_logical(base.base, read_end(admin, topic, count))
                    if not done.is_set():
                        self.latest = end
                        ends.add(end, at)

        threading.Thread(target=read, name=f"kafka-end-{self.source.name}", daemon=True).start()
        try:
            yield
        finally:
            done.set()  # and no waiting for it: Kafka may be why we start again

    def _wait_for_others(self) -> None:
        """Two writers would be safe, but each would stop the other for ever."""
        is_logged = False
        while not self.stopping.is_set() and self.speed_views.reader.living_writer() not in (None, self.token):
            if not is_logged:
                log.info("waiting", source=self.source.name, reason="another writer lives")
                is_logged = True
            self.stopping.wait(HEARTBEAT_S)

    def _held(self) -> coverage.Coverage:
        return coverage.of(self.table)

    def _check_start(self, positions: Positions, held: coverage.Coverage) -> None:
        """Whether we could go on. A writer that cannot must not start: it would look alive and fence every takeover."""
        check_topic_id(self.source, positions.topic_id, held.topic_id)
        if behind := list(ranges(positions.latest, held.cut)):
            raise KafkaBehind(self.source, behind)
        snapshot = self._snapshot_from_floor(positions, held.offset_base)
        meta = snapshot.meta or Meta(publish_log.last(self.folder).cut, {}, 0)
        check_topic_id(self.source, positions.topic_id, meta.topic_id)
        begin_at(self.source, meta.applied, positions)
        if is_lacking(meta, self.horizon_ms) and (lacking := list(ranges(held.cut, meta.applied))):
            ask_for_commit(self.table)
            raise SpeedError(
                f"Source {self.source.name!r}: the speed views lack seen ids for a speed_dedup_horizon_s of "
                f"{self.horizon_ms / 1000:g} (theirs reach back {meta.horizon_ms / 1000:g} s), and the master dataset, "
                f"which has them, lacks {'; '.join(map(str, lacking))}. The writer goes on once the archiver is there."
            )
        if snapshot.meta is not None:
            newest = publish_log.last(self.folder)
            check_rebuild(self.source, self.speed_views.reader, newest, positions)
            self._views_of(snapshot)
        check_eviction(self.speed_views.client)

    def _snapshot_from_floor(self, positions: Positions, base: OffsetBase) -> RedisSnapshot:
        """What Redis holds. What it holds from before a rebase is dropped: lost records may be in it."""
        snapshot, floor = self.speed_views.reader.snapshot(), first_run(self.folder)
        if (meta := snapshot.meta) is not None:
            is_of_before = base.is_rebased and meta.topic_id not in ("", positions.topic_id)
            if meta.published < floor or is_of_before:
                log.warning("speed_views_dropped", source=self.source.name, reason="the master table was rebased")
                self.speed_views.runs.forget()
                snapshot = self.speed_views.reader.snapshot()
        if snapshot.meta is None and publish_log.last(self.folder).run < floor:
            raise SpeedError(f"{waiting_for_run(self.source.name)}.")
        return snapshot

    def _become_writer(self, positions: Positions, base: OffsetBase) -> tuple[SpeedWriter, Meta, tuple[View, ...], str]:
        """Steps 1 to 3 of a start: our token, the publish log as it is after that, meta."""
        declared = list(self.declarations.views_of(self.source.name))
        for view in declared:
            definitions.keep(self.folder, view)
        publish_log.begin(self.folder, {view.name: view.hash for view in declared}, time.time())
        self.failpoint("speed.before_start")
        writer, snapshot = self.speed_views.start_writer()
        self._writer = writer
        self.failpoint("speed.after_start")
        if snapshot.meta is not None and self.speed_views.reader.has_long_keys():
            log.warning(
                "rebuilding", source=self.source.name, reason="an older version wrote keys that are too long now"
            )
            self.speed_views.runs.forget()
            writer, snapshot = self.speed_views.start_writer()
            self._writer = writer
        # After our epoch is set: a rebase that came since we looked fences us, and one that came before shows here.
        newest, floor = publish_log.last(self.folder), first_run(self.folder)
        held = self._held()
        is_other = (held.base, held.base_begin) != (base.base, base.begin)
        if is_other or (snapshot.meta.published if snapshot.meta else newest.run) < floor:
            raise SpeedError(f"Source {self.source.name!r}: the master table was rebased while the writer started.")
        if snapshot.meta is None:
            log.warning("redis_empty", source=self.source.name, cut=cut_to_json(newest.cut), run=newest.run)
            writer.init(newest.run, newest.cut, newest.catalog.values(), positions.topic_id)
            self.failpoint("speed.after_init")
        elif newest.run > snapshot.meta.published:
            complete(self.speed_views, self.folder, newest)
        writer.heartbeat(ALIVE_S, problem=self.error)
        snapshot = self.speed_views.reader.snapshot()
        if snapshot.epoch != writer.token or snapshot.meta is None:
            raise SpeedError(f"Source {self.source.name!r}: another writer started at the same moment.")
        return writer, snapshot.meta, self._views_of(snapshot), snapshot.generations[-1].gid

    def _views_of(self, snapshot: RedisSnapshot) -> tuple[View, ...]:
        """The views that the newest generation computes: those that are declared, and older versions still served."""
        declared = {view.hash: view for view in self.declarations.views_of(self.source.name)}
        found = tuple(
            declared.get(view_hash) or definitions.restore(self.folder, view_hash, self.source, self.table)
            for view_hash in snapshot.generations[-1].views
        )
        if len(versions := sorted({view.source.version for view in found})) > 1:
            raise SpeedError(
                f"Source {self.source.name!r}: the newest generation has views of the versions {versions} of the "
                f"source. `tidemark batch run --source {self.source.name}` makes one of a single version."
            )
        return found

    def _seen_ids(
        self, writer: SpeedWriter, meta: Meta, source: Source, positions: Positions, base: OffsetBase
    ) -> SeenIds | None:
        horizon_ms = self.horizon_ms
        if not horizon_ms:
            return None
        if is_lacking(meta, horizon_ms):
            began = time.monotonic()
            known = (self.spark, self.settings, self.bootstrap, self.source, self.table)
            first = partial(first_time_ms, *known, meta.applied, positions.latest, base.base)
            outcome = load_seen_ids(self.spark, writer, meta, self.table, source, horizon_ms, first)
            self.failpoint("speed.after_load")
            seconds = round(time.monotonic() - began, 1)
            log.info("seen_ids_loaded", source=self.source.name, outcome=str(outcome), seconds=seconds)
        return from_bytes(self.speed_views.reader.seen_ids(), horizon_ms)

    def _check_fence(self) -> None:
        """Whoever has the epoch now: a takeover, or a Redis that was lost, is no reason to end; a living writer is."""
        epoch, living = self.speed_views.reader.snapshot().epoch, self.speed_views.reader.living_writer()
        if epoch is not None and living == epoch and epoch != self.token:
            raise Fenced(
                f"Source {self.source.name!r}: another writer owns its speed views now, so this one ends. "
                "Run one speed layer for each source."
            )
        log.warning(
            "fenced", source=self.source.name, reason="Redis was lost" if epoch is None else "a batch run took over"
        )

    def _clean_up(self) -> None:
        if time.monotonic() - self._cleaned_up > CLEAN_UP_S:
            self._cleaned_up = time.monotonic()
            try:
                clean_up(self.speed_views, self.folder, self.settings.speed_grace_s, entries=self._entries)
            except Exception as error:  # it can wait; the stream cannot
                log.warning("clean_up_failed", source=self.source.name, reason=one_line(error))

    def _behind_s(self) -> float | None:
        """How long ago the newest applied event came to Kafka; None where none is applied yet."""
        return max(time.time() - self.pace.newest_ms / 1000, 0.0) if self.pace.newest_ms else None

    def status(self) -> dict[str, Any]:
        """The status of the source, as `tidemark speed status` and the status file have it."""
        applied = self.stream.applied if self.stream is not None else {}
        behind = count_between(applied, self.latest)
        return {
            "applied": cut_to_json(applied),
            "behind_events": behind,
            "behind_s": self._behind_s() if behind else 0.0,
            "micro_batches": self.pace.micro_batches,
            "last_micro_batch_s": self.pace.seconds,
            "micro_batches_s": self.pace.all_seconds,
            "events": self.pace.events,
            "copies": self.pace.duplicates,
            "marks": self._seen_id_count(),
            "starts": self.starts,
            "waits_for_run": self._pause.is_held,
            "refused": self.error,
        }

    def _seen_id_count(self) -> int:
        stream = self.stream
        return stream.seen_ids.count if stream is not None and stream.seen_ids is not None else 0

    def measure(self) -> dict[str, Any]:
        """The status, and what Redis holds now; None where Redis does not answer."""
        states = size = used = maximum = None
        groups: dict[str, int] = {}
        largest: dict[str, int] = {}
        with suppress(RedisError, OSError):
            counts, size = self.speed_views.reader.counts(), self.speed_views.reader.state_bytes()
            states = sum(map(sum, counts.values()))
            names = {view.hash: view.name for view in self.declarations.views_of(self.source.name)}
            groups = {name: sum(counts.get(view, ())) for view, name in names.items()}
            largest = {name: max(counts.get(view, ()), default=0) for view, name in names.items()}
            memory: Any = self.speed_views.client.info("memory")
            used, maximum = int(memory["used_memory"]), int(memory["maxmemory"]) or None
        held = {"states": states, "state_bytes": size, "redis_used_bytes": used, "redis_max_bytes": maximum}
        return {**self.status(), **held, "groups": groups, "largest_bucket_groups": largest}
