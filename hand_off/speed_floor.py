"""The first run that speed views may continue: raised by a rebase, after which older speed views hold lost records.

Redis is a cache that may come back in an older state, so the floor is a file beside the publish log. Readers use speed
views only for runs from the floor on, whatever Redis says; a writer or a run that finds older speed views drops them.
"""

from __future__ import annotations

from pathlib import Path

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal, unseal
from infra.store import ObjectMissing

NAME = "speed.floor"
NO_RUN = 2**62
"""The floor where the file is damaged: no speed view is used until a rebase or a repair writes it again."""


def floor_file(folder: BatchFolder) -> Path:
    """The file, whose stamp changes with the floor."""
    return folder.root / NAME


def first_run(folder: BatchFolder) -> int:
    """The number of the first run that speed views may continue."""
    try:
        value = unseal(folder.store.get(NAME))
    except ObjectMissing:
        return 0
    return NO_RUN if value is None else int(value["run"])


def raise_floor(folder: BatchFolder) -> int:
    """From now on, speed views continue only runs that have not begun yet. On the disk when this returns."""
    run = publish_log.next_run(folder)
    text = seal({"run": run}).encode()
    while True:
        try:
            version = folder.store.read(NAME).version
        except ObjectMissing:
            version = None
        if folder.store.replace_if(NAME, version, text) is not None:
            return run


def waiting_for_run(source: str) -> str:
    """Why speed views are not used or written below the floor."""
    return (
        f"The master table of source {source!r} was rebased, and no batch run was published since. The speed views go "
        f"on from the next one (`tidemark batch run --source {source}`)"
    )
