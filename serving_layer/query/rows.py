"""Rows: merged states, presented, filtered by `having`, ordered and split into pages. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from serving_layer.query import order
from serving_layer.query.key_selection import test_of
from serving_layer.query.limits import CHECK_EVERY, QueryBudget
from serving_layer.query.merge import Cells, Group, State, WindowSpans, both, by_window, merged, slide
from serving_layer.query.model import Position, Query
from serving_layer.query.presentation_cache import Presentation, PresentationCache
from serving_layer.query.result import ResultRow
from serving_layer.query.segments import Segments
from serving_layer.readers.selection import Period
from views.aggregates.quantiles import QuantilesAlgebra
from views.states import Reader


class Presenter:
    """Turns states into the answers of a query."""

    def __init__(self, query: Query, cache: PresentationCache) -> None:
        view, having = query.view, query.having
        self.view, self.shown, self._having, self._shares = view, query.answers, having, query.quantiles
        more = view.answers_in(having) if having is not None else ()
        self._names = tuple(dict.fromkeys((*query.answers, *more)))
        self.reader = Reader(view.algebras, view.stored_for(self._names))
        self._quantiles = [
            (name, algebra)
            for name, algebra in self.reader.algebras.items()
            if query.quantiles and name in query.answers and isinstance(algebra, QuantilesAlgebra)
        ]
        self._cache, self._recipe = cache, repr((view.hash, self._names, self.shown, self._shares))

    def of_packed(self, packed: Sequence[bytes], budget: QueryBudget) -> Presentation:
        """The packed states of a group, merged and presented."""
        found = self._cache.get(self._recipe, packed)
        if found is None:
            found = self.of_states(merged(self.reader, packed, budget))
            self._cache.put(self._recipe, packed, found)
        return found

    def of_states(self, states: State) -> Presentation:
        """Merged states, presented."""
        found = self.view.present(states, self._names)
        shown = {name: found[name] for name in self.shown}
        for name, algebra in self._quantiles:
            shown[f"{name}.quantiles"] = algebra.present_by_share(states[name], self._shares)
        return Presentation(shown, shown if shown.keys() == found.keys() else found)

    def over_windows(
        self, by_segment: Mapping[int, list[bytes]], windows: WindowSpans, budget: QueryBudget
    ) -> Iterator[tuple[int, Presentation]]:
        """The answers of a group for each window in which it has events, with the number of the window, in order."""
        if windows.window_of is None:
            for number, states in slide(by_segment, windows.spans, self.reader, budget):
                yield number, self.of_states(states)
            return
        for number, packed in by_window(by_segment, windows.window_of):
            yield number, self.of_packed(packed, budget)

    def keeps(self, found: Presentation) -> bool:
        """Whether a row passes `having`."""
        return self._having is None or bool(self._having.evaluate(self.view.numbers(found.all)))

    @cached_property
    def zero(self) -> Presentation:
        """The answers of no events."""
        return self.of_states({name: algebra.zero() for name, algebra in self.reader.algebras.items()})


class PackedStates(NamedTuple):
    """The packed states of both views, for some of the periods of a query."""

    batch: Cells
    speed: Cells
    segments: Segments

    def windows(self, of: Sequence[Period]) -> WindowSpans:
        """Some windows, as spans of these segments."""
        return WindowSpans(self.segments.spans(of))


def rows_of(query: Query, presenting: Presenter, packed: PackedStates, budget: QueryBudget) -> Iterator[ResultRow]:
    """The rows of a query, in no order."""
    cells = both(packed.batch, packed.speed)
    windows = packed.windows(query.windows)
    groups = dict.fromkeys((*cells, *named_groups(query))) if query.fill else cells
    zero = presenting.zero.shown if query.fill and presenting.keeps(presenting.zero) else None
    made = 0
    for group in groups:
        filled: set[int] = set()
        for number, found in presenting.over_windows(cells.get(group, {}), windows, budget):
            made += 1
            if not made % CHECK_EVERY:
                budget.spend(CHECK_EVERY)
            filled.add(number)
            if presenting.keeps(found):
                yield ResultRow(query.periods[number], group, found.shown)
        if zero is not None:
            budget.spend(len(query.periods) - len(filled))
            for number, period in enumerate(query.periods):
                if number not in filled:
                    yield ResultRow(period, group, zero)


def with_comparisons(
    rows: Sequence[ResultRow], query: Query, presenting: Presenter, packed: PackedStates, budget: QueryBudget
) -> list[ResultRow]:
    """The rows of a page with the columns of `compare` (the period before) and `explain` (both views apart)."""
    if query.previous is None and not query.explain:
        return list(rows)
    groups = dict.fromkeys(row.key for row in rows)

    def answers(cells: Cells, of: Sequence[Period]) -> dict[tuple[int, Group], dict[str, Any]]:
        windows = packed.windows(of)
        return {
            (number, group): found.shown
            for group in groups
            for number, found in presenting.over_windows(cells.get(group, {}), windows, budget)
        }

    before = answers(both(packed.batch, packed.speed), query.previous or ())
    batch, speed = (answers(cells, query.windows) if query.explain else {} for cells in packed[:2])
    nothing = presenting.zero.shown
    number_of = {period: number for number, period in enumerate(query.periods)}
    found = []
    for row in rows:
        at = number_of[row.period], row.key
        previous = None if query.previous is None else before.get(at, nothing)
        views = {"batch": batch.get(at, nothing), "speed": speed.get(at, nothing), "merged": row.answers}
        found.append(ResultRow(row.period, row.key, row.answers, previous, views if query.explain else None))
    return found


def named_groups(query: Query) -> Iterator[Group]:
    """The groups that the filters of a query name, with events or without."""
    named: dict[str, Sequence[Any]] = {}
    for each in query.filters:
        if each.kind == "is":
            named[each.key] = each.values
    if named.keys() >= {*query.by}:
        tests = [
            (query.by.index(each.key), test_of(each))
            for each in query.filters
            if each.kind != "is" and each.key in query.by
        ]
        for group in product(*(named[name] for name in query.by)):
            if all(test(group[index]) for index, test in tests):
                yield group


def page(rows: Iterable[ResultRow], query: Query, after: Position | None) -> tuple[list[ResultRow], bool]:
    """The first rows after a position, in the order of the query, and whether there are more."""
    position, sorted_by = order.positions(query), order.sort_key(query)
    ranked = ((sorted_by(position(row)), row) for row in rows)
    if after is not None:
        first = sorted_by(after)
        ranked = (each for each in ranked if each[0] > first)
    found = heapq.nsmallest(query.limit + 1, ranked, key=lambda each: each[0])
    return [row for _, row in found[: query.limit]], len(found) > query.limit
