"""An installation that ages in one process: the real parts, driven by hand, without Kafka and HTTP.

Real are the master table with its appends, sealing and compaction, batch runs, the writer's start and micro-batches,
Redis, and the query engine. Made up are the records, which Kafka would have brought, and most of the archiver's
commits: those hold offsets without records, as after an aborted transaction, and are written without Spark.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from batch_layer.run import run_batch
from hand_off.batch_folder import BatchFolder
from hand_off.generations import clean_up
from hand_off.manifests import Manifest
from infra.disk import sync_folder
from infra.settings import Settings, load_settings
from infra.spark.session import BARE_FILE_SYSTEM
from infra.stack.ports import LOOPBACK
from infra.stack.redis_server import check_redis_port, find_redis_server
from master_dataset.archiver.upkeep import Upkeep
from master_dataset.kafka.positions import Positions
from master_dataset.table import coverage
from master_dataset.table.append import APP_ID, append, commit_lock, create_table
from master_dataset.table.checks.fsck import refuse_damage
from master_dataset.table.delta_log import commit_file, commit_text, remember_newest
from master_dataset.table.history import read_history
from master_dataset.table.ledger import append_to_ledger
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from serving_layer.verification.from_scratch import is_same
from speed_layer.seen_id_loader import is_lacking, load_seen_ids
from speed_layer.seen_ids import from_bytes
from speed_layer.stream import Refused, Stream
from speed_layer.writer import SourceWriter
from torture.age.clock import DAY_S, SimulatedClock
from torture.age.errors import WrongAnswer
from torture.age.sabotages import MORE_COMMITS, settings_of
from torture.age.start_up import TOPIC_ID
from torture.age.truth import Truth
from torture.installation_settings import free_port
from torture.wait import wait_for
from views.columns import Columns
from views.declarations import declared_by
from views.in_memory import Event
from views.on_spark.columns import evaluated
from views.on_spark.events import with_event

Part = TypeVar("Part")
STEP = 50
"""Delta makes a checkpoint where the version of a commit that it writes itself is a multiple of this."""
CHECKPOINT = 3
"""Every so many nights the commit with the records has such a version."""
COMMITS = 138
"""Of the archiver in a night: 100,000 in two years."""
KEPT_RUNS, COMPACTED = 3, 10
"""Runs whose data is kept, and small files of the master table that are merged."""
EVENTS = 12
"""That a night brings."""
DUPLICATES = 4
"""Every so many nights some of them are duplicates, for which a run reads older records again."""
ALIVE_S = 3600.0
"""For how long a heartbeat of the writer is valid: nobody beats while a night is simulated."""
RECORD = pa.schema({
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
})  # fmt: skip
DECLARED = """
from views.aggregates import Count, Distinct, Sum
from views.source import Source
from views.view import View

shop = Source("shop", fields="event_id string, event_time timestamp, user_id string, item string, cents int")
sales = View(
    "sales", source=shop, grain="1h", keys={{"item": "item"}}, where="cents >= {least}",
    answers={{"orders": Count(), "cents": Sum("cents"), "users": Distinct("user_id")}},
)
totals = View("totals", source=shop, grain="1d", answers={{"events": Count(), "cents": Sum("cents")}})
"""
SPARK_CONF = {
    # Spark interprets its plans: compiling one takes longer than a night's events.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.files.openCostInBytes": "1",  # else the commits of a night are read by five tasks
    # Plans are not written out for pages that nobody reads.
    "spark.ui.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "100",
    "spark.sql.debug.maxToStringFields": "1",
    # Permissions without a process for each of them. Commits stay exclusive: there is one writer here.
    **BARE_FILE_SYSTEM,
}
"""Spark with as little fixed cost as possible for each query. What is computed and written is the same."""


class _RunKilled(Exception):
    """The end of a run, as far as one process can have it."""


def started(part: Part | None) -> Part:
    """The part, which must have been started."""
    if part is None:
        raise RuntimeError("This part of the installation was not started yet.")
    return part


def _txn_id(version: int) -> str:
    return str(uuid.UUID(int=version))


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[str, str]]:
    """A Redis server on loopback that ends with the block: its address and password."""
    folder.mkdir(parents=True, exist_ok=True)
    port, password = free_port(), secrets.token_hex(16)
    config = folder / "redis.conf"
    config.touch(mode=0o600)
    config.write_text(f'bind {LOOPBACK}\nport {port}\nrequirepass {password}\nsave ""\ndir {folder}\n')
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen([str(find_redis_server()), str(config)], stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for("Redis to listen", lambda: "no answer" not in (check_redis_port(port) or ""), 20)
        yield f"redis://{LOOPBACK}:{port}/0", password
    finally:
        server.kill()
        server.wait(timeout=20)


class AgeingInstallation:
    """One source with two views, from its first night on."""

    def __init__(
        self, place: Path, redis: tuple[str, str], clock: SimulatedClock, without: Collection[str] = ()
    ) -> None:
        self.clock, self.chance = clock, Random(17)  # noqa: S311  made-up events
        (place / "views").mkdir(parents=True)
        self.views_dir, self.changes = place / "views", 0
        self._declare()
        upkeep = {"batch_keep_runs": KEPT_RUNS, "speed_grace_s": 0, "master_compact_files": COMPACTED}
        self.settings: Settings = load_settings(
            home=place / "home", views_dir=self.views_dir, with_examples=False, redis_url=redis[0],
            redis_password=redis[1], spark_conf=SPARK_CONF,
            speed_dedup_horizon_s=2.0 * DAY_S, **(upkeep | settings_of(without)),
        )  # fmt: skip
        self.commits_a_night = COMMITS * (12 if MORE_COMMITS in without else 1)
        from infra.spark.session import spark_session

        self.spark: SparkSession = spark_session(self.settings, "tidemark age", output=place / "spark.log")
        self.folder, self.table = BatchFolder.of(self.settings, "shop"), table_path(self.settings, "shop")
        self.source = declared_by(self.settings).source("shop")
        self.clock.give_to_delta(self.spark, self.table)
        create_table(self.spark, self.table, self.source)
        self.cut, self.commits = {0: 0, 1: 0}, 0
        self._archived, self._archived_nights = dict(self.cut), 0
        self.truth = Truth()
        self.number = 0
        self.compared = 0
        self.upkeep = Upkeep(self.settings, self.spark, lambda: [self.table])
        self.writer: SourceWriter | None = None
        self.stream: Stream | None = None
        self.engine: QueryEngine | None = None

    def close(self) -> None:
        """End all parts."""
        self._stop_writer()
        self.stop_serving()
        self.spark.stop()

    # ---- the parts -------------------------------------------------------

    def start_writer(self) -> None:
        """The speed layer starts: as `SourceWriter` does it, but with made-up positions of Kafka."""
        self._stop_writer()
        declarations = declared_by(self.settings)
        writer = self.writer = SourceWriter(self.settings, self.spark, declarations, self.source, threading.Event())
        positions = Positions(TOPIC_ID, dict.fromkeys(self.cut, 0), dict(self.cut))
        held = writer._held()
        writer._check_start(positions, held)
        own, meta, views, gid = writer._become_writer(positions, held.offset_base)
        if is_lacking(meta, writer.horizon_ms):
            first_ms = int(self.clock.now() * 1000)
            load_seen_ids(self.spark, own, meta, self.table, self.source, writer.horizon_ms, lambda: first_ms)
        seen_ids = from_bytes(writer.speed_views.reader.seen_ids(), writer.horizon_ms)
        checkpoint = self.settings.home / "spark" / "checkpoints" / "speed-shop"
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        self.stream = Stream(
            self.settings, self.source, Columns(views), own, meta.applied, gid, seen_ids, checkpoint, 10_000,
            share=writer._share,
        )  # fmt: skip
        own.heartbeat(ALIVE_S)

    def _stop_writer(self) -> None:
        if self.writer is not None:
            self.writer.speed_views.client.close()

    def start_serving(self) -> None:
        """The serving layer starts, up to its first answer."""
        self.stop_serving()
        self.engine = QueryEngine(self.settings, declared_by(self.settings))
        self._ask("totals", {})

    def stop_serving(self) -> None:
        """The serving layer ends."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def forget_tables(self) -> None:
        """Spark forgets what it knows of Delta tables, as a new process would."""
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        self.clock.give_to_delta(self.spark, self.table)

    def start_archiver(self) -> None:
        """What the archiver reads of its table when it starts."""
        refuse_damage("shop", self.table)
        coverage.of_history(read_history(self.table))

    def lose_redis(self) -> None:
        """Redis forgets everything; the writer starts again."""
        started(self.writer).speed_views.client.flushall()
        self.start_writer()

    def change_view(self) -> None:
        """The definition of a view changes; it joins with the next run, and the services start again."""
        self.changes += 1
        self._declare()
        self.start_writer()
        self.start_serving()

    def _declare(self) -> None:
        (self.views_dir / "shop.py").write_text(DECLARED.format(least=self.changes))

    # ---- a night ---------------------------------------------------------

    def archive(self) -> DataFrame:
        """A day's commits of the archiver; the last one has a few records, which are returned."""
        with commit_lock(self.table):
            newest = read_history(self.table).newest
            last = newest + self.commits_a_night
            self._archived_nights += 1
            if self._archived_nights % CHECKPOINT == 0:
                last += -last % STEP
            elif last % STEP == 0:
                last += 1
            self._commit_markers(newest, last - newest - 1)
            columns = zip(*self._records(), strict=True)
            rows = pa.table(
                [pa.array(column, kind) for column, kind in zip(columns, RECORD.types, strict=True)], schema=RECORD
            )
            frame = self.spark.createDataFrame(rows).coalesce(1).cache()
            proof = Proof(Kind.APPEND, "shop", TOPIC_ID, start=self._archived, end=dict(self.cut))
            append(self.spark, self.table, with_event(frame, self.source), proof)
        self.commits += 1
        self._archived = dict(self.cut)
        return frame

    def _commit_markers(self, newest: int, count: int) -> None:
        """Commits of offsets without records. As the archiver does, each is in the ledger and in the cache."""
        proofs, sequence = [], self._sequence(newest)
        for version in range(newest + 1, newest + count + 1):
            end = {**self._archived, 0: self._archived[0] + 1}
            proof = Proof(Kind.APPEND, "shop", TOPIC_ID, start=self._archived, end=end)
            sequence += 1
            self._write_commit(version, sequence, proof)
            proofs.append((version, proof))
            self._archived = end
        if proofs:
            self._write_checksum(newest, proofs[-1][0], sequence)
        sync_folder(self.table / "_delta_log")
        append_to_ledger(self.table, proofs)
        for version, _ in proofs:
            remember_newest(self.table, version)
        self.cut, self.commits = dict(self._archived), self.commits + count

    def _sequence(self, newest: int) -> int:
        """The sequence number of the newest commit, which Delta continues."""
        for line in commit_text(self.table, newest).splitlines():
            if (written := json.loads(line).get("txn")) is not None:
                return int(written["version"])
        return 0

    def _write_commit(self, version: int, sequence: int, proof: Proof) -> None:
        info = {
            "timestamp": int(self.clock.now() * 1000),
            "operation": "STREAMING UPDATE",
            "operationParameters": {"outputMode": "Append", "queryId": APP_ID, "epochId": str(sequence)},
            "readVersion": version - 1,
            "isolationLevel": "Serializable",
            "isBlindAppend": True,
            "operationMetrics": {"numRemovedFiles": "0", "numOutputRows": "0", "numAddedFiles": "0"},
            "userMetadata": proof.to_json(),
            "txnId": _txn_id(version),
        }
        actions = [{"commitInfo": info}, {"txn": {"appId": APP_ID, "version": sequence}}]
        commit_file(self.table, version).write_text("".join(json.dumps(action) + "\n" for action in actions))

    def _write_checksum(self, known: int, version: int, sequence: int) -> None:
        """Delta's summary of a version, which each commit of the archiver has: without it Delta reads its log again."""
        before = self._checksum_file(known)
        if before.is_file():
            value = json.loads(before.read_text())
            value |= {"txnId": _txn_id(version), "setTransactions": [{"appId": APP_ID, "version": sequence}]}
            self._checksum_file(version).write_text(json.dumps(value, separators=(",", ":")))

    def _checksum_file(self, version: int) -> Path:
        return commit_file(self.table, version).with_suffix(".crc")

    def _records(self) -> Iterator[tuple[Any, ...]]:
        """Late events and duplicates among them."""
        now = datetime.fromtimestamp(int(self.clock.now()), UTC)
        for _ in range(EVENTS):
            partition = self.chance.randrange(2)
            has_duplicates = self._archived_nights % DUPLICATES == 0
            if has_duplicates and self.truth.events and self.chance.random() < 0.3:
                known = self.chance.choice(self.truth.events[-EVENTS:])
                partition = known.partition  # producers choose it by a key of the event
                event_id, at, fields = known.event_id, known.event_time, known.fields
            else:
                self.number += 1
                late_s = self.chance.randrange(12 * 3600) + (2 * DAY_S if self.chance.random() < 0.1 else 0)
                event_id, at = f"e{self.number}", now - timedelta(seconds=late_s)
                fields = {
                    "event_id": event_id, "event_time": at, "user_id": f"u{self.chance.randrange(50)}",
                    "item": self.chance.choice("abc"), "cents": self.chance.randrange(500),
                }  # fmt: skip
            offset = self.cut[partition]
            self.cut[partition] += 1
            self.truth.add(Event(partition, offset, event_id, at, fields))
            value = json.dumps({**fields, "event_time": at.isoformat()}).encode()
            yield ("shop", partition, offset, now, 0, None, value, None)

    def count(self, records: DataFrame, night: int) -> None:
        """The speed layer takes the records of the night, as one micro-batch."""
        for _ in range(2):
            stream = started(self.stream)
            planned = stream.checkpoint / "offsets" / str(night)
            planned.write_text(json.dumps({"shop": {str(partition): offset for partition, offset in self.cut.items()}}))
            try:
                stream.take(evaluated(with_event(records, self.source, reasons=False), stream.columns), night)
                break
            except Refused:  # a run has opened a generation of other views: the writer starts again
                self.start_writer()
            finally:
                planned.unlink()
        records.unpersist()
        started(self.stream).writer.heartbeat(ALIVE_S)

    def run(self) -> Manifest:
        """The nightly batch run."""
        for view in declared_by(self.settings).views_of("shop"):
            self.clock.give_to_delta(self.spark, self.folder.table(view.name, view.hash))
        return run_batch(self.settings, "shop", spark=self.spark)

    def run_and_die(self, step: str) -> None:
        """A run that ends in the middle."""

        def die(passed: str) -> None:
            if passed == step:
                raise _RunKilled(step)

        try:
            run_batch(self.settings, "shop", spark=self.spark, failpoint=die)
        except _RunKilled:
            return
        raise AssertionError(f"the run did not come to {step}")

    def keep_up(self) -> None:
        """What the archiver and the speed layer do now and then."""
        self.upkeep.attend(self.table)
        if self.upkeep.reasons:
            raise RuntimeError(f"The upkeep of the master table failed: {self.upkeep.reasons[self.table]}")
        clean_up(started(self.writer).speed_views, self.folder, self.settings.speed_grace_s, now=self.clock.now)

    # ---- answers -----------------------------------------------------------

    def compare(self, *, whole: bool) -> None:
        """Ask, and compare each answer with the reference interpreter at its cut. `whole`: over all time."""
        for view, asked in (("totals", {}), ("totals", {"grain": "day"}), ("sales", {"by": "item"})):
            self._ask(view, asked | self.span(whole=whole), whole=whole)

    def span(self, *, whole: bool = False) -> dict[str, str]:
        """The time that is asked for: the last days, or all of it."""
        first = self.truth.events[0].event_time - timedelta(days=3) if whole else self._ago(4)
        return {"from": first.strftime("%Y-%m-%dT00:00:00Z"), "to": self._ago(-1).strftime("%Y-%m-%dT00:00:00Z")}

    def count_recent(self) -> int:
        """How many events the last days have, without duplicates."""
        first = datetime.fromisoformat(self.span()["from"])
        return len({event.event_id for event in self.truth.events if event.event_time >= first})

    def _ago(self, days: int) -> datetime:
        return datetime.fromtimestamp(self.clock.now() - days * DAY_S, UTC)

    def _ask(self, view: str, asked: dict[str, str], *, whole: bool = False) -> None:
        engine = started(self.engine)
        served = engine.served_view(view)
        query = parse_query(served, list(asked.items()), now=time.time(), limits=QueryLimits())
        result = engine.execute(query)
        expected = self.truth.expected(query, result.meta.cut, whole=whole)
        found = {(row.period, row.key): row.answers for row in result.rows}
        if result.meta.why or not is_same(found, expected):
            raise WrongAnswer(f"{view} {asked}: {result.meta.why or ''} found {found}, expected {expected}")
        self.compared += sum(len(answers) for answers in found.values())
