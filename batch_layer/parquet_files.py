"""Parquet files that a run wrote, read back by Arrow: how many rows they have, totals of columns, a few whole rows.

Spark would answer each of these questions with a job of its own, which costs more than the answer where files are small
or many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal, localcontext
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hand_off.errors import BatchError
from infra.disk import make_folder, sync_file, sync_folder

T = TypeVar("T")
DIGITS = 76
"""Sums of many values of 38 digits stay exact; Python's default of 28 digits would round them."""


def count_rows(files: Iterable[Path]) -> int:
    """How many rows the files have, by their footers."""
    return sum(_of_each(files, lambda file: int(file.metadata.num_rows)))


def files_of(folders: Iterable[Path]) -> list[Path]:
    """All files of folders that Spark or `write_table` wrote."""
    return [path for folder in folders for path in sorted(folder.glob("*.parquet"))]


def rows_of_folders(folders: Iterable[Path]) -> int:
    """How many rows are in them."""
    return count_rows(files_of(folders))


def sum_columns(files: Iterable[Path], columns: Sequence[str]) -> dict[str, Decimal]:
    """The exact sums of columns with whole numbers or decimals. A row without a value adds nothing."""
    totals = dict.fromkeys(columns, Decimal(0))

    def add(file: pq.ParquetFile) -> None:
        for batch in file.iter_batches(columns=[*columns]):
            for name in columns:
                # As decimals of 38 digits: a sum of 64-bit integers would wrap around.
                values = batch.column(name)
                scale = values.type.scale if pa.types.is_decimal(values.type) else 0
                total = pc.sum(pc.cast(values, pa.decimal128(38, scale))).as_py()
                totals[name] += total if total is not None else 0

    with localcontext(prec=DIGITS):
        for _ in _of_each(files, add):
            pass
    return totals


def read_column(files: Iterable[Path], name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A column of whole numbers without gaps, of all files one after the other."""
    parts = list(_of_each(files, lambda file: file.read([name])[name].to_numpy()))
    return np.concatenate([np.array([], np.int64), *parts])


def write_table(table: pa.Table, folder: Path) -> None:
    """Write a table into a folder of its own, on the disk when it returns."""
    make_folder(folder)
    for old in folder.glob("*.parquet"):
        old.unlink()
    path = folder / "part-00000.parquet"
    pq.write_table(table, path, compression="zstd")
    sync_file(path)
    sync_folder(folder)


def sample_rows(files: Iterable[Path], columns: Sequence[str], count: int) -> list[dict[str, Any]]:
    """The first rows of the files, with those of the columns that there are."""

    def rows(file: pq.ParquetFile) -> list[dict[str, Any]]:
        wanted = [name for name in columns if name in file.schema_arrow.names]
        return next(iter(batch.to_pylist() for batch in file.iter_batches(count, columns=wanted)), [])

    return list(islice((row for of_file in _of_each(files, rows) for row in of_file), count))


def _of_each(files: Iterable[Path], read: Callable[[pq.ParquetFile], T]) -> Iterator[T]:
    for path in files:
        with readable(path), pq.ParquetFile(path) as file:
            found = read(file)
        yield found


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What is wrong with a file that is read in the block, as BatchError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise BatchError(
            f"The file {str(path)!r} cannot be read back: {error}. Nothing was published. Check the disk; "
            "`tidemark batch run --full` recomputes everything."
        ) from error
