"""Foundations: what stands for the records that retention removed from the master dataset.

A foundation is like a run over exactly the removed records: a manifest with the states of each view and the hashes of
the ids. Beside these it has digests of the ids that counted, because the ids themselves are gone. A run that computes
everything continues from the foundation that the master table names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal, unseal
from hand_off.errors import BatchError
from hand_off.manifests import Manifest, from_json, paths_of
from infra.formats import reads
from infra.store import ObjectMissing
from master_dataset.cut import cut_to_json

if TYPE_CHECKING:
    from master_dataset.table.coverage import Removed

PREFIX = "foundations/"
FORMAT = 1
READABLE = frozenset({1})
DIGEST_BYTES = 16
"""Of the SHA-256 of an id: enough that no two ids ever meet by chance."""


class FoundationDamaged(BatchError):
    """A foundation that the master table names is missing or damaged. Only a backup has another one."""

    def __init__(self, source: str, name: str, reason: str) -> None:
        super().__init__(
            f"Foundation {name} of source {source!r} cannot be used: {reason}. It stands for records that were removed "
            "from the master dataset, so it cannot be computed again. Bring its files back from a backup "
            "(`tidemark restore`)."
        )


@dataclass(frozen=True)
class Foundation:
    """What stands for the removed records. `digests` are folders below that of ids."""

    name: str
    manifest: Manifest
    day: str
    digests: tuple[str, ...]
    checksums: dict[str, str] = field(default_factory=dict)
    """Of each of its files, by its path in the batch folder."""

    @property
    def since(self) -> dict[str, Any]:
        """From when on a view counts that has no states here."""
        return {"cut": cut_to_json(self.manifest.cut), "day": self.day}

    @property
    def counted(self) -> int:
        """How many of the removed events counted."""
        return self.manifest.events - self.manifest.invalid - self.manifest.duplicates

    def to_json(self) -> dict[str, Any]:
        """The object's content."""
        return {
            "format": FORMAT,
            "name": self.name,
            "day": self.day,
            "digests": list(self.digests),
            "checksums": self.checksums,
            "manifest": self.manifest.to_json(),
        }


def write_foundation(folder: BatchFolder, foundation: Foundation) -> None:
    """Write it, durably, after the files that it names."""
    text = seal(foundation.to_json(), indent=1).encode()
    if not folder.store.put_if_absent(_object(foundation.name), text):
        raise BatchError(f"Foundation {foundation.name} of source {folder.source!r} is there already. Try again.")


def read_foundation(folder: BatchFolder, name: str) -> Foundation:
    """The foundation of a name; FoundationDamaged where it cannot be read."""
    try:
        value = unseal(folder.store.get(_object(name)))
    except ObjectMissing:
        raise FoundationDamaged(folder.source, name, "it is not there") from None
    if value is None:
        raise FoundationDamaged(folder.source, name, "its checksum is wrong")
    if value.get("format") not in READABLE:
        raise FoundationDamaged(folder.source, name, f"it has format {value.get('format')}; {reads(READABLE)}")
    return Foundation(
        value["name"], from_json(value["manifest"]), value["day"], tuple(value["digests"]), value["checksums"]
    )


def foundation_of(folder: BatchFolder, removed: Removed) -> Foundation | None:
    """The foundation that a master table names; None where nothing was removed."""
    return read_foundation(folder, removed.foundation) if removed.cut else None


def list_foundations(folder: BatchFolder) -> list[str]:
    """The names of all foundations, also of those that no table names yet or any more."""
    return sorted(name.removeprefix(PREFIX).removesuffix(".json") for name in folder.store.list(PREFIX))


def forget_others(folder: BatchFolder, name: str) -> list[str]:
    """Remove all foundations but one. Their files go when runs are pruned. Returns the names."""
    others = [each for each in list_foundations(folder) if each != name]
    for each in others:
        folder.store.delete(_object(each))
    return others


def paths_of_foundation(folder: BatchFolder, foundation: Foundation) -> Iterator[Path]:
    """Everything that it cannot do without; some are folders."""
    yield from paths_of(folder, foundation.manifest)
    yield from (folder.ids / name for name in foundation.digests)


def files_of_foundation(folder: BatchFolder, foundation: Foundation) -> list[Path]:
    """Its files alone."""
    found = []
    for path in paths_of_foundation(folder, foundation):
        found += sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    return sorted(set(found))


def checksums_of(folder: BatchFolder, foundation: Foundation) -> dict[str, str]:
    """The checksum of each of its files, read from the files."""
    return {
        path.relative_to(folder.root).as_posix(): _checksum(path) for path in files_of_foundation(folder, foundation)
    }


def check_foundation(folder: BatchFolder, foundation: Foundation) -> None:
    """Read all of its files, and raise FoundationDamaged where one is not what was written."""
    for name, expected in foundation.checksums.items():
        try:
            found = _checksum(folder.root / name)
        except OSError as error:
            raise FoundationDamaged(folder.source, foundation.name, f"{name}: {error.strerror}") from None
        if found != expected:
            raise FoundationDamaged(folder.source, foundation.name, f"the checksum of {name} is wrong")


def _object(name: str) -> str:
    return f"{PREFIX}{name}.json"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
