"""The publish log as Tidemark 0.1 wrote it: one file, `publish.log`, with one line for each run.

It is read as long as it is there. The first writer moves its entries into objects and then renames the file.
"""

from __future__ import annotations

from contextlib import suppress

from hand_off.batch_folder import BatchFolder
from hand_off.checksums import unseal
from hand_off.entries import Slot, entry_from_json
from hand_off.errors import BatchError
from infra.disk import sync_folder
from infra.formats import reads

FORMAT = 1


def read_slots(folder: BatchFolder) -> list[Slot]:
    """Its entries by position. What a crash left of a last line is no entry."""
    try:
        text = folder.publish_log.read_bytes()
    except FileNotFoundError:
        return []
    *lines, rest = text.split(b"\n")  # `rest` has no newline: it is torn, or nothing
    slots = [_slot(number, line, folder) for number, line in enumerate(lines)]
    # A crash while the last line was written leaves its beginning, or blocks that were never written. Neither was
    # published. A line that is there from end to end was, and something changed it later.
    if slots and not rest and slots[-1].is_damaged and b"\x00" in slots[-1].text:
        slots.pop()
    return slots


def rename_migrated(folder: BatchFolder) -> None:
    """Rename the file: all its entries are objects now. Another process may have done it."""
    with suppress(FileNotFoundError):
        folder.publish_log.rename(folder.publish_log.with_name("publish.log.migrated"))
    sync_folder(folder.root)


def _slot(number: int, line: bytes, folder: BatchFolder) -> Slot:
    value = unseal(line)
    if value is not None and value.get("format") != FORMAT:
        raise BatchError(
            f"Line {number + 1} of {str(folder.publish_log)!r} has format {value.get('format')}; "
            f"{reads({FORMAT})}. Use the version that wrote it."
        )
    return Slot(number, None if value is None else entry_from_json(value), text=line)
