"""Reading records back without Spark: which ones a cut means, and never a whole file in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.settings import load_settings
from master_dataset.dead_letters.outbox import DeadLetters
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table.delta_log import live_files, read_commits
from master_dataset.table.proofs import Kind, Proof
from views.source import Source

MB = 1_000_000


SCHEMA = pa.schema(
    [
        ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
        ("event_time", pa.timestamp("us", "UTC")), ("key", pa.binary()), ("headers", pa.list_(pa.string())),
        ("value", pa.binary()), ("invalid", pa.string()),
    ]
)  # fmt: skip


def table_of(
    folder: Path,
    places: Iterable[tuple[int, int]],
    value_bytes: int = 1,
    row_group: int = 1000,
    invalid: str | None = None,
) -> Path:
    """A table of one commit with a record at each (partition, offset)."""
    rows = [{"partition": p, "offset": o, "value": os.urandom(value_bytes), "invalid": invalid} for p, o in places]
    (folder / "_delta_log").mkdir()
    file = folder / "part-0.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), file, row_group_size=row_group, write_batch_size=4)
    actions = [{"commitInfo": {}}, {"add": {"path": file.name, "size": file.stat().st_size}}]
    (folder / "_delta_log" / f"{0:020}.json").write_text("\n".join(json.dumps(action) for action in actions))
    return folder


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ({}, {}, {(0, 0), (0, 1), (1, 0), (1, 1)}),
        ({0: 1}, {}, {(0, 1), (1, 0), (1, 1)}),
        ({0: 1, 1: 2}, {}, {(0, 1)}),
        ({}, {0: 1}, {(0, 0)}),
        ({}, {0: 1, 1: 1}, {(0, 0), (1, 0)}),
        ({0: 1}, {0: 2, 1: 1}, {(0, 1), (1, 0)}),
        ({7: 5}, {}, {(0, 0), (0, 1), (1, 0), (1, 1)}),
    ],
)
def test_a_cut_counts_as_0_for_a_partition_that_it_does_not_name(
    tmp_path: Path, start: dict[int, int], end: dict[int, int], expected: set[tuple[int, int]]
) -> None:
    table = table_of(tmp_path, [(0, 0), (0, 1), (1, 0), (1, 1)])
    found = [row for batch in read_records(table, RecordFilter(start=start, end=end)) for row in batch.to_pylist()]
    assert {(row["partition"], row["offset"]) for row in found} == expected


def test_invalid_rows_become_dead_letters_piece_by_piece(tmp_path: Path) -> None:
    places = [(n % 2, n // 2) for n in range(400)]
    table = table_of(tmp_path, places, value_bytes=MB // 4, invalid="not JSON")
    source = Source("web", fields="event_id string, event_time timestamp")
    letters = DeadLetters(load_settings(), "127.0.0.1:1", source, table)
    files = live_files(read_commits(table)).values()
    before, most, found = pa.total_allocated_bytes(), 0, []
    for row in letters._invalid_rows(files, Proof(Kind.APPEND, start={0: 3}, end={0: 150, 1: 200})):
        most = max(most, pa.total_allocated_bytes() - before)
        found.append((row["partition"], row["offset"]))
    assert found == [(p, o) for p, o in places if p or 3 <= o < 150]
    assert most < 25 * MB, f"{most:,} bytes of the 100 MB were in memory at once"
    assert list(letters._invalid_rows([], Proof(Kind.APPEND, end={0: 9}))) == []


@pytest.mark.parametrize("row_group", [8, 400])
def test_a_large_file_is_read_piece_by_piece_in_the_order_in_which_it_was_written(
    tmp_path: Path, row_group: int
) -> None:
    places = [(n % 2, n // 2) for n in range(400)]
    table = table_of(tmp_path, places, value_bytes=MB // 4, row_group=row_group)
    before, most, found = pa.total_allocated_bytes(), 0, []
    for batch in read_records(table, RecordFilter()):
        most = max(most, pa.total_allocated_bytes() - before)
        found += [(row["partition"], row["offset"]) for row in batch.select(["partition", "offset"]).to_pylist()]
    assert found == places
    assert most < 25 * MB, f"{most:,} bytes of the 100 MB were in memory at once"
