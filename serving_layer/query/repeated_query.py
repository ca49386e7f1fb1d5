"""A repeated query: what is kept of a query, so that asking it again takes little more than one read of the speed view.

A run never changes. So the packed states of its batch view are kept, and the rows that they give alone, as JSON. When
the query is asked again, only the windows in which the speed view has states are merged, presented and written again,
and not even these where the states are the same as the last time. The rows are those that execute.py gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hand_off.speed_views import ALL_KEYS, State
from serving_layer.query import order
from serving_layer.query.limits import QueryBudget
from serving_layer.query.merge import Cells, Group, KeyGroups, WindowSpans, gather
from serving_layer.query.model import Query
from serving_layer.query.plan import QueryPlan
from serving_layer.query.presentation_cache import PresentationCache
from serving_layer.query.provenance import has_short_keys
from serving_layer.query.result import ResultRow
from serving_layer.query.rows import Presenter

MAX_STATES, MAX_ROWS, MAX_BYTES = 500, 500, 500_000
"""Of the batch view, of the answer, and of all that is kept of it: larger queries are executed by threads each time."""
MAX_SPEED_STATES = 100
"""States of the speed view that an event loop merges."""
MAX_LAST_BYTES = 8_000
"""States of the speed view that are remembered with the rows that they gave."""

WriteRow = Callable[[Query, ResultRow], bytes]


class WrittenRows(NamedTuple):
    """The rows of an answer as JSON, without the brackets of their list."""

    json: bytes
    has_short_keys: bool


class _Row(NamedTuple):
    sort_key: Any
    json: bytes
    is_short: bool


def can_repeat(plan: QueryPlan) -> bool:
    """Whether the answer of a plan is put together of rows that depend on one window each, all on one page."""
    query = plan.query
    return (
        plan.rank is None
        and query.cursor is None
        and query.previous is None
        and not query.explain
        and not query.fill
        and query.freshness.min_cut is None
        and query.freshness.max_staleness_s is None
        and len(query.periods) <= MAX_ROWS
        and WindowSpans(plan.segments.spans(query.windows)).window_of is not None
    )


class RepeatedQuery:
    """A plan with the states of one run. For one event loop: it remembers the last states of the speed view."""

    def __init__(
        self, plan: QueryPlan, batch: Cells, budget: QueryBudget, cache: PresentationCache, write: WriteRow
    ) -> None:
        query = plan.query
        self._plan, self._batch, self._write = plan, batch, write
        self._presenter = Presenter(query, cache)
        self._position, self._sort_key = order.positions(query), order.sort_key(query)
        self._windows = WindowSpans(plan.segments.spans(query.windows))
        self._groups = self._new_groups()
        self._rows = {
            (group, number): row
            for group, by_segment in batch.items()
            for number, row in self._rows_of(group, by_segment, budget)
        }
        self._last: tuple[Sequence[State], WrittenRows | None] | None = None
        packed = sum(len(state) for cells in batch.values() for states in cells.values() for state in states)
        written = sum(len(row.json) for row in self._rows.values())
        self.size = packed + 2 * written + 200 * len(self._rows) + MAX_LAST_BYTES

    @property
    def is_small(self) -> bool:
        """Whether it is small enough to be answered by an event loop."""
        return self.size <= MAX_BYTES and len(self._rows) <= MAX_ROWS

    def rows(self, speed: Sequence[State], budget: QueryBudget) -> WrittenRows | None:
        """The rows with these states of the speed view; None where they are too many."""
        if self._last is not None and self._last[0] == speed:
            return self._last[1]
        found = self._merged(speed, budget) if len(speed) <= MAX_SPEED_STATES else None
        if sum(len(state) for _, _, state in speed) <= MAX_LAST_BYTES:
            self._last = speed, found
        return found

    def _new_groups(self) -> KeyGroups:
        query = self._plan.query
        groups = KeyGroups(query.view, query.by, self._plan.selection.matches)
        if self._plan.is_total:
            groups.known[ALL_KEYS] = ()
        return groups

    def _merged(self, speed: Sequence[State], budget: QueryBudget) -> WrittenRows | None:
        cells: Cells = {}
        gather(cells, speed, self._plan.segments, self._groups, budget)
        if len(self._groups.known) > MAX_STATES:
            self._groups = self._new_groups()
        rows = dict(self._rows) if cells else self._rows
        for group, by_segment in cells.items():
            both = self._with_batch(group, by_segment)
            for number in self._numbers(by_segment):
                rows.pop((group, number), None)
            rows |= {(group, number): row for number, row in self._rows_of(group, both, budget)}
        if len(rows) > self._plan.query.limit:
            return None
        ordered = sorted(rows.values(), key=lambda row: row.sort_key)
        return WrittenRows(b",".join([row.json for row in ordered]), any(row.is_short for row in ordered))

    def _with_batch(self, group: Group, speed: Mapping[int, list[bytes]]) -> dict[int, list[bytes]]:
        """The states of both views in the windows in which the speed view has some, in the order of execute.py."""
        numbers, window_of = self._numbers(speed), self._windows.window_of or {}
        found = {
            segment: packed
            for segment, packed in self._batch.get(group, {}).items()
            if window_of.get(segment) in numbers
        }
        return found | {segment: found.get(segment, []) + packed for segment, packed in speed.items()}

    def _numbers(self, by_segment: Mapping[int, list[bytes]]) -> set[int]:
        window_of = self._windows.window_of or {}
        return {window_of[segment] for segment in by_segment if segment in window_of}

    def _rows_of(
        self, group: Group, by_segment: Mapping[int, list[bytes]], budget: QueryBudget
    ) -> Iterator[tuple[int, _Row]]:
        query, presenter = self._plan.query, self._presenter
        for number, found in presenter.over_windows(by_segment, self._windows, budget):
            if presenter.keeps(found):
                row = ResultRow(query.periods[number], group, found.shown)
                yield number, _Row(self._sort_key(self._position(row)), self._write(query, row), has_short_keys([row]))
