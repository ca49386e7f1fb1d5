"""How many events a micro-batch may have: bounded by their bytes, whatever was tried before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speed_layer.batch_size import FIRST_EVENTS, MIN_EVENTS, BatchSize

MB = 1_000_000


def test_a_backlog_of_unknown_events_begins_small_and_goes_on_as_large_as_they_allow() -> None:
    sizes = BatchSize(100_000, 128 * MB)
    assert sizes.limit(waiting=100) == 100_000, "nothing large can wait"
    assert sizes.limit(waiting=10**6) == FIRST_EVENTS
    sizes.record(FIRST_EVENTS, FIRST_EVENTS * 500)
    assert not sizes.suits(FIRST_EVENTS, FIRST_EVENTS, FIRST_EVENTS * 500, 1), "it is too slow"
    assert sizes.limit(waiting=10**6) == 100_000
    assert sizes.suits(100_000, 100_000, 50 * MB, 1)


def test_a_full_micro_batch_may_be_smaller_than_its_limit() -> None:
    """Of 1,000 events Spark takes 999 from three partitions: 333 from each."""
    sizes = BatchSize(100_000, 128 * MB)
    sizes.record(999, 999 * 500)
    assert not sizes.suits(FIRST_EVENTS, 999, 999 * 500, 1)
    assert not sizes.suits(FIRST_EVENTS, FIRST_EVENTS // 2, 500 * 500, 1), "every share was rounded down from 1.99 to 1"
    assert sizes.suits(FIRST_EVENTS, FIRST_EVENTS // 2 - 1, 499 * 500, 1)


def test_large_events_make_small_micro_batches() -> None:
    sizes = BatchSize(100_000, 128 * MB)
    sizes.record(FIRST_EVENTS, FIRST_EVENTS * 200_000)
    assert sizes.limit(waiting=10**6) == 640
    assert not sizes.suits(FIRST_EVENTS, FIRST_EVENTS, 200 * MB, 1), "it is too large"
    assert sizes.suits(100_000, 20, 4 * MB, 1), "as long as few come at a time, nothing has to change"
    sizes.record(10, 10 * 100 * MB)
    assert sizes.limit(waiting=10**6) == MIN_EVENTS


def test_after_large_events_the_limit_returns() -> None:
    sizes = BatchSize(100_000, 128 * MB)
    sizes.record(10, 10 * 200_000)
    for _ in range(60):
        sizes.record(1_000, 300_000)
    assert sizes.limit(waiting=10**6) == 100_000
    assert sizes.suits(640, 300, 90_000, 30), "it is not full, so a larger one would change nothing"
    assert not sizes.suits(640, 640, 192_000, 30)


def test_one_that_failed_is_tried_with_fewer_until_enough_succeeded() -> None:
    sizes = BatchSize(100_000, 128 * MB)
    assert sizes.adapt(applied=0, tried=80_000)
    assert sizes.limit(0) == 40_000
    assert sizes.adapt(applied=3, tried=40_000)
    assert sizes.limit(0) == 20_000
    sizes.record(20_000, 20_000 * 300)
    assert sizes.suits(20_000, 20_000, 6 * MB, 3), "not yet"
    assert not sizes.adapt(applied=0, tried=MIN_EVENTS)
    assert not sizes.adapt(applied=21, tried=0)
    assert sizes.limit(0) == 100_000


def test_a_query_with_few_events_since_failures_ends_once_enough_succeeded_and_more_wait() -> None:
    """A healthy query never ends by itself: nothing else would let it take more again."""
    sizes = BatchSize(100_000, 128 * MB)
    for _ in range(20):
        sizes.adapt(applied=0, tried=sizes.limit(0))
    limit = sizes.limit(0)
    assert limit == MIN_EVENTS
    sizes.record(limit, limit * 300)
    assert sizes.suits(limit, limit, limit * 300, applied=20)
    assert sizes.suits(limit, limit // 2 - 1, limit * 300, applied=21), "it keeps up"
    assert not sizes.suits(limit, limit, limit * 300, applied=22)
    assert sizes.limit(0) == 100_000


@given(st.lists(st.tuples(st.integers(1, 10**5), st.integers(0, 10**6)), max_size=20), st.integers(0, 10**7))
def test_a_limit_keeps_to_events_and_bytes(batches: list[tuple[int, int]], waiting: int) -> None:
    sizes = BatchSize(50_000, 64 * MB)
    for events, each in batches:
        sizes.record(events, events * each)
    limit = sizes.limit(waiting)
    assert 1 <= limit <= 50_000
    if batches and limit > MIN_EVENTS:
        assert limit * batches[-1][1] <= 64 * MB
