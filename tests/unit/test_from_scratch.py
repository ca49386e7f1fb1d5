"""From scratch: what a page of an answer must hold, and what is found where it does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from serving_layer.query import rows as paging
from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Query
from serving_layer.query.parse import parse_query
from serving_layer.query.result import BatchPart, Provenance, Result, ResultRow
from serving_layer.verification.from_scratch import recompute
from serving_layer.verification.verify import ALL_TIME, _add, _compared
from tests.serving_data import SALES, end_of, events
from views import in_memory

EVENTS = events(200, seed=7)
LIMIT = 10
Edit = Callable[[list[ResultRow]], list[ResultRow]]


def asked(**more: str) -> Query:
    given = {"grain": "all", "by": "item,size", "limit": str(LIMIT), **more}
    return parse_query(SALES, [*ALL_TIME, *given.items()], now=time.time(), limits=QueryLimits())


def answered(question: Query) -> tuple[Result, list[ResultRow]]:
    """The right first page, and what comes after it."""
    meta = Provenance(
        view=SALES.name, version=SALES.hash, source=SALES.source.name, range=question.range, grain=question.grain,
        tz="UTC", batch=BatchPart(1, {}, 0.0, True), speed=None, cut=end_of(EVENTS), complete=True, degraded=False,
        why=None, answers={}, etag="",
    )  # fmt: skip
    made = [ResultRow(*place, answers) for place, answers in recompute(question, EVENTS).items()]
    found, _ = paging.page(made, replace(question, limit=len(made)), None)
    return Result(question.by, found[:LIMIT], meta, "more" if found[LIMIT:] else None), found[LIMIT:]


def found_wrong(question: Query, answer: Result, *, parts: int = 1) -> int:
    counted, cells = in_memory.counted(EVENTS), {}
    for part in range(parts):
        _add(counted[part::parts], [((question, answer), cells)])
    return _compared(SALES, [(question, answer)], [cells]).mismatched


@pytest.mark.parametrize("parts", [1, 3], ids=["at once", "in parts"])
@pytest.mark.parametrize("given", [{}, {"grain": "month"}, {"grain": "month", "by": "size"}])
def test_first_page_is_right_however_many_follow(given: dict[str, str], parts: int) -> None:
    question = asked(**given)
    answer, rest = answered(question)
    assert rest
    assert found_wrong(question, answer, parts=parts) == 0


@pytest.mark.parametrize("parts", [1, 3], ids=["at once", "in parts"])
@pytest.mark.parametrize("place", [0, 4, LIMIT - 2], ids=["first", "inside", "last but one"])
def test_row_that_is_missing_in_a_page_is_found_though_the_page_is_full(place: int, parts: int) -> None:
    question = asked()
    answer, rest = answered(question)
    rows = [*answer.rows[:place], *answer.rows[place + 1 :], rest[0]]
    assert len(rows) == LIMIT
    assert found_wrong(question, replace(answer, rows=rows), parts=parts) == 1


@pytest.mark.parametrize(
    "edit",
    [lambda rows: rows[:-1], lambda _: [], lambda rows: rows[::-1], lambda rows: [*rows[:-1], rows[0]]],
    ids=["short", "empty", "backwards", "one twice"],
)
def test_page_with_more_after_it_is_full_and_in_order(edit: Edit) -> None:
    question = asked()
    answer, _ = answered(question)
    assert found_wrong(question, replace(answer, rows=edit(answer.rows))) > 0


def test_last_page_that_ends_too_early_is_found() -> None:
    question = asked()
    answer, rest = answered(question)
    assert found_wrong(question, replace(answer, next=None)) == len(rest)
