"""The version of a source that comes after the one that is served, as the views folder declares it by now."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from master_dataset.table.fields import SourceChanged
from master_dataset.table.paths import table_path
from master_dataset.table.readings import check_reading, reading_in_force
from views.evolution import evolution
from views.source import Source


def pending_version(settings: Settings, served: Source, declared: Source | None) -> dict[str, Any] | None:
    """The version that is to follow the one that is served, as JSON has it; None where there is none.

    `adopted`: whether the batch run that switches has begun. `refused`: why the declaration may not follow.
    """
    table = table_path(settings, served.name)
    with suppress(MasterDatasetError, OSError, ValueError):  # `tidemark master fsck` says what is wrong with it
        in_force = reading_in_force(table, served)
        if in_force.version > served.version:
            return _pending(in_force.version, list(evolution(served, in_force).changes), adopted=True)
        if declared is None:
            return None
        try:
            changes = check_reading(table, declared)
        except SourceChanged as error:
            return _pending(declared.version, [], refused=str(error))
        return _pending(declared.version, changes) if changes else None
    return None


def _pending(version: int, changes: list[str], *, adopted: bool = False, refused: str | None = None) -> dict[str, Any]:
    return {"version": version, "changes": changes, "adopted": adopted, "refused": refused}
