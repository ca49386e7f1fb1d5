"""The law of pages in the order of keys: the states that are kept are those of the first keys of both views."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hand_off.speed_views import State
from serving_layer.query.page_by_key import first_states
from tests.tiers import times

LAW = settings(max_examples=times(150, 5000), deadline=None)
KEYS = st.binary(min_size=1, max_size=2)
STATES = st.lists(st.tuples(st.integers(0, 3), KEYS, st.binary(max_size=1)), max_size=40)


@LAW
@given(batch=STATES, speed=STATES, after=st.just(b"") | KEYS, count=st.integers(1, 8), is_sorted=st.booleans())
def test_the_states_of_the_first_keys_are_kept(
    batch: list[State], speed: list[State], after: bytes, count: int, *, is_sorted: bool
) -> None:
    if is_sorted:
        batch.sort(key=lambda state: state[1])
    first = sorted({key for _, key, _ in [*batch, *speed] if key > after})[:count]
    found = first_states(batch, speed, after, count)
    for kept, given_states in zip(found, (batch, speed), strict=True):
        assert sorted(kept) == sorted(state for state in given_states if state[1] in first)


@LAW
@given(batch=STATES, count=st.integers(1, 8))
def test_states_of_one_key_stay_in_their_order(batch: list[State], count: int) -> None:
    kept, _ = first_states(batch, [], b"", count)
    for key in {state[1] for state in kept}:
        assert [state for state in kept if state[1] == key] == [state for state in batch if state[1] == key]
