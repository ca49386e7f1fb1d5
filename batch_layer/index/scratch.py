"""Rows on the disk while an index is built: written and read in batches, so that few of them are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

BATCH_ROWS, BATCH_BYTES = 4096, 2**20
ENTRY = pa.schema({"name": pa.binary(), "state": pa.binary()})
"""A tile, under the name that it has in the index."""


class Writer:
    """Writes rows into a file of its own; what they consist of is said by `schema`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._file = pa.OSFile(str(path), "wb")
        self._stream = pa.ipc.new_stream(self._file, schema)

    def add(self, row: tuple[Any, ...], size: int) -> None:
        """Write a row of about so many bytes."""
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            self._flush()

    def write(self, columns: Sequence[Any]) -> None:
        """Write rows that are there as columns."""
        if not len(columns[0]):
            return
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _flush(self) -> None:
        self.write(list(zip(*self._rows, strict=True)))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        """Write what is left."""
        if self._rows:
            self._flush()
        self._stream.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a file, as they were written."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


class Taker:
    """Takes the rows of a file from its beginning on, so many at a time."""

    def __init__(self, path: Path) -> None:
        self._batches = batches(path)
        self._rest: pa.RecordBatch | None = None

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """The next `count` rows."""
        while count:
            batch = self._rest if self._rest is not None else next(self._batches)
            self._rest = batch.slice(count) if batch.num_rows > count else None
            found = batch.slice(0, count)
            count -= found.num_rows
            yield found


def rows(path: Path) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, one by one."""
    for batch in batches(path):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """A table in batches of some rows and not too many bytes."""
    count = max(1, min(BATCH_ROWS, BATCH_BYTES * table.num_rows // max(table.nbytes, 1)))
    return iter(table.to_batches(count))
