"""The note of which dead letters were sent: whatever a crash or the disk does to it, none is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from master_dataset.dead_letters.sent import note_sent, read_sent, sent_file


@pytest.fixture
def table(tmp_path: Path) -> Path:
    sent_file(tmp_path / "web").parent.mkdir()
    return tmp_path / "web"


def test_the_last_note_counts(table: Path) -> None:
    assert read_sent(table) == -1
    for version in (7, 12):
        note_sent(table, version)
        assert read_sent(table) == version


@pytest.mark.parametrize("damage", [b"", b"12", b"92 %s", b"\xff\xfe", b"-3 %s", b"%s"])
def test_a_note_that_the_disk_changed_is_none(table: Path, damage: bytes) -> None:
    note_sent(table, 12)
    digest = sent_file(table).read_bytes().split()[1]
    sent_file(table).write_bytes(damage.replace(b"%s", digest))
    assert read_sent(table) == -1
