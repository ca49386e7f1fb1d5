"""Retention of a master table, on tables written by hand: a recorded removal is believed exactly, and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from master_dataset.cut import Cut
from master_dataset.table import coverage
from master_dataset.table.backup_files import back_up
from master_dataset.table.checks.fsck import Trouble, quick_check
from master_dataset.table.checks.repair import before_retention
from master_dataset.table.compaction import remove_replaced
from master_dataset.table.coverage import coverage_from_json
from master_dataset.table.delta_log import read_commits
from master_dataset.table.history import read_history
from master_dataset.table.ledger import read_ledger
from master_dataset.table.proofs import Kind, Proof, proof_from_json
from master_dataset.table.retention import choose_cut
from master_dataset.table.sealing import tidy
from tests.hand_made_table import Table, append, repaired

REMOVAL = Proof(Kind.RETAIN, "", "id", {}, {0: 20}, rows=20, hash=3, parsed_hash=5, day="2026-03-02", foundation="1")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Four commits of ten offsets, the first two removed by the fifth."""
    made = Table(tmp_path / "web")
    for version in range(1, 5):
        made.commit(version, append(10 * version - 10, 10 * version), [f"f{version}"])
    made.commit(5, REMOVAL, remove=["f1", "f2"], at_ms=1000)
    return made


def test_a_proof_of_retention_is_read_as_it_was_written() -> None:
    assert proof_from_json(REMOVAL.to_json()) == REMOVAL
    assert "day" not in append(0, 1).to_json(), "those of other kinds stay as they were"


def test_removed_records_are_neither_missing_nor_lost(table: Table) -> None:
    held = coverage.of(table.path)
    assert quick_check(table.path) == []
    assert (held.cut, held.rows, held.is_sound) == ({0: 40}, 20, True)
    assert (held.removed.cut, held.removed.rows, held.removed.day, held.removed.version) == (
        {0: 20},
        20,
        "2026-03-02",
        5,
    )
    assert coverage_from_json(held.to_json()) == held


@pytest.mark.parametrize(
    ("proof", "removed", "trouble"),
    [
        (replace(REMOVAL, rows=10), ["f1", "f2"], Trouble.WRONG_ROWS),
        (REMOVAL, ["f1"], Trouble.WRONG_ROWS),
        (replace(REMOVAL, start={0: 10}), ["f1", "f2"], Trouble.GAP),
        (replace(REMOVAL, end={0: 50}), ["f1", "f2"], Trouble.GAP),
    ],
    ids=["fewer rows", "fewer files", "another start", "beyond the end"],
)
def test_any_other_removal_is_damage(tmp_path: Path, proof: Proof, removed: list[str], trouble: Trouble) -> None:
    made = Table(tmp_path / "web")
    for version in range(1, 5):
        made.commit(version, append(10 * version - 10, 10 * version), [f"f{version}"])
    made.commit(5, proof, remove=removed)
    assert trouble in made.troubles()


def test_a_file_that_leaves_without_a_record_of_it_is_damage(table: Table) -> None:
    table.commit(6, replace(REMOVAL, kind=Kind.COMPACT, rows=0), remove=["f3"])
    assert Trouble.WRONG_ROWS in table.troubles()


def test_a_second_removal_goes_on_where_the_first_ended(table: Table) -> None:
    table.commit(6, replace(REMOVAL, start={0: 20}, end={0: 30}, rows=10, day="2026-03-03"), remove=["f3"])
    removed = coverage.of(table.path).removed
    assert quick_check(table.path) == []
    assert (removed.cut, removed.rows, removed.day) == ({0: 30}, 30, "2026-03-03")


def test_a_sealed_removal_costs_no_more_than_its_summary(table: Table) -> None:
    before = coverage.of(table.path)
    for version in range(6, 31):
        table.commit(version, append(10 * version - 20, 10 * version - 10), [f"f{version}"])
        if version % 10 == 0:
            table.checkpoint(version)
    tidy(table.path, min_commits=1, grace_s=0)
    history = read_history(table.path)
    assert history.sealed == 20
    assert coverage.of_history(history).removed == before.removed
    assert coverage.of_history(history) == coverage.follow(
        coverage.effective_proofs(read_commits(table.path), read_ledger(table.path))
    )
    assert quick_check(table.path) == []


def test_removed_files_are_deleted_after_the_delay_and_not_backed_up(table: Table) -> None:
    added: list[str] = []
    back_up(table.path, lambda path, _never_changes: added.append(path.name))
    assert {"f3", "f4"} <= {*added}
    assert not {"f1", "f2"} & {*added}
    assert remove_replaced(table.path, keep_s=10**12) == 0
    assert remove_replaced(table.path, keep_s=0) == 2
    assert not (table.path / "f1").exists()
    assert quick_check(table.path) == []


def test_a_repair_brings_no_removed_record_back(table: Table) -> None:
    """A void commit below the cut would else be restored from Kafka."""
    (table.path / "f3").unlink()
    assert table.to_restore() == [3]
    table.log_file(2).write_text("")
    damaged = before_retention(quick_check(table.path), coverage.of(table.path).removed.version)
    assert [finding.version for finding in damaged] == [2]
    assert "backup" in damaged[0].text
    table.void()
    assert table.to_restore() == [3]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({0: 9}, {}),
        ({0: 10}, {0: 10}),
        ({0: 29}, {0: 20}),
        ({0: 99}, {0: 40}),
        ({}, {}),
    ],
)
def test_the_cut_lies_between_two_commits(limit: Cut, expected: Cut) -> None:
    proofs = {version: append(10 * version - 10, 10 * version) for version in range(1, 5)}
    assert choose_cut(proofs, {}, limit) == expected
    assert choose_cut({**proofs, 5: REMOVAL}, {0: 20}, limit) == ({0: 20} if expected in ({}, {0: 10}) else expected)


def test_records_stay_until_their_dead_letters_are_sent() -> None:
    proofs = {version: append(10 * version - 10, 10 * version) for version in range(1, 5)}
    assert choose_cut(proofs, {}, {0: 40}, before=3) == {0: 20}


def test_the_cut_divides_no_repair() -> None:
    proofs = {version: append(10 * version - 10, 10 * version) for version in range(1, 5)}
    assert choose_cut({**proofs, 5: repaired(10, 30, 2, 3)}, {}, {0: 29}) == {0: 10}
    assert choose_cut({**proofs, 5: repaired(10, 30, 2, 3)}, {}, {0: 30}) == {0: 30}


def test_the_cut_waits_for_every_partition() -> None:
    proofs = {
        1: Proof(Kind.APPEND, start={0: 0, 1: 0}, end={0: 5, 1: 5}),
        2: Proof(Kind.APPEND, start={0: 5, 1: 5}, end={0: 9, 1: 6}),
    }
    assert choose_cut(proofs, {}, {0: 9, 1: 5}) == {0: 5, 1: 5}
    assert choose_cut(proofs, {}, {0: 9, 1: 6}) == {0: 9, 1: 6}
