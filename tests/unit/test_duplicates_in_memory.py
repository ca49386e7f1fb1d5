"""The search for duplicates in arrays: in slices, and with digests that end in zeros, it finds what plain sets find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_layer import duplicates_in_memory
from batch_layer.duplicates_in_memory import (
    HASHES_SCHEMA,
    ID_BYTES,
    Before,
    Events,
    count_from,
    digests_of,
    locations_of,
    within,
    without,
)
from hand_off.foundations import DIGEST_BYTES

HASHES = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=30)
DIGESTS = st.sampled_from([b"\0", b"\1", b"a", b"a\0", b"\0a", b"\xff", b"b" * 31, b"b" * 16 + b"\0c"])
"""Beginnings, which zeros fill: few, so that they meet, and alike for whoever cuts off the zeros at an end."""
ROWS = st.lists(st.tuples(DIGESTS, st.tuples(st.integers(0, 2), st.integers(0, 30))), max_size=20)


def as_events(rows: list[tuple[bytes, tuple[int, int]]]) -> Events:
    locations = pa.table({
        "hash": [0] * len(rows), "partition": [row[1][0] for row in rows], "offset": [row[1][1] for row in rows],
    }, schema=HASHES_SCHEMA)  # fmt: skip
    return Events(len(rows), locations, as_digests(rows), locations, locations)


def as_digests(rows: list[tuple[bytes, tuple[int, int]]]) -> duplicates_in_memory.Digests:
    half = len(rows) // 2
    chunks = [pa.array([row[0].ljust(ID_BYTES, b"\0") for row in part], pa.binary()) for part in (rows[:half], rows)]
    return digests_of(pa.chunked_array([chunks[0], chunks[1][half:]]), ID_BYTES)


@pytest.mark.parametrize("size", [1, 3, 1_000])
@given(values=HASHES, wanted=HASHES.filter(bool))
def test_hashes_are_found_in_slices_of_any_size(size: int, values: list[int], wanted: list[int]) -> None:
    old, new = np.array(values, np.int64), np.array(wanted, np.int64)
    patch = pytest.MonkeyPatch()
    patch.setattr(duplicates_in_memory, "SLICE", size)
    found = duplicates_in_memory._places(old, np.sort(new))
    patch.undo()
    assert found.tolist() == np.flatnonzero(np.isin(old, new)).tolist()


@given(ROWS)
def test_first_event_of_each_id_is_no_duplicate_of_those_beside_it(rows: list[tuple[bytes, tuple[int, int]]]) -> None:
    ids = [row[0].ljust(ID_BYTES, b"\0") for row in rows]
    assert within(as_events(rows)).tolist() == [each in ids[:number] for number, each in enumerate(ids)]


@given(new=ROWS, old=ROWS)
def test_events_are_compared_with_the_lowest_of_the_earlier_ones(
    new: list[tuple[bytes, tuple[int, int]]], old: list[tuple[bytes, tuple[int, int]]]
) -> None:
    before = sorted(old, key=lambda row: row[1])
    lowest = {digest.ljust(ID_BYTES, b"\0"): location for digest, location in reversed(before)}
    partitions, offsets = (np.array([row[1][place] for row in before], np.int64) for place in (0, 1))
    met = duplicates_in_memory._compared(as_events(new), Before(as_digests(before), partitions, offsets))
    wanted = [(digest.ljust(ID_BYTES, b"\0"), location) for digest, location in new]
    assert met.duplicates.tolist() == [digest in lowest for digest, _ in wanted]
    assert met.lower.tolist() == [digest in lowest and location < lowest[digest] for digest, location in wanted]


@pytest.mark.parametrize("size", [1, 1_000])
def test_removed_events_are_known_by_the_beginning_of_their_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(duplicates_in_memory, "SLICE", size)
    ids = [bytes([number]) * DIGEST_BYTES + bytes([9 - number]) * DIGEST_BYTES for number in (3, 0, 1, 0, 2)]
    for name, numbers in (("a", (1, 7)), ("b", (0, 9))):
        digests = [bytes([number]) * DIGEST_BYTES for number in numbers]
        pq.write_table(pa.table({"digest": pa.array(digests, pa.binary())}), tmp_path / name)
    files = [tmp_path / "a", tmp_path / "b"]
    found = duplicates_in_memory._among(files, digests_of(pa.chunked_array([ids], pa.binary()), ID_BYTES))
    assert found.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("at_once", [1, 2, 6])
def test_valid_events_are_in_the_order_of_their_locations_with_what_belongs_to_them(at_once: int) -> None:
    """Spark gives records in any order, and in several batches."""
    records = [(1, 4, "e", True), (0, 7, "b", True), (1, 3, None, False), (0, 2, "a", True), (1, 0, "c", True)]
    found = pa.table({
        "partition": pa.array([each[0] for each in records], pa.int32()),
        "offset": pa.array([each[1] for each in records], pa.int64()),
        "hash": pa.array([each[0] * 10 + each[1] for each in records], pa.int64()),
        "digest": pa.array([each[2] and each[2].encode() * ID_BYTES for each in records], pa.binary()),
        "valid": [each[3] for each in records],
        "url": [each[2] for each in records],
    })  # fmt: skip
    found = pa.Table.from_batches(found.to_batches(max_chunksize=at_once))
    events = duplicates_in_memory.events_of(found, has_values=True)
    assert events.records == len(records)
    assert events.hashes.to_pydict() == {"hash": [2, 7, 10, 14], "partition": [0, 0, 1, 1], "offset": [2, 7, 0, 4]}
    assert events.digests.tolist() == [letter * ID_BYTES for letter in (b"a", b"b", b"c", b"e")]
    assert events.values["url"].to_pylist() == ["a", "b", "c", "e"]
    assert sorted(zip(*events.everywhere.to_pydict().values(), strict=True)) == sorted(each[:2] for each in records)
    twice = np.array([False, True, False, True])
    assert without(events, twice)["url"].to_pylist() == ["a", "c"]
    assert locations_of(events, twice).to_pydict() == {"partition": [0, 1], "offset": [7, 4]}


@pytest.mark.parametrize("batches", [[], None])
def test_records_without_a_valid_event_are_counted(batches: list[pa.RecordBatch] | None) -> None:
    schema = pa.schema([
        ("partition", pa.int32()), ("offset", pa.int64()), ("hash", pa.int64()), ("digest", pa.binary()),
        ("valid", pa.bool_()),
    ])  # fmt: skip
    if batches is None:
        batches = [pa.record_batch([[0], [5], [1], pa.array([None], pa.binary()), [False]], schema=schema)]
    events = duplicates_in_memory.events_of(pa.Table.from_batches(batches, schema), has_values=False)
    assert (events.records, events.hashes.num_rows) == (len(batches), 0)
    assert within(events).tolist() == []


def test_records_are_counted_from_a_cut_on() -> None:
    records = pa.table({"partition": [0, 0, 1, 1, 2], "offset": [4, 5, 0, 1, 7]})
    assert count_from(records, {0: 5, 1: 1}) == 3
    assert count_from(records.slice(0, 0), {}) == 0
