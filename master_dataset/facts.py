"""Read facts back, by time or by offset, without Spark: for `tidemark master read` and `replay`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from master_dataset.commits import live_files, read_commits
from master_dataset.cut import Cut
from master_dataset.json_bytes import text_or_base64

RECORD_COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "headers", "value"]


@dataclass(frozen=True)
class Wanted:
    """Which facts: events in [since, until) and records at or above the cut `start` and below the cut `end`."""

    since: datetime | None = None
    until: datetime | None = None
    start: Cut = field(default_factory=dict)
    end: Cut = field(default_factory=dict)
    with_invalid: bool = False

    def filter(self) -> Any:
        """As a filter of Arrow, or None for everything."""
        parts = []
        if self.since is not None:
            parts.append(pc.field("event_time") >= pa.scalar(self.since, pa.timestamp("us", "UTC")))
        if self.until is not None:
            parts.append(pc.field("event_time") < pa.scalar(self.until, pa.timestamp("us", "UTC")))
        if self.start or self.end:
            partitions = sorted({*self.start, *self.end})
            parts.append(reduce(lambda left, right: left | right, [self._of(number) for number in partitions]))
        if not self.with_invalid:
            parts.append(pc.field("invalid").is_null())
        return reduce(lambda left, right: left & right, parts) if parts else None

    def _of(self, partition: int) -> Any:
        wanted = pc.field("partition") == partition
        if partition in self.start:
            wanted &= pc.field("offset") >= self.start[partition]
        if partition in self.end:
            wanted &= pc.field("offset") < self.end[partition]
        return wanted


def read_facts(table: Path, wanted: Wanted, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The facts, file by file in the order in which they were committed, offsets in order within each."""
    for file in sorted(live_files(read_commits(table)).values(), key=lambda each: each.version):
        found = ds.dataset(str(table / file.path), format="parquet").to_table(columns=columns, filter=wanted.filter())
        yield from found.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_batches()


def write_ndjson(batches: Iterator[pa.RecordBatch], out: Any) -> int:
    """One line a record: where it stands, its key, headers and value. Returns the count."""
    count = 0
    for batch in batches:
        for row in batch.to_pylist():
            out.write(orjson.dumps(_as_json(row)) + b"\n")
            count += 1
    return count


def write_parquet(batches: Iterator[pa.RecordBatch], path: Path) -> int:
    """The same columns as the table has. Returns the count."""
    writer, count = None, 0
    try:
        for batch in batches:
            writer = writer or pq.ParquetWriter(path, batch.schema)
            writer.write_batch(batch)
            count += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return count


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    headers = [{"key": header["key"], **text_or_base64("value", header["value"])} for header in row["headers"] or ()]
    shown = {name: row[name] for name in ("topic", "partition", "offset", "timestamp", "event_time", "event_id")}
    if row["invalid"]:
        shown["invalid"] = row["invalid"]
    return {**shown, **text_or_base64("key", row["key"]), "headers": headers, **text_or_base64("value", row["value"])}
