"""Keep the speed views of a source: become the writer, go on from what Redis has, and begin again whenever it changed.

    start (we are the writer) -> publish log -> init if Redis was lost -> marks -> query at `applied`
    -> until Redis refuses a micro-batch, or says another cut than ours, or the query fails -> start

Every way to go wrong leads back to `start`, except one: where another writer lives, this process ends.
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
from hand_off.generations import tend
from hand_off.lag import Looked, Looks
from hand_off.speed_views import Kept, Meta, Outcome, SpeedViews, cut_text
from infra.clients.kafka_admin import KafkaAdmin
from infra.clients.redis import redis_client
from infra.failpoints import reach
from infra.home import Home
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.cut import Cut, count_between, cut_to_json, join, ranges
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.positions import Positions, check_topic_id, read_end, read_positions
from master_dataset.kafka.topics import existing_topics
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from speed_layer.seen_id_loader import first_time_ms, is_lacking, load_marks
from speed_layer.seen_ids import from_bytes
from speed_layer.stream import Pace, Stream
from views.columns import Columns
from views.declarations import Declarations
from views.source import Source
from views.view import View

BEAT_S = 0.5
ALIVE_S = 4.0
"""For so long a writer that said nothing is taken to live."""
TEND_S = 5.0
LOOK_TIMEOUT_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
SMALLEST_LIMIT = 1_000
ENOUGH = 20
"""After so many micro-batches that went well the limit is the setting's again."""

log = structlog.get_logger()


@dataclass
class Keeper:
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
    looks: Looks = field(default_factory=Looks)
    starts: int = 0
    limit: int = 0
    """Most events of a micro-batch."""

    def __post_init__(self) -> None:
        self.limit = self.limit or self.settings.speed_max_events
        where = addresses(self.settings)
        self.bootstrap = where.kafka
        self.folder = BatchFolder.of(self.settings, self.source.name)
        self.table = table_path(self.settings, self.source.name)
        self.horizon_ms = int(self.settings.speed_dedup_horizon_s * 1000)
        self.speed_views = SpeedViews(redis_client(self.settings, where.redis, timeout_s=30), self.source.name)
        self._token = ""
        self._tended = 0.0

    def run(self) -> None:
        """Keep up until told to stop."""
        pause = FIRST_PAUSE_S
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                self._keep_up()
            except Fenced:
                raise
            except Exception as error:  # Redis, Kafka, Spark, the disk: whatever it is, Redis knows where to go on
                self.error = _in_words(error)
                if _has_ended(self.spark):
                    raise SparkEnded(f"Spark ended under the speed layer: {self.error}") from error
                self._adapt()
                log.warning("begins_again", source=self.source.name, why=self.error, pause_s=round(pause, 1))
                if not isinstance(error, SpeedError | RedisError | BatchError):
                    log.debug("why", source=self.source.name, exc_info=True)
            pause = FIRST_PAUSE_S if time.monotonic() - began > LONGEST_PAUSE_S else min(2 * pause, LONGEST_PAUSE_S)
            self.stopping.wait(pause if self.error else 0)

    def _keep_up(self) -> None:
        self._wait_for_others()
        positions = read_positions(self.settings, self.bootstrap, self.source)
        self._check_way(positions)
        meta, views, gid = self._become_writer(positions)
        with self._looking(len(positions.latest)), self._beating():
            self._follow(meta, views, gid, positions)

    def _follow(self, meta: Meta, views: tuple[View, ...], gid: str, positions: Positions) -> None:
        begin = self._begin(meta.applied, positions)
        marks = self._marks(meta, positions)
        checkpoint = Home(self.settings.home).spark / "checkpoints" / f"speed-{self.source.name}"
        stream = Stream(
            self.settings, self.source, Columns(views), self.speed_views, self._token, meta.applied, gid,
            marks, checkpoint, self.limit, self.pace, failpoint=self.failpoint,
            followed=self.declarations.followed_views(self.source.name),
        )  # fmt: skip
        query = stream.start(self.spark, self.bootstrap, begin)
        self.stream, self.starts = stream, self.starts + 1
        log.info("keeps_up", source=self.source.name, applied=cut_to_json(meta.applied), views=[v.name for v in views])
        self.error = ""
        try:
            while not self.stopping.is_set() and query.isActive and self._is_as_we_left_it(stream):
                self._tend()
                self.stopping.wait(BEAT_S)
        finally:
            query.stop()
        if stream.refused == Outcome.FENCED:
            self._check_fence()
        elif stream.refused is None and (failure := stream.failure or query.exception()) is not None:
            raise failure

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Say that we live, from a thread of its own: loading marks, or a slow Kafka, must not look like death."""
        done, token = threading.Event(), self._token

        def beat() -> None:
            while not done.wait(BEAT_S):
                with suppress(RedisError, OSError):
                    self.speed_views.beat(token, ALIVE_S, self._looked(token))

        thread = threading.Thread(target=beat, name=f"beat-{self.source.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _looked(self, token: str) -> Looked | None:
        """How far we are, for readers; None before a stream of ours has begun."""
        stream = self.stream
        if stream is None or stream.token != token:
            return None
        return self.looks.told(stream.applied, time.monotonic())

    @contextmanager
    def _looking(self, partitions: int) -> Iterator[None]:
        """Look where Kafka ends, from a thread of its own: a slow Kafka must stop neither the beat nor the stream."""
        done, topic = threading.Event(), self.source.topic
        admin = KafkaAdmin(self.settings, self.bootstrap, LOOK_TIMEOUT_S)
        looks = self.looks = Looks()

        def look() -> None:
            count, counted = partitions, time.monotonic()
            while not done.wait(BEAT_S):
                at = time.monotonic()
                with suppress(MasterDatasetError):  # it is asked again; what is known only gets older
                    if at - counted > TEND_S:  # some may have been added
                        count, counted = existing_topics(admin).get(topic, count), at
                    self.latest = read_end(admin, topic, count)
                    looks.add(self.latest, at)

        threading.Thread(target=look, name=f"look-{self.source.name}", daemon=True).start()
        try:
            yield
        finally:
            done.set()  # and no waiting for it: Kafka may be why we begin again

    def _adapt(self) -> None:
        """A large micro-batch that failed may have been too large: the next are smaller, until some went well."""
        stream = self.stream
        tried = stream.size if stream is not None and stream.failure is not None else 0
        if stream is not None and tried > SMALLEST_LIMIT:
            stream.failure = None  # it is judged once
            self.limit = max(min(self.limit, tried) // 2, SMALLEST_LIMIT)
            log.warning("smaller_micro_batches", source=self.source.name, most_events=self.limit)

    def _wait_for_others(self) -> None:
        """Two writers would be safe, but each would stop the other for ever."""
        said = False
        while not self.stopping.is_set() and self.speed_views.living_writer() not in (None, self._token):
            if not said:
                log.info("waits", source=self.source.name, why="another writer lives")
                said = True
            self.stopping.wait(BEAT_S)

    def _check_way(self, positions: Positions) -> None:
        """Whether we could go on. One that cannot must not start: it would look alive, and fence every takeover."""
        held = coverage.of(self.table) if self.table.is_dir() else coverage.Coverage()
        check_topic_id(self.source, positions.topic_id, held.topic_id)
        kept = self.speed_views.look()
        meta = kept.meta or Meta(publish_log.last(self.folder).cut, {}, 0)
        check_topic_id(self.source, positions.topic_id, meta.topic_id)
        self._begin(meta.applied, positions)
        if is_lacking(meta, self.horizon_ms) and (lacking := list(ranges(held.cut, meta.applied))):
            raise SpeedError(
                f"Source {self.source.name!r}: the speed views lack marks for a speed_dedup_horizon_s of "
                f"{self.horizon_ms / 1000:g} (theirs reach back {meta.horizon_ms / 1000:g} s), and the master dataset, "
                f"which has them, lacks {'; '.join(map(str, lacking))}. They go on once the archiver is there."
            )
        if kept.meta is not None:
            self._views_of(kept)
        self._check_eviction()

    def _check_eviction(self) -> None:
        """A Redis that evicts would drop states silently: answers would be wrong."""
        told: Any = self.speed_views.client.info("memory")
        policy = str(told.get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            raise SpeedError(
                f"Redis drops keys when its memory is full (maxmemory-policy {policy}), so speed views would silently "
                "become wrong. Set its maxmemory-policy to noeviction."
            )

    def _become_writer(self, positions: Positions) -> tuple[Meta, tuple[View, ...], str]:
        """Steps 1 to 3 of a start: our token, the publish log as it is after that, meta."""
        declared = list(self.declarations.views_of(self.source.name))
        for view in declared:
            definitions.keep(self.folder, view)
        publish_log.begin(self.folder, {view.name: view.hash for view in declared}, time.time())
        self.failpoint("speed.before_start")
        self._token, kept = self.speed_views.start()
        self.failpoint("speed.after_start")
        newest = publish_log.last(self.folder)
        if kept.meta is None:
            log.warning("redis_is_empty", source=self.source.name, begins_at=cut_to_json(newest.cut), run=newest.run)
            self.speed_views.init(self._token, newest.run, newest.cut, newest.catalog.values(), positions.topic_id)
            self.failpoint("speed.after_init")
        elif newest.run > kept.meta.published:
            self.speed_views.publish(newest.run, newest.cut)
        self.speed_views.beat(self._token, ALIVE_S)
        kept = self.speed_views.look()
        if kept.epoch != self._token or kept.meta is None:
            raise SpeedError(f"Source {self.source.name!r}: somebody else started to write at the same moment.")
        return kept.meta, self._views_of(kept), kept.generations[-1].gid

    def _views_of(self, kept: Kept) -> tuple[View, ...]:
        """The views that the newest generation computes: those that are declared, and older versions still served."""
        declared = {view.hash: view for view in self.declarations.views_of(self.source.name)}
        return tuple(
            declared.get(each) or definitions.restore(self.folder, each, self.source)
            for each in kept.generations[-1].views
        )

    def _begin(self, applied: Cut, positions: Positions) -> Cut:
        """Where to read from: what is applied, for every partition. Refuses what would skip a record."""
        if behind := list(ranges(positions.latest, applied)):
            raise SpeedError(
                f"Source {self.source.name!r}: Kafka ends before what the speed views have applied: it no longer has "
                f"{'; '.join(map(str, behind))}. Topic {self.source.topic!r} was made again, or the broker lost its "
                f"newest records: `tidemark master status` says what the master dataset holds."
            )
        begin = {partition: applied.get(partition, 0) for partition in positions.latest}
        gone = list(ranges(begin, positions.earliest))
        if gone and not applied:  # Kafka had forgotten them before anybody looked, so that nothing has ever seen them
            return join(begin, positions.earliest)
        if gone:
            raise SpeedError(
                f"Source {self.source.name!r}: Kafka no longer holds {'; '.join(map(str, gone))}, which come next for "
                f"the speed views. A batch run takes them from the master dataset: "
                f"`tidemark batch run --source {self.source.name}`."
            )
        return begin

    def _marks(self, meta: Meta, positions: Positions) -> Any:
        horizon_ms = self.horizon_ms
        if not horizon_ms:
            return None
        if is_lacking(meta, horizon_ms):
            began = time.monotonic()
            known = (self.spark, self.settings, self.bootstrap, self.source, self.table)
            first = partial(first_time_ms, *known, meta.applied, positions.latest)
            outcome = load_marks(self.spark, self.speed_views, self._token, meta, self.table, horizon_ms, first)
            self.failpoint("speed.after_load")
            log.info("marks_loaded", source=self.source.name, said=outcome, seconds=round(time.monotonic() - began, 1))
        return from_bytes(self.speed_views.marks(), horizon_ms)

    def _is_as_we_left_it(self, stream: Stream) -> bool:
        """False where Redis is no longer at our epoch or our cut: it was lost or taken over."""
        with stream.applying:
            kept = self.speed_views.look()
            if kept.epoch != self._token:
                stream.refused = stream.refused or Outcome.FENCED
                return False
            if stream.applied_well > ENOUGH and self.limit < self.settings.speed_max_events:
                self.limit = self.settings.speed_max_events  # from the next start on
            return kept.meta is not None and cut_text(kept.meta.applied) == cut_text(stream.applied)

    def _check_fence(self) -> None:
        """Whoever has the epoch now: a takeover, or a Redis that was lost, is no reason to end; a living writer is."""
        epoch, living = self.speed_views.look().epoch, self.speed_views.living_writer()
        if epoch is not None and living == epoch and epoch != self._token:
            raise Fenced(
                f"Source {self.source.name!r}: another writer keeps its speed views now, so this one ends. "
                "Run one speed layer for each source."
            )
        log.warning(
            "fenced", source=self.source.name, why="Redis was lost" if epoch is None else "a batch run took over"
        )

    def _tend(self) -> None:
        if time.monotonic() - self._tended > TEND_S:
            self._tended = time.monotonic()
            try:
                tend(self.speed_views, self.folder, self.settings.speed_grace_s)
            except Exception as error:  # what runs left can wait; the stream need not
                log.warning("not_tended", source=self.source.name, why=_in_words(error))

    def _behind_s(self) -> float | None:
        """Since when the newest event that is applied is in Kafka; None: none is yet."""
        return max(time.time() - self.pace.newest_ms / 1000, 0.0) if self.pace.newest_ms else None

    def status(self) -> dict[str, Any]:
        """For `tidemark speed status`."""
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
            "copies": self.pace.copies,
            "marks": self.stream.marks.count if self.stream is not None and self.stream.marks is not None else 0,
            "starts": self.starts,
            "refused": self.error,
        }

    def measure(self) -> dict[str, Any]:
        """The status, and what Redis holds, for which it is asked; None where it does not answer."""
        states = size = None
        with suppress(RedisError, OSError):
            states, size = self.speed_views.size()
        return {**self.status(), "states": states, "state_bytes": size}


def _has_ended(spark: SparkSession) -> bool:
    """Whether the session is of no use any more."""
    try:
        context: Any = spark.sparkContext
        return bool(context._jsc.sc().isStopped())
    except Exception:
        return True


def _in_words(error: Exception) -> str:
    said = str(getattr(error, "desc", None) or str(error) or type(error).__name__).strip()
    if "OOM command not allowed" in said:
        return (
            "Redis is full, so nothing was written. A batch run frees what it takes over (`tidemark batch run`), or "
            "give Redis more: redis_max_memory_mb, or maxmemory of your own."
        )
    return said.splitlines()[0][:500]
