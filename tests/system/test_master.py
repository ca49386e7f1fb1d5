"""The master dataset on a real Kafka: each offset exactly once, byte for byte, through crashes, and provably so."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.settings import Settings
from master_dataset.archiver import Archive, open_archive
from master_dataset.commits import ledger_file, live_files, read_commits, read_ledger
from master_dataset.compaction import compact
from master_dataset.coverage import effective_proofs, follow
from master_dataset.dead_letters import newest_first, read_letters, replay, watermarks
from master_dataset.errors import MasterDatasetError
from master_dataset.facts import Wanted, read_facts
from master_dataset.fsck import TableDamaged, Trouble, deep_check, quick_check
from master_dataset.kafka_positions import OffsetsGone, PartitionsDiffer, TopicReplaced, read_positions
from master_dataset.repair import Report, accept_loss, repair
from master_dataset.table import TableBusy, table_path
from master_dataset.topics import alter_topic, apply_topics, delete_topic, librdkafka_config, plan_topics
from master_dataset.void_commits import void_commits
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = "event_id string, event_time timestamp, user_id string, n int"
POISON = [b"\xff\xfe", b"{", b'{"n":"three"}', b'{"n":1} {"n":2}', b""]


class Place:
    """A source of its own on the shared broker, with its table."""

    def __init__(self, stack: Stack, folder: Path, **declared: Any) -> None:
        self.settings: Settings = stack.settings.model_copy(update={"master_dir": folder, "home": folder / "home"})
        self.bootstrap = stack.kafka
        self.source = Source(f"s{uuid4().hex[:12]}", fields=FIELDS, **declared)
        self.config = librdkafka_config(self.settings, self.bootstrap)
        self.admin = AdminClient(self.config)
        self.table = table_path(self.settings, self.source.name)
        self.sent: dict[tuple[int, int], tuple[bytes | None, bytes, list[tuple[str, bytes]]]] = {}
        apply_topics(self.admin, plan_topics([self.source]))

    def send(self, values: list[bytes], headers: list[tuple[str, bytes]] | None = None) -> None:
        """Send and remember what was acknowledged, by partition and offset."""
        producer = Producer({**self.config, "acks": "all", "enable.idempotence": True})

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.sent[message.partition(), message.offset()] = (message.key(), message.value() or b"", headers or [])

        for number, value in enumerate(values):
            key = f"k{number % 7}".encode() if number % 3 else None
            producer.produce(self.source.topic, value, key, headers=headers or [], on_delivery=delivered)
        assert producer.flush(30) == 0

    def send_events(self, count: int) -> None:
        """Valid events."""
        start = len(self.sent)
        self.send([json.dumps({"event_id": f"e{start + n}", "n": n}).encode() for n in range(count)])

    def archive(self, spark: SparkSession, prepare: Callable[[Archive], None] | None = None) -> Archive:
        """Run the archiver until it holds everything that Kafka holds now."""
        with ExitStack() as locks:
            archive = open_archive(self.settings, self.bootstrap, self.source, spark, locks)
            if prepare:
                prepare(archive)
            archive.start(spark, once=True).awaitTermination()
            return archive

    def rows(self) -> dict[tuple[int, int], tuple[bytes | None, bytes, list[tuple[str, bytes]]]]:
        """What the table holds, by partition and offset; a row that is there twice fails."""
        found: dict[tuple[int, int], Any] = {}
        for batch in read_facts(self.table, Wanted(with_invalid=True)):
            for row in batch.to_pylist():
                place = (row["partition"], row["offset"])
                assert place not in found, f"{place} is in the table twice"
                headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
                found[place] = (row["key"], row["value"] or b"", headers)
        return found

    def damage(self) -> set[Trouble]:
        """What the quick check finds, stray files included."""
        return {finding.trouble for finding in quick_check(self.table)}

    def log_file(self, version: int) -> Path:
        return self.table / "_delta_log" / f"{version:020}.json"


@pytest.fixture
def place(stack: Stack, tmp_path: Path) -> Place:
    return Place(stack, tmp_path)


def drop_checksum(path: Path) -> None:
    """Hadoop keeps a checksum beside each file; a disk that loses a write loses that too, or not."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


# ---- exactly once ------------------------------------------------------------


def test_every_record_is_kept_byte_for_byte_and_invalid_ones_with_their_reason(
    spark: SparkSession, place: Place
) -> None:
    place.send_events(300)
    place.send(POISON, headers=[("trace", b"\x00\x01"), ("trace", b"again")])
    place.archive(spark)
    assert place.rows() == place.sent
    found = spark.read.format("delta").load(str(place.table))
    assert found.where("invalid is null").count() == 300
    assert {row["invalid"] for row in found.where("invalid is not null").collect()} == {
        "not UTF-8", "not JSON", "n is not int", "more than one JSON value", "empty",
    }  # fmt: skip
    assert deep_check(spark, place.table) == []


def test_the_next_start_continues_where_the_table_ends(spark: SparkSession, place: Place) -> None:
    for _ in range(3):
        place.send_events(50)
        place.archive(spark)
    assert place.rows() == place.sent
    proofs = effective_proofs(read_commits(place.table), {})
    assert len(proofs) == 3
    assert follow(proofs).rows == 150
    assert read_ledger(place.table) == proofs


@pytest.mark.parametrize("where", ["archiver.before_commit", "archiver.after_commit"])
def test_a_crash_around_the_commit_loses_nothing_and_repeats_nothing(
    spark: SparkSession, place: Place, where: str
) -> None:
    from pyspark.errors import StreamingQueryException

    class CrashedError(Exception):
        pass

    def crash(name: str) -> None:
        if name == where:
            raise CrashedError(name)

    place.send_events(40)
    place.archive(spark)
    place.send_events(40)
    place.send(POISON)
    with pytest.raises(StreamingQueryException):
        place.archive(spark, lambda archive: setattr(archive, "failpoint", crash))
    place.send_events(40)
    place.archive(spark)
    assert place.rows() == place.sent
    assert len(list(newest_first(place.config, place.source))) == len(POISON)


def test_a_backlog_is_committed_in_pieces_of_so_many_mb(spark: SparkSession, place: Place) -> None:
    place.settings = place.settings.model_copy(update={"archive_max_mb": 0.5})
    place.send([json.dumps({"event_id": f"e{n}", "user_id": "u" * 2_000}).encode() for n in range(1_500)])
    place.archive(spark)
    first, *others = [proof.raw_bytes for proof in read_ledger(place.table).values()]
    assert first > 2**20  # nothing was known of their size
    assert len(others) == 3
    assert max(others) < 0.55 * 2**20
    assert first + sum(others) == sum(len(value) + len(key or b"") for key, value, _ in place.sent.values())
    # One that starts anew knows the size from the table.
    place.send([json.dumps({"event_id": f"f{n}", "user_id": "u" * 2_000}).encode() for n in range(300)])
    place.archive(spark)
    assert max(proof.raw_bytes for proof in list(read_ledger(place.table).values())[1:]) < 0.55 * 2**20
    assert place.rows() == place.sent
    assert deep_check(spark, place.table) == []


def test_two_archivers_of_one_table_are_refused(spark: SparkSession, place: Place) -> None:
    with ExitStack() as first, ExitStack() as second:
        open_archive(place.settings, place.bootstrap, place.source, spark, first)
        with pytest.raises(TableBusy, match=str(os.getpid())):
            open_archive(place.settings, place.bootstrap, place.source, spark, second)


# ---- dead letters ------------------------------------------------------------


def test_dead_letters_keep_the_bytes_and_say_where_from_and_why(spark: SparkSession, place: Place) -> None:
    place.send(POISON, headers=[("trace", b"\x00\x01")])
    place.archive(spark)
    letters = list(newest_first(place.config, place.source))
    assert {
        (each.partition, each.offset): (each.key, each.value or b"", list(each.headers)) for each in letters
    } == place.sent
    assert {each.reason for each in letters if each.value == b"{"} == {"not JSON"}


def test_dead_letters_that_a_crash_held_back_are_sent_once(spark: SparkSession, place: Place) -> None:
    place.send(POISON)
    place.archive(spark)
    place.send(POISON)

    def crash_before_sending(archive: Archive) -> None:
        def fail(_version: int, _proof: Any) -> int:
            raise RuntimeError("killed here")

        archive.dead_letters.send = fail  # type: ignore[method-assign]

    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException):
        place.archive(spark, crash_before_sending)
    assert watermarks(place.config, place.source)[1] == len(POISON)
    place.archive(spark)
    place.archive(spark)
    letters = list(newest_first(place.config, place.source))
    assert sorted((each.partition, each.offset) for each in letters) == sorted(place.sent)


def test_a_replayed_dead_letter_comes_back_as_it_was(spark: SparkSession, place: Place) -> None:
    place.send([b'{"n":"three"}'], headers=[("trace", b"1")])
    place.archive(spark)
    assert replay(place.config, place.source, list(read_letters(place.config, place.source, 0, 1))) == 1
    place.archive(spark)
    first, second = sorted(place.rows().items())
    assert first[1] == second[1]


# ---- damage ------------------------------------------------------------------


def three_commits(spark: SparkSession, place: Place) -> list[int]:
    """Three commits of facts. Returns their versions."""
    for _ in range(3):
        place.send_events(30)
        place.send(POISON[:2])
        place.archive(spark)
    return [commit.version for commit in read_commits(place.table) if commit.proof]


def empty(path: Path) -> None:
    path.write_bytes(b"")
    drop_checksum(path)


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])
    drop_checksum(path)


def remove(path: Path) -> None:
    path.unlink()
    drop_checksum(path)


@pytest.mark.parametrize(
    ("harm", "which", "trouble"),
    [
        (empty, -1, Trouble.EMPTY_COMMIT),
        (empty, 1, Trouble.EMPTY_COMMIT),
        (tear, -1, Trouble.TORN_COMMIT),
        (tear, 1, Trouble.TORN_COMMIT),
        (remove, -1, Trouble.MISSING_COMMIT),
        (remove, 1, Trouble.MISSING_COMMIT),
    ],
)
def test_a_damaged_commit_is_found_stops_the_archiver_and_is_repaired_from_kafka(
    spark: SparkSession, place: Place, harm: Callable[[Path], None], which: int, trouble: Trouble
) -> None:
    version = three_commits(spark, place)[which]
    harm(place.log_file(version))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]  # as a new process would see it
    assert trouble in place.damage()
    with pytest.raises(TableDamaged, match="tidemark master repair"):
        place.archive(spark)
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert (report.lost, report.remaining) == ([], [])
    assert report.restored_rows == 32
    place.send_events(10)
    place.archive(spark)
    assert place.rows() == place.sent
    assert deep_check(spark, place.table) == []


def test_a_truncated_data_file_is_found_and_repaired_from_kafka(spark: SparkSession, place: Place) -> None:
    version = three_commits(spark, place)[1]
    file = next(file for file in live_files(read_commits(place.table)).values() if file.version == version)
    tear(place.table / file.path)
    assert place.damage() == {Trouble.TRUNCATED_FILE}
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert (report.lost, report.remaining) == ([], [])
    assert place.rows() == place.sent


def test_a_changed_byte_in_a_data_file_is_found_by_the_deep_check(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    file = next(iter(live_files(read_commits(place.table)).values()))
    change_a_byte(place.table / file.path)
    assert place.damage() == set()
    assert any(finding.is_damage for finding in deep_check(spark, place.table))
    assert repair(spark, place.settings, place.bootstrap, place.source, place.table).remaining == []
    assert place.rows() == place.sent


def test_a_corrupt_delta_checkpoint_is_moved_out_and_nothing_is_lost(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(place.table))  # type: ignore[union-attr]
    log.checkpoint()
    (checkpoint,) = (place.table / "_delta_log").glob("*.checkpoint*.parquet")
    tear(checkpoint)
    assert place.damage() == {Trouble.CORRUPT_CHECKPOINT}
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert report.remaining == []
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert spark.read.format("delta").load(str(place.table)).count() == len(place.sent)


def test_a_stray_file_is_named_and_moved_out_but_stops_nobody(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    stray = place.table / "part-00000-left-by-a-crash.parquet"
    stray.write_bytes(b"PAR1")
    assert place.damage() == {Trouble.STRAY_FILE}
    place.archive(spark)
    assert repair(spark, place.settings, place.bootstrap, place.source, place.table).moved == [stray.name]
    assert place.damage() == set()


def test_what_kafka_no_longer_holds_is_named_offset_by_offset(spark: SparkSession, place: Place) -> None:
    version = three_commits(spark, place)[1]
    proof = read_ledger(place.table)[version]
    for file in read_commits(place.table)[version].added:
        (place.table / file.path).unlink()
    forget_records(place)
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert sum(each.size for each in report.lost) == proof.rows
    assert place.rows().items() <= place.sent.items()
    for _ in range(2):  # and is named ever after
        again = {finding.where for finding in quick_check(place.table) if finding.trouble is Trouble.LOST}
        assert again == {str(each) for each in report.lost}
        assert repair(spark, place.settings, place.bootstrap, place.source, place.table).restored_rows == 0
    assert place.damage() == {Trouble.LOST}


def test_a_lost_ledger_is_written_anew_from_the_commits(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    before = read_ledger(place.table)
    ledger_file(place.table).unlink()
    place.archive(spark)
    assert read_ledger(place.table) == before


def cut_behind_the_proof(path: Path) -> None:
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    drop_checksum(path)


def mend(spark: SparkSession, place: Place) -> Report:
    """Repair twice: the second time there is nothing left to do."""
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    again = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert (again.voided, again.restored_rows, again.remaining) == ([], 0, [])
    assert quick_check(place.table) == []
    assert spark.read.format("delta").load(str(place.table)).count() == len(place.rows())
    return report


def test_a_commit_cut_behind_its_proof_is_repaired_and_a_checkpoint_of_it_forgotten(
    spark: SparkSession, place: Place
) -> None:
    version = three_commits(spark, place)[1]
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(place.table))  # type: ignore[union-attr]
    log.checkpoint()
    cut_behind_the_proof(place.log_file(version))
    assert mend(spark, place).restored_rows == 32
    assert list((place.table / "_delta_log").glob("*.checkpoint*")) == []
    assert place.rows() == place.sent


def test_a_repair_without_kafka_changes_nothing_and_the_next_one_finishes(spark: SparkSession, place: Place) -> None:
    version = three_commits(spark, place)[-1]
    empty(place.log_file(version))
    with pytest.raises(MasterDatasetError):
        repair(spark, place.settings, "127.0.0.1:1", place.source, place.table)
    assert place.log_file(version).read_bytes() == b""
    # As if it had crashed between the void commit and the restored rows.
    void_commits(place.table, quick_check(place.table))
    assert Trouble.GAP in place.damage()
    assert mend(spark, place).restored_rows == 32
    assert place.rows() == place.sent


def test_a_commit_emptied_after_it_was_compacted_does_not_double_its_rows(spark: SparkSession, place: Place) -> None:
    version = three_commits(spark, place)[0]
    compact(spark, place.table)
    empty(place.log_file(version))
    report = mend(spark, place)
    assert (report.restored_rows, report.lost, report.remaining) == (0, [], [])
    assert place.rows() == place.sent
    # The repair leans on the compacted file: with that gone, its rows come from Kafka after all.
    (large,) = live_files(read_commits(place.table))
    tear(place.table / large)
    with pytest.raises(TableDamaged):
        compact(spark, place.table)
    assert mend(spark, place).restored_rows == 32
    place.send_events(5)
    place.archive(spark)
    assert place.rows() == place.sent


def test_a_damaged_compaction_is_taken_back_without_kafka(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    forget_records(place)
    for harm in (tear, empty):
        compact(spark, place.table)
        newest = read_commits(place.table)[-1]
        harm(place.table / newest.added[0].path if harm is tear else place.log_file(newest.version))
        report = mend(spark, place)
        assert (report.restored_rows, report.lost, report.remaining) == (0, [], [])
        assert len(live_files(read_commits(place.table))) == 3
        assert place.rows() == place.sent
    assert compact(spark, place.table).files_after == 1
    assert place.rows() == place.sent


def test_rows_saved_from_a_changed_file_are_not_called_good(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    forget_records(place)
    path = place.table / next(iter(live_files(read_commits(place.table))))
    rows = pq.read_table(path)
    others = pa.array([b"another key"] * rows.num_rows, rows.schema.field("key").type)
    pq.write_table(rows.set_column(rows.schema.get_field_index("key"), rows.schema.field("key"), others), path)
    drop_checksum(path)
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert [finding.trouble for finding in report.remaining] == [Trouble.UNPROVED_ROWS]
    assert place.rows().keys() == place.sent.keys()
    for _ in range(2):  # and are named ever after, but stop nobody
        assert place.damage() == {Trouble.UNPROVED_ROWS}
        again = repair(spark, place.settings, place.bootstrap, place.source, place.table)
        assert (again.restored_rows, again.remaining) == (0, [])


def test_another_topic_of_the_same_name_neither_repairs_nor_excuses_anything(spark: SparkSession, place: Place) -> None:
    version = three_commits(spark, place)[1]
    held = dict(place.sent)
    make_topic_again(place)
    place.send_events(200)
    empty(place.log_file(version))  # its data file is still there
    report = mend(spark, place)
    assert (report.restored_rows, report.lost, report.remaining) == (32, [], [])
    assert place.rows() == held
    positions = read_positions(place.settings, place.bootstrap, place.source)
    with pytest.raises(TopicReplaced):
        accept_loss(spark, place.source, place.table, positions)
    with pytest.raises(TopicReplaced):
        place.archive(spark)


def test_a_topic_made_again_while_the_archiver_runs_is_noticed_before_the_commit(
    spark: SparkSession, place: Place
) -> None:
    from pyspark.errors import StreamingQueryException

    place.send_events(20)
    place.archive(spark)
    place.send_events(20)
    held = rows_proved(place.table)
    with pytest.raises(StreamingQueryException, match="deleted and made again"):
        place.archive(spark, lambda archive: setattr(archive, "topic_id", "the id it had before"))
    assert rows_proved(place.table) == held


def test_a_crash_before_the_first_commit_leaves_a_table_that_can_be_made(spark: SparkSession, place: Place) -> None:
    (place.table / "_delta_log").mkdir(parents=True)
    place.send_events(5)
    place.archive(spark)
    assert place.rows() == place.sent


def forget_records(place: Place) -> None:
    """Kafka drops all that it has."""
    everything = [TopicPartition(place.source.topic, p, o) for p, o in read_positions_latest(place).items()]
    for future in place.admin.delete_records(everything).values():
        future.result()


def make_topic_again(place: Place) -> None:
    delete_topic(place.admin, place.source.topic)

    def gone() -> bool:
        return place.source.topic not in place.admin.list_topics(timeout=10).topics

    wait_until("the topic to be gone", gone)
    wait_until("the topic to be made again", lambda: apply_topics(place.admin, plan_topics([place.source])))


def change_a_byte(path: Path) -> None:
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        (values,) = [c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "value"]
    content = bytearray(path.read_bytes())
    content[values.data_page_offset + values.total_compressed_size // 2] ^= 0x01  # amid the records
    path.write_bytes(content)
    drop_checksum(path)


def read_positions_latest(place: Place) -> dict[int, int]:
    return read_positions(place.settings, place.bootstrap, place.source).latest


# ---- Kafka changes under our feet --------------------------------------------


def test_a_topic_that_was_made_again_stops_the_archiver(spark: SparkSession, place: Place) -> None:
    place.send_events(20)
    place.archive(spark)
    make_topic_again(place)
    with pytest.raises(TopicReplaced, match="deleted and made again"):
        place.archive(spark)


def test_added_partitions_stop_the_archiver_until_they_are_declared(spark: SparkSession, place: Place) -> None:
    place.send_events(20)
    place.archive(spark)
    alter_topic(place.admin, place.source.topic, 5, {})
    wait_until("the new partitions", lambda: len(read_positions_latest(place)) == 5)
    with pytest.raises(PartitionsDiffer, match="partitions=5"):
        place.archive(spark)
    place.source = replace(place.source, partitions=5)
    place.send_events(50)
    place.archive(spark)
    assert place.rows() == place.sent
    assert {partition for partition, _ in place.rows()} > {0, 1, 2}


def test_retention_passing_the_position_stops_until_the_loss_is_accepted(spark: SparkSession, place: Place) -> None:
    place.send_events(20)
    place.archive(spark)
    held = dict(place.rows())
    place.send_events(20)
    for future in place.admin.delete_records(
        [TopicPartition(place.source.topic, p, o) for p, o in read_positions_latest(place).items()]
    ).values():
        future.result()
    with pytest.raises(OffsetsGone, match="--accept-loss") as caught:
        place.archive(spark)
    assert sum(each.size for each in caught.value.gone) == 20
    positions = read_positions(place.settings, place.bootstrap, place.source)
    assert accept_loss(spark, place.source, place.table, positions) == caught.value.gone
    place.sent.clear()
    place.send_events(20)
    place.archive(spark)
    assert place.rows() == {**held, **place.sent}
    assert place.damage() == {Trouble.LOST}


# ---- compaction, reading, replay ----------------------------------------------


def test_compaction_leaves_the_facts_and_the_proof_as_they_were(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    done = compact(spark, place.table)
    assert (done.files_before, done.files_after, done.rows) == (3, 1, len(place.sent))
    assert deep_check(spark, place.table) == []
    place.send_events(10)
    place.archive(spark)
    assert place.rows() == place.sent
    assert deep_check(spark, place.table) == []


def test_facts_are_read_back_by_offset_and_by_time(spark: SparkSession, place: Place) -> None:
    from datetime import UTC, datetime

    place.send(
        [
            b'{"event_id":"old","event_time":"2020-01-01T00:00:00Z"}',
            b'{"event_id":"new","event_time":"2026-01-01T00:00:00Z"}',
        ]
    )
    place.archive(spark)

    def ids(wanted: Wanted) -> set[str]:
        return {row["event_id"] for batch in read_facts(place.table, wanted) for row in batch.to_pylist()}

    assert ids(Wanted()) == {"old", "new"}
    assert ids(Wanted(since=datetime(2021, 1, 1, tzinfo=UTC))) == {"new"}
    assert ids(Wanted(until=datetime(2021, 1, 1, tzinfo=UTC))) == {"old"}
    latest = read_positions_latest(place)
    assert ids(Wanted(end=latest)) == {"old", "new"}
    assert ids(Wanted(start=latest)) == set()


# ---- the process under the supervisor ------------------------------------------


@pytest.fixture(scope="module")
def archiving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with an archiver, and one small source beside no examples."""
    views = tmp_path_factory.mktemp("views")
    (views / "clicks.py").write_text(
        f"from views.source import Source\nclicks = Source('clicks', fields={FIELDS!r})\n", encoding="utf-8"
    )
    running = start_stack(
        tmp_path_factory.mktemp("archiving") / "home",
        archiver_enabled=True,
        collector_enabled=False,
        views_dir=views,
        with_examples=False,
        archive_interval_s=0.5,
    )
    yield running
    stop_stack(running)


def kill_after_a_commit(stack: Stack, table: Path, send: Callable[[], None]) -> None:
    """Kill the archiver when it has just committed something, and wait for its successor."""
    before, held = stack.service("archiver")["pid"], rows_proved(table)
    send()
    wait_until("a commit", lambda: rows_proved(table) > held, 90)
    os.kill(before, signal.SIGKILL)
    wait_for_another(stack, before)


def kill_before_a_commit(stack: Stack, table: Path, send: Callable[[], None]) -> None:
    """Kill the archiver and its JVM when rows are on the disk but in no commit, and wait for its successor."""
    for _attempt in range(5):
        before, left = stack.service("archiver")["pid"], files_of_no_commit(table)
        send()
        wait_until("data files before their commit", lambda left=left: files_of_no_commit(table) - left, 90)
        for process in [*psutil.Process(before).children(recursive=True), psutil.Process(before)]:
            process.kill()
        is_before = bool(files_of_no_commit(table) - left)
        wait_for_another(stack, before)
        if is_before:
            return
    pytest.fail("five times the commit was made before the kill")


def wait_for_another(stack: Stack, killed: int) -> None:
    def is_back() -> bool:
        service = stack.service("archiver")
        return service["state"] == "ready" and service["pid"] != killed

    wait_until("the archiver to be back", is_back, 120)


def files_of_no_commit(table: Path) -> set[str]:
    there = {path.name for path in table.glob("*.parquet")}  # listed first: one that is committed meanwhile is no match
    return there - {file.path for commit in read_commits(table) for file in commit.added}


def rows_proved(table: Path) -> int:
    return follow(effective_proofs(read_commits(table), {})).rows


def test_kill_9_of_the_archiver_before_and_after_a_commit_loses_nothing_and_repeats_nothing(
    spark: SparkSession, archiving: Stack
) -> None:
    source = Source("clicks", fields=FIELDS)
    producer = Producer({**librdkafka_config(archiving.settings, archiving.kafka), "acks": "all"})
    table = table_path(archiving.settings, "clicks")
    sent = poisoned = 0

    def send() -> None:
        nonlocal sent, poisoned
        for _ in range(400):
            producer.produce("clicks", json.dumps({"event_id": f"c{sent}", "n": sent}).encode())
            sent += 1
        producer.produce("clicks", b"poison")
        poisoned += 1
        producer.flush()

    for kill in (kill_after_a_commit, kill_before_a_commit, kill_after_a_commit):
        kill(archiving, table, send)
    wait_until("all rows", lambda: rows_proved(table) >= sent + poisoned, 120)
    found = [row for batch in read_facts(table, Wanted(with_invalid=True)) for row in batch.to_pylist()]
    assert len({(row["partition"], row["offset"]) for row in found}) == len(found) == sent + poisoned
    assert {row["event_id"] for row in found if not row["invalid"]} == {f"c{n}" for n in range(sent)}
    # The files of the commit that was not made stay, named and harmless.
    left = {finding.where: finding.trouble for finding in deep_check(spark, table)}
    assert left == dict.fromkeys(files_of_no_commit(table), Trouble.STRAY_FILE)
    assert left
    config = librdkafka_config(archiving.settings, archiving.kafka)
    wait_until("the dead letters", lambda: watermarks(config, source)[1] >= poisoned)
    assert len(list(newest_first(config, source))) == poisoned
