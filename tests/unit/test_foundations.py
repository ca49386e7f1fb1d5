"""Foundations: what stands for removed records is written once, checked before it is used, and never pruned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from batch_layer.pruning import ORPHAN_AGE_S, DiskFile, plan
from batch_layer.retention import first_kept_day
from hand_off import backup_files
from hand_off.batch_folder import DIGESTS, HASHES, BatchFolder
from hand_off.foundations import (
    Foundation,
    FoundationDamaged,
    check_foundation,
    checksums_of,
    forget_others,
    foundation_of,
    list_foundations,
    paths_of_foundation,
    read_foundation,
    write_foundation,
)
from hand_off.manifests import DataFile, Manifest, ViewData
from infra.settings import load_settings
from master_dataset.table.coverage import Removed

HITS = ViewData("hits", "abc", "full", (DataFile("2026-03-01", "day=2026-03-01/a.parquet", 1, 4),), 1, {}, (), 0.0)
MANIFEST = Manifest(3, "web", {0: 20}, None, 0.0, 0.0, 20, 2, 1, (HITS,), ("00000003",))


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path / "web")


def make(folder: BatchFolder, name: str = "00000003") -> Foundation:
    """A foundation with all of its files."""
    found = Foundation(name, replace(MANIFEST, run=int(name), ids=(name,)), "2026-03-02", (name,))
    table = folder.table("hits", "abc")
    for path in (table / HITS.files[0].path, *(folder.ids / name / part / "a.parquet" for part in (HASHES, DIGESTS))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
    found = replace(found, checksums=checksums_of(folder, found))
    write_foundation(folder, found)
    return found


def test_a_foundation_is_read_as_it_was_written(folder: BatchFolder) -> None:
    found = make(folder)
    assert read_foundation(folder, found.name) == found
    assert len(found.checksums) == 3
    assert (found.counted, found.since) == (17, {"cut": {"0": 20}, "day": "2026-03-02"})
    assert foundation_of(folder, Removed()) is None
    assert foundation_of(folder, Removed({0: 20}, foundation=found.name)) == found
    check_foundation(folder, found)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("damage", [b"PAR2", None], ids=["changed", "gone"])
def test_a_damaged_file_of_a_foundation_is_found(folder: BatchFolder, number: int, damage: bytes | None) -> None:
    found = make(folder)
    path = folder.root / sorted(found.checksums)[number]
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(FoundationDamaged, match=r"cannot be computed again.*backup"):
        check_foundation(folder, found)


def test_a_foundation_that_is_not_there_or_changed_is_refused(folder: BatchFolder) -> None:
    found = make(folder)
    with pytest.raises(FoundationDamaged, match="not there"):
        read_foundation(folder, "00000004")
    path = folder.root / "foundations" / f"{found.name}.json"
    path.write_text(path.read_text().replace('"day": "2026-03-02"', '"day": "2026-03-03"'))
    with pytest.raises(FoundationDamaged, match="checksum"):
        read_foundation(folder, found.name)


def test_files_of_a_foundation_are_never_pruned(folder: BatchFolder) -> None:
    found = make(folder)
    files = [DiskFile(path, 4, 0.0) for path in folder.root.rglob("*.parquet")]
    arguments = {"published": [], "kept": [], "manifests": {}, "made_at": {}, "files": files, "now": ORPHAN_AGE_S}
    assert plan(folder, **arguments, foundations=[found]).files == ()  # type: ignore[arg-type]
    assert plan(folder, **arguments, foundations=[found]).folders == ()  # type: ignore[arg-type]
    assert len(plan(folder, **arguments).files) == 3  # type: ignore[arg-type]


def test_older_foundations_are_forgotten(folder: BatchFolder) -> None:
    make(folder)
    newest = make(folder, "00000007")
    assert forget_others(folder, newest.name) == ["00000003"]
    assert list_foundations(folder) == [newest.name]


def test_a_backup_holds_the_foundation_with_its_files(folder: BatchFolder) -> None:
    found, added = make(folder), set[Path]()
    said = backup_files.back_up(folder, lambda path, _never_changes: added.add(path), added.clear)
    assert said["foundations"] == [found.name]
    names = {path.relative_to(folder.root).as_posix() for path in added}
    assert names >= {f"foundations/{found.name}.json", *found.checksums}
    assert all(path.exists() for path in paths_of_foundation(folder, found))


@pytest.mark.parametrize(
    ("days", "horizon_s", "started", "expected"),
    [
        (1, 3600, 10.5, "1970-01-10"),
        (9, 3600, 10.5, "1970-01-02"),
        (1, 5 * 86_400, 10.5, "1970-01-06"),
        (1, 3600, 5.5, "1970-01-05"),
    ],
    ids=["days", "more days", "horizon of the speed layer", "run that is old"],
)
def test_what_may_be_needed_again_is_not_old(days: int, horizon_s: float, started: float, expected: str) -> None:
    settings = load_settings(speed_dedup_horizon_s=horizon_s)
    assert str(first_kept_day(settings, days, started * 86_400, 10.5 * 86_400)) == expected
