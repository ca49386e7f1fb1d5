"""The law of rankings: the keys that are chosen by numbers hold all that a look at every key puts on the page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hand_off.speed_views import State
from serving_layer.query import top_keys, top_keys_by_rank
from serving_layer.query.top_keys_by_rank import Ranking
from tests.tiers import times
from views.aggregates.counting import CountAlgebra
from views.states import HeadReader

KEYS = [b"%c" % letter for letter in range(ord("a"), ord("z") + 1)]
NUMBERS = st.integers(-1000, 1000) | st.sampled_from([0, 1, 2**40, -(2**40)])
BY_KEY = st.dictionaries(st.sampled_from(KEYS), NUMBERS)
EQUAL = st.dictionaries(st.sampled_from(KEYS), st.integers(-1, 2))
CLOSE = st.dictionaries(st.sampled_from(KEYS[:6]), st.integers(-2, 12), min_size=3)
LAW = settings(max_examples=times(150, 5000), deadline=None)


@dataclass(frozen=True)
class Batch:
    """The numbers of the batch view, as the read index has them."""

    by_key: dict[bytes, int]
    values: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.array([*self.by_key.values()], np.int64))

    def key(self, place: int) -> bytes:
        return [*self.by_key][place]

    def place(self, key: bytes) -> int | None:
        return [*self.by_key].index(key) if key in self.by_key else None

    def first(self, places: Any, count: int) -> list[int] | None:
        return sorted(places.tolist(), key=self.key)[:count]


def first(batch: dict[bytes, int], speed: dict[bytes, int], count: int) -> set[bytes]:
    """By looking at all: those that can be among the first, whatever decides between equal ones."""
    totals = {key: batch.get(key, 0) + speed.get(key, 0) for key in {*batch, *speed}}
    least = sorted(totals.values(), reverse=True)[:count][-1:] or [0]
    return {key for key, total in totals.items() if total >= least[0]}


DEPTHS = st.sampled_from([(), (2,), (3, 5), top_keys.DEPTHS])


def chosen(
    batch: dict[bytes, int], speed: dict[bytes, int], count: int, depths: tuple[int, ...], *, by_key: bool = False
) -> set[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_keys, "DEPTHS", depths)
        found = top_keys.candidates(Batch(batch), speed, b"", count=count, highest=None, by_key=by_key)
    assert found is not None
    assert len(found) == len({*found})
    return {*found}


@LAW
@given(batch=BY_KEY | CLOSE, speed=BY_KEY | CLOSE, count=st.integers(1, 6), depths=DEPTHS)
def test_the_candidates_hold_the_first(
    batch: dict[bytes, int], speed: dict[bytes, int], count: int, depths: tuple[int, ...]
) -> None:
    assert chosen(batch, speed, count, depths) == first(batch, speed, count)


def test_few_keys_are_looked_up_where_few_are_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {b"%05d" % number: 1_000_000 // (number + 1) for number in range(10_000)}
    speed = {key: number // 3 for key, number in batch.items()}
    looked: list[int] = []
    monkeypatch.setattr(Batch, "key", lambda self, place: looked.append(place) or [*self.by_key][place])
    found = top_keys.candidates(Batch(batch), speed, b"", count=11, highest=None)
    assert found is not None
    assert {*found} == first(batch, speed, 11)
    assert len(looked) <= top_keys.DEPTHS[0]


def test_a_key_is_not_judged_by_its_speed_view_alone() -> None:
    batch = {b"a": 1000, b"b": 450, b"c": 440, b"d": 430, b"k": -1000, b"l": -1000}
    found = top_keys.candidates(Batch(batch), {b"k": 500, b"l": 500}, b"", count=3, highest=None)
    assert found is not None
    assert {*found} == {b"a", b"b", b"c"}


def first_by_key(batch: dict[bytes, int], speed: dict[bytes, int], count: int) -> set[bytes]:
    """By looking at all: the first, where equal ones come in the order of their keys."""
    totals = {key: batch.get(key, 0) + speed.get(key, 0) for key in {*batch, *speed}}
    return {*sorted(totals, key=lambda key: (-totals[key], key))[:count]}


@LAW
@given(batch=BY_KEY | EQUAL | CLOSE, speed=BY_KEY | EQUAL | CLOSE, count=st.integers(1, 6), depths=DEPTHS)
def test_the_candidates_are_the_first_by_number_and_key(
    batch: dict[bytes, int], speed: dict[bytes, int], count: int, depths: tuple[int, ...]
) -> None:
    assert chosen(batch, speed, count, depths, by_key=True) == first_by_key(batch, speed, count)


@LAW
@given(
    batch=BY_KEY | EQUAL,
    cells=st.lists(BY_KEY | EQUAL, max_size=4),
    count=st.integers(1, 4),
    depth=st.integers(1, 5),
    by_key=st.booleans(),
)
def test_what_ranks_decide_is_right(
    batch: dict[bytes, int], cells: list[dict[bytes, int]], count: int, depth: int, by_key: bool
) -> None:
    """With as few keys looked at as possible. `None` may be said at any time; it is not the whole story (see below)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_keys_by_rank, "EXTRA_STATES", 0)
        known, rest, last, _ = top_keys_by_rank._first(Batch(batch), count, by_key=by_key)
        reader = HeadReader({"n": CountAlgebra()}, "n")
        made = Ranking(1, count, known, rest, Batch(batch), reader, last, by_key)
        found = made.decided(*_looked_at(cells, [*known], depth))
    speed: dict[bytes, int] = {}
    for cell in cells:
        for key, number in cell.items():
            speed[key] = speed.get(key, 0) + number
    if found is not None and by_key:
        assert first_by_key(batch, speed, count) <= found <= first(batch, speed, count)
    assert found is None or by_key or found == first(batch, speed, count)


def test_a_page_of_equal_numbers_is_decided_by_keys() -> None:
    """Thousands of keys have the same number: only the order of keys says which come first."""
    cells = [dict.fromkeys(KEYS, 1), dict.fromkeys(KEYS[3:], 1)]
    for batch in ({}, dict.fromkeys(KEYS, 1)):
        known, rest, last, _ = top_keys_by_rank._first(Batch(batch), 8, by_key=True)
        made = Ranking(1, 3, known, rest, Batch(batch), HeadReader({"n": CountAlgebra()}, "n"), last, by_key=True)
        assert made.decided(*_looked_at(cells, [*known], 8)) == {b"d", b"e", b"f"}
        assert made.decided(*_looked_at(cells[:1], [*known], 8)) == {b"a", b"b", b"c"}
        assert replace(made, by_key=False).decided(*_looked_at(cells, [*known], 8)) is None


def _looked_at(cells: list[dict[bytes, int]], keys: list[bytes], depth: int) -> tuple[list[State], float, list[bytes]]:
    """What answer.lua gives."""
    asked, rest, lasts = dict.fromkeys(keys), 0, []
    for cell in cells:
        ordered = sorted(cell, key=lambda key: (-cell[key], key))
        asked |= dict.fromkeys(ordered[:depth])
        if len(ordered) > depth and cell[ordered[depth - 1]] > 0:
            rest += cell[ordered[depth - 1]]
            lasts.append(ordered[depth - 1])
    return [(0, key, b"\x01%d\n" % cell[key]) for cell in cells for key in asked if key in cell], rest, lasts


def test_a_clear_page_is_decided_and_a_close_one_is_not() -> None:
    batch = {key: 1000 - 10 * place for place, key in enumerate(KEYS)}
    known, rest, *_ = top_keys_by_rank._first(Batch(batch), 8, by_key=False)
    made = Ranking(1, 3, known, rest, Batch(batch), HeadReader({"n": CountAlgebra()}, "n"))
    assert rest == 920
    assert made.decided(*_looked_at([dict.fromkeys(KEYS, 5)], [*known], 2)) == {b"a", b"b", b"c"}
    assert made.decided(*_looked_at([dict.fromkeys(KEYS, 500)], [*known], 2)) == {b"a", b"b", b"c"}
    assert made.decided(*_looked_at([{key: 500 if key > b"m" else 0 for key in KEYS}], [*known], 2)) is None
    assert made.decided([], -1) is None, "nobody knows what the others have"
    assert made.decided([], 2.0**60) is None, "such numbers are rounded"


@LAW
@given(
    few=st.lists(NUMBERS, max_size=60),
    equal=st.integers(0, 2_000),
    number=st.integers(-2, 3),
    share=st.floats(0, 1),
)
def test_the_nth_largest_is_that_of_sorted_numbers(few: list[int], equal: int, number: int, share: float) -> None:
    values = [*few[::2], *[number] * equal, *few[1::2], 0]
    count = 1 + int(share * (len(values) - 1))
    assert top_keys.nth_largest(np.array(values, np.int64), count) == sorted(values, reverse=True)[count - 1]
