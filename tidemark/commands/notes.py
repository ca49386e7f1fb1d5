"""What `tidemark status` says of the sources of a home, beside its services: failed runs, rollbacks and overtakes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hand_off.batch_folder import BatchFolder
    from infra.settings import Settings
    from views.view import View


def notes(settings: Settings, said: str = "") -> list[str]:
    """A sentence for each thing that is not as usual, read from the files of the batch layer and the services' status.

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
        if (overtake := _overtake(settings, folder.source)) is not None:
            found.append(overtake)
    return found


def _overtake(settings: Settings, source: str) -> str | None:
    speed, scheduler = (_status_of(settings, service, source) for service in ("speed", "scheduler"))
    backlog = scheduler.get("backlog", {})
    is_waiting = speed.get("waits_for_run")
    if not is_waiting and backlog.get("action") != "overtake":
        return None
    behind = speed.get("behind_events", backlog.get("behind"))
    events = "an unknown number of events" if behind is None else f"{behind:,} events"
    how = "waits for it" if is_waiting else "goes on meanwhile"
    return f"Source {source!r}: a batch run overtakes the speed layer, which is {events} behind and {how}."


def _status_of(settings: Settings, service: str, source: str) -> dict[str, Any]:
    """What a service of this home reports of a source; empty where it does not run."""
    from infra.process_status import MAX_AGE_S, read_status, status_path

    status = read_status(status_path(settings, service))
    if status is None or time.time() - status.at > MAX_AGE_S:
        return {}
    return dict(status.sources.get(source, {}))


def counts_since(view: str, since: Mapping[str, Any]) -> str:
    """That a view lacks the records that retention removed before the view was declared."""
    cut = ", ".join(f"{partition}:{offset}" for partition, offset in since["cut"].items())
    return (
        f"View {view!r} counts events since cut {cut} (day {since['day']}): older records were removed before it was "
        "declared or changed."
    )


def since_of(settings: Settings, view: View) -> Mapping[str, Any] | None:
    """From where on a view counts in this home: by the newest run that has it or, before its first, by what retention
    removed. None: from the first record on.
    """
    from hand_off import publish_log
    from hand_off.batch_folder import BatchFolder
    from hand_off.errors import BatchError
    from hand_off.manifests import read_manifest
    from master_dataset.cut import cut_to_json
    from master_dataset.table import coverage
    from master_dataset.table.paths import table_path

    folder = BatchFolder.of(settings, view.source.name)
    try:
        newest = publish_log.last(folder).run
        known = read_manifest(folder, newest).views if newest else ()
    except BatchError:  # `tidemark status` says what is damaged
        return None
    for data in known:
        if data.hash == view.hash:
            return data.since
    removed = coverage.of(table_path(settings, view.source.name)).removed
    return {"cut": cut_to_json(removed.cut), "day": removed.day} if removed.cut else None


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
