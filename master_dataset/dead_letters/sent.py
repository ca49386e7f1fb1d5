"""A note of the commit up to which dead letters were sent, kept beside the table because their topic may be emptied."""

from __future__ import annotations

from pathlib import Path

from infra.disk import replace_file
from master_dataset.table.digest import digest_of
from master_dataset.table.paths import own_folder

NONE = -1


def sent_file(table: Path) -> Path:
    """The note, `<version> <digest>`. Without it, the newest dead letter in the topic says how far they were sent."""
    return own_folder(table) / "dead_letters.sent"


def read_sent(table: Path) -> int:
    """The last commit whose dead letters were all sent; -1 if none is known, or the disk changed what was noted."""
    try:
        version, _, digest = sent_file(table).read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    except FileNotFoundError:
        return NONE
    return int(version) if digest == digest_of(version) else NONE


def note_sent(table: Path, version: int) -> None:
    """Called once they are acknowledged. After a crash before this, the topic says what was sent."""
    replace_file(sent_file(table), f"{version} {digest_of(str(version))}\n")
