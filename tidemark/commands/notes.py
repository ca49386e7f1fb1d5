"""What `tidemark status` says of the sources of a home, beside its services: runs that failed, and rollbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hand_off.batch_folder import BatchFolder
    from infra.settings import Settings


def notes(settings: Settings, said: str = "") -> list[str]:
    """A sentence for each thing that is not as it should be, read from the files of the batch layer.

    A failure that the services have `said` themselves is left out.
    """
    from batch_layer.failures import read_failures
    from hand_off.batch_folder import all_folders

    found = []
    for folder in all_folders(settings):
        if (failures := read_failures(folder)) is not None and str(failures) not in said:
            found.append(f"Source {folder.source!r}: {failures}")
        if (rollback := _rollback(settings, folder)) is not None:
            found.append(rollback)
    return found


def _rollback(settings: Settings, folder: BatchFolder) -> str | None:
    from batch_layer.run_hand_off import HandOff, frozen_by_rollback
    from hand_off import publish_log
    from hand_off.errors import BatchError

    try:
        pinned = publish_log.pinned(folder)
    except BatchError as error:
        return f"Source {folder.source!r}: {error}"
    if pinned is None:
        return None
    with HandOff.of(settings, folder) as hand_off:
        if hand_off.continues(pinned) is False:
            return frozen_by_rollback(folder.source, pinned.run)
    return (
        f"Source {folder.source!r}: readers are pinned to run {pinned.run} by a rollback. "
        "`tidemark batch rollback --latest` unpins them."
    )
