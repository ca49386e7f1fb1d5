"""What is said to be on the disk is: files, and the checksums that Hadoop writes beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.disk import sync_file


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
