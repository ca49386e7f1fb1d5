"""The files of a batch view as Arrow reads and writes them: one for a day, like those that Spark writes."""

from __future__ import annotations

import heapq
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batch_layer.delta_commits import DAY
from batch_layer.parquet_files import readable
from hand_off.manifests import DataFile
from infra import disk
from infra.disk import make_folder, sync_folder

BATCH_ROWS = 65_536
MICROS_A_DAY = 86_400 * 1_000_000
FIRST_DAY = date(1970, 1, 1)
LONGEST_STATISTIC = 32
"""Delta's own limit of texts in statistics. Longer ones would have to be cut, the greatest of them upwards."""


def read_day(files: Iterable[Path], schema: pa.Schema) -> pa.Table:
    """The rows of files of one day, in the columns of `schema`."""
    found = [schema.empty_table()]
    for path in files:
        with readable(path), pq.ParquetFile(path) as file:
            found.append(file.read(columns=schema.names).select(schema.names).cast(schema))
    return pa.concat_tables(found)


def split_days(table: Path, files: Sequence[Path], keys: Sequence[str]) -> list[DataFile]:
    """Write the rows of files, each sorted by bucket, into a file for each day. In memory is a day at a time.

    Spark would write a file for each day in each of its tasks, and takes far longer over many small files.
    """
    streams = [_days_of(path) for path in files]
    found = []
    for day, same in groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
        rows = pa.concat_tables(rows for _, rows in same)
        found.append(write_day(table, (FIRST_DAY + timedelta(days=day)).isoformat(), rows, keys))
    return found


def _days_of(path: Path) -> Iterator[tuple[int, pa.Table]]:
    """The rows of a file, day by day; a day may come in several pieces."""
    with readable(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            rows = pa.Table.from_batches([batch]).replace_schema_metadata(file.metadata.metadata)
            days = rows["bucket"].cast("int64").to_numpy() // MICROS_A_DAY
            ends = [*(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
            for start, end in pairwise([0, *ends]):
                yield int(days[start]), rows.slice(start, end - start)


def write_day(table: Path, day: str, rows: pa.Table, keys: Sequence[str]) -> DataFile:
    """Write the rows of a day into a file of a view's table, which `sync_files` brings to the disk.

    No reader sees it yet.
    """
    path = table / f"{DAY}={day}" / f"part-00000-{uuid.uuid4()}.c000.zstd.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, compression="zstd", store_decimal_as_integer=True)
    size = path.stat().st_size
    add = {
        "path": str(path.relative_to(table)),
        "partitionValues": {DAY: day},
        "size": size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(_statistics(rows, ["bucket", *keys]), separators=(",", ":")),
    }
    action = json.dumps({"add": add}, separators=(",", ":"))
    return DataFile(day=day, path=str(add["path"]), rows=len(rows), bytes=size, action=action)


def sync_files(table: Path, files: Iterable[DataFile]) -> None:
    """Wait until files of a table are on the disk, with their names."""
    paths = [table / file.path for file in files]
    disk.sync_files(paths)
    disk.sync_folders(list({path.parent for path in paths}))
    make_folder(table)
    sync_folder(table)


def _statistics(rows: pa.Table, columns: Sequence[str]) -> dict[str, Any]:
    """By which other engines skip files: the least and the greatest value of columns, and how many are null."""
    found: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in columns:
        found["nullCount"][name] = rows[name].null_count
        if pa.types.is_boolean(rows.schema.field(name).type):
            continue
        limits = pc.min_max(rows[name]).as_py()
        texts = {limit: _text(limits[limit]) for limit in ("min", "max")}
        if all(text is not None and len(str(text)) <= LONGEST_STATISTIC for text in texts.values()):
            found["minValues"][name], found["maxValues"][name] = texts["min"], texts["max"]
    return found


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.000Z}"  # a bucket begins with a second
    return value if value is None or isinstance(value, int | str) else str(value)
