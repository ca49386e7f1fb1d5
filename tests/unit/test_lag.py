"""How old the news of the speed views are: never younger than they are, and known as soon as it can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hand_off.lag import MAX_ENDS, EndHistory, KafkaEnd, Lag, lag
from master_dataset.cut import Cut, count_between


def test_before_the_first_look_nothing_is_said() -> None:
    assert EndHistory().report({0: 5}, 1.0) is None


def test_what_is_applied_is_as_old_as_the_newest_look_that_it_has_passed() -> None:
    history = EndHistory()
    history.add({0: 5, 1: 1}, 10.0)
    assert history.report({0: 4, 1: 1}, 11.0) == KafkaEnd({0: 5, 1: 1}, 1.0, {0: 4, 1: 1}, None)
    history.add({0: 6, 1: 1}, 20.0)
    history.add({0: 9, 1: 1}, 30.0)
    assert history.report({0: 7, 1: 1}, 31.0) == KafkaEnd({0: 9, 1: 1}, 1.0, {0: 7, 1: 1}, 11.0)
    assert history.report({0: 9, 1: 1}, 32.0) == KafkaEnd({0: 9, 1: 1}, 2.0, {0: 9, 1: 1}, 2.0)
    assert history.report({0: 2}, 33.0) == KafkaEnd({0: 9, 1: 1}, 3.0, {0: 2}, None), "Redis fell back"


def test_a_writer_that_is_far_behind_keeps_some_looks() -> None:
    history = EndHistory()
    for number in range(5 * MAX_ENDS):
        history.add({0: 10 + number}, float(number))
    assert len(history.ends) <= MAX_ENDS
    reported = history.report({0: 10}, 5.0 * MAX_ENDS)
    assert reported is not None
    assert (reported.applied_age_s, reported.age_s) == (5.0 * MAX_ENDS, 1.0), "the first and the last are there"


@given(
    ends=st.lists(st.integers(0, 9), min_size=1, max_size=12).map(sorted),
    spoke=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    applied=st.integers(0, 12),
)
def test_a_reader_never_takes_the_news_for_younger_than_they_are(
    ends: list[int], spoke: tuple[int, int], applied: int
) -> None:
    """Kafka ended at ends[n] at second n. The writer speaks, and the reader reads, at second len(ends)."""
    history = EndHistory()
    now = float(len(ends))
    for at, end in enumerate(ends):
        history.add({0: end}, float(at))
    for then in sorted(spoke):
        reported = history.report({0: then}, now)
    assert reported is not None
    found = lag({0: applied}, reported)
    assert found.events == max(ends[-1] - applied, 0)
    if found.seconds is not None:
        assert ends[int(now - found.seconds)] <= applied, "it held less than Kafka had then"
    if applied >= max(spoke):
        fresh = [at for at, end in enumerate(ends) if end <= max(spoke)]
        assert (found.seconds is None) == (not fresh and applied < ends[-1])


def test_the_end_counts_in_every_partition() -> None:
    end: Cut = {0: 3, 1: 3}
    assert lag({0: 9}, KafkaEnd(end, 1.0, {0: 3}, 7.0)) == Lag(count_between({0: 9}, end), 7.0) == Lag(3, 7.0)
    assert lag({0: 9, 1: 3}, KafkaEnd(end, 1.0, {0: 3}, 7.0)) == Lag(0, 1.0)
