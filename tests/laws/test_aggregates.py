"""The laws of every aggregate: any split, order and duplication gives the same answer, or one within its bound."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from itertools import permutations
from math import ceil, log
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tiers import times
from views import aggregates, in_memory, states
from views.aggregates import (
    Aggregate,
    Algebra,
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
    Position,
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
from views.in_memory import Event
from views.source import Source
from views.view import View

SOURCE = Source(
    "values",
    fields="""
        event_id string, event_time timestamp, small int, big bigint, x double, price decimal(10,2), wide decimal(28,6),
        text string, many string, day date, at timestamp, flag boolean
    """,
)
LARGEST = 2**63 - 1


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    return st.integers(-largest, largest).map(lambda digits: Decimal(digits).scaleb(-scale))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "small": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    "big": st.integers(-LARGEST - 1, LARGEST) | st.integers(-3, 3) | st.sampled_from([LARGEST, -LARGEST - 1]),
    "x": st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.0, -0.0, 0.1, 1e15, 1e16, 1e150, 1.1e150, 1e-9, 9e-10, 100.0, -100.0]),
    "price": decimals(10, 2),
    "wide": decimals(28, 6),
    "text": st.text(max_size=3) | st.sampled_from(["", "a", "b", "é", "😀"]),
    "many": st.integers(0, 60).map(str),
    "day": st.dates(),
    "at": st.datetimes(timezones=st.just(UTC)),
    "flag": st.booleans(),
}
SMALLEST_DOUBLE = Fraction(5e-324)

Values = list[Any]
Near = Callable[[Values, Any], bool]
"""Whether an answer over these values (none is null) is as near to the truth as the aggregate states."""


class Case(NamedTuple):
    """A declaration; `near` is its stated bound, None where every way must give the identical answer."""

    declared: Aggregate
    near: Near | None = None
    near_at: Callable[[Sequence[Placed], Any], bool] | None = None
    """The same over values with their positions."""


def near_sum(values: Values, got: float) -> bool:
    """A sum of n doubles is off by at most n * 2^-52 of the sum of their sizes."""
    kept = [Fraction(value) for value in values if abs(value) <= 1e150]
    return abs(Fraction(got) - sum(kept)) <= len(kept) * Fraction(1, 2**52) * sum(map(abs, kept))


def near_average(values: Values, got: float | None) -> bool:
    """That of the sum, divided by n; the division rounds once more."""
    kept = [Fraction(value) for value in values if abs(value) <= 1e150]
    if not kept or got is None:
        return not kept and got is None
    bound = (len(kept) + 1) * Fraction(1, 2**52) * sum(map(abs, kept)) / len(kept)
    return abs(Fraction(got) - sum(kept) / len(kept)) <= bound + SMALLEST_DOUBLE


def near_variance(values: Values, got: float | None, *, population: bool = False, root: bool = False) -> bool:
    """The sum of squared distances is off by at most n * 2^-50 of the sum of squares, and what no double can hold."""
    kept = [Fraction(value) for value in values if abs(value) <= 1e150]
    below = len(kept) if population else len(kept) - 1
    if below <= 0 or got is None:
        return below <= 0 and got is None
    mean = sum(kept) / len(kept)
    spread = sum((value - mean) ** 2 for value in kept)
    bound = len(kept) * Fraction(1, 2**50) * sum(value * value for value in kept)
    found = Fraction(got) ** 2 if root else Fraction(got)
    return abs(found * below - spread) <= bound + 8 * len(kept) ** 2 * SMALLEST_DOUBLE


def near_shape(power: int) -> Near:
    """Sums of powers of distances are off by at most n * 2^-46 of the sum of powers: some so near give the answer."""

    def near(values: Values, got: float | None) -> bool:
        kept = [Fraction(value) if abs(value) >= 1e-30 else Fraction(0) for value in values if abs(value) <= 1e30]
        mean, n = sum(kept) / Fraction(max(len(kept), 1)), len(kept)
        spread, last = (sum((value - mean) ** each for value in kept) for each in (2, power))
        step = n * Fraction(1, 2**46)
        off, off_last = (step * sum(abs(value) ** each for value in kept) for each in (2, power))
        if spread <= off:
            return True
        if got is None:
            return False
        lasts, twos = (last - off_last, last + off_last), (spread - off, spread + off)
        if power == 3:  # their squares, with their signs: those are rational
            ends = [n * each * abs(each) / two**3 for each in lasts for two in twos]
            found = Fraction(got) * abs(Fraction(got))
        else:
            ends = [n * each / two**2 for each in lasts for two in twos]
            found = Fraction(got) + 3
        slack = n * Fraction(1, 2**40)
        return min(ends) - slack <= found <= max(ends) + slack

    return near


def near_slope(placed: Sequence[Placed], got: float | None) -> bool:
    """The sum of products of distances is off by at most n * 2^-48 of (range + a day) times the sum of sizes."""
    kept = [(at.micros // 1000, Fraction(value)) for value, at in placed if abs(value) <= 1e150]
    times, n = [time for time, _ in kept], len(kept)
    mean = Fraction(sum(times), max(n, 1))
    spread = sum((time - mean) ** 2 for time in times)
    if spread == 0 or got is None:
        return spread == 0 and got is None
    product = sum((time - mean) * value for time, value in kept)
    reach = (max(times) - min(times) + 86_400_000) * sum(abs(value) for _, value in kept)
    return abs(Fraction(got) / 3_600_000 * spread - product) <= n * Fraction(1, 2**48) * reach + SMALLEST_DOUBLE * n


def near_rate(half_life_s: int) -> Callable[[Sequence[Placed], Any], bool]:
    """Each event's weight is off by at most 3 * 10^-7 of it, or was less than 2^-32 of the last one's."""

    def near(placed: Sequence[Placed], got: float | None) -> bool:
        kept = [(at.micros // 1000, Fraction(value)) for value, at in placed if abs(value) <= 1e150]
        if not kept or got is None:
            return not kept and got is None
        last = max(time for time, _ in kept)
        weighted = [(value, 0.5 ** ((last - time) / (1000 * half_life_s))) for time, value in kept]
        per_second = Fraction(log(2) / half_life_s)
        true = sum(value * Fraction(weight) for value, weight in weighted) * per_second
        most = sum(abs(value) * (Fraction(3e-7) * Fraction(weight) + Fraction(1, 2**32)) for value, weight in weighted)
        return abs(Fraction(got) - true) <= most * per_second + SMALLEST_DOUBLE

    return near


def near_top(k: int, room: int) -> Near:
    """Beyond its room a count is too high by at most n / room, and no omitted value has more than the listed ones."""

    def near(values: Values, got: list[dict[str, Any]]) -> bool:
        true, off = Counter(values), len(values) / room
        listed = {entry["value"]: entry["count"] for entry in got}
        right = all(true[value] <= count <= true[value] + off for value, count in listed.items())
        honest = all(count - true[value] <= entry.get("off_by_at_most", 0) <= off
                     for entry in got for value, count in [(entry["value"], entry["count"])])  # fmt: skip
        least = min(listed.values(), default=off) if len(listed) >= min(k, len(true)) else off
        return right and honest and all(true[value] <= least for value in true.keys() - listed.keys())

    return near


def near_population(values: Values, got: float | None) -> bool:
    return near_variance(values, got, population=True)


def near_root(values: Values, got: float | None) -> bool:
    return near_variance(values, got, root=True)


ORDERED = ("big", "x", "price", "text", "day", "at", "flag")
SORTABLE = ORDERED[:-1]
LISTABLE = ("text", "big", "price", "day", "at", "flag")
TABLE: dict[type[Aggregate], list[Case]] = {
    Count: [Case(Count()), *(Case(Count(name)) for name in ORDERED)],
    Sum: [*(Case(Sum(name)) for name in ("small", "big", "price", "wide")), Case(Sum("x"), near_sum)],
    Average: [*(Case(Average(name)) for name in ("small", "big", "price", "wide")), Case(Average("x"), near_average)],
    Variance: [
        Case(Variance("small")),
        Case(Variance("small", population=True)),
        Case(Variance("x"), near_variance),
        Case(Variance("x", population=True), near_population),
        Case(Variance("big"), near_variance),
    ],
    StdDev: [Case(StdDev("small")), Case(StdDev("x"), near_root)],
    Skewness: [Case(Skewness("small")), Case(Skewness("x"), near_shape(3)), Case(Skewness("big"), near_shape(3))],
    Kurtosis: [Case(Kurtosis("small")), Case(Kurtosis("x"), near_shape(4)), Case(Kurtosis("big"), near_shape(4))],
    Min: [Case(Min(name)) for name in ORDERED],
    Max: [Case(Max(name)) for name in ORDERED],
    First: [Case(First(name)) for name in ORDERED],
    Last: [Case(Last(name)) for name in ORDERED],
    FirstK: [*(Case(FirstK(name, k=2)) for name in ORDERED), Case(FirstK("text", k=100))],
    LastK: [*(Case(LastK(name, k=3)) for name in ORDERED), Case(LastK("big", k=1))],
    Largest: [*(Case(Largest(name, k=3)) for name in SORTABLE), Case(Largest("small", k=100))],
    Smallest: [*(Case(Smallest(name, k=3)) for name in SORTABLE), Case(Smallest("text", k=1))],
    Distinct: [
        *(Case(Distinct(name)) for name in ("text", "many", "big", "at", "flag")),
        Case(Distinct("big", precision=4)),
        Case(Distinct("many", precision=21)),
        *(Case(Distinct(name, exact=True)) for name in ("text", "big", "at", "flag")),
        Case(Distinct("many", exact=True, at_most=5)),
    ],
    Quantiles: [
        *(Case(Quantiles(name)) for name in ("x", "big", "small")),
        Case(Quantiles("x", at=0.5, error=0.1)),
        Case(Quantiles("x", at=(0, 0.07, 1), error=0.001)),
    ],
    TopK: [Case(TopK("text")), Case(TopK("many", k=3)), Case(TopK("many", k=2, room=3), near_top(2, 3))],
    ValueCounts: [
        *(Case(ValueCounts(name)) for name in LISTABLE),
        *(Case(ValueCounts(name, at_most=5)) for name in ("many", "small", "text")),
    ],
    UniqueValues: [
        *(Case(UniqueValues(name)) for name in LISTABLE),
        *(Case(UniqueValues(name, at_most=5)) for name in ("many", "small", "flag")),
    ],
    Trend: [Case(Trend("small")), Case(Trend("big")), Case(Trend("x"), near_at=near_slope)],
    DecayedRate: [
        Case(DecayedRate()),
        Case(DecayedRate("small", half_life="1m")),
        Case(DecayedRate("x"), near_at=near_rate(600)),
        Case(DecayedRate("big", half_life="1h"), near_at=near_rate(3600)),
    ],
    Histogram: [
        Case(Histogram("x", bounds=(0,))),
        Case(Histogram("x", bounds=(-1e9, 0.1, 2**53))),
        Case(Histogram("big", bounds=(0, 2**53))),
    ],
}
CASES = [case for cases in TABLE.values() for case in cases]
IDS = [f"{type(case.declared).__name__}-{number}-{case.declared.of}" for number, case in enumerate(CASES)]

Placed = tuple[Any, Position]
"""A value (or None) and where its event stands."""


def test_every_aggregate_is_in_the_table() -> None:
    exported = [getattr(aggregates, name) for name in aggregates.__all__]
    declarable = {kind for kind in exported if issubclass(kind, Aggregate) and kind is not Aggregate}
    assert {*TABLE} == declarable
    assert all(isinstance(case.declared, kind) for kind, cases in TABLE.items() for case in cases)


def test_every_type_that_an_aggregate_takes_is_in_the_table() -> None:
    kinds = {field.name: "bigint" if field.type.kind == "int" else field.type.kind for field in SOURCE.schema}
    for kind, cases in TABLE.items():
        tried = {kinds[case.declared.of] for case in cases if case.declared.of}
        for name in VALUES:
            try:
                View("v", SOURCE, {"a": kind(name) if kind is not Histogram else Histogram(name, bounds=(0,))})
            except Exception:  # noqa: S112  # it does not take this type; test_view.py knows how it says so
                continue
            assert kinds[name] in tried, f"{kind.__name__} takes {name}"


def algebra_of(case: Case) -> Algebra:
    return View("v", SOURCE, {"a": case.declared}).algebras["a"]


def values_of(case: Case) -> st.SearchStrategy[list[Placed]]:
    """Values with nulls, at places of their own, in any order of time."""
    value = st.none() | (VALUES[case.declared.of] if case.declared.of else st.just(True))
    times = st.integers(0, 5)
    if isinstance(case.declared, Trend | DecayedRate):  # steps of 20 minutes, up to a day or months apart
        times |= st.integers(0, 60).map(lambda steps: steps * 1_234_567_890) | st.integers(0, 10**13)
    return st.lists(st.tuples(value, times), max_size=40).map(
        lambda found: [(each, Position(time, number % 3, number)) for number, (each, time) in enumerate(found)]
    )


def fold(algebra: Algebra, placed: Sequence[Placed]) -> Any:
    state = algebra.zero()
    for value, at in placed:
        if value is not None:
            state = algebra.add(state, value, at)
    return state


def split(placed: Sequence[Placed], chance: Random) -> list[list[Placed]]:
    """Any order, any number of parts; some may be empty."""
    parts: list[list[Placed]] = [[] for _ in range(chance.randint(1, 8))]
    for each in chance.sample(placed, len(placed)):
        chance.choice(parts).append(each)
    return parts


def merge_in_any_tree(algebra: Algebra, parts: list[Any], chance: Random) -> Any:
    left = list(parts)
    while len(left) > 1:
        chance.shuffle(left)
        left.append(algebra.merge(left.pop(), left.pop()))
    return left[0]


def assert_right(case: Case, placed: Sequence[Placed], got: Any, wanted: Any) -> None:
    if case.near_at is not None:
        there = [each for each in placed if each[0] is not None]
        assert case.near_at(there, wanted), wanted
        assert case.near_at(there, got), got
    elif case.near is None:
        assert got == wanted
        assert type(got) is type(wanted)
    else:
        values = [value for value, _ in placed if value is not None]
        assert case.near(values, wanted), wanted
        assert case.near(values, got), got


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_any_split_order_and_merge_tree_gives_the_same_answer(case: Case) -> None:
    algebra = algebra_of(case)

    @settings(max_examples=times(8, 100), deadline=None)
    @given(values_of(case), st.randoms(use_true_random=False))
    @example([], Random(0))  # noqa: S311
    @example([(None, Position(0, 0, 0))] * 2, Random(0))  # noqa: S311
    def law(placed: list[Placed], chance: Random) -> None:
        wanted = algebra.present(fold(algebra, placed))
        parts = [fold(algebra, part) for part in split(placed, chance)]
        assert_right(case, placed, algebra.present(merge_in_any_tree(algebra, parts, chance)), wanted)
        through_bytes = [algebra.from_parts(algebra.to_parts(part)) for part in parts]
        assert_right(case, placed, algebra.present(merge_in_any_tree(algebra, through_bytes, chance)), wanted)
        short = [chance.choice((algebra.to_parts, algebra.to_short_parts))(part) for part in parts]
        merged = algebra.merge_parts(list(zip(*short, strict=True)))
        assert_right(case, placed, algebra.present(algebra.from_parts(merged)), wanted)
        before = [algebra.to_parts(part) for part in parts]
        assert_right(case, placed, algebra.present(algebra.merge_all(parts)), wanted)
        merged = algebra.merge_parts(list(zip(*before, strict=True)))
        assert_right(case, placed, algebra.present(algebra.from_parts(merged)), wanted)
        assert [algebra.to_parts(part) for part in parts] == before, "merging all of them changed one"

    law()


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_merge_is_commutative_associative_pure_and_zero_is_neutral(case: Case) -> None:
    algebra = algebra_of(case)

    @settings(max_examples=times(6, 100), deadline=None)
    @given(values_of(case), values_of(case), values_of(case))
    def law(one: list[Placed], two: list[Placed], three: list[Placed]) -> None:
        placed = [
            (value, Position(at.micros, side, at.offset))
            for side, each in enumerate((one, two, three))
            for value, at in each
        ]
        a, b, c = (fold(algebra, [each for each in placed if each[1].partition == side]) for side in range(3))
        before = [algebra.to_parts(state) for state in (a, b, c)]
        assert algebra.present(algebra.merge(a, b)) == algebra.present(algebra.merge(b, a))
        left, right = algebra.merge(algebra.merge(a, b), c), algebra.merge(a, algebra.merge(b, c))
        assert_right(case, placed, algebra.present(left), algebra.present(right))
        assert algebra.present(algebra.merge(a, algebra.zero())) == algebra.present(a)
        assert algebra.present(algebra.merge(algebra.zero(), a)) == algebra.present(a)
        assert [algebra.to_parts(state) for state in (a, b, c)] == before

    law()


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_state_survives_its_byte_form(case: Case) -> None:
    algebra = algebra_of(case)

    @settings(max_examples=times(6, 100), deadline=None)
    @given(values_of(case))
    def law(placed: list[Placed]) -> None:
        state = fold(algebra, placed)
        parts = algebra.to_parts(state)
        assert len(parts) == len(algebra.kinds)
        again = algebra.from_parts(parts)
        assert type(again) is type(state)
        assert algebra.present(again) == algebra.present(state)
        unpacked = states.unpack({"a": algebra}, states.pack({"a": algebra}, {"a": state}))["a"]
        assert algebra.present(unpacked) == algebra.present(state)
        short = states.unpack({"a": algebra}, states.pack_short({"a": algebra}, {"a": state}))["a"]
        assert algebra.present(short) == algebra.present(state)
        if not isinstance(case.declared, Distinct) or case.declared.exact:  # sketches order what they hold as they like
            assert again == state == unpacked == short
            assert algebra.to_parts(again) == parts

    law()


def test_a_digit_that_became_an_exponent_is_refused() -> None:
    algebra = algebra_of(next(case for case in CASES if case.declared == Sum("wide")))
    assert states.unpack({"a": algebra}, b"\x010.017311\n") == {"a": Decimal("0.017311")}
    for damaged in (b"\x010E17311\n", b"\x010E-17311\n", b"\x01NaN\n", b"\x01Infinity\n"):
        with pytest.raises(StateError):
            states.unpack({"a": algebra}, damaged)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_damaged_bytes_are_refused_or_are_a_state(case: Case) -> None:
    algebra = algebra_of(case)

    @settings(max_examples=times(4, 50), deadline=None)
    @given(values_of(case), st.randoms(use_true_random=False))
    def law(placed: list[Placed], chance: Random) -> None:
        pack = chance.choice((states.pack, states.pack_short))
        packed = pack({"a": algebra}, {"a": fold(algebra, placed)})
        for _ in range(20):
            place = chance.randrange(len(packed))
            changed = packed[:place] + bytes([chance.randrange(256)]) + packed[place + 1 :]
            for damaged in (changed, packed[:place], packed + packed[:place]):
                try:
                    state = states.unpack({"a": algebra}, damaged)["a"]
                except StateError:
                    continue
                algebra.present(algebra.merge(state, algebra.zero()))

    law()


@settings(max_examples=times(10, 200), deadline=None)
@given(st.data())
def test_the_states_of_some_answers_are_read_without_the_others(data: st.DataObject) -> None:
    view = View("v", SOURCE, {f"a{number}": case.declared for number, case in enumerate(CASES[:60])})
    names = data.draw(st.sets(st.sampled_from(sorted(view.algebras)), max_size=5))
    parts = [
        {name: fold(algebra, data.draw(values_of(CASES[int(name[1:])])) if name in names else []) for name, algebra
         in view.algebras.items()}
        for _ in range(data.draw(st.integers(1, 3)))
    ]  # fmt: skip
    reader = states.Reader(view.algebras, names)
    packed = [states.pack(view.algebras, part) for part in parts]
    found = reader.merged(packed)
    assert found.keys() == names == reader.algebras.keys()
    for name, algebra in reader.algebras.items():
        assert algebra.present(found[name]) == algebra.present(algebra.merge_all([part[name] for part in parts]))
    with pytest.raises(StateError, match="words"):
        reader.unpack(packed[0].replace(b"\n", b" 1\n", 1))


def test_the_states_of_many_answers_survive_together() -> None:
    view = View("v", SOURCE, {f"a{number}": case.declared for number, case in enumerate(CASES[:60])})
    empty = {name: algebra.zero() for name, algebra in view.algebras.items()}
    packed = states.pack(view.algebras, empty)
    assert states.pack(view.algebras, states.unpack(view.algebras, packed)) == packed
    for damaged in (b"", b"\x02" + packed[1:], packed[:-1], packed + b"x", packed.replace(b" ", b"", 1)):
        with pytest.raises(StateError):
            states.unpack(view.algebras, damaged)


@settings(max_examples=times(8, 100), deadline=None)
@given(st.data())
def test_any_duplication_gives_the_same_answers(data: st.DataObject) -> None:
    """Duplicates have the id of an earlier event; they are removed wherever they occur."""
    view = View(
        "v", SOURCE, {f"a{number}": case.declared for number, case in enumerate(CASES[::3])}, keys={"k": "flag"}
    )
    rows = data.draw(st.lists(st.fixed_dictionaries({}, optional=VALUES), max_size=12))
    start = datetime(2026, 3, 1, tzinfo=UTC)
    events = [Event(0, n, f"e{n}", start + timedelta(minutes=7 * n), row) for n, row in enumerate(rows)]
    duplicates = data.draw(st.lists(st.sampled_from(events), max_size=20)) if events else []
    repeated = [
        Event(each.partition, 1_000 + number, each.event_id, each.event_time, each.fields)
        for number, each in enumerate(duplicates)
    ]
    mixed = data.draw(st.permutations(events + repeated))
    once = in_memory.counted(mixed)
    assert {(event.event_id, event.offset) for event in once} == {(event.event_id, event.offset) for event in events}
    assert in_memory.answers(view, mixed).keys() == in_memory.answers(view, events).keys()
    in_order = sorted(once, key=lambda event: event.offset)
    assert in_memory.answers(view, in_order) == in_memory.answers(view, events)


# ---- what sketches promise ---------------------------------------------------


@pytest.mark.parametrize("error", [0.001, 0.01, 0.1])
@settings(max_examples=times(60, 1000), deadline=None)
@given(values=st.lists(VALUES["x"] | VALUES["big"], min_size=1, max_size=80), share=st.integers(0, 1000))
def test_quantile_is_within_its_error_of_the_value_of_that_rank(values: Values, share: int, error: float) -> None:
    algebra = algebra_of(Case(Quantiles("x", at=share / 1000, error=error)))
    got = algebra.present(fold(algebra, [(value, Position(0, 0, n)) for n, value in enumerate(values)]))
    rank = max(ceil(Fraction(share, 1000) * len(values)), 1)
    true = float(sorted(values)[rank - 1])
    size = 0.0 if abs(true) < 1e-9 else min(abs(true), 1e15)  # what is smaller is 0, what is larger counts as 1e15
    assert abs(abs(got) - size) <= error * size * (1 + 1e-9)
    assert got * true >= 0


def test_every_share_is_the_nearest_rank() -> None:
    """Also where a product of doubles is a little above a whole number: 0.07 * 100."""
    algebra = algebra_of(Case(Quantiles("x", error=0.001)))
    state = fold(algebra, [(1.2**n, Position(0, 0, n)) for n in range(1, 101)])
    for share in range(1, 1001):
        (got,) = algebra.present_at(state, [share / 1000])  # type: ignore[attr-defined]
        assert round(log(got, 1.2)) == ceil(Fraction(share, 1000) * 100), share


def test_quantiles_can_be_asked_at_any_shares_by_their_texts() -> None:
    algebra: Any = algebra_of(Case(Quantiles("x", error=0.001)))
    state = fold(algebra, [(float(n), Position(0, 0, n)) for n in range(1, 101)])
    got = algebra.present_by_share(state, [0, 0.5, 0.999, 1.0])
    assert {share: round(value) for share, value in got.items()} == {"0": 1, "0.5": 50, "0.999": 100, "1": 100}
    assert algebra.present_by_share(algebra.zero(), [0.5]) == {"0.5": None}


@settings(max_examples=times(20, 300), deadline=None)
@given(values=st.lists(VALUES["many"] | st.sampled_from("ab"), min_size=30, max_size=150), chance=st.randoms())
def test_top_k_beyond_its_room_is_off_by_at_most_n_by_room(values: Values, chance: Random) -> None:
    case = Case(TopK("many", k=4, room=4), near_top(4, 4))
    algebra = algebra_of(case)
    placed = [(value, Position(0, 0, n)) for n, value in enumerate(values)]
    parts = [fold(algebra, part) for part in split(placed, chance)]
    got = algebra.present(merge_in_any_tree(algebra, parts, chance))
    assert_right(case, placed, got, algebra.present(fold(algebra, placed)))


@pytest.mark.parametrize("precision", [8, 12, 16])
@pytest.mark.parametrize("true", [0, 1, 2, 10, 100, 1_000, 10_000, 100_000])
def test_distinct_is_within_4_standard_errors(true: int, precision: int) -> None:
    algebra = algebra_of(Case(Distinct("text", precision=precision)))
    parts = [fold(algebra, [(f"user {n}", Position(0, 0, n)) for n in range(true)][side::3]) for side in range(3)]
    whole = fold(algebra, [(f"user {n}", Position(0, 0, n)) for n in range(true)])
    got = algebra.present(algebra.merge(algebra.merge(parts[2], parts[0]), algebra.merge(parts[1], parts[0])))
    assert got == algebra.present(whole)
    assert abs(got - true) <= 4 * 1.04 / 2 ** (precision / 2) * true + 0.5


def test_distinct_does_not_count_the_empty_text() -> None:
    for declared in (Distinct("text"), Distinct("text", exact=True)):
        algebra = algebra_of(Case(declared))
        assert algebra.present(fold(algebra, [("", Position(0, 0, 0)), ("a", Position(0, 0, 1))])) == 1


def test_exact_distinct_beyond_its_bound_is_null_whatever_is_merged_later() -> None:
    algebra = algebra_of(Case(Distinct("text", exact=True, at_most=2)))
    over = fold(algebra, [(text, Position(0, 0, 0)) for text in "abc"])
    assert algebra.present(over) is None
    again = algebra.from_parts(algebra.to_parts(over))
    assert algebra.present(algebra.merge(again, algebra.zero())) is None
    assert algebra.present(algebra.merge(algebra.zero(), over)) is None


@pytest.mark.parametrize("declared", [ValueCounts("text", at_most=2), UniqueValues("text", at_most=2)])
def test_more_values_than_the_bound_are_null_whatever_is_merged_later(declared: Aggregate) -> None:
    algebra = algebra_of(Case(declared))
    over = fold(algebra, [(text, Position(0, 0, 0)) for text in "abc"])
    assert algebra.present(over) is None
    again = algebra.from_parts(algebra.to_parts(over))
    for merged in (algebra.merge(again, algebra.zero()), algebra.merge(algebra.zero(), over)):
        assert algebra.present(algebra.add(merged, "a", Position(0, 0, 1))) is None


EMPTY: list[tuple[Aggregate, Any]] = [
    (Count(), 0), (Count("x"), 0), (Sum("small"), 0), (Sum("big"), 0), (Sum("x"), 0.0), (Sum("price"), "0.00"),
    (Average("x"), None), (Average("price"), None), (Variance("small"), None), (StdDev("x"), None),
    (Skewness("small"), None), (Skewness("x"), None), (Kurtosis("small"), None), (Kurtosis("x"), None),
    (Trend("small"), None), (Trend("x"), None), (DecayedRate(), None), (DecayedRate("x"), None),
    (ValueCounts("text"), []), (UniqueValues("small"), []),
    (FirstK("text"), []), (LastK("day"), []), (Largest("x"), []), (Smallest("text"), []), (Min("x"), None),
    (Max("text"), None), (First("day"), None), (Last("at"), None), (Distinct("text"), 0),
    (Distinct("text", exact=True), 0), (Quantiles("x"), {"p50": None, "p95": None, "p99": None}),
    (Quantiles("x", at=0.999), None), (TopK("text"), []),
    (Histogram("x", bounds=(0,)), [{"below": 0, "count": 0}, {"from": 0, "count": 0}]),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "answer"), EMPTY, ids=[repr(declared)[:60] for declared, _ in EMPTY])
def test_no_values_have_a_defined_answer(declared: Aggregate, answer: Any) -> None:
    algebra = algebra_of(Case(declared))
    for state in (algebra.zero(), fold(algebra, [(None, Position(0, 0, 0))])):
        assert algebra.present(state) == answer


ANSWERS: list[tuple[Aggregate, Values, Any]] = [
    (Sum("big"), [LARGEST, LARGEST], 2 * LARGEST),
    (Sum("x"), [1.0, 1e151, 2.0], 3.0),
    (Average("x"), [1.0, -2e150, 2.0], 1.5),
    (Variance("x"), [1.0, 1e200, 3.0], 2.0),
    (Sum("price"), [Decimal("0.10"), Decimal("-0.10")], "0.00"),
    (Average("price"), [Decimal("0.10"), Decimal("0.20")], 0.15),
    (Average("big"), [LARGEST, LARGEST - 1], float(LARGEST)),
    (Variance("small"), [2**31 - 1, 2**31 - 2, 2**31 - 3], 1.0),
    (Variance("small", population=True), [1, 3], 1.0),
    (Skewness("small"), [5, 5, 5], None),
    (Skewness("x"), [0.1] * 3, None),
    (Skewness("small"), [1, 1, 4], 0.5**0.5),
    (Skewness("small"), [-4, -1, -1], -(0.5**0.5)),
    (Skewness("x"), [1.0, 1e31, 1.0, 4.0], 0.7071067811865476),
    (Skewness("x"), [1e-31, -1e-31], None),
    (Kurtosis("small"), [7], None),
    (Kurtosis("small"), [1, 2, 3, 4], -1.36),
    (Kurtosis("small"), [2**31 - 1, 2**31 - 2, 2**31 - 3, 2**31 - 4], -1.36),
    (Kurtosis("small"), [-(2**31), 2**31 - 1], -2.0),
    (Kurtosis("x"), [0.1] * 7, None),
    (Kurtosis("x"), [-1e30, 1e30], -2.0),
    (FirstK("text", k=2), ["b", "", "a"], ["b", ""]),
    (LastK("text", k=2), ["b", "", "a"], ["a", ""]),
    (LastK("at", k=2), [datetime(2024, 2, 29, 1, tzinfo=UTC)], ["2024-02-29T01:00:00Z"]),
    (FirstK("flag", k=3), [True, False], [True, False]),
    (Largest("small", k=3), [1, 7, 3, 7], [7, 7, 3]),
    (Smallest("small", k=3), [1, 7, 3, 7], [1, 3, 7]),
    (Smallest("x", k=3), [0.0, -0.0, 5.0], [0.0, 0.0, 5.0]),
    (Largest("price", k=1), [Decimal("1.50"), Decimal("-2.00")], ["1.50"]),
    (Largest("text", k=2), ["b", "😀", "é", ""], ["😀", "é"]),
    (
        ValueCounts("text"),
        ["b", "", "a", "b", ""],
        [{"value": "", "count": 2}, {"value": "b", "count": 2}, {"value": "a", "count": 1}],
    ),
    (ValueCounts("price", at_most=1), [Decimal("1.50")] * 2, [{"value": "1.50", "count": 2}]),
    (ValueCounts("small", at_most=2), [1, 2, 1, 3], None),
    (UniqueValues("text", at_most=3), ["b", "é", "", "b"], ["", "b", "é"]),
    (UniqueValues("day"), [date(2024, 2, 29)], ["2024-02-29"]),
    (UniqueValues("flag", at_most=1), [True, False, True], None),
    (Min("x"), [0.0, -0.0], 0.0),
    (Max("text"), ["b", "é", "a"], "é"),
    (Max("flag"), [False, True], True),
    (Min("price"), [Decimal("1.50")], "1.50"),
    (Max("day"), [date(2024, 2, 29)], "2024-02-29"),
    (Max("at"), [datetime(2024, 2, 29, 1, tzinfo=UTC)], "2024-02-29T01:00:00Z"),
    (TopK("text", k=2), ["b", "a", "b", "a", "c"], [{"value": "a", "count": 2}, {"value": "b", "count": 2}]),
    (Histogram("x", bounds=(1,)), [0.5, 1.0, 2.0], [{"below": 1, "count": 1}, {"from": 1, "count": 2}]),
]


@pytest.mark.parametrize(("declared", "values", "answer"), ANSWERS, ids=[repr(each[:2])[:70] for each in ANSWERS])
def test_answer(declared: Aggregate, values: Values, answer: Any) -> None:
    algebra = algebra_of(Case(declared))
    assert algebra.present(fold(algebra, [(value, Position(0, 0, n)) for n, value in enumerate(values)])) == answer


def test_first_and_last_go_by_event_time_then_partition_then_offset() -> None:
    placed = [("c", Position(5, 0, 1)), ("b", Position(5, 1, 0)), ("a", Position(5, 0, 0)), ("z", Position(4, 9, 9))]
    first, last = (algebra_of(Case(declared)) for declared in (First("text"), Last("text")))
    assert first.present(fold(first, placed)) == "z"
    assert first.present(fold(first, placed[:3])) == "a"
    assert last.present(fold(last, placed)) == "b"


@pytest.mark.parametrize("name", ["small", "x"])
def test_trend_is_the_slope_of_the_line_per_hour(name: str) -> None:
    algebra = algebra_of(Case(Trend(name)))
    placed = [(40 + 3 * minute, Position(minute * 60_000_000, 0, minute)) for minute in (7, 0, 3, 60)]
    assert algebra.present(fold(algebra, placed)) == pytest.approx(180, rel=1e-15)
    assert algebra.present(fold(algebra, [(value, Position(5_000, 0, at.offset)) for value, at in placed])) is None
    assert algebra.present(fold(algebra, [(0.1 if name == "x" else 1, at) for _, at in placed])) == 0


@settings(max_examples=times(20, 500), deadline=None)
@given(st.data())
def test_decayed_rate_is_that_of_weights_that_halve(data: st.DataObject) -> None:
    declared = data.draw(st.sampled_from([DecayedRate("small"), DecayedRate("small", half_life="57s")]))
    case = Case(declared, near_at=near_rate(declared.half_life_s))
    algebra, placed = algebra_of(case), data.draw(values_of(case))
    got = algebra.present(fold(algebra, placed))
    assert_right(case, placed, got, got)


def test_a_decayed_rate_leaves_out_the_same_events_whichever_are_merged_first() -> None:
    """Events in neighbouring blocks of 32 half-lives, and one long after them."""
    algebra = algebra_of(Case(DecayedRate(half_life="1m")))
    placed = [(True, Position(block * 32 * 60_000_000 + block, 0, block)) for block in (0, 1, 2, 7, 8)]
    pieces = [fold(algebra, [each]) for each in placed]
    merged = {algebra.to_parts(reduce(algebra.merge, order)) for order in permutations(pieces)}
    assert merged == {algebra.to_parts(fold(algebra, placed[-2:]))}


def test_a_steady_stream_has_its_rate() -> None:
    """After many half-lives: an event each second, and one each second a thousand half-lives before."""
    algebra = algebra_of(Case(DecayedRate(half_life="5m")))
    begins = (0, 1_800_000_000)
    placed = [(True, Position((begin + second) * 1_000_000, 0, second)) for begin in begins for second in range(6_000)]
    assert algebra.present(fold(algebra, placed)) == pytest.approx(1.0, rel=2e-3)


def test_a_state_of_another_answer_is_refused() -> None:
    """A blob of one kind where another is expected."""
    top, distinct = algebra_of(Case(TopK("text"))), algebra_of(Case(Distinct("text")))
    packed = states.pack({"a": top}, {"a": fold(top, [("x", Position(0, 0, 0))])})
    with pytest.raises(StateError):
        states.unpack({"a": distinct}, packed)
    with pytest.raises(StateError):
        states.unpack({"a": top}, b"\x01" + b"1 40\n" + struct.pack("<40B", *range(40)))
