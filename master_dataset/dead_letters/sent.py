"""A note of how far dead letters were sent, kept beside the table: the archiver alone writes it.

Their topic cannot say that. Others may write to it, and it may be emptied.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from infra.disk import replace_file
from master_dataset.table.digest import digest_of
from master_dataset.table.paths import own_folder


class Sent(NamedTuple):
    """The last commit whose dead letters were all sent, and where their topic ended then.

    What was sent for later commits, by an archiver that crashed before its note, is in the topic from there on.
    """

    version: int
    end: int = 0


NONE = Sent(-1)


def sent_file(table: Path) -> Path:
    """The note, `<version> <end> <digest>`; that of Tidemark 0.1.0 has no end."""
    return own_folder(table) / "dead_letters.sent"


def read_sent(table: Path) -> Sent:
    """What was noted last; `NONE` if nothing is known, or the disk changed what was noted."""
    try:
        text = sent_file(table).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return NONE
    noted, _, digest = text.rpartition(" ")
    if digest != digest_of(noted):
        return NONE
    version, _, end = noted.partition(" ")
    return Sent(int(version), int(end or 0))


def note_sent(table: Path, sent: Sent) -> None:
    """Called once they are acknowledged. A reader sees the note before or this one, also after a crash."""
    noted = f"{sent.version} {sent.end}"
    replace_file(sent_file(table), f"{noted} {digest_of(noted)}\n")
