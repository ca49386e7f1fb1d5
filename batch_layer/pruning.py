"""Delete the data of old runs: whatever no kept run needs, and nothing that a run at work could still need.

Kept are the newest runs of the log, the one that is served, those that other engines still see, and any that the caller
names. A file that belongs to no run at all may be of one that is being made now, or that crashed before it was
published: it goes when it is a day old.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from batch_layer.delta_log import exposed_run
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.foundations import Foundation, list_foundations, paths_of_foundation, read_foundation
from hand_off.manifests import Manifest, manifest_name, paths_of, read_manifest
from infra.failpoints import reach

ORPHAN_AGE_S = 24 * 3600.0
"""How old a file must be that belongs to no published run: a run takes less than this."""


class DiskFile(NamedTuple):
    """A file on the disk."""

    path: Path
    bytes: int
    changed_at: float


@dataclass(frozen=True)
class PrunePlan:
    """What may go."""

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    """Runs whose manifests go, published or not."""
    files: tuple[DiskFile, ...]
    folders: tuple[Path, ...]
    """Tables of views that no kept run has, with their Delta logs."""

    @property
    def bytes(self) -> int:
        """How much is freed."""
        return sum(file.bytes for file in self.files)


# ---- what may go ---------------------------------------------------------------


def kept_runs(published: Sequence[int], served: int, keep: int, also: Collection[int] = ()) -> set[int]:
    """The newest `keep` of the published runs (at least the last), the served one, and `also`."""
    return {*published[-max(keep, 1) :], served, *also} - {0}


def exposed_runs(
    folder: BatchFolder, kept: Collection[int], manifests: Mapping[int, Manifest], exposed: Callable[[Path], int | None]
) -> set[int]:
    """The runs that tables of kept runs still show to other engines, with files that no kept run has.

    They are those before a run that was killed between its flip and its Delta tables. `exposed` tells a table's run.
    """
    found: set[int] = set()
    while True:  # a run that is kept for one table may bring back another, which shows yet another run
        staying = [manifests[run] for run in {*kept, *found} if run in manifests]
        needed = {path for manifest in staying for path in paths_of(folder, manifest)}
        more = set()
        for table in {folder.table(view.name, view.hash) for manifest in staying for view in manifest.views}:
            shown = exposed(table)
            if shown is None or shown not in manifests:
                continue
            named = {path for path in paths_of(folder, manifests[shown]) if path.is_relative_to(table)}
            if not named <= needed:
                more.add(shown)
        if not more:
            return found
        found |= more


def plan(
    folder: BatchFolder,
    *,
    published: Collection[int],
    kept: Collection[int],
    manifests: Mapping[int, Manifest],
    made_at: Mapping[int, float],
    files: Collection[DiskFile],
    now: float,
    foundations: Collection[Foundation] = (),
) -> PrunePlan:
    """Decide, touching nothing.

    `manifests` are those that could be read, `made_at` is when each manifest's file was written, readable or not.
    `foundations` are never pruned.
    """
    young = {run for run, at in made_at.items() if run not in published and now - at < ORPHAN_AGE_S}
    dropped = made_at.keys() - young - set(kept)
    staying = [manifests[run] for run in {*kept, *young} if run in manifests]
    staying += [foundation.manifest for foundation in foundations]
    leaving = [manifests[run] for run in dropped if run in published and run in manifests]
    needed = {path for manifest in staying for path in paths_of(folder, manifest)}
    needed |= {path for foundation in foundations for path in paths_of_foundation(folder, foundation)}
    released = {path for manifest in leaving for path in paths_of(folder, manifest)}
    used = {folder.table(view.name, view.hash) for manifest in staying for view in manifest.views}

    def may_go(file: DiskFile) -> bool:
        is_old = now - file.changed_at >= ORPHAN_AGE_S
        return not _is_in(file.path, needed) and (is_old or _is_in(file.path, released))

    free, tables = {file for file in files if may_go(file)}, defaultdict(set)
    for file in files:
        tables[_table_of(folder, file.path)].add(file)
    whole = {table for table, content in tables.items() if table and table not in used and content <= free}
    going = (file for file in free if _table_of(folder, file.path) in whole or "_delta_log" not in file.path.parts)
    return PrunePlan(
        kept=tuple(sorted(made_at.keys() & set(kept))),
        dropped=tuple(sorted(dropped)),
        files=tuple(sorted(going)),
        folders=tuple(sorted(whole)),
    )


def _is_in(path: Path, places: Collection[Path]) -> bool:
    """Whether a path is one of the places or below one; a checksum of Hadoop's (`.x.crc`) is where its file is."""
    if path.name.startswith(".") and path.name.endswith(".crc"):
        path = path.with_name(path.name[1:-4])
    return path in places or any(parent in places for parent in path.parents)


def _table_of(folder: BatchFolder, path: Path) -> Path | None:
    return folder.tables / path.relative_to(folder.tables).parts[0] if path.is_relative_to(folder.tables) else None


# ---- doing it ------------------------------------------------------------------


def prune(
    folder: BatchFolder, keep: int, *, also: Collection[int] = (), dry_run: bool = False, now: float | None = None
) -> PrunePlan:
    """Delete what `plan` allows, and return it. The caller holds the lease, so that no run is at work here."""
    while True:
        # Step 1. Decide, and name the runs that go where a rollback looks. Where somebody rolled back since the pin was
        # read, decide again. A crash after it leaves runs that are whole and that no rollback goes to.
        pin = publish_log.read_pin(folder)
        found = _look(folder, keep, also, time.time() if now is None else now)
        if dry_run:
            return found
        if not found.dropped or publish_log.announce_drop(folder, pin, found.dropped):
            break
    # Step 2. Take their manifests away. A crash later leaves files of no run, which a call deletes when they are old
    # enough for that.
    for run in found.dropped:
        folder.store.delete(manifest_name(run))
    reach("prune.after_manifests")
    # Step 3. The files, which nobody can find any more, and what writers left that were killed.
    folder.store.sweep()
    for file in found.files:
        file.path.unlink(missing_ok=True)
        _remove_empty(file.path.parent, folder)
        reach("prune.between")
    for table in found.folders:
        shutil.rmtree(table, ignore_errors=True)  # nothing but empty folders is left of it
    return found


def _look(folder: BatchFolder, keep: int, also: Collection[int], now: float) -> PrunePlan:
    entries = publish_log.read(folder)
    published, served = [entry.run for entry in entries], publish_log.served(folder).run
    kept = kept_runs(published, served, keep, also)
    made_at = {int(path.stem): path.stat().st_mtime for path in folder.runs.glob("*.json") if path.stem.isdecimal()}
    manifests = {}
    for run in made_at:
        try:
            manifests[run] = read_manifest(folder, run)
        except BatchError:
            if run in kept:
                raise  # what it needs is not known, so nothing may go
    kept |= exposed_runs(folder, kept, manifests, exposed_run)
    for run in {published[-1], served} - {0}:
        if run not in made_at:
            read_manifest(folder, run)  # raises: a run that readers need has lost it
    files = [found for top in (folder.tables, folder.ids, folder.indexes) for found in _files_below(top)]
    files += [_found(path) for path in folder.root.rglob("*.partial")]  # of writers that were killed
    return plan(
        folder,
        published=published,
        kept=kept,
        manifests=manifests,
        made_at=made_at,
        files=files,
        now=now,
        foundations=[read_foundation(folder, name) for name in list_foundations(folder)],
    )


def _files_below(top: Path) -> Iterator[DiskFile]:
    return (_found(Path(place, name)) for place, _folders, names in os.walk(top) for name in names)


def _found(path: Path) -> DiskFile:
    status = path.lstat()
    return DiskFile(path, status.st_size, status.st_mtime)


def _remove_empty(place: Path, folder: BatchFolder) -> None:
    """Remove a folder in which nothing is left, and those above it; never the top ones."""
    while place.parent not in (folder.root, folder.tables) and place != folder.root and not any(place.iterdir()):
        place.rmdir()
        place = place.parent
