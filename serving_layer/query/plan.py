"""Plan: from a query to what is read for it. Pure: nothing is opened and nobody is asked.

Query  --plan-->  QueryPlan: the selected keys, the segments of its windows, the state ranges of the speed view
--parts--> PlanPart: some of its periods, in the order of the rows, so that a page reads little more than itself
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from hand_off.speed_views import StateRange, totals_of
from serving_layer.query import top_keys
from serving_layer.query.key_selection import select_keys
from serving_layer.query.model import Position, Query
from serving_layer.query.order import BUCKET
from serving_layer.query.segments import Segments, segments
from serving_layer.readers.selection import KeySelection, Period

MAX_KEYS = 10_000
"""Keys that are looked up one by one. Where filters name more, all keys are read and tested."""


class QueryPlan(NamedTuple):
    """A query, and what is read of both views to execute it."""

    query: Query
    selection: KeySelection
    segments: Segments
    """Of all windows, those of `previous` among them."""
    ranges: tuple[Period, ...]
    """The same time as few ranges."""
    rank: str | None = None
    """The answer that decides which keys are on the page. page_keys.py finds these, and then only they are read."""

    @property
    def state_ranges(self) -> list[StateRange]:
        """What is read of the speed view. For a ranked plan the headers of the states are enough."""
        view, keys, prefix = self.query.view, self.selection.keys, self.selection.prefix
        name = totals_of(view.hash) if self.is_total and view.keys else view.hash
        return [StateRange(name, *each, keys, prefix, self.rank is not None) for each in self.ranges]

    @property
    def is_total(self) -> bool:
        """Whether the query is about all keys together."""
        return not self.query.by and not self.query.filters

    @property
    def after(self) -> Position | None:
        """The position of the last row of the page before."""
        return self.query.cursor.after if self.query.cursor is not None else None

    def of_keys(self, keys: Iterable[bytes]) -> QueryPlan:
        """The same plan for these keys alone."""
        return self._replace(rank=None, selection=KeySelection(tuple(sorted(keys)), b""))

    def of_all_keys(self) -> QueryPlan:
        """The same plan without ranking: the states of all selected keys are read."""
        return self._replace(rank=None)


class PlanPart(NamedTuple):
    """Some periods of a plan, with what is read for them."""

    query: Query
    segments: Segments
    ranges: tuple[Period, ...]


def plan(query: Query) -> QueryPlan:
    """What is read to execute a query."""
    selection = select_keys(query.view, query.filters, MAX_KEYS)
    pieces = segments((*query.windows, *(query.previous or ())))
    return QueryPlan(query, selection, pieces, tuple(pieces.ranges()), top_keys.rank_by(query, selection))


def parts(of: QueryPlan) -> Iterator[PlanPart]:
    """The parts of a plan, in the order of its rows. A page that is full after the first needs no other.

    That works where rows are ordered by time first. How many rows a period has is unknown unless keys are listed, so
    the first part is small and each next one is twice as large.
    """
    query, after, first = of.query, of.after, of.query.order[0]
    whole = PlanPart(query, of.segments, of.ranges)
    if first.name != BUCKET or query.fill or len(query.periods) < 2:
        yield whole
        return
    numbers = list(range(len(query.periods)))
    if first.descending:
        numbers.reverse()
    if after is not None:
        starts = [query.periods[number].start for number in numbers]
        numbers = [number for number, start in zip(numbers, starts, strict=True)
                   if start == after[0] or (start < after[0]) == first.descending]  # fmt: skip
    keys = of.selection.keys
    groups = 1 if not query.by else None if keys is None else max(len(keys), 1)
    size = 1 if groups is None else query.limit // groups + 1
    while numbers:
        chosen, numbers, size = sorted(numbers[:size]), numbers[size:], 2 * size
        if len(chosen) == len(query.periods):
            yield whole
            return
        yield _part(query, chosen)


def _part(query: Query, numbers: Iterable[int]) -> PlanPart:
    chosen = list(numbers)
    windows = tuple(query.windows[number] for number in chosen)
    previous = query.previous and tuple(query.previous[number] for number in chosen)
    pieces = segments((*windows, *(previous or ())))
    periods = tuple(query.periods[number] for number in chosen)
    return PlanPart(replace(query, periods=periods, windows=windows, previous=previous), pieces, tuple(pieces.ranges()))
