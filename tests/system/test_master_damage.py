"""Whatever a disk can spoil in a master table: found, repaired from Kafka or from files, or named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from master_dataset.errors import MasterDatasetError
from master_dataset.table import append as append_module
from master_dataset.table.checks.fsck import TableDamaged, Trouble, deep_check, quick_check
from master_dataset.table.checks.repair import repair
from master_dataset.table.checks.void_commits import void_commits
from master_dataset.table.compaction import compact, remove_replaced
from master_dataset.table.delta_log import live_files, read_commits
from master_dataset.table.ledger import ledger_file, read_ledger
from master_dataset.table.sealing import tidy
from tests.conftest import Killed, dying_at
from tests.system.master_source import (
    Place,
    drop_checksum,
    empty,
    forget_records,
    repair_table,
    three_commits,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])
    drop_checksum(path)


def remove(path: Path) -> None:
    path.unlink()
    drop_checksum(path)


def take_checkpoint(spark: SparkSession, place: Place) -> None:
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    log.forTable(spark._jsparkSession, str(place.table)).checkpoint()


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


def test_an_altered_proof_is_repaired_and_the_archiver_goes_on(spark: SparkSession, place: Place) -> None:
    version = three_commits(spark, place)[1]
    path = place.log_file(version)
    path.write_bytes(path.read_bytes().replace(rb"\"rows\":32", rb"\"rows\":33"))
    drop_checksum(path)
    assert Trouble.ALTERED_COMMIT in place.damage()
    with pytest.raises(TableDamaged, match="tidemark master repair"):
        place.archive(spark)
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert (report.agreed, report.voided, report.restored_rows, report.remaining) == ([version], [], 0, [])
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


@pytest.mark.parametrize("harm", [empty, tear])
def test_what_power_lost_with_a_checkpoint_stops_nobody(
    spark: SparkSession, place: Place, harm: Callable[[Path], None]
) -> None:
    """Delta syncs nothing: its checkpoints, and what points to the newest, may be empty when power is back."""
    three_commits(spark, place)
    jvm = spark._jvm
    assert jvm is not None
    for _ in range(2):
        jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(place.table)).checkpoint()
        place.send_events(10)
        place.archive(spark)
    log = place.table / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint*.parquet"))
    assert len(checkpoints) == 2
    for path in (*checkpoints, log / "_last_checkpoint"):
        harm(path)
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert place.damage() == {Trouble.CORRUPT_CHECKPOINT}
    place.send_events(10)
    place.archive(spark)
    assert place.rows() == place.sent
    assert deep_check(spark, place.table) == []
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert spark.read.format("delta").load(str(place.table)).count() == len(place.sent)


@pytest.mark.parametrize("harm", [empty, tear])
def test_a_newest_commit_that_was_not_synced_yet_is_made_again(
    spark: SparkSession, place: Place, harm: Callable[[Path], None]
) -> None:
    """Power went between Delta's commit and our line in the ledger, which is written when the commit is synced."""
    version = three_commits(spark, place)[-1]
    ledger = ledger_file(place.table)
    lines = ledger.read_text(encoding="utf-8").splitlines(keepends=True)
    ledger.write_text("".join(line for line in lines if not line.startswith(f"{version} ")), encoding="utf-8")
    harm(place.log_file(version))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    place.send_events(10)
    place.archive(spark)
    assert place.rows() == place.sent
    assert not [finding for finding in deep_check(spark, place.table) if finding.is_damage]


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


def test_a_lost_ledger_is_added_again_from_the_commits(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    before = read_ledger(place.table)
    ledger_file(place.table).unlink()
    place.archive(spark)
    assert read_ledger(place.table) == before


def cut_behind_the_proof(path: Path) -> None:
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    drop_checksum(path)


def test_a_commit_cut_behind_its_proof_is_repaired_and_a_checkpoint_of_it_forgotten(
    spark: SparkSession, place: Place
) -> None:
    version = three_commits(spark, place)[1]
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(place.table))  # type: ignore[union-attr]
    log.checkpoint()
    cut_behind_the_proof(place.log_file(version))
    assert repair_table(spark, place).restored_rows == 32
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
    assert repair_table(spark, place).restored_rows == 32
    assert place.rows() == place.sent


def test_a_commit_emptied_after_it_was_compacted_does_not_double_its_rows(spark: SparkSession, place: Place) -> None:
    version = three_commits(spark, place)[0]
    compact(spark, place.table)
    empty(place.log_file(version))
    report = repair_table(spark, place)
    assert (report.restored_rows, report.lost, report.remaining) == (0, [], [])
    assert place.rows() == place.sent
    # The repair leans on the compacted file: with that gone, its rows come from Kafka after all.
    (large,) = live_files(read_commits(place.table))
    tear(place.table / large)
    with pytest.raises(TableDamaged):
        compact(spark, place.table)
    assert repair_table(spark, place).restored_rows == 32
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
        report = repair_table(spark, place)
        assert (report.restored_rows, report.lost, report.remaining) == (0, [], [])
        assert len(live_files(read_commits(place.table))) == 3
        assert place.rows() == place.sent
    assert compact(spark, place.table).files_after == 1
    assert place.rows() == place.sent


def test_a_damaged_compaction_whose_originals_were_removed_is_restored_from_kafka(
    spark: SparkSession, place: Place
) -> None:
    three_commits(spark, place)
    compact(spark, place.table)
    assert remove_replaced(place.table, 0) == 3
    place.send_events(5)
    place.archive(spark)
    (large,) = [file.path for file in live_files(read_commits(place.table)).values() if file.rows > 5]
    tear(place.table / large)
    report = repair_table(spark, place)
    assert (report.restored_rows, report.lost) == (96, [])
    assert place.rows() == place.sent
    compact(spark, place.table)
    assert place.rows() == place.sent


def test_a_damaged_compaction_that_nothing_can_restore_is_named_and_the_rest_goes_on(
    spark: SparkSession, place: Place
) -> None:
    three_commits(spark, place)
    compact(spark, place.table)
    remove_replaced(place.table, 0)
    forget_records(place)
    (large,) = live_files(read_commits(place.table))
    (place.table / large).unlink()
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert (report.restored_rows, sum(each.size for each in report.lost), report.remaining) == (0, 96, [])
    place.send_events(5)
    place.archive(spark)
    assert len(place.rows()) == 5
    assert place.damage() == {Trouble.LOST}


def test_a_file_of_a_sealed_commit_is_restored_though_its_commit_is_not_in_the_log(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_module, "PROPERTIES", append_module.PROPERTIES | {"delta.checkpointInterval": "1"})
    first, *_ = three_commits(spark, place)
    assert tidy(place.table, segment_commits=1, grace_s=0).sealed == 3
    assert not place.log_file(first).exists()
    tear(place.table / next(file.path for file in read_commits(place.table)[first].added))
    assert place.damage() == {Trouble.TRUNCATED_FILE}
    assert repair_table(spark, place).restored_rows == 32
    assert place.rows() == place.sent
    place.send_events(5)
    place.archive(spark)
    assert tidy(place.table, segment_commits=1, grace_s=0).sealed > 0
    assert place.rows() == place.sent
    assert deep_check(spark, place.table) == []


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


def change_a_byte(path: Path) -> None:
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        (values,) = [c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "value"]
    content = bytearray(path.read_bytes())
    content[values.data_page_offset + values.total_compressed_size // 2] ^= 0x01  # amid the records
    path.write_bytes(content)
    drop_checksum(path)


@pytest.mark.parametrize(
    ("module", "died_at"),
    [
        ("table.checks.void_commits", "repair.taken_out"),
        ("table.checks.repair", "repair.after_void"),
        ("table.checks.repair", "repair.between"),
    ],
)
def test_a_repair_that_was_killed_is_finished_by_the_next(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, module: str, died_at: str
) -> None:
    """Delta's checkpoint has the files of the damaged commits: what a repair forgets too late comes back from there."""
    versions = three_commits(spark, place)
    take_checkpoint(spark, place)
    for version in versions[:2]:
        empty(place.log_file(version))
    with monkeypatch.context() as patch:
        patch.setattr(f"master_dataset.{module}.reach", dying_at(died_at))
        with pytest.raises(Killed):
            repair(spark, place.settings, place.bootstrap, place.source, place.table)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    with pytest.raises(TableDamaged):
        place.archive(spark)
    assert repair_table(spark, place).lost == []
    assert place.rows() == place.sent


def test_a_repair_that_was_killed_after_it_took_a_compaction_back_is_finished_by_the_next(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_commits(spark, place)
    compact(spark, place.table)
    (large,) = live_files(read_commits(place.table))
    tear(place.table / large)
    with monkeypatch.context() as patch:
        patch.setattr("master_dataset.table.checks.repair.reach", dying_at("repair.after_take_back"))
        with pytest.raises(Killed):
            repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert repair_table(spark, place).lost == []
    assert place.rows() == place.sent


@pytest.mark.parametrize(
    ("module", "died_at", "files"),
    [("table.compaction", "compact.before_commit", 3), ("table.append", "compact.before_ledger", 1)],
)
def test_a_compaction_that_was_killed_changed_no_record_and_the_next_one_finishes(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, module: str, died_at: str, files: int
) -> None:
    three_commits(spark, place)
    with monkeypatch.context() as patch:
        patch.setattr(f"master_dataset.{module}.reach", dying_at(died_at))
        with pytest.raises(Killed):
            compact(spark, place.table)
    assert len(live_files(read_commits(place.table))) == files
    assert place.rows() == place.sent
    place.send_events(10)
    place.archive(spark)
    assert compact(spark, place.table).files_after == 1
    assert place.rows() == place.sent
    assert not [finding for finding in deep_check(spark, place.table) if finding.is_damage]
