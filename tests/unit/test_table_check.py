"""The quick check and the plan of a repair, on tables written by hand: no Spark, no Kafka."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.settings import load_settings
from master_dataset.archiver.archive import Archive
from master_dataset.cut import OffsetRange
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.positions import KafkaBehind, OffsetsGone, Positions, TopicReplaced, check_positions
from master_dataset.table import coverage, delta_log, history
from master_dataset.table import ledger as ledger_module
from master_dataset.table.append import _files_named
from master_dataset.table.checks import fsck, repair
from master_dataset.table.checks.fsck import Measurement, Trouble, quick_check
from master_dataset.table.checks.promises import promise_of, rows_of_compaction
from master_dataset.table.checks.repair import _is_unproved
from master_dataset.table.checks.salvage import outside
from master_dataset.table.checks.void_commits import forget_summaries, taken_out
from master_dataset.table.commit_cache import CachedCommit, add_entries, read_entries
from master_dataset.table.coverage import effective_proofs, follow, replacements
from master_dataset.table.delta_log import Commit, live_files, read_commits, read_log, remember, remembered_file
from master_dataset.table.ledger import (
    append_to_ledger,
    ledger_file,
    read_ledger,
    read_ledger_file,
)
from master_dataset.table.proofs import Kind, Proof
from tests.hand_made_table import Table, append, repaired
from views.source import Source


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two commits of ten rows."""
    made = Table(tmp_path / "web")
    made.commit(1, append(0, 10), ["a"])
    made.commit(2, append(10, 20), ["b"])
    return made


def keep_first_line(path: Path) -> None:
    path.write_text(path.read_text().splitlines(keepends=True)[0])


# ---- void commits --------------------------------------------------------------


def test_a_torn_last_commit_that_never_reached_the_ledger_leaves_a_healthy_table(table: Table) -> None:
    table.commit(3, append(20, 30), ["c"], ledger=False)
    table.log_file(3).write_text(table.log_file(3).read_text()[:-30])
    assert Trouble.TORN_COMMIT in table.troubles()
    for voided in ([3], []):
        assert table.void() == voided
        assert table.troubles() == []
    assert 3 not in read_ledger(table.path)


def test_a_void_commit_stays_a_gap_until_a_repair_names_it(table: Table) -> None:
    table.log_file(2).write_text("")
    table.void()
    for _ in range(2):  # a repair that Kafka did not let finish is finished by the next one
        assert table.void() == []
        assert table.troubles() == [Trouble.GAP]
        assert table.to_restore() == [2]
    table.commit(3, repaired(10, 20, 2), ["c"])
    assert table.troubles() == []
    assert table.to_restore() == []


@pytest.mark.parametrize("kind", [Kind.COMPACT, Kind.UNCOMPACT])
def test_a_void_commit_that_held_no_records_is_no_gap(table: Table, kind: str) -> None:
    table.commit(3, Proof(kind, rows=20), ["c"], ["a", "b"])
    table.log_file(3).write_text("")
    table.void()
    assert table.troubles() == []
    assert sorted(live_files(read_commits(table.path))) == ["a", "b"]


def test_summaries_that_delta_made_of_a_voided_commit_leave_the_log(table: Table) -> None:
    log = table.path / "_delta_log"
    for version in (1, 2):
        (log / f"{version:020}.checkpoint.parquet").write_bytes(b"PAR1")
        (log / f"{version:020}.crc").write_text("{}")
    (log / "_last_checkpoint").write_text('{"version":2}')
    forget_summaries(table.path, 2)
    assert sorted(path.name.partition(".")[2] for path in log.glob("*2.*")) == ["json"]
    assert sorted(path.name.partition(".")[2] for path in log.glob("*1.*")) == ["checkpoint.parquet", "crc", "json"]
    assert not (log / "_last_checkpoint").exists()
    assert len(list(taken_out(table.path).glob("*/*"))) == 3


# ---- a commit that lost its last lines ------------------------------------------


def test_a_commit_cut_at_a_line_is_restored_once(table: Table) -> None:
    keep_first_line(table.log_file(1))
    assert Trouble.WRONG_ROWS in table.troubles()
    table.void()
    assert table.to_restore() == [1]
    table.commit(3, repaired(0, 10, 1), ["c"])
    assert table.troubles() == []
    assert table.to_restore() == []


def test_rows_that_two_repairs_brought_back_are_an_overlap() -> None:
    chain = {1: append(0, 10), 2: append(10, 20), 3: repaired(0, 10, 1)}
    assert follow(chain).overlaps == []
    assert follow({**chain, 4: repaired(0, 10, 1)}).overlaps == [OffsetRange(0, 0, 10)]
    assert follow({**chain, 4: repaired(5, 15)}).overlaps == [OffsetRange(0, 5, 10), OffsetRange(0, 10, 15)]
    assert follow({**chain, 4: repaired(0, 10, 3)}).overlaps == []


def test_the_newest_repair_answers_for_all_before_it(table: Table) -> None:
    chain = {1: append(0, 10), 3: repaired(0, 10, 1), 4: repaired(0, 10, 3)}
    assert replacements(chain) == {1: 4, 3: 4}
    assert follow(chain).rows == 10
    # A repair that is lost lets the bad file come back; it is the repair that is made again.
    table.commit(3, repaired(0, 10, 1), ["c"], ["a"])
    table.log_file(3).write_text("")
    (table.path / "a").unlink()
    table.void()
    assert table.to_restore() == [3]


def test_rows_that_other_files_hold_already_count_once() -> None:
    chain = {1: append(0, 10, hash=6), 2: repaired(0, 10, 1, rows=4, hash=2, kept_rows=6, kept_hash=4)}
    assert (follow(chain).rows, follow(chain).hash) == (10, 6)


# ---- a commit and its line of the ledger differ ---------------------------------


def agree(table: Table) -> list[int]:
    return repair._make_agree(table.path, quick_check(table.path))


@pytest.mark.parametrize("change", [('rows\\":10', 'rows\\":90'), ('tidemark\\":1', 'tidemark\\":7')])
def test_an_altered_proof_comes_back_from_the_ledger(table: Table, change: tuple[str, str]) -> None:
    sound = table.log_file(2).read_text()
    table.log_file(2).write_text(sound.replace(*change))
    assert Trouble.ALTERED_COMMIT in table.troubles()
    assert agree(table) == [2]
    assert (table.log_file(2).read_text(), table.troubles()) == (sound, [])
    assert len(list(taken_out(table.path).glob("*/*.json"))) == 1


def test_a_line_without_a_digest_is_added_again_from_a_commit_that_is_sound(table: Table) -> None:
    lines = [f"1 {append(0, 10).to_json()}", f"2 {append(10, 20, hash=5).to_json()}"]
    ledger_file(table.path).write_text("\n".join([*lines, ""]))
    (table.path / "a").rename(table.path / "elsewhere")
    assert agree(table) == []  # something else is wrong too: who knows which of the two is right
    (table.path / "elsewhere").rename(table.path / "a")
    assert table.troubles() == [Trouble.ALTERED_COMMIT]
    assert agree(table) == [2]
    assert table.troubles() == []
    assert read_ledger(table.path)[2] == append(10, 20)


# ---- compaction ------------------------------------------------------------------


def truncate_file(table: Table) -> None:
    (table.path / "c").write_bytes(b"P")


def empty_commit(table: Table) -> None:
    table.log_file(3).write_text("")
    table.void()


def lose_the_removals(table: Table) -> None:
    lines = table.log_file(3).read_text().splitlines(keepends=True)
    table.log_file(3).write_text("".join(line for line in lines if "remove" not in line))


@pytest.mark.parametrize("harm", [truncate_file, empty_commit, lose_the_removals])
def test_a_damaged_compaction_is_taken_back_with_those_after_it(table: Table, harm: Callable[[Table], None]) -> None:
    table.commit(3, Proof(Kind.COMPACT, rows=20), ["c"], ["a", "b"])
    assert (table.troubles(), table.to_undo()) == ([], set())
    harm(table)
    assert table.to_undo() == {3}
    assert table.to_restore() == []
    table.commit(4, append(20, 30), ["d"])
    table.commit(5, Proof(Kind.COMPACT, rows=30), ["e"], ["c", "d"])
    if harm is empty_commit:
        assert table.to_undo() == {3, 5}
    undone = [commit for commit in read_commits(table.path) if commit.version not in {3, 5}]
    assert sorted(live_files(undone)) == ["a", "b", "d"]


def test_a_compaction_that_was_taken_back_is_left_in_peace(table: Table) -> None:
    table.commit(3, Proof(Kind.COMPACT, rows=20), ["c"], ["a", "b"])
    empty_commit(table)
    table.commit(4, Proof(Kind.UNCOMPACT, replaces=(3,)))
    table.commit(5, Proof(Kind.COMPACT, rows=20), ["e"], ["a", "b"])
    assert (table.troubles(), table.to_undo()) == ([], set())


def test_a_file_that_came_back_belongs_to_its_first_commit() -> None:
    first = read_back = fsck.TableFile("a", 1, 1, 1)
    commits = [Commit(1, added=(first,)), Commit(2, removed=("a",)), Commit(3, added=(read_back._replace(version=3),))]
    assert live_files(commits)["a"].version == 1


def test_a_repair_that_leant_on_a_compaction_is_made_again_when_that_is_taken_back(table: Table) -> None:
    table.commit(3, Proof(Kind.COMPACT, rows=20), ["c"], ["a", "b"])
    table.log_file(1).write_text("")
    table.void()
    table.commit(4, repaired(0, 10, 1, rows=0, kept_rows=10))
    assert table.troubles() == []
    assert table.to_restore() == []
    truncate_file(table)
    table.commit(5, Proof(Kind.UNCOMPACT, replaces=(3,)), ["b"], ["c"])
    assert table.to_restore() == [4]


# ---- what is lost ----------------------------------------------------------------


def test_what_a_repair_could_not_bring_back_is_reported_for_ever(table: Table) -> None:
    lost = (OffsetRange(0, 13, 20),)
    table.log_file(2).write_text("")
    table.void()
    table.commit(3, repaired(10, 20, 2, rows=3, lost=lost), ["c"])
    table.commit(4, append(20, 30), ["d"])
    assert [(finding.trouble, finding.where) for finding in quick_check(table.path)] == [
        (Trouble.LOST, "partition 0: 13..19")
    ]


def test_rows_that_a_repair_saved_from_a_changed_file_are_named_for_ever_but_stop_nobody(table: Table) -> None:
    table.commit(3, repaired(10, 20, 2, unproved=True), ["c"], ["b"])
    table.commit(4, append(20, 30), ["d"])
    (finding,) = quick_check(table.path)
    assert (finding.trouble, finding.where, finding.is_damage) == (Trouble.UNPROVED_ROWS, "commit 3", False)
    assert finding.text.startswith("10 rows of commit 3 were saved from a changed file")
    assert table.to_restore() == []
    table.commit(5, repaired(10, 20, 3), ["e"], ["c"])  # found after all
    assert table.troubles() == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Measurement(10, 7), False),  # what was promised at first
        (Measurement(10, 9), True),  # what the repair saved
        (Measurement(10, 8), True),
        (Measurement(4, 9), True),  # less of it: what remains is as doubtful as before
    ],
)
def test_a_repair_of_a_repair_is_measured_by_the_first_promise(found: Measurement, expected: bool) -> None:
    chain = {1: append(0, 10, hash=7), 2: append(10, 20, hash=5), 3: repaired(0, 10, 1, hash=9, unproved=True)}
    assert _is_unproved(3, chain, found) is expected
    assert _is_unproved(2, chain, Measurement(4, 1)) is False  # the others are lost, and named
    assert _is_unproved(4, chain, Measurement()) is False


def test_holes_inside_what_kafka_still_has_are_no_loss() -> None:
    missing = [OffsetRange(0, 2, 7), OffsetRange(1, 3, 4)]
    assert outside(missing, {0: 5, 1: 3}, {0: 6, 1: 3}) == [
        OffsetRange(0, 2, 5), OffsetRange(0, 6, 7), OffsetRange(1, 3, 4),
    ]  # fmt: skip
    assert outside(missing, {0: 0, 1: 0}, {0: 9, 1: 9}) == []


# ---- the check itself ------------------------------------------------------------


def test_a_commit_made_while_the_check_reads_is_not_missing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_in_between(path: Path, *, after: int, afresh: bool) -> list[Commit]:
        found = read_log(path, after=after, afresh=afresh)
        if not table.log_file(3).exists():
            table.commit(3, append(20, 30), ["c"])
        return found

    def ledger_in_between(path: Path) -> dict[int, Proof]:
        found = read_ledger_file(path)
        if not table.log_file(3).exists():
            table.commit(3, append(20, 30), ["c"])
        return found

    monkeypatch.setattr(history, "read_log", commit_in_between)
    monkeypatch.setattr(history, "read_ledger_file", ledger_in_between)
    assert table.troubles() == []


def test_a_table_that_is_gone_while_its_ledger_is_there_is_damage(table: Table) -> None:
    table.path.rename(table.path.with_name("elsewhere"))
    assert set(table.troubles()) == {Trouble.MISSING_COMMIT}


def test_a_live_file_too_many_is_found_by_its_rows(table: Table) -> None:
    table.commit(3, Proof(Kind.UNCOMPACT, rows=10), ["c"])
    assert table.troubles() == [Trouble.WRONG_ROWS]


def test_a_bad_page_anywhere_in_a_checkpoint_is_found(table: Table) -> None:
    path = table.path / "_delta_log" / f"{2:020}.checkpoint.parquet"
    columns = {"add": [f"part-{n}" for n in range(1000)], "protocol": [1] * 1000}
    pq.write_table(pa.table(columns), path, use_dictionary=False)
    assert table.troubles() == []
    content = bytearray(path.read_bytes())
    content[10:2000] = bytes(1990)
    path.write_bytes(content)
    assert table.troubles() == [Trouble.CORRUPT_CHECKPOINT]


@pytest.mark.parametrize(
    "error", [OSError("bad page"), pa.ArrowInvalid("x"), pa.ArrowNotImplementedError("x"), MemoryError()]
)
def test_whatever_a_corrupt_checkpoint_makes_arrow_say_it_is_a_finding(
    table: Table, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_path: Path) -> None:
        raise error

    (table.path / "_delta_log" / f"{2:020}.checkpoint.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(pq, "ParquetFile", refuse)
    assert table.troubles() == [Trouble.CORRUPT_CHECKPOINT]


def test_the_quick_check_reads_the_checkpoint_that_delta_reads_and_the_deep_one_all(table: Table) -> None:
    for version in (1, 2):
        path = table.path / "_delta_log" / f"{version:020}.checkpoint.parquet"
        pq.write_table(pa.table({"add": ["a"]}), path)
    (table.path / "_delta_log" / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1")
    assert table.troubles() == []
    assert [finding.trouble for finding in fsck._check(table.path, afresh=True)] == [Trouble.CORRUPT_CHECKPOINT]


# ---- what is remembered of commits -----------------------------------------------


def remembered(table: Table) -> dict[int, CachedCommit]:
    return read_entries(remembered_file(table.path))


def test_commits_that_were_read_once_are_not_read_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.commit(3, Proof(Kind.COMPACT, rows=20), ["c d"], ["a", "b"])
    before = read_commits(table.path)
    remember(table.path, before)
    assert sorted(remembered(table)) == [1, 2, 3]

    def refuse(path: Path) -> Commit:
        assert int(path.stem) == 0, "only the one without a proof is read"
        return before[0]

    monkeypatch.setattr(delta_log, "read_commit", refuse)
    assert read_commits(table.path) == before
    assert table.troubles() == []


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def tear_and_fill(path: Path) -> None:
    """As long as before, and as old: only the time of the change itself tells."""
    found = path.stat()
    path.write_bytes(bytes(found.st_size))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def swap(path: Path) -> None:
    """Another file of the same size takes its place."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b'rows\\":10', b'rows\\":11'))
    other.rename(path)


@pytest.mark.parametrize(
    ("harm", "trouble"),
    [
        (lambda path: path.write_bytes(b""), Trouble.EMPTY_COMMIT),
        (tear, Trouble.TORN_COMMIT),
        (tear_and_fill, Trouble.TORN_COMMIT),
        (lambda path: path.unlink(), Trouble.MISSING_COMMIT),
        (swap, Trouble.ALTERED_COMMIT),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_what_is_remembered_hides_no_damage(
    table: Table, harm: Callable[[Path], None], trouble: Trouble, version: int
) -> None:
    remember(table.path, read_commits(table.path))
    time.sleep(0.02)  # the clock of a file system ticks every few ms
    harm(table.log_file(version))
    assert trouble in table.troubles()


def cut_off(content: bytes) -> bytes:
    return content[:-20]


def change_a_byte(content: bytes) -> bytes:
    return content.replace(b'rows\\":10', b'rows\\":12')


@pytest.mark.parametrize("harm", [cut_off, change_a_byte, lambda _: b"\xff\n\x00 {}\n", lambda _: b""])
def test_damaged_cache_entries_are_replaced(table: Table, harm: Callable[[bytes], bytes]) -> None:
    before = read_commits(table.path)
    remember(table.path, before)
    path = remembered_file(table.path)
    path.write_bytes(harm(path.read_bytes()))
    assert len(remembered(table)) < 2
    assert read_commits(table.path) == before
    remember(table.path, read_commits(table.path))
    assert sorted(remembered(table)) == [1, 2]
    assert read_commits(table.path) == before


def test_a_table_from_a_backup_is_cached_again(table: Table) -> None:
    remember(table.path, read_commits(table.path))
    for version in (1, 2):
        copy = table.log_file(version).with_name("copy")
        shutil.copy2(table.log_file(version), copy)
        copy.rename(table.log_file(version))
    remember(table.path, read_commits(table.path))
    assert len(remembered_file(table.path).read_bytes().split(b"\n")) == 3
    assert [commit.stamp is None for commit in read_commits(table.path)] == [False, True, True]


def test_a_commit_that_a_crash_kept_out_of_the_ledger_is_synced_before_it_is_promised(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit(3, append(20, 30), ["c"], ledger=False)
    synced: list[Path] = []
    for name in ("sync_file", "sync_folder"):
        monkeypatch.setattr(ledger_module, name, synced.append)
    monkeypatch.setattr(ledger_module, "append_to_ledger", lambda path, _missing: synced.append(ledger_file(path)))
    ledger = ledger_module.complete_ledger(table.path, read_commits(table.path))
    assert synced == [table.log_file(3), table.path / "_delta_log", ledger_file(table.path)]
    assert sorted(ledger) == [1, 2, 3]


def test_a_new_ledger_has_its_name_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(ledger_module, "sync_folder", synced.append)
    for _ in range(2):
        append_to_ledger(tmp_path / "web", [(1, append(0, 10))])
        assert synced == [tmp_path / "web.proofs", tmp_path]


def change_the_name_of_a_file(table: Table, version: int) -> None:
    """One byte of a commit, by a disk: what is remembered of it has the size and the times that it still has."""
    remember(table.path, read_commits(table.path))
    path = table.log_file(version)
    path.write_text(path.read_text().replace('"path": "b"', '"path": "x"'))
    add_entries(
        remembered_file(table.path), [remembered(table)[version]._replace(stamp=delta_log.stamp_of(path.stat()))]
    )
    assert [file.path for file in read_commits(table.path)[version].added] == ["b"]


def test_a_repair_plans_by_the_commits_as_they_are(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    change_the_name_of_a_file(table, 2)

    def look(_spark: object, path: Path) -> list[fsck.TableFinding]:
        assert [file.path for file in read_commits(path)[2].added] == ["x"]
        raise Looked

    monkeypatch.setattr(repair, "deep_check", look)
    with pytest.raises(Looked):
        repair.repair(None, load_settings(), "", WEB, table.path)  # type: ignore[arg-type]


class Looked(Exception):
    """Far enough."""


def test_a_file_that_delta_does_not_know_cannot_leave_the_table() -> None:
    known = [SimpleNamespace(path=lambda: "a%20b"), SimpleNamespace(path=lambda: "c")]
    snapshot = SimpleNamespace(allFiles=lambda: SimpleNamespace(collect=lambda: known))
    transaction = SimpleNamespace(snapshot=lambda: snapshot)
    assert _files_named(transaction, ["a b"]) == known[:1]  # type: ignore[arg-type]
    with pytest.raises(MasterDatasetError, match=r"\['x'\] should leave"):
        _files_named(transaction, ["a b", "x"])  # type: ignore[arg-type]


# ---- where to go on --------------------------------------------------------------

WEB = Source("web", fields="event_id string, event_time timestamp", partitions=2)


def test_a_new_table_begins_where_kafka_does_and_an_added_partition_at_its_first_record() -> None:
    kafka = Positions("id", {0: 5, 1: 0}, {0: 9, 1: 9})
    assert check_positions(WEB, kafka, {}, "") == {0: 5, 1: 0}
    assert check_positions(WEB, kafka, {0: 7}, "id") == {0: 7, 1: 0}
    with pytest.raises(OffsetsGone, match=r"partition 1: 0\.\.2"):
        check_positions(WEB, kafka._replace(earliest={0: 5, 1: 3}), {0: 7}, "id")


def test_a_partition_added_later_must_begin_at_its_first_record() -> None:
    second = Proof(Kind.APPEND, start={0: 20, 1: 4}, end={0: 20, 1: 9}, rows=5)
    assert follow({1: append(10, 20), 2: second}).gaps == [OffsetRange(1, 0, 4)]


def test_a_broker_that_lost_its_newest_records_differs_from_retention() -> None:
    with pytest.raises(KafkaBehind, match=r"partition 0: 9\.\.11.*master rebase web`"):
        check_positions(WEB, Positions("id", {0: 0, 1: 0}, {0: 9, 1: 9}), {0: 12, 1: 9}, "id")


def test_another_topic_of_the_same_name_is_refused_before_its_offsets_are_looked_at() -> None:
    with pytest.raises(TopicReplaced, match="deleted and made again"):
        check_positions(WEB, Positions("new", {0: 0, 1: 0}, {0: 1, 1: 1}), {0: 12, 1: 9}, "old")


def test_a_micro_batch_that_ends_before_the_table_does_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{}\n{"web":{"0":20,"1":7}}', encoding="utf-8")
    archive = Archive(
        settings=load_settings(), source=WEB, path=tmp_path / "web", bootstrap="", cut={0: 12, 1: 9}, topic_id="id",
        rows=0, dead_letters=None, checkpoint=tmp_path, admin=None,  # type: ignore[arg-type]
    )  # fmt: skip
    asked: list[str] = []
    archive.check_topic = lambda: asked.append("whether it is the same topic")  # type: ignore[method-assign]
    with pytest.raises(KafkaBehind, match=r"partition 1: 7\.\.8"):
        archive.append_batch(None, 3)  # type: ignore[arg-type]
    assert asked


def test_a_compaction_whose_originals_are_gone_is_restored_with_all_commits_between(table: Table) -> None:
    table.commit(3, append(20, 30), ["c"])
    table.commit(4, Proof(Kind.COMPACT, rows=20), ["k"], ["a", "c"])
    table.commit(5, append(30, 40), ["e"])
    table.commit(6, Proof(Kind.COMPACT, rows=30), ["l"], ["k", "e"])
    table.commit(7, append(40, 50), ["f"])
    commits = read_commits(table.path)
    proofs = effective_proofs(commits, read_ledger(table.path))
    assert rows_of_compaction(6, commits, proofs) == [1, 2, 3, 5], "2 was not compacted, but its offsets lie between"
    assert rows_of_compaction(4, commits, proofs) == [1, 2, 3]
    promise = promise_of([6, 1, 2, 3, 5], proofs)
    assert (promise.start, promise.end, promise.rows) == ({0: 0}, {0: 40}, 40)
    # One repair with all that they hold: 30 rows again, 10 of the file that is still good.
    for name in ("a", "c", "k", "e", "l"):
        (table.path / name).unlink()
    assert table.troubles() == [Trouble.MISSING_FILE]
    table.commit(8, repaired(0, 40, 6, 1, 2, 3, 5, rows=30, kept_rows=10), ["n"], ["l"])
    assert table.troubles() == []
    assert coverage.of(table.path).rows == 50
