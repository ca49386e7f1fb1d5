"""A repeated query: what is kept of a query, so that asking it again takes little more than one read of the speed view.

A run never changes. So the rows that its batch view gives alone are kept, as JSON, and the names of the tiles that each
is made of. When the query is asked again, only the windows in which the speed view has states are merged, presented and
written again, from tiles that are read from the index again; and not even these where the states are the same as the
last time. The rows are those that execute.py gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hand_off.speed_views import ALL_KEYS, State
from serving_layer.query import order
from serving_layer.query.batch_tiles import NamedTile, TileName, read_again
from serving_layer.query.limits import QueryBudget
from serving_layer.query.merge import Cells, Group, KeyGroups, WindowSpans, both, gather
from serving_layer.query.model import Query
from serving_layer.query.plan import QueryPlan
from serving_layer.query.presentation_cache import PresentationCache
from serving_layer.query.provenance import has_short_keys
from serving_layer.query.result import ResultRow
from serving_layer.query.rows import Presenter
from serving_layer.readers.batch import OpenRun

MAX_STATES, MAX_ROWS, MAX_BYTES = 500, 500, 500_000
"""Of the batch view, of the answer, and of all that is kept of it: larger queries are executed by threads each time."""
MAX_SPEED_STATES, MAX_TILES = 100, 100
"""States of the speed view that an event loop merges, and tiles that it reads again for them."""
ROW_BYTES, TILE_BYTES = 400, 250
"""What is kept of a row beside its JSON, and of a tile."""
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
    """A plan with its rows of one run. For one event loop: it remembers the last states of the speed view.

    `tiles` are all that the batch view has for the plan. Only their names are kept.
    """

    def __init__(
        self,
        plan: QueryPlan,
        tiles: Sequence[NamedTile],
        budget: QueryBudget,
        cache: PresentationCache,
        write: WriteRow,
    ) -> None:
        query = plan.query
        self._plan, self._write = plan, write
        self._presenter = Presenter(query, cache)
        self._position, self._sort_key = order.positions(query), order.sort_key(query)
        self._windows = WindowSpans(plan.segments.spans(query.windows))
        self._groups = self._new_groups()
        batch: Cells = {}
        gather(batch, (tile for _, tile in tiles), plan.segments, self._groups, budget)
        self._tiles = self._names_by_window(name for name, _ in tiles)
        self._rows = {
            (group, number): row
            for group, by_segment in batch.items()
            for number, row in self._rows_of(group, by_segment, budget)
        }
        self._last: tuple[Sequence[State], WrittenRows | None] | None = None
        written = sum(len(row.json) for row in self._rows.values())
        self.size = 2 * written + ROW_BYTES * len(self._rows) + TILE_BYTES * len(tiles) + MAX_LAST_BYTES

    @property
    def is_small(self) -> bool:
        """Whether it is small enough to be answered by an event loop."""
        return self.size <= MAX_BYTES and len(self._rows) <= MAX_ROWS

    def rows(self, speed: Sequence[State], run: OpenRun, budget: QueryBudget) -> WrittenRows | None:
        """The rows with these states of the speed view; None where they are too many. `run` is the one of the tiles."""
        if self._last is not None and self._last[0] == speed:
            return self._last[1]
        found = self._merged(speed, run, budget) if len(speed) <= MAX_SPEED_STATES else None
        if sum(len(state) for _, _, state in speed) <= MAX_LAST_BYTES:
            self._last = speed, found
        return found

    def _new_groups(self) -> KeyGroups:
        query = self._plan.query
        groups = KeyGroups(query.view, query.by, self._plan.selection.matches)
        if self._plan.is_total:
            groups.known[ALL_KEYS] = ()
        return groups

    def _names_by_window(self, names: Iterable[TileName]) -> dict[tuple[Group, int], list[TileName]]:
        """The tiles of each group in each window, in the order in which they were read."""
        found: dict[tuple[Group, int], list[TileName]] = {}
        at, window_of = self._plan.segments.at, self._windows.window_of or {}
        for name in names:
            group, number = self._groups.known[name.key], window_of.get(at(name.bucket))
            if group is not None and number is not None:
                found.setdefault((group, number), []).append(name)
        return found

    def _merged(self, speed: Sequence[State], run: OpenRun, budget: QueryBudget) -> WrittenRows | None:
        cells: Cells = {}
        gather(cells, speed, self._plan.segments, self._groups, budget)
        changed = [(group, number) for group, by_segment in cells.items() for number in self._numbers(by_segment)]
        names = [name for each in changed for name in self._tiles.get(each, ())]
        if len(names) > MAX_TILES:
            return None
        batch: Cells = {}
        gather(batch, read_again(self._plan, run, names), self._plan.segments, self._groups, budget)
        if len(self._groups.known) > MAX_STATES:
            self._groups = self._new_groups()
        rows = dict(self._rows) if cells else self._rows
        for each in changed:
            rows.pop(each, None)
        for group, by_segment in both(batch, cells).items():
            rows |= {(group, number): row for number, row in self._rows_of(group, by_segment, budget)}
        if len(rows) > self._plan.query.limit:
            return None
        ordered = sorted(rows.values(), key=lambda row: row.sort_key)
        return WrittenRows(b",".join([row.json for row in ordered]), any(row.is_short for row in ordered))

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
                # Copied, because the writer leaves each text in a buffer of kilobytes.
                written = bytes(memoryview(self._write(query, row)))
                yield number, _Row(self._sort_key(self._position(row)), written, has_short_keys([row]))
