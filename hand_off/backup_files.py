"""The files of a source's batch data that a backup needs: the publish log, and all of the newest and the served run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from errno import ENOENT
from pathlib import Path
from typing import Any

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.foundations import Foundation, FoundationDamaged, list_foundations, paths_of_foundation, read_foundation
from hand_off.manifests import paths_of, read_manifest
from master_dataset.cut import cut_to_json

Add = Callable[[Path, bool], None]
"""Takes a file, and whether files of that name never change. FileNotFoundError where it is gone."""
TRIES = 10


def back_up(folder: BatchFolder, add: Add, forget: Callable[[], None]) -> dict[str, Any]:
    """Give every file to `add`, and say which run is served. If the runs change meanwhile, `forget` and repeat."""
    missing = ""
    for _ in range(TRIES):
        before = publish_log.stamp(folder), publish_log.read_pin(folder)
        try:
            said = _collect(folder, add)
        except FileNotFoundError as error:  # pruned meanwhile, or lost
            said, missing = None, f" {error.filename!r} was not there."
        if said is not None and (publish_log.stamp(folder), publish_log.read_pin(folder)) == before:
            return said
        forget()
    raise BatchError(
        f"The runs of source {folder.source!r} could not be backed up whole in {TRIES} attempts.{missing} Try again "
        "when no run is published; if a file is lost, `tidemark batch run --full` computes everything again."
    )


def _collect(folder: BatchFolder, add: Add) -> dict[str, Any]:
    served, newest = publish_log.served(folder), publish_log.last(folder)
    for run in sorted({served.run, newest.run} - {0}):
        for path in paths_of(folder, read_manifest(folder, run)):
            for file in _files_of(path):
                add(file, True)
        add(folder.manifest(run), True)
    foundations = list_foundations(folder)
    for name in foundations:
        for path in paths_of_foundation(folder, _foundation(folder, name)):
            for file in _files_of(path):
                add(file, True)
        add(folder.root / "foundations" / f"{name}.json", True)
    for place in (folder.definitions, folder.root / "publish"):
        for file in _files_of(place) if place.is_dir() else ():  # a log of Tidemark 0.1 is one file
            add(file, False)
    for path in (folder.publish_log, folder.serving, folder.counter, folder.failures, folder.consistency):
        if path.is_file():
            add(path, False)
    return {"run": served.run, "cut": cut_to_json(served.cut), "newest_run": newest.run, "foundations": foundations}


def _foundation(folder: BatchFolder, name: str) -> Foundation:
    try:
        return read_foundation(folder, name)
    except FoundationDamaged:
        if name in list_foundations(folder):
            raise
        raise FileNotFoundError(ENOENT, "replaced meanwhile", f"foundation {name}") from None


def _files_of(path: Path) -> Iterator[Path]:
    """A file, or those in a folder; without checksums of Hadoop, locks, and what a crash left."""
    if path.is_dir():
        for each in sorted(path.iterdir()):
            if not each.name.startswith(".") and each.suffix != ".partial" and not each.name.endswith("-lock"):
                yield from _files_of(each)
    else:
        yield path
