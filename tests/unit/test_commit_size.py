"""How many records go into one commit, judged by the bytes of the one before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master_dataset.archiver.commit_size import FIRST_RECORDS, TRUST, next_end
from master_dataset.cut import Cut, count_between, is_below
from master_dataset.table.coverage import follow
from master_dataset.table.proofs import Kind, Proof

cuts = st.fixed_dictionaries({0: st.integers(0, 10**7), 1: st.integers(0, 10**7)})


def proof(rows: int, raw_bytes: int, offsets: int | None = None) -> Proof:
    """So many rows, on as many offsets if not said otherwise."""
    end = {0: 7 + (rows if offsets is None else offsets)}
    return Proof(Kind.APPEND, start={0: 7}, end=end, rows=rows, raw_bytes=raw_bytes)


@pytest.mark.parametrize(
    ("last", "end", "expected"),
    [
        (proof(0, 0), {0: FIRST_RECORDS}, {0: FIRST_RECORDS}),  # nothing is known: some on trust
        (proof(0, 0), {0: 2 * FIRST_RECORDS}, {0: FIRST_RECORDS}),
        (proof(50, 500), {0: 100}, {0: 100}),  # 100 of 10 bytes are just 1,000 bytes
        (proof(50, 500), {0: 101}, {0: 51}),  # two equal ones, not 100 and 1
        (proof(50, 500), {0: 100, 1: 100}, {0: 50, 1: 50}),
        (proof(1, 5_000), {0: 7}, {0: 1}),  # a record larger than the bound is a commit of its own
        (proof(1, 1), {0: 10 * FIRST_RECORDS}, {0: FIRST_RECORDS}),  # one tiny record does not speak for 10,000
        (proof(10_000, 0), {0: 10_000 * TRUST}, {0: 10_000 * TRUST}),  # records without key and value have no bytes
        (proof(10, 100, offsets=1_000), {0: 10_000}, {0: 10_000}),  # sparse offsets: 1 of 100 is a record
        (proof(10, 100, offsets=1_000), {0: 10_001}, {0: 5_001}),
        (proof(1, 0, offsets=10_000), {0: 1_000_000}, {0: 1_000_000}),
    ],
)
def test_a_commit_holds_about_so_many_bytes(last: Proof, end: Cut, expected: Cut) -> None:
    assert next_end(dict.fromkeys(end, 0), end, 1_000, last) == expected


def test_the_last_commit_that_has_records_speaks_for_what_comes() -> None:
    some, none = proof(10, 100), proof(0, 0, offsets=50)
    others = {3: none, 4: Proof(Kind.COMPACT, rows=10), 5: Proof(Kind.REPAIR, rows=3), 6: Proof(Kind.LOST, end={0: 9})}
    assert follow({1: proof(5, 5), 2: some, **others}).last_with_rows == some
    assert follow(others).last_with_rows is follow({}).last_with_rows is None


@given(start=cuts, size=cuts, rows=st.integers(0, 10**6), raw_bytes=st.integers(0, 10**9))
def test_every_commit_goes_forward_and_not_too_far(start: Cut, size: Cut, rows: int, raw_bytes: int) -> None:
    end = {p: start[p] + size[p] for p in start}
    step = next_end(start, end, 1_000_000, proof(rows, raw_bytes))
    assert is_below(start, step)
    assert is_below(step, end)
    assert start == end or count_between(start, step) > 0
