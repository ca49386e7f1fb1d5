"""The read index: states by key and by bucket, over several files, with keys of any length."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_layer.errors import BatchError
from batch_layer.index import build, open_index

DAY = datetime(2026, 3, 1, tzinfo=UTC)
MICROS = int(DAY.timestamp()) * 1_000_000
HOUR = 3_600_000_000
LONG = "x" * 2_000


def write(path: Path, rows: list[tuple[int, Any, bytes]]) -> Path:
    """A file of a batch view: hours since DAY, the key `url`, the state."""
    columns = {
        "bucket": pa.array([DAY + timedelta(hours=hour) for hour, _, _ in rows], pa.timestamp("us", "UTC")),
        "url": pa.array([url for _, url, _ in rows], pa.string()),
        "state": pa.array([state for _, _, state in rows], pa.binary()),
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_states_are_found_by_key_and_by_bucket(tmp_path: Path) -> None:
    rows = [
        (0, "/a", b"0a"),
        (1, "/a", b"1a"),
        (0, "/ab", b"0ab"),
        (0, None, b"0n"),
        (2, LONG, b"2x"),
        (2, LONG + "y", b"2y"),
    ]
    files = {"2026-03-01": [write(tmp_path / "1.parquet", rows[:3]), write(tmp_path / "2.parquet", rows[3:])]}
    assert build(tmp_path / "i" / "1.mdb", files, ["url"]) == 6
    index = open_index([tmp_path / "i" / "1.mdb"])
    assert [(row.bucket, row.state) for row in index.of_key(("/a",), 0, 2**62)] == [
        (MICROS, b"0a"),
        (MICROS + HOUR, b"1a"),
    ]
    assert [row.state for row in index.of_key(("/a",), MICROS + 1, MICROS + HOUR)] == []
    assert [row.state for row in index.of_key((LONG,), 0, 2**62)] == [b"2x"]
    assert [row.state for row in index.of_key((None,), 0, 2**62)] == [b"0n"]
    assert {(row.bucket, row.key[0], row.state) for row in index.between(0, 2**62)} == {
        (MICROS + hour * HOUR, url, state) for hour, url, state in rows
    }
    assert {row.state for row in index.between(MICROS + HOUR, MICROS + 2 * HOUR)} == {b"1a"}
    index.close()


def test_for_each_day_the_newest_file_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "1.parquet", [(0, "/a", b"old"), (1, "/gone", b"old")])
    other = write(tmp_path / "2.parquet", [(24, "/a", b"next day")])
    build(tmp_path / "1.mdb", {"2026-03-01": [first], "2026-03-02": [other]}, ["url"])
    build(tmp_path / "2.mdb", {"2026-03-01": [write(tmp_path / "3.parquet", [(0, "/a", b"new")])]}, ["url"])
    index = open_index([tmp_path / "1.mdb", tmp_path / "2.mdb"])
    assert [row.state for row in index.of_key(("/a",), 0, 2**62)] == [b"new", b"next day"]
    assert sorted(row.state for row in index.between(0, 2**62)) == [b"new", b"next day"]
    index.close()


def test_a_group_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "1.parquet", [(0, "/a", b"x"), (0, "/a", b"y")])
    with pytest.raises(BatchError, match="stand twice"):
        build(tmp_path / "1.mdb", {"2026-03-01": [file]}, ["url"])
    assert not (tmp_path / "1.mdb").exists()


@pytest.mark.parametrize("content", [None, b"", b"not an index" * 1000])
def test_a_damaged_index_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "1.mdb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BatchError, match="cannot be read"):
        open_index([path])
