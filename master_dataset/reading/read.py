"""Read records back, by time or by offset, without Spark: for `tidemark master read` and `replay`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from master_dataset.cut import Cut
from master_dataset.table.history import read_live_files

RECORD_COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "headers", "value"]
FILTER_COLUMNS = ["partition", "offset", "event_time", "invalid"]
MAX_BATCH_ROWS = 4096
BATCH_BYTES = 8 * 1024 * 1024
READ_BYTES = 1024 * 1024


@dataclass(frozen=True)
class RecordFilter:
    """Which records: those with an event time in [since, until), at or above the cut `start` and below the cut `end`.

    A cut counts as 0 for a partition that it does not name: `start` then selects the whole partition, `end` none of it.
    An empty `end` is no limit.
    """

    since: datetime | None = None
    until: datetime | None = None
    start: Cut = field(default_factory=dict)
    end: Cut = field(default_factory=dict)
    with_invalid: bool = False

    def filter(self) -> Any:
        """The filter as Arrow takes it, or None for everything."""
        parts = []
        if self.since is not None:
            parts.append(pc.field("event_time") >= pa.scalar(self.since, pa.timestamp("us", "UTC")))
        if self.until is not None:
            parts.append(pc.field("event_time") < pa.scalar(self.until, pa.timestamp("us", "UTC")))
        parts += [(pc.field("partition") != p) | (pc.field("offset") >= self.start[p]) for p in sorted(self.start)]
        if self.end:
            below = [(pc.field("partition") == p) & (pc.field("offset") < self.end[p]) for p in sorted(self.end)]
            parts.append(reduce(lambda left, right: left | right, below))
        if not self.with_invalid:
            parts.append(pc.field("invalid").is_null())
        return reduce(lambda left, right: left & right, parts) if parts else None


def read_records(table: Path, selected: RecordFilter, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The records, file by file in the order of their commits, and in each file as they were written.

    That need not be the order of their offsets, especially after a compaction or a repair. Some MB are in memory at a
    time, however large a file is.
    """
    for file in sorted(read_live_files(table).values(), key=lambda each: each.version):
        yield from read_file(table / file.path, selected.filter(), columns)


def read_file(path: Path, selected: Any, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """The rows of one file that an Arrow filter selects, some MB at a time, as they were written.

    Row groups that cannot match are skipped. A scan of a dataset would be shorter, but it reads far ahead.
    """
    (fragment,) = ds.dataset(str(path), format="parquet").get_fragments()
    groups = [group.id for part in fragment.split_by_row_group(selected) for group in part.row_groups]
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES) as file:
        row_bytes = max((_row_bytes(file.metadata.row_group(group)) for group in groups), default=1)
        batches = file.iter_batches(
            batch_size=max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // row_bytes)),
            row_groups=groups,
            columns=None if columns is None else sorted({*columns, *FILTER_COLUMNS}),
        )
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            found = rows if selected is None else rows.filter(selected)
            yield from (found if columns is None else found.select(columns)).to_batches()


def _row_bytes(group: Any) -> int:
    return max(1, int(group.total_byte_size) // max(1, int(group.num_rows)))
