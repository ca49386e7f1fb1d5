"""Make a backup: everything of a home that cannot be recomputed, or only slowly. The installation may run meanwhile.

The order makes the parts fit each other: alerts, then batch views, then the master dataset. What was computed from
events is never newer than the events.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import hand_off.backup_files
import master_dataset.table.backup_files
from hand_off.batch_folder import BatchFolder, folders_with_runs
from infra.backup_store import BackupError, BackupFolder, BackupManifest, BackupWriter
from infra.errors import HomeError
from infra.home import Home
from infra.lease import PosixLeases, held
from infra.rest.access_keys import keys_file
from infra.settings import Settings
from infra.settings.table import config_file
from master_dataset.table.backup_files import all_tables, master_folder
from serving_layer.alerts.journal import journal_path
from tidemark.backup.schemas import add_schemas

LEASE, TTL_S = "backup", 60.0
TRIES = 3


class BackedUp(NamedTuple):
    """What was done: the backup, how many bytes were new, which old backups were removed, and what to know of it."""

    manifest: BackupManifest
    new_bytes: int
    removed: list[int]
    notes: list[str]


def back_up(settings: Settings, destination: Path, keep: int | None = None) -> BackedUp:
    """Make a backup in a folder, and with `keep` remove all but so many."""
    home = Home(settings.home)
    home.check()
    if not home.exists:
        raise HomeError(f"There is no home at {str(home.root)!r}, so there is nothing to back up.")
    if destination.resolve().is_relative_to(home.root.resolve()):
        raise BackupError(f"{str(destination)!r} is in the home that is backed up. Name a folder on another disk.")
    folder = BackupFolder(destination)
    folder.prepare()
    with held(PosixLeases(destination), LEASE, TTL_S, doing="tidemark backup"):
        numbers = folder.numbers()
        writer = BackupWriter(folder, folder.read(numbers[-1]) if numbers else None)
        sources = _collect(settings, writer)
        notes = add_schemas(settings, writer)  # last: whatever sources noted of the registry is in it
        made = folder.write(sources, tuple(writer.files.values()))
        removed = [] if keep is None else folder.prune(keep)
    return BackedUp(made, writer.new_bytes, removed, notes)


def _collect(settings: Settings, writer: BackupWriter) -> dict[str, dict[str, Any]]:
    _add_journal(settings, writer)
    for _ in range(TRIES):
        sources = _collect_sources(settings, writer)
        # Old records may have been removed from a table after its batch views were backed up: once more then.
        if all(each.get("foundation", "") in ("", *each.get("foundations", ())) for each in sources.values()):
            break
    else:
        raise BackupError(f"Records were removed from the master dataset {TRIES} times during the backup. Try again.")
    for name, path in _home_files(settings):
        writer.add(name, path)
    return sources


def _collect_sources(settings: Settings, writer: BackupWriter) -> dict[str, dict[str, Any]]:
    sources: dict[str, dict[str, Any]] = {}
    writer.forget("batch/")
    writer.forget("master/")
    for batch in folders_with_runs(settings):
        prefix = f"batch/{batch.source}/"
        said = hand_off.backup_files.back_up(
            batch, _adding(writer, "batch", batch.root.parent), _forget(writer, prefix)
        )
        sources.setdefault(batch.source, {}).update(said)
    for table in all_tables(settings):
        said = master_dataset.table.backup_files.back_up(table, _adding(writer, "master", master_folder(settings)))
        sources.setdefault(table.name, {}).update(said)
    return sources


def _adding(writer: BackupWriter, top: str, root: Path) -> Callable[[Path, bool], None]:
    def add(path: Path, never_changes: bool) -> None:
        writer.add(f"{top}/{path.relative_to(root).as_posix()}", path, never_changes=never_changes)

    return add


def _forget(writer: BackupWriter, prefix: str) -> Callable[[], None]:
    return lambda: writer.forget(prefix)


def _add_journal(settings: Settings, writer: BackupWriter) -> None:
    """The alert journal as of one moment, however many transactions are written meanwhile."""
    path = journal_path(settings)
    if not path.is_file():
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-backup-") as scratch:
        copy = Path(scratch, path.name)
        with closing(sqlite3.connect(path)) as original, closing(sqlite3.connect(copy)) as made:
            original.backup(made)
        writer.add(f"home/{path.relative_to(settings.home).as_posix()}", copy)


def _home_files(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Keys, secrets, ports, how far imports are; and how it was configured, which is restored beside the data."""
    home = Home(settings.home)
    for path in (keys_file(home.root), home.ports_file):
        if path.is_file():
            yield f"home/{path.name}", path
    for folder in (home.secrets, home.root / "imports"):
        for path in _plain_files(folder):
            yield f"home/{path.relative_to(home.root).as_posix()}", path
    if config_file().is_file():
        yield "config/tidemark.toml", config_file()
    if settings.views_dir is not None:
        for path in _plain_files(settings.views_dir):
            yield f"config/views/{path.relative_to(settings.views_dir).as_posix()}", path


def _plain_files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if path.suffix not in (".lock", ".partial", ".pyc"))


def batch_root(settings: Settings) -> Path:
    """Where the batch data of all sources is."""
    return BatchFolder.of(settings, "any").root.parent
