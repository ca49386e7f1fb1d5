"""The upkeep of master tables beside the archiver."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from infra.settings import load_settings
from master_dataset.archiver import upkeep as upkeep_module
from master_dataset.archiver.upkeep import Upkeep
from master_dataset.table import coverage, sealing
from master_dataset.table.checks.fsck import Trouble
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.segments import sealed_until
from master_dataset.table.stray_files import remove_strays
from tests.conftest import Killed, wait_until
from tests.hand_made_table import Table, append


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table(tmp_path / "web")
    for version in range(1, 25):
        made.commit(version, append(version - 1, version), [f"f{version}"])
        if version % 10 == 0:
            made.checkpoint(version)
    return made


def upkeep_of(tmp_path: Path, *tables: Path, **settings: Any) -> Upkeep:
    return Upkeep(load_settings(home=tmp_path / "home", **settings), None, lambda: tables)  # type: ignore[arg-type]


def test_small_files_are_merged_from_so_many_on_and_never_if_that_is_off(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, asked = [900, 600, 0], []

    def merge(_spark: object, path: Path, *, large_bytes: int, min_files: int) -> int:
        asked.append((path, large_bytes, min_files))
        return steps.pop(0)

    monkeypatch.setattr(upkeep_module, "compact_once", merge)
    upkeep_of(tmp_path, master_compact_files=0).attend(table.path)
    assert asked == []
    upkeep_of(tmp_path, master_compact_files=400, master_file_mb=3).attend(table.path)
    assert asked == [(table.path, 3 * 2**20, 400)] * 3


def test_a_table_that_cannot_be_sealed_stops_no_other_and_is_logged_once(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = []
    monkeypatch.setattr(upkeep_module.log, "warning", lambda event, **values: logged.append((event, values["source"])))
    other = Table(tmp_path / "shop")
    other.commit(1, append(0, 1), ["f1"])
    for version in (2, 3):
        other.commit(version, append(version - 1, version), [f"f{version}"])
        other.checkpoint(version)
    (other.path / "_delta_log" / f"{2:020}.checkpoint.parquet").write_bytes(b"")
    monkeypatch.setattr(upkeep_module, "tidy", lambda path: sealing.tidy(path, segment_commits=3))
    monkeypatch.setattr(upkeep_module, "EVERY_S", 0.01)
    running = upkeep_of(tmp_path, other.path, table.path, master_compact_files=0)
    running.start()
    wait_until("the sound one to be sealed", lambda: sealed_until(table.path) == 10)
    running.stop()
    assert logged == [("upkeep_failed", "shop")]
    assert sealed_until(other.path) == -1
    assert not running._thread.is_alive()


def leave_stray(table: Table, name: str, hours: float) -> Path:
    """A file of a commit that was cut off so long ago, with Hadoop's checksum of it."""
    path = table.path / name
    for each in (path, path.with_name(f".{name}.crc")):
        each.write_bytes(b"PAR1")
        os.utime(each, (time.time() - hours * 3600,) * 2)
    return path


def test_files_of_a_commit_that_was_cut_off_are_removed_after_the_usual_delay(tmp_path: Path, table: Table) -> None:
    held = coverage.of(table.path)
    named = table.path / "part-00000-named.snappy.parquet"
    table.commit(25, append(24, 25), [named.name])
    table.commit(26, Proof(Kind.COMPACT, rows=1), ["k"], ["f24"], at_ms=round(time.time() * 1000))
    os.utime(named, (0, 0))
    old = leave_stray(table, "part-00000-old.snappy.parquet", 49)
    young = leave_stray(table, "part-00000-young.snappy.parquet", 47)
    foreign = leave_stray(table, "notes.txt", 99)
    upkeep_of(tmp_path, master_compact_files=0, master_keep_replaced_hours=48).attend(table.path)
    assert [path.exists() for path in (old, old.with_name(f".{old.name}.crc"))] == [False, False]
    assert [path.exists() for path in (young, foreign, named, table.path / "f24")] == [True] * 4
    assert coverage.of(table.path).cut == {**held.cut, 0: 25}


def test_a_file_that_a_commit_in_flight_may_name_stays_whatever_the_delay(table: Table) -> None:
    in_flight = leave_stray(table, "part-00000-in-flight.snappy.parquet", 0.5)
    assert remove_strays(table.path, 0) == 0
    assert in_flight.exists()


def test_a_removal_of_stray_files_that_was_cut_off_is_finished_by_the_next(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    strays = [leave_stray(table, f"part-0000{number}-old.snappy.parquet", 49) for number in range(3)]
    passed: list[str] = []

    def die_at_the_second(place: str) -> None:
        passed.append(place)
        if len(passed) == 2:
            raise Killed

    monkeypatch.setattr("master_dataset.table.stray_files.reach", die_at_the_second)
    with pytest.raises(Killed):
        remove_strays(table.path, 48 * 3600)
    assert [path.exists() for path in strays] == [False, True, True]
    assert remove_strays(table.path, 48 * 3600) == 2
    assert not any(path.exists() for path in strays)
    assert set(passed) == {"strays.before_remove"}


def test_no_stray_file_is_removed_while_a_commit_that_may_name_it_cannot_be_read(tmp_path: Path, table: Table) -> None:
    named = table.path / "part-00000-named.snappy.parquet"
    table.commit(25, append(24, 25), [named.name])
    os.utime(named, (0, 0))
    table.log_file(25).write_text("")
    upkeep = upkeep_of(tmp_path, master_compact_files=0)
    upkeep.attend(table.path)
    assert named.exists()
    assert "is damaged" in upkeep.reasons[table.path]
    assert Trouble.EMPTY_COMMIT in table.troubles()
