"""The upkeep of master tables beside the archiver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.settings import load_settings
from master_dataset.archiver import upkeep as upkeep_module
from master_dataset.archiver.upkeep import Upkeep
from master_dataset.table import sealing
from master_dataset.table.segments import sealed_until
from tests.conftest import wait_until
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
