"""States merged many at a time are those that the algebras merge one by one, and damaged ones are refused alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_layer.index import segments
from batch_layer.index.segments import merge_segments, one_by_one
from batch_layer.index.shape import Shape
from batch_layer.index.state_columns import WORTH_COLUMNS, join_states, split_states
from tests.tiers import times
from views import aggregates, in_memory
from views.aggregates import (
    Average,
    Count,
    DecayedRate,
    Distinct,
    First,
    FirstK,
    Histogram,
    Kurtosis,
    Largest,
    Last,
    LastK,
    Max,
    Min,
    Quantiles,
    Skewness,
    Smallest,
    StdDev,
    Sum,
    TopK,
    Trend,
    UniqueValues,
    ValueCounts,
    Variance,
)
from views.errors import StateError
from views.sample_events import generate
from views.source import Source
from views.states import join, kinds_of, pack, split, unpack
from views.view import View

SOURCE = Source(
    "values",
    fields="event_id string, event_time timestamp, small int, big bigint, x double, price decimal(10,2), text string",
)
VIEW = View(
    "all",
    source=SOURCE,
    grain="1h",
    keys={"text": "text"},
    answers={
        "events": Count(), "some": Count("x", where="small > 0"), "whole": Sum("small"), "wide": Sum("big"),
        "money": Sum("price"), "double": Sum("x"), "mean": Average("x"), "mean_money": Average("price"),
        "mean_whole": Average("small"), "mean_wide": Average("big"), "spread": Variance("small"),
        "deviation": StdDev("x"),
        "skew": Skewness("small", where="abs(small) < 1000"), "skew_x": Skewness("x"),
        "tails": Kurtosis("small"), "tails_x": Kurtosis("x"),
        "users": Distinct("text"), "precise": Distinct("big", precision=14),
        "few": Distinct("text", exact=True, at_most=3), "latency": Quantiles("x"), "median": Quantiles("small", at=0.5),
        "never": Quantiles("x", where="small > 2147483646"), "top": TopK("text", k=2), "least": Min("price"),
        "most": Max("text"), "first": First("x"), "last": Last("big"),
        "lowest": Min("x"), "highest": Max("big"), "latest": Max("event_time"),
        "firsts": FirstK("text", k=2), "lasts": LastK("x", k=3), "largest": Largest("price", k=2),
        "smallest": Smallest("text", k=2),
        "slope": Trend("big"), "slope_x": Trend("x"),
        "rate": DecayedRate(), "rate_x": DecayedRate("x"), "values": ValueCounts("text"),
        "some_values": ValueCounts("big", at_most=9), "unique": UniqueValues("small"),
        "last_text": Last("text", where="small > 0"), "sizes": Histogram("x", bounds=(0, 10)),
    },
)  # fmt: skip
ALGEBRAS = VIEW.algebras
KINDS = kinds_of(ALGEBRAS)


def packed(seed: int, events: int = 150) -> list[bytes]:
    """States of few and of many events; one of them has none."""
    records = generate(SOURCE, events, seed, views=[VIEW], duplicates=0)
    folded = in_memory.fold(VIEW, [record.event for record in records])
    nothing = {name: algebra.zero() for name, algebra in ALGEBRAS.items()}
    return [pack(ALGEBRAS, state) for state in (*folded.values(), nothing)]


def presented(state: bytes) -> dict[str, Any]:
    return {name: algebra.present(unpack(ALGEBRAS, state)[name]) for name, algebra in ALGEBRAS.items()}


def test_view_has_every_aggregate() -> None:
    assert {type(each) for each in VIEW.answers.values()} == {
        each for name in aggregates.__all__ if isinstance(each := getattr(aggregates, name), type)
        and issubclass(each, aggregates.Aggregate) and each is not aggregates.Aggregate
    }  # fmt: skip


@settings(max_examples=times(10, 200), deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_segments_are_merged_as_one_by_one(seed: int, data: st.DataObject) -> None:
    """With large whole numbers too: sums beyond 64 bits stay exact."""
    states = data.draw(st.permutations(packed(seed)))
    starts = np.array(sorted({0, *data.draw(st.sets(st.integers(0, len(states) - 1)))}))
    columns = split_states(KINDS, pa.array(states, pa.binary()))
    found = join_states(KINDS, merge_segments(ALGEBRAS, columns, starts)).to_pylist()
    bounds = list(zip(starts, [*starts[1:], len(states)], strict=True))
    assert len(found) == len(bounds)
    for state, (start, end) in zip(found, bounds, strict=True):
        several = [unpack(ALGEBRAS, each) for each in states[start:end]]
        answers = presented(state)
        for name, algebra in ALGEBRAS.items():
            expected = algebra.present(algebra.merge_all([each[name] for each in several]))
            assert answers[name] == (
                pytest.approx(expected, rel=1e-9, abs=1e-9) if isinstance(expected, float) else expected
            ), name


def test_segments_of_one_state_stay_as_they_are() -> None:
    states = pa.array(packed(1), pa.binary())
    shape = Shape.of(VIEW)
    starts = np.array([0, 1, 2, 5, *range(6, len(states))])
    merged, columns = shape.merged(states, shape.split(states), starts)
    assert join_states(KINDS, columns).to_pylist() == merged.to_pylist()
    singles = [place for place in range(len(starts)) if place != 2]
    assert merged.take(singles).to_pylist() == states.take([int(starts[place]) for place in singles]).to_pylist()


SLOW = {"money", "mean_money", "wide", "mean_wide", "spread", "tails", "never", "least", "most"}
"""Sums that are beyond 64 bits, decimals, texts, and an answer without a value."""


@pytest.mark.parametrize(
    "name", [name for name in ALGEBRAS if type(ALGEBRAS[name]) in segments._WAYS and name not in SLOW]
)
def test_quick_ways_are_taken(name: str) -> None:
    algebra = ALGEBRAS[name]
    states = [unpack(ALGEBRAS, state) for state in packed(3)]
    rows = [algebra.to_parts(state[name]) for state in states]
    columns = [
        pa.array(column, pa.string() if kind == "t" else pa.binary())
        for kind, column in zip(algebra.kinds, zip(*rows, strict=True), strict=True)
    ]
    starts = np.array([0, 3])
    found = segments._WAYS[type(algebra)](algebra, columns, starts)
    assert found is not None
    assert [each.type for each in found] == [each.type for each in one_by_one(algebra, columns, starts)]


@pytest.mark.parametrize("name", ["latency", "top"])
def test_tables_as_spark_writes_them_are_merged_the_quick_way(name: str) -> None:
    """They end with some unused bytes, which a merged table does not have."""
    algebra: Any = ALGEBRAS[name]
    rows = [algebra.to_parts(unpack(ALGEBRAS, state)[name]) for state in packed(3)]
    rows = [row for row in rows if isinstance(row[-1], bytes)]
    starts = np.array([0, 2, 7])
    longer = pa.array([row[-1] + bytes(8) for row in rows], pa.binary())
    found = segments._WAYS[type(algebra)](algebra, [*map(pa.array, list(zip(*rows, strict=True))[:-1]), longer], starts)
    assert found is not None
    for place, (start, end) in enumerate([(0, 2), (2, 7), (7, len(rows))]):
        expected = algebra.merge_all([algebra.from_parts(row) for row in rows[start:end]])
        assert algebra.present(algebra.from_parts([column[place].as_py() for column in found])) == algebra.present(
            expected
        )


# ---- bytes -------------------------------------------------------------------------


@settings(max_examples=times(10, 200), deadline=None)
@given(seed=st.integers(0, 2**32), start=st.integers(0, 20))
def test_parts_are_those_of_each_state(seed: int, start: int) -> None:
    states = packed(seed)
    column = pa.array(states, pa.binary()).slice(start)
    columns = split_states(KINDS, column)
    assert [list(row) for row in zip(*(each.to_pylist() for each in columns), strict=True)] == [
        split(KINDS, state) for state in states[start:]
    ]
    assert join_states(KINDS, columns).to_pylist() == states[start:]


@settings(max_examples=times(60, 2_000), deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_states_are_refused_as_one_by_one(place: float, byte: int, cut: bool) -> None:
    whole = STATES[1]
    at = int(place * len(whole))
    damaged = whole[:at] if cut else whole[:at] + bytes([byte]) + whole[at + 1 :]
    states = [*[STATES[0]] * WORTH_COLUMNS, damaged, STATES[2]]
    try:
        expected = [split(KINDS, state) for state in states]
    except StateError:
        with pytest.raises(StateError):
            split_states(KINDS, pa.array(states, pa.binary()))
        return
    columns = split_states(KINDS, pa.array(states, pa.binary()))
    assert [list(row) for row in zip(*(each.to_pylist() for each in columns), strict=True)] == expected


STATES = packed(7)


@pytest.mark.parametrize("header", [["1", "2", "3"], ["1", None, "3"], [None, None, None]])
def test_states_of_few_parts_are_split(header: list[str | None]) -> None:
    parts = [header, ["10", "20", None]] * WORTH_COLUMNS
    columns = split_states("ttt", pa.array(map(join, parts), pa.binary()))
    assert [list(row) for row in zip(*(each.to_pylist() for each in columns), strict=True)] == parts


def test_words_that_moved_to_another_header_are_refused() -> None:
    """Both headers together have as many words as two should have."""
    states = [join(["1", "2"]), join(["1", "2", "3", "4"])] * WORTH_COLUMNS
    with pytest.raises(StateError):
        split_states("ttt", pa.array(states, pa.binary()))
