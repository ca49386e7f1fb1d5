"""Seen ids: recent ids are known, ids older than the horizon are forgotten, and Redis stores them as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speed_layer.seen_ids import SLICES, SeenBatch, SeenIds, from_bytes, to_bytes

HORIZON_MS = SLICES * 1000
"""So that a slice is a second."""
SMALLEST, LARGEST = -(2**63), 2**63 - 1
HASHES = st.lists(st.integers(SMALLEST, LARGEST) | st.integers(-3, 3), max_size=12)


def hashes(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def named(name: str, until_ms: int, *numbers: int) -> SeenBatch:
    return SeenBatch(name, until_ms, hashes(*numbers))


def known(seen_ids: SeenIds, *numbers: int) -> list[bool]:
    return seen_ids.known(hashes(*numbers)).tolist()


@pytest.mark.parametrize(
    ("marked", "asked", "expected"),
    [
        ([], [], []),
        ([], [1], [False]),
        ([[]], [0, 1], [False, False]),
        ([[5]], [], []),
        ([[5]], [4, 5, 6], [False, True, False]),
        ([[5], [7, 6]], [7, 5, 7, 8], [True, True, True, False]),
        ([[SMALLEST, LARGEST]], [LARGEST, SMALLEST, 0, -1], [True, True, False, False]),
        ([[3, 3], [3]], [3, 2], [True, False]),
    ],
)
def test_what_was_added_is_known(marked: list[list[int]], asked: list[int], expected: list[bool]) -> None:
    seen_ids = SeenIds(HORIZON_MS)
    for number, each in enumerate(marked):
        seen_ids.add(named(f"m{number}", 1, *each))
    assert known(seen_ids, *asked) == expected
    assert seen_ids.count == sum(map(len, marked))


@given(st.lists(st.tuples(st.integers(0, 5 * HORIZON_MS), HASHES)), HASHES)
def test_marks_are_a_set(added: list[tuple[int, list[int]]], asked: list[int]) -> None:
    seen_ids = SeenIds(HORIZON_MS)
    plain: set[int] = set()
    for number, (until_ms, each) in enumerate(added):
        seen_ids.add(named(f"m{number}", until_ms, *each))
        plain |= set(each)
    asked = [*asked, *sorted(plain)[:5]]
    assert known(seen_ids, *asked) == [each in plain for each in asked]


def test_many_small_additions_leave_few_arrays_to_search() -> None:
    seen_ids = SeenIds(HORIZON_MS)
    for number in range(3_000):
        seen_ids.add(named(f"m{number}", 1, 2 * number))
    (only,) = seen_ids.slices.values()
    assert len(only.sorted) <= 13, "each should be at least twice as long as the next"
    assert all((np.diff(each) > 0).all() for each in only.sorted)
    assert seen_ids.known(np.arange(6_000)).tolist() == [number % 2 == 0 for number in range(6_000)]
    assert seen_ids.count == len(only.names) == 3_000


# ---- the horizon -------------------------------------------------------------


@pytest.mark.parametrize(
    ("oldest_ms", "outdated"),
    [
        (0, []),
        (HORIZON_MS, []),
        (1_000 + HORIZON_MS, []),  # `early` is of the slice that ends at 1000: a record of then is its horizon away
        (1_001 + HORIZON_MS, ["early", "same slice"]),
        (6_000 + HORIZON_MS, ["early", "same slice"]),
        (6_001 + HORIZON_MS, ["early", "same slice", "late"]),
    ],
)
def test_marks_are_forgotten_once_no_record_can_be_within_their_horizon(oldest_ms: int, outdated: list[str]) -> None:
    seen_ids = SeenIds(HORIZON_MS)
    for each in (named("early", 0, 1, 2), named("same slice", 999, 3), named("late", 5_000, 4)):
        seen_ids.add(each)
    assert list(seen_ids.outdated(oldest_ms)) == outdated
    seen_ids.forget(oldest_ms)
    is_kept = ["early" not in outdated] * 2 + ["same slice" not in outdated, "late" not in outdated]
    assert known(seen_ids, 1, 2, 3, 4) == is_kept
    assert seen_ids.count == sum(is_kept)
    assert seen_ids.outdated(oldest_ms) == ()


@given(
    st.integers(1, 100_000),
    st.lists(st.integers(0, 10**13), min_size=1, max_size=30),
    st.integers(0, 10**13),
)
def test_nothing_within_the_horizon_is_forgotten_and_nothing_is_kept_much_longer(
    horizon_ms: int, times_ms: list[int], oldest_ms: int
) -> None:
    seen_ids = SeenIds(horizon_ms)
    for number, until_ms in enumerate(times_ms):
        seen_ids.add(named(f"m{number}", until_ms, number))
    seen_ids.forget(oldest_ms)
    slice_ms = max(horizon_ms // SLICES, 1)
    for number, until_ms in enumerate(times_ms):
        is_kept = known(seen_ids, number) == [True]
        assert is_kept or until_ms + horizon_ms < oldest_ms
        assert not is_kept or until_ms + horizon_ms + 2 * slice_ms >= oldest_ms


def test_a_mark_that_was_added_again_later_lives_as_long_as_the_later_one() -> None:
    seen_ids = SeenIds(HORIZON_MS)
    seen_ids.add(named("first", 0, 7))
    seen_ids.add(named("again", 5_000, 7))
    seen_ids.forget(2_000 + HORIZON_MS)
    assert known(seen_ids, 7) == [True]
    assert seen_ids.count == 1


# ---- bytes -------------------------------------------------------------------


def test_bytes_are_the_time_and_eight_for_each_mark() -> None:
    assert to_bytes(2, hashes(1, -1)).hex() == "0200000000000000" + "0100000000000000" + "ff" * 8


@given(st.lists(st.tuples(st.integers(0, 10**13), HASHES), max_size=8))
def test_marks_come_back_from_bytes_as_they_were(added: list[tuple[int, list[int]]]) -> None:
    seen_ids = SeenIds(HORIZON_MS)
    kept = []
    for number, (until_ms, each) in enumerate(added):
        seen_ids.add(named(f"m{number}", until_ms, *each))
        kept.append((f"m{number}", to_bytes(until_ms, hashes(*each))))
    again = from_bytes(kept, HORIZON_MS)
    assert again.count == seen_ids.count
    for oldest_ms in (0, *(until_ms + HORIZON_MS + 1_001 for until_ms, _ in added)):
        assert again.outdated(oldest_ms) == seen_ids.outdated(oldest_ms)
    asked = sorted({number for _, each in added for number in each})
    assert known(again, *asked) == [True] * len(asked)


def test_marks_from_bytes_can_be_added_to() -> None:
    again = from_bytes([("m0", to_bytes(1, hashes(4, 2)))], HORIZON_MS)
    again.add(named("m1", 1, 3))
    assert known(again, 1, 2, 3, 4) == [False, True, True, True]


def test_the_newest_time_of_any_is_known() -> None:
    seen_ids = SeenIds(1_600)
    seen_ids.add(SeenBatch("a", 5_000, np.array([1], dtype=np.int64)))
    seen_ids.add(SeenBatch("b", 4_000, np.array([2], dtype=np.int64)))
    assert seen_ids.newest_ms == 5_000
