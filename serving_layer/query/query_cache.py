"""Recently parsed queries with their plans: dashboards ask the same again and again.

A query is decided by the view's version, the parameters and the range that relative times mean now. Ranges are in whole
buckets, so relative times mean the same range until the next bucket begins. An entry is used only for the same range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Query
from serving_layer.query.parse import parse_query, parse_range
from serving_layer.query.plan import QueryPlan, plan
from serving_layer.query.times import is_relative
from views.view import View

MAX_PERIODS = 200_000
"""Of all queries together, where about 150 bytes count as a period: 30 MB. Beyond it, the cache is emptied."""
ENTRY = 20
"""Periods that an entry takes besides its own."""
UNUSUAL = frozenset({"cursor"})
"""Parameters of queries that are asked once."""

Pairs = Sequence[tuple[str, str]]


def has_relative_times(pairs: Pairs) -> bool:
    """Whether the range of a query depends on when it is asked."""
    given = dict(pairs)
    return any(is_relative(given.get(name, "now")) for name in ("from", "to"))


class _Entry(NamedTuple):
    query: Query
    is_relative: bool


class QueryCache:
    """Threads share it: at worst two of them parse the same query."""

    def __init__(self, max_periods: int = MAX_PERIODS) -> None:
        self._max_periods, self._periods = max_periods, 0
        self._entries: dict[tuple[str, tuple[tuple[str, str], ...]], _Entry] = {}
        self._plans: dict[int, QueryPlan] = {}

    def parse(self, view: View, pairs: Pairs, *, now: float, limits: QueryLimits) -> Query:
        """Like `parse_query`, for one and the same `limits` each time."""
        key = (view.hash, tuple(pairs))
        found = self._entries.get(key)
        if found is not None and (not found.is_relative or parse_range(view, pairs, now=now) == found.query.range):
            return found.query
        query = parse_query(view, pairs, now=now, limits=limits)
        given = dict(pairs)
        made = plan(query)
        texts = sum(len(name) + len(value) for name, value in pairs) + sum(map(len, made.selection.keys or ()))
        size = len(query.periods) + len(made.selection.keys or ()) + texts // 50 + ENTRY
        if not UNUSUAL.isdisjoint(given) or size > self._max_periods:
            return query
        if self._periods + size > self._max_periods:
            self._entries, self._plans, self._periods = {}, {}, 0
        self._entries[key] = _Entry(query, has_relative_times(pairs))
        self._plans[id(query)] = made
        self._periods += size
        return query

    def plan(self, query: Query) -> QueryPlan:
        """The plan of a query, whether it was parsed here or not."""
        found = self._plans.get(id(query))
        return found if found is not None and found.query is query else plan(query)
