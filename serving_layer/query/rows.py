"""Rows: merged states, presented, filtered by `having`, ordered and cut into pages. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from serving_layer.query import order
from serving_layer.query.budget import CHECK_EVERY, QueryBudget
from serving_layer.query.key_selection import test_of
from serving_layer.query.merge import Cells, Group, State, Windows, both, by_window, merged, slide
from serving_layer.query.model import Period, Query
from serving_layer.query.order import Position
from serving_layer.query.presentation_cache import Presentation, PresentationCache
from serving_layer.query.result import ResultRow
from serving_layer.query.segments import Segments
from views.aggregates.quantiles import QuantilesAlgebra
from views.states import Reader


class Presenter:
    """How states become the answers of a question."""

    def __init__(self, question: Query, cache: PresentationCache) -> None:
        view, having = question.view, question.having
        self.view, self.shown, self._having, self._shares = view, question.answers, having, question.quantiles
        more = view.answers_in(having) if having is not None else ()
        self._names = tuple(dict.fromkeys((*question.answers, *more)))
        self.reader = Reader(view.algebras, view.stored_for(self._names))
        self._quantiles = [
            (name, algebra)
            for name, algebra in self.reader.algebras.items()
            if question.quantiles and name in question.answers and isinstance(algebra, QuantilesAlgebra)
        ]
        self._cache, self._how = cache, repr((view.hash, self._names, self.shown, self._shares))

    def of_packed(self, packed: Sequence[bytes], budget: QueryBudget) -> Presentation:
        """What the packed states of a group are together, presented."""
        found = self._cache.get(self._how, packed)
        if found is None:
            found = self.of_states(merged(self.reader, packed, budget))
            self._cache.put(self._how, packed, found)
        return found

    def of_states(self, states: State) -> Presentation:
        """Merged states, presented."""
        found = self.view.present(states, self._names)
        shown = {name: found[name] for name in self.shown}
        for name, algebra in self._quantiles:
            shown[f"{name}.quantiles"] = algebra.present_by_share(states[name], self._shares)
        return Presentation(shown, found)

    def over_windows(
        self, by_segment: Mapping[int, list[bytes]], windows: Windows, budget: QueryBudget
    ) -> Iterator[tuple[int, Presentation]]:
        """The answers of a group for each window in which it has events, with the number of the window, in order."""
        if windows.window_of is None:
            for number, states in slide(by_segment, windows.spans, self.reader, budget):
                yield number, self.of_states(states)
            return
        for number, packed in by_window(by_segment, windows.window_of):
            yield number, self.of_packed(packed, budget)

    def keeps(self, found: Presentation) -> bool:
        """Whether `having` lets a row be."""
        return self._having is None or bool(self._having.evaluate(self.view.numbers(found.all)))

    @cached_property
    def zero(self) -> Presentation:
        """The answers of no events."""
        return self.of_states({name: algebra.zero() for name, algebra in self.reader.algebras.items()})


class Gathered(NamedTuple):
    """The packed states of both sides, for some of the periods of a question."""

    batch: Cells
    speed: Cells
    segments: Segments

    def windows(self, of: Sequence[Period]) -> Windows:
        """Some windows, as spans of these segments."""
        return Windows([self.segments.span(window) for window in of])


def rows_of(question: Query, presenting: Presenter, gathered: Gathered, budget: QueryBudget) -> Iterator[ResultRow]:
    """The rows of a question, in no order."""
    cells = both(gathered.batch, gathered.speed)
    windows = gathered.windows(question.windows)
    groups = dict.fromkeys((*cells, *named_groups(question))) if question.fill else cells
    zero = presenting.zero.shown if question.fill and presenting.keeps(presenting.zero) else None
    made = 0
    for group in groups:
        filled: set[int] = set()
        for number, found in presenting.over_windows(cells.get(group, {}), windows, budget):
            made += 1
            if not made % CHECK_EVERY:
                budget.spend(CHECK_EVERY)
            filled.add(number)
            if presenting.keeps(found):
                yield ResultRow(question.periods[number], group, found.shown)
        if zero is not None:
            budget.spend(len(question.periods) - len(filled))
            for number, period in enumerate(question.periods):
                if number not in filled:
                    yield ResultRow(period, group, zero)


def with_more(
    rows: Sequence[ResultRow], question: Query, presenting: Presenter, gathered: Gathered, budget: QueryBudget
) -> list[ResultRow]:
    """The rows of a page with what else is asked for: what they were a range before, and what they are made of."""
    if question.previous is None and not question.explain:
        return list(rows)
    groups = dict.fromkeys(row.key for row in rows)

    def answers(cells: Cells, of: Sequence[Period]) -> dict[tuple[int, Group], dict[str, Any]]:
        windows = gathered.windows(of)
        return {
            (number, group): found.shown
            for group in groups
            for number, found in presenting.over_windows(cells.get(group, {}), windows, budget)
        }

    before = answers(both(gathered.batch, gathered.speed), question.previous or ())
    batch, speed = (answers(cells, question.windows) if question.explain else {} for cells in gathered[:2])
    nothing = presenting.zero.shown
    number_of = {period: number for number, period in enumerate(question.periods)}
    found = []
    for row in rows:
        at = number_of[row.period], row.key
        previous = None if question.previous is None else before.get(at, nothing)
        sides = {"batch": batch.get(at, nothing), "speed": speed.get(at, nothing), "merged": row.answers}
        found.append(ResultRow(row.period, row.key, row.answers, previous, sides if question.explain else None))
    return found


def named_groups(question: Query) -> Iterator[Group]:
    """The groups that a question names by its filters, whether there are events of them or not."""
    named: dict[str, Sequence[Any]] = {}
    for each in question.filters:
        if each.kind == "is":
            named[each.key] = each.values
    if named.keys() >= {*question.by}:
        tests = [
            (question.by.index(each.key), test_of(each))
            for each in question.filters
            if each.kind != "is" and each.key in question.by
        ]
        for group in product(*(named[name] for name in question.by)):
            if all(test(group[place]) for place, test in tests):
                yield group


def page(rows: Iterable[ResultRow], question: Query, after: Position | None) -> tuple[list[ResultRow], bool]:
    """The first rows after a position, in the question's order, and whether there are more."""
    position, sorted_by = order.positions(question), order.sort_key(question)
    ranked = ((sorted_by(position(row)), row) for row in rows)
    if after is not None:
        first = sorted_by(after)
        ranked = (each for each in ranked if each[0] > first)
    found = heapq.nsmallest(question.limit + 1, ranked, key=lambda each: each[0])
    return [row for _, row in found[: question.limit]], len(found) > question.limit
