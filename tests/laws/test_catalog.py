"""Every view of the catalog keeps the laws, and what does not keep them is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import times
from views.aggregates import Aggregate, Algebra, Average, Count, Position, StdDev, Sum, TopK, Variance
from views.aggregates.algebra import Part
from views.aggregates.counting import AverageAlgebra, CountAlgebra, SumAlgebra
from views.aggregates.items import Items
from views.declarations import ALL_EXAMPLES, load_declarations
from views.derived import Derived, Ratio
from views.laws import Reference, check_laws, hints
from views.source import Source
from views.typed_expression import TypedExpression
from views.view import View

CATALOG = load_declarations(examples=ALL_EXAMPLES).views
VISITS = Source(
    "visits", fields="event_id string, event_time timestamp, page string, n int, ms double, price decimal(9,2)"
)


@pytest.mark.parametrize("name", CATALOG)
@settings(max_examples=times(2, 40), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_view_of_the_catalog_keeps_the_laws(name: str, seed: int) -> None:
    assert check_laws(CATALOG[name], seed=seed, events=250) == []


@pytest.mark.parametrize("name", CATALOG)
def test_made_up_events_reach_every_answer_of_the_catalog(name: str) -> None:
    assert hints(CATALOG[name]) == []


@pytest.mark.parametrize("events", [0, 1, 2])
def test_few_events_are_no_trouble(events: int) -> None:
    assert check_laws(CATALOG["page_latency"], events=events) == []


def test_doubles_and_full_tables_are_held_to_their_bounds() -> None:
    """Their answers depend on the order: sums of doubles in the last digits, rankings beyond their room."""
    answers: dict[str, Aggregate | Derived] = {
        "sum": Sum("ms"), "average": Average("ms"), "variance": Variance("ms"), "deviation": StdDev("ms"),
        "top": TopK("page", k=2, room=2), "count": Count(), "mean": Derived("`sum` / `count`"),
    }  # fmt: skip
    view = View("loose", VISITS, answers)
    for seed in range(3):
        assert check_laws(view, seed=seed) == []


def test_the_same_seed_is_the_same_verdict() -> None:
    view = view_of(KeepRight("n"))
    assert check_laws(view, seed=3) == check_laws(view, seed=3) != check_laws(view, seed=4)


# ---- what is broken is found ---------------------------------------------------


class KeepRightAlgebra(CountAlgebra):
    """Not commutative: of two states the right one is kept."""

    def add(self, state: Any, value: Any, at: Position) -> int:
        return int(value)

    def merge(self, left: int, right: int) -> int:
        return right or left


class MeanOfMeansAlgebra(AverageAlgebra):
    """Not associative: averages are averaged."""

    def merge(self, left: tuple[int, Any], right: tuple[int, Any]) -> tuple[int, Any]:
        if not left[0] or not right[0]:
            return left if left[0] else right
        return 1, (left[1] / left[0] + right[1] / right[0]) / 2


class OneTooMany(CountAlgebra):
    """Its zero is none."""

    def zero(self) -> int:
        return 1


class Forgetful(CountAlgebra):
    """Its bytes lose what is above 3."""

    def to_parts(self, state: int) -> tuple[Part, ...]:
        return (str(min(state, 3)),)


class Wasteful(SumAlgebra):
    """Rounds more than it says."""

    def merge(self, left: float, right: float) -> float:
        return float(f"{left + right:.6g}")


class Spoiling(Algebra):
    """Merges into its left side."""

    kinds = "t"

    def zero(self) -> list[int]:
        return [0]

    def add(self, state: list[int], value: Any, at: Position) -> list[int]:
        state[0] += 1
        return state

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        left[0] += right[0]
        return left

    def present(self, state: list[int]) -> int:
        return state[0]

    def to_parts(self, state: list[int]) -> tuple[Part, ...]:
        return (str(state[0]),)

    def from_parts(self, parts: Sequence[Part]) -> list[int]:
        return [int(parts[0] or 0)]

    def aggregate(self, measure: str, only: str) -> list[str]:
        return []

    def parts(self, columns: Sequence[str]) -> list[str]:
        return []


class NotJson(CountAlgebra):
    """Answers with what JSON has not."""

    def present(self, state: int) -> Any:
        return {state}


class Infinite(CountAlgebra):
    def present(self, state: int) -> Any:
        return float("inf")


@dataclass(frozen=True)
class Broken(Aggregate):
    algebra_class: type[Algebra] = CountAlgebra

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        if issubclass(self.algebra_class, AverageAlgebra | SumAlgebra):
            assert measure is not None
            return self.algebra_class(measure)
        return self.algebra_class()


def KeepRight(of: str) -> Broken:
    return Broken(of, algebra_class=KeepRightAlgebra)


def view_of(answer: Aggregate, **more: Any) -> View:
    return View("broken", VISITS, {"answer": answer, "events": Count(), **more}, keys={"page": "page"})


@pytest.mark.parametrize(
    ("answer", "how"),
    [
        (KeepRight("n"), "in another order, in "),
        (Broken("ms", algebra_class=MeanOfMeansAlgebra), "event by event, merged "),
        (Broken("n", algebra_class=OneTooMany), "merged with no events before"),
        (Broken("n", algebra_class=OneTooMany), "merged with no events after"),
        (Broken("n", algebra_class=Forgetful), "stored and read again"),
        (Broken("n", algebra_class=Forgetful), "stored in 2 parts and read again"),
        (Broken("ms", algebra_class=Wasteful), "event by event, merged "),
        (Broken("n", algebra_class=Spoiling), "merging changes the states it merges."),
        (Broken("n", algebra_class=NotJson), "JSON cannot hold it (Object of type set is not JSON serializable)."),
        (Broken("n", algebra_class=Infinite), "JSON cannot hold it (Out of range float values are not JSON compliant"),
    ],
    ids=lambda value: value.algebra_class.__name__ if isinstance(value, Broken) else None,
)
def test_what_breaks_a_law_is_named(answer: Broken, how: str) -> None:
    broken = check_laws(view_of(answer))
    assert [each for each in broken if how in each], broken
    assert all(each.startswith("View 'broken', answer 'answer': ") for each in broken), broken


def test_a_derived_answer_of_a_broken_one_is_named_too() -> None:
    broken = check_laws(view_of(KeepRight("n"), share=Ratio("answer", "events")))
    assert [each for each in broken if each.startswith("View 'broken', answer 'share': ")]


def test_a_copy_that_is_counted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("views.in_memory.counted", lambda events, _removed=(): list(events))
    broken = check_laws(CATALOG["page_hits"])
    assert [each for each in broken if "duplicates among the events" in each], broken


def test_an_answer_for_a_group_that_is_not_there_is_found() -> None:
    reference = Reference(CATALOG["top_pages"], ())
    assert list(reference.differences("by Spark", {(0, ()): {}})) == [
        "View 'top_pages': the bucket 1970-01-01T00:00:00Z has answers by Spark, and none all at once."
    ]


def test_a_ranking_beyond_its_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View("loose", VISITS, {"top": TopK("page", k=2, room=2)})
    monkeypatch.setattr("views.aggregates.items.merge", lambda left, right, room: Items({"a": 10**6}, 0))
    assert check_laws(view)


# ---- what is not reached is said -------------------------------------------------


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (
            View("v", VISITS, {"never": Count(where="n = 1 and n = 2"), "events": Count()}),
            ["Answer 'never' has no value in any group: no generated event reached it."],
        ),
        (
            View("v", VISITS, {"none": Count(where="false"), "events": Count(), "share": Ratio("events", "none")}),
            [
                "Answer 'none' has no value in any group: no generated event reached it.",
                "Answer 'share' has no value in any group: no generated event reached it.",
            ],
        ),
        (
            View("v", VISITS, {"events": Count()}, where="1 = 2"),
            ["No generated event meets its where: nothing was checked."],
        ),
        (View("v", VISITS, {"events": Count(where="n = 123456789 and page = 'here'")}), []),
    ],
)
def test_what_no_event_reached_is_a_hint_and_breaks_nothing(view: View, said: list[str]) -> None:
    assert hints(view) == said
    assert check_laws(view) == []
