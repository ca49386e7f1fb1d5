"""What a run reads back of its files: exact, and with the name of a file that cannot be read."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_layer.parquet_files import count_rows, rows_of_folders, sample_rows, sum_columns
from hand_off.errors import BatchError

BIG = 2**63 - 1
LONG = Decimal("123456789012345678901234567890.12")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    tables = [
        pa.table({"n": pa.array([BIG, BIG], pa.int64()), "d": pa.array([LONG, None], pa.decimal128(38, 2))}),
        pa.table({"n": pa.array([1, None, BIG], pa.int64()), "d": pa.array([LONG, LONG, LONG], pa.decimal128(38, 2))}),
        pa.table({"n": pa.array([], pa.int64()), "d": pa.array([], pa.decimal128(38, 2))}),
    ]
    paths = [tmp_path / f"{number}.parquet" for number in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    return paths


def test_sums_are_exact_beyond_64_bits_and_28_digits(files: list[Path]) -> None:
    assert sum_columns(files, ["n", "d"]) == {"n": 3 * BIG + 1, "d": Decimal("493827156049382715604938271560.48")}
    assert sum_columns([], ["n"]) == {"n": 0}
    assert sum_columns(files[2:], ["n"]) == {"n": 0}


def test_rows_are_counted_in_files_and_folders(files: list[Path], tmp_path: Path) -> None:
    assert count_rows(files) == 5
    assert rows_of_folders([tmp_path, tmp_path / "nothing"]) == 5


@pytest.mark.parametrize(("count", "found"), [(0, []), (1, [BIG]), (3, [BIG, BIG, 1]), (9, [BIG, BIG, 1, None, BIG])])
def test_sample_is_of_the_first_rows_and_known_columns(files: list[Path], count: int, found: list[int | None]) -> None:
    assert sample_rows(files, ["n", "unknown"], count) == [{"n": number} for number in found]


@pytest.mark.parametrize("content", [b"", b"PAR1" + b"\0" * 40 + b"PAR1", None])
def test_file_that_cannot_be_read_is_named(files: list[Path], content: bytes | None) -> None:
    files[1].unlink()
    if content is not None:
        files[1].write_bytes(content)
    for read in (count_rows, lambda paths: sum_columns(paths, ["n"]), lambda paths: sample_rows(paths, ["n"], 9)):
        with pytest.raises(BatchError, match=r"1\.parquet' cannot be read back"):
            read(files)
