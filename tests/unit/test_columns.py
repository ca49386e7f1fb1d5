"""Folding evaluated columns gives what the reference interpreter gives, for every view of the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from views import columns as evaluated
from views import in_memory
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
from views.columns import AT, OFFSET, PARTITION, Columns
from views.declarations import ALL_EXAMPLES, load_declarations
from views.in_memory import Event
from views.keys import unpack_key
from views.sample_events import generate
from views.source import Source
from views.states import pack
from views.typed_expression import TypedExpression
from views.view import View

CATALOG = load_declarations(examples=ALL_EXAMPLES).views
VISITS = Source("visits", fields="event_id string, event_time timestamp, page string, n int, ms double")


def expressions(view: View) -> list[TypedExpression]:
    """All that a view looks at, found without the module under test."""
    measured = [each for measure in view.measures.values() for each in (measure.of, measure.where)]
    return [each for each in (view.condition, *view.key_expressions.values(), *measured) if each is not None]


def table_of(columns: Columns, events: Sequence[Event]) -> dict[str, list[Any]]:
    """What Spark would evaluate, by Python."""
    source = columns.views[0].source
    rows = [{**event.fields, source.id_field: event.event_id, source.time_field: event.event_time} for event in events]
    found = {
        columns.of(each): [each.evaluate(row) for row in rows] for view in columns.views for each in expressions(view)
    }
    return found | {
        AT: [event.position.micros for event in events],
        PARTITION: [event.partition for event in events],
        OFFSET: [event.offset for event in events],
    }


def presented(view: View, folded: dict[Any, Any]) -> dict[Any, Any]:
    """Groups as the reference names them: bucket in microseconds, key as values."""
    return {(bucket * 1_000_000, unpack_key(key)): view.present(states) for (bucket, key), states in folded.items()}


def made(view: View, count: int = 300, seed: int = 7) -> list[Event]:
    """Events without duplicates, which are removed before anything is folded."""
    return in_memory.counted(record.event for record in generate(view.source, count, seed, views=[view]))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CATALOG)
def test_columns_are_folded_as_the_reference_does(name: str, seed: int) -> None:
    view = CATALOG[name]
    events = made(view, seed=seed)
    columns = Columns((view,))
    folded = evaluated.fold(view, columns, table_of(columns, events), range(len(events)))
    expected = in_memory.fold(view, events)
    assert expected, "no event passes: nothing was tried"
    assert presented(view, folded) == in_memory.present(view, expected)
    in_bytes = sorted(pack(view.algebras, states) for states in folded.values())
    assert in_bytes == sorted(pack(view.algebras, states) for states in expected.values())


ONE_OF_EACH = View(
    "one_of_each",
    VISITS,
    {
        "events": Count(), "pages": Count("page"), "total": Sum("n"), "mean": Average("n"), "spread": Variance("n"),
        "deviation": StdDev("n"), "skew": Skewness("n"), "kurt": Kurtosis("n"), "low": Min("n"), "high": Max("n"),
        "first": First("page"), "last": Last("page"), "firsts": FirstK("page"), "lasts": LastK("page"),
        "large": Largest("n"), "small": Smallest("n"), "bars": Histogram("n", bounds=(1, 10)),
        "different": Distinct("page"), "all_pages": UniqueValues("page"), "by_page": ValueCounts("page"),
        "top": TopK("page", k=3), "shares": Quantiles("ms"), "slope": Trend("n"), "rate": DecayedRate(half_life="5m"),
        "flow": DecayedRate("n", half_life="5m"),
    },
    grain="1h",
)  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_each_aggregate_is_folded_as_the_reference_does(seed: int) -> None:
    """Also those of events alone: what they add for an event is not the number of its row."""
    events = made(ONE_OF_EACH, seed=seed)
    columns = Columns((ONE_OF_EACH,))
    folded = evaluated.fold(ONE_OF_EACH, columns, table_of(columns, events), range(len(events)))
    assert presented(ONE_OF_EACH, folded) == in_memory.present(ONE_OF_EACH, in_memory.fold(ONE_OF_EACH, events))


@pytest.mark.parametrize("source", sorted({view.source.name for view in CATALOG.values()}))
def test_views_of_one_source_share_their_columns(source: str) -> None:
    views = tuple(view for view in CATALOG.values() if view.source.name == source)
    columns = Columns(views)
    wanted = {each.sql for view in views for each in expressions(view)}
    assert columns.names.keys() == wanted
    assert len(set(columns.names.values())) == len(wanted)
    events = made(views[0])
    table = table_of(columns, events)
    for view in views:
        folded = evaluated.fold(view, columns, table, range(len(events)))
        assert presented(view, folded) == in_memory.answers(view, events)


def test_only_the_given_rows_are_folded() -> None:
    view = CATALOG["page_hits"]
    events = made(view)
    columns = Columns((view,))
    table = table_of(columns, events)
    for rows in ([], [0], list(range(0, len(events), 3))):
        folded = evaluated.fold(view, columns, table, rows)
        assert presented(view, folded) == in_memory.answers(view, [events[row] for row in rows])


def test_rows_in_any_order_fold_to_the_same() -> None:
    """First and last are by time and position, not by the order in which rows come."""
    view = View("ends", VISITS, {"first": First("page"), "last": Last("page"), "events": Count()}, grain="1h")
    events = made(view)
    columns = Columns((view,))
    table = table_of(columns, events)
    forth = evaluated.fold(view, columns, table, range(len(events)))
    back = evaluated.fold(view, columns, table, reversed(range(len(events))))
    assert presented(view, forth) == presented(view, back) == in_memory.answers(view, events)


def test_conditions_that_are_null_do_not_hold_and_null_values_are_not_counted() -> None:
    view = View(
        "nulls", VISITS, {"all": Count(), "pages": Count("page"), "some": Sum("n", where="ms > 1")},
        keys={"page": "page"}, where="n < 100",
    )  # fmt: skip
    columns = Columns((view,))
    rows: list[dict[str, Any]] = [
        {"page": "a", "n": 1, "ms": 2.0},
        {"page": "a", "n": 2, "ms": None},
        {"page": None, "n": 4, "ms": 2.0},
        {"page": "a", "n": None, "ms": 2.0},
        {"page": "a", "n": 100, "ms": 2.0},
        {},
    ]
    at = made(view, count=1)[0].event_time
    events = [Event(0, offset, f"e{offset}", at, row) for offset, row in enumerate(rows)]
    folded = presented(view, evaluated.fold(view, columns, table_of(columns, events), range(len(events))))
    assert {key: answers for (_, key), answers in folded.items()} == {
        ("a",): {"all": 2, "pages": 2, "some": 1},
        (None,): {"all": 1, "pages": 0, "some": 4},
    }
    assert folded == in_memory.answers(view, events)
