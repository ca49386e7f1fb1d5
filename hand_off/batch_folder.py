"""Where the batch data of a source lives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.store import PosixStore, Store

if TYPE_CHECKING:
    from infra.settings import Settings

HASHES, DUPLICATES, DIGESTS = "hashes", "copies", "digests"
"""What a folder of ids has: the hashes of all ids, the positions of the duplicates; of a foundation also digests."""


@dataclass(frozen=True)
class BatchFolder:
    """Paths of one source's batch data. Making the object touches nothing.

    publish/00000003.json         the publish log, an object for each entry: which runs readers may see
    publish.log                   the same, as Tidemark 0.1 wrote it
    serving.json                  which run readers shall see, if not the newest
    run.counter  lease.lock       the next run's number; who works here now
    failures.json                 the failures since the last run that succeeded
    consistency.json              what comparisons with the speed view found, and which views are quarantined
    definitions/<hash>            texts of definitions
    runs/00000007.json            the manifest of run 7: what belongs to it
    tables/<view>-<hash>/         a Delta table for each version of a view
    ids/  indexes/                event ids that were counted; what the serving layer reads
    foundations/00000007.json     what stands for records that were removed from the master dataset
    """

    root: Path

    @classmethod
    def of(cls, settings: Settings, source: str) -> BatchFolder:
        """The folder of a source."""
        return cls(_all_of(settings) / source)

    @property
    def source(self) -> str:
        """The name of the source."""
        return self.root.name

    @property
    def store(self) -> Store:
        """What processes share: the publish log, manifests, definitions and small files that are replaced."""
        return PosixStore(self.root)

    @property
    def publish_log(self) -> Path:
        """The publish log of Tidemark 0.1, one line for each published run."""
        return self.root / "publish.log"

    @property
    def serving(self) -> Path:
        """Names the older run to which readers are pinned, if they are."""
        return self.root / "serving.json"

    @property
    def counter(self) -> Path:
        """The last run number that was given out."""
        return self.root / "run.counter"

    @property
    def lease(self) -> Path:
        """Locked by whoever works here."""
        return self.root / "lease.lock"

    @property
    def failures(self) -> Path:
        """The runs that failed since the last one that succeeded."""
        return self.root / "failures.json"

    @property
    def consistency(self) -> Path:
        """What comparisons with the speed view found, and which views are quarantined."""
        return self.root / "consistency.json"

    @property
    def definitions(self) -> Path:
        """Texts of definitions, each under its hash."""
        return self.root / "definitions"

    @property
    def runs(self) -> Path:
        """The manifests."""
        return self.root / "runs"

    @property
    def tables(self) -> Path:
        """The batch views: Delta tables."""
        return self.root / "tables"

    @property
    def ids(self) -> Path:
        """The event ids that were counted."""
        return self.root / "ids"

    @property
    def indexes(self) -> Path:
        """The read indexes of the serving layer."""
        return self.root / "indexes"

    def manifest(self, run: int) -> Path:
        """What belongs to a run."""
        return self.runs / f"{run:08}.json"

    def table(self, view: str, definition_hash: str) -> Path:
        """The Delta table of one version of a view."""
        return self.tables / f"{view}-{definition_hash[:12]}"


def folders_with_runs(settings: Settings) -> list[BatchFolder]:
    """Those of every source that has a publish log, declared or not any more."""
    all_of = _all_of(settings)
    found = {path.parent for pattern in ("*/publish.log", "*/publish") for path in all_of.glob(pattern)}
    return [BatchFolder(path) for path in sorted(found)]


def all_folders(settings: Settings) -> list[BatchFolder]:
    """Those of every source that any run was ever tried for, also where none was published."""
    return [BatchFolder(path) for path in sorted(_all_of(settings).glob("*")) if path.is_dir()]


def _all_of(settings: Settings) -> Path:
    return settings.batch_dir or settings.home / "batch"
