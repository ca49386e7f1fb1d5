"""Restore a backup into a home without data. What a crash left is completed by the same command."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from hand_off.batch_folder import BatchFolder
from hand_off.manifests import missing_of, read_manifest
from infra.backup_store import BackupError, BackupFolder, BackupManifest, StoredFile
from infra.disk import make_folder, sync_folder
from infra.errors import HomeError
from infra.failpoints import reach
from infra.home import LAYOUT, Home, read_json, write_json
from infra.settings import Settings
from infra.version import VERSION
from master_dataset.registry.saved_records import restored_file
from master_dataset.table.backup_files import master_folder
from master_dataset.table.checks.fsck import refuse_damage
from tidemark.backup.backup import batch_root

PRIVATE = 0o600


class Restored(NamedTuple):
    """What was done: the backup, the files of the home that were there and stayed, and what to do next."""

    manifest: BackupManifest
    kept: list[str]
    advice: list[str]


def restore(settings: Settings, source: Path, number: int | None = None) -> Restored:
    """Restore a backup, the newest if none is named. Nothing may run on the home."""
    folder, home = BackupFolder(source), Home(settings.home)
    folder.check()
    if not (numbers := folder.numbers()):
        raise BackupError(f"There is no complete backup in {str(source)!r}.")
    manifest = folder.read(numbers[-1] if number is None else number)
    if manifest.layout > LAYOUT:
        raise BackupError(
            f"Backup {manifest.number} was made by Tidemark {manifest.version} with layout {manifest.layout}; this is "
            f"Tidemark {VERSION}, which knows layouts up to {LAYOUT}. Restore it with that version or a newer one."
        )
    home.check()
    _refuse_data(settings, home, manifest)
    targets = {file.name: _target(settings, file.name) for file in manifest.files}
    home.make_folders()
    with home.locked():
        # Step 1. Say that a restore began. Until it is complete, nothing else uses this home.
        write_json(home.restore_file, {"backup": manifest.number, "id": manifest.id, "source": str(source)})
        sync_folder(home.root)
        # Step 2. The files, each whole or not at all. A crash leaves some of them; the next call adds the others.
        kept = [file.name for file in manifest.files if not _write(folder, file, targets[file.name])]
        for place in {path.parent for path in targets.values()}:
            sync_folder(place)
        # Step 3. Prove that it is sound, and end.
        _check(settings, manifest)
        reach("restore.before_end")
        home.restore_file.unlink()
        sync_folder(home.root)
        home.claim()
    return Restored(manifest, kept, _advice(settings, home, manifest))


def _refuse_data(settings: Settings, home: Home, manifest: BackupManifest) -> None:
    begun = read_json(home.restore_file)
    if home.restore_file.exists():
        if not isinstance(begun, dict) or begun.get("id") != manifest.id:
            raise HomeError(
                f"Another restore into {str(home.root)!r} was not completed: {begun}. Complete that one, or name "
                "another home with TIDEMARK_HOME."
            )
        return
    for place in (master_folder(settings), batch_root(settings)):
        if place.is_dir() and any(place.iterdir()):
            raise HomeError(
                f"{str(place)!r} holds data, so nothing was restored. Restore into another home (TIDEMARK_HOME), or if "
                "that data is damaged, move it away: nothing may be mixed with it."
            )


def _target(settings: Settings, name: str) -> Path:
    """Where a file goes. A name can never lead out of the folders of the home."""
    top, *parts = name.split("/")
    roots = {
        "home": settings.home,
        "master": master_folder(settings),
        "batch": batch_root(settings),
        "config": settings.home / "restored-config",
    }
    if top not in roots or not parts or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise BackupError(f"The backup names a file {name[:200]!r}, which belongs to no part of a home.")
    return roots[top].joinpath(*parts)


def _write(folder: BackupFolder, file: StoredFile, path: Path) -> bool:
    """Write a file, on the disk and compared with its checksums. False where the home has one of its own, which stays.

    Data is written again also where it is there: a crash may have left it without its content on the disk.
    """
    if file.name.startswith("home/") and path.exists():
        return False
    make_folder(path.parent)
    partial = path.with_name(f".{path.name}.restored.partial")
    partial.unlink(missing_ok=True)
    mode = PRIVATE if file.name.startswith(("home/", "config/")) else 0o666
    size = 0
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as made:
        for chunk in file.chunks:
            size += made.write(folder.read_chunk(chunk))
        made.flush()
        os.fsync(made.fileno())
    if size != file.size:
        partial.unlink()
        raise BackupError(f"The backup has {size} bytes of {file.name!r} instead of {file.size}: it is not whole.")
    os.utime(partial, ns=(time.time_ns(), file.modified_ns))
    partial.replace(path)
    reach("restore.between")
    return True


def _check(settings: Settings, manifest: BackupManifest) -> None:
    """The quick check of each table, and whether the runs have all their files."""
    for source, said in manifest.sources.items():
        if "master_version" in said:
            refuse_damage(source, master_folder(settings) / source)
        batch = BatchFolder.of(settings, source)
        for run in {said.get("run", 0), said.get("newest_run", 0)} - {0}:
            if wrong := [*missing_of(batch, read_manifest(batch, run))]:
                raise BackupError(f"Run {run} of source {source!r} is not whole after the restore: {wrong[0]}.")


def _advice(settings: Settings, home: Home, manifest: BackupManifest) -> list[str]:
    """What an operator must know before `tidemark up`."""
    said = []
    archived = sorted(source for source, each in manifest.sources.items() if each.get("master_cut"))
    is_new = not settings.kafka_bootstrap and not any(home.kafka.rglob("meta.properties"))
    if archived and is_new:
        said.append(
            "The Kafka of this home is new: it has none of the events after the backup, and its offsets begin at 0. "
            f"Queries answer from the backup. The archiver takes no new events of {', '.join(archived)} until "
            "you say that the old Kafka is gone: `tidemark master rebase SOURCE`, for each of them."
        )
    elif archived:
        said.append(
            "The archiver continues after the restored offsets and reads everything later from Kafka, as far as Kafka "
            "still holds it. `tidemark master status` shows it."
        )
    if restored_file(settings).is_file():
        said.append(
            "The schema registry begins with the schemas of the backup, under their ids: the collector writes them "
            "into the topic _schemas when it starts, if that is empty."
        )
    if settings.redis_url:
        said.append(
            "If the Redis of redis_url holds speed views of runs after the backup, rebuild them: "
            "`tidemark speed rebuild`."
        )
    if any(file.name.startswith("config/") for file in manifest.files):
        said.append(f"The configuration of then is in {str(home.root / 'restored-config')!r}. Nothing uses it there.")
    return said
