"""What is said to be on the disk is: files, and the checksums that Hadoop writes beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.disk import sync_file, sync_files


@pytest.mark.parametrize("has_checksums", [True, False])
def test_a_file_is_synced_with_the_checksums_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_checksums: bool
) -> None:
    """Without them Spark cannot read it after a power cut."""
    path, checksums = tmp_path / "part-0.parquet", tmp_path / ".part-0.parquet.crc"
    path.write_bytes(b"rows")
    if has_checksums:
        checksums.write_bytes(b"crc")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    sync_file(path)
    assert synced == [each.stat().st_ino for each in (path, checksums) if each.exists()]


def test_several_files_are_all_synced_and_one_that_is_missing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"part-{number}.parquet" for number in range(20)]
    for path in paths:
        path.write_bytes(b"rows")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    for count in (0, 1, 20):
        synced.clear()
        sync_files(paths[:count])
        assert sorted(synced) == sorted(path.stat().st_ino for path in paths[:count])
    with pytest.raises(FileNotFoundError):
        sync_files([*paths, tmp_path / "missing"])
