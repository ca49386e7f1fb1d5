"""What is known of events that were removed from the master dataset, for those who compare: without Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hand_off.batch_folder import DIGESTS, BatchFolder
from hand_off.foundations import DIGEST_BYTES, Foundation, foundation_of
from master_dataset.table import coverage
from views.in_memory import Group
from views.states import unpack
from views.types import EPOCH, MICROSECOND
from views.view import View

BATCH_ROWS = 50_000


def _foundation(folder: BatchFolder, table: Path) -> Foundation | None:
    return foundation_of(folder, coverage.of(table).removed) if table.is_dir() else None


def digest_of_id(event_id: str) -> bytes:
    """What is kept of the id of a removed event."""
    return hashlib.sha256(event_id.encode()).digest()[:DIGEST_BYTES]


def removed_ids(folder: BatchFolder, table: Path, ids: Iterable[str]) -> set[str]:
    """Those of some ids that events have which counted and were removed."""
    foundation = _foundation(folder, table)
    wanted = {digest_of_id(each): each for each in ids} if foundation is not None else {}
    found: set[str] = set()
    for name in foundation.digests if foundation is not None and wanted else ():
        for path in sorted((folder.ids / name / DIGESTS).glob("*.parquet")):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=["digest"]):
                    found |= {wanted[each] for each in wanted.keys() & set(batch.column("digest").to_pylist())}
    return found


def removed_groups(folder: BatchFolder, table: Path, view: View) -> Iterator[dict[Group, dict[str, Any]]]:
    """The states of a view over the removed events, some groups at a time."""
    foundation = _foundation(folder, table)
    views = foundation.manifest.views if foundation is not None else ()
    for data in (each for each in views if each.hash == view.hash):
        for name in data.files:
            with pq.ParquetFile(folder.table(data.name, data.hash) / name.path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=["bucket", *view.keys, "state"]):
                    yield {
                        ((row["bucket"] - EPOCH) // MICROSECOND, tuple(row[key] for key in view.keys)): unpack(
                            view.algebras, row["state"]
                        )
                        for row in batch.to_pylist(maps_as_pydicts="strict")
                    }
