"""Queries of alerts and feeds: the answers of some keys in some periods, at one cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from hand_off.change_log import Buckets
from serving_layer.alerts.episodes import Key
from serving_layer.query import order
from serving_layer.query.model import Filter, Query
from serving_layer.readers.selection import Period
from views.alert import Alert
from views.view import View

MAX_ROWS = 1_000_000
MAX_FILTER_VALUES = 2_000
"""If more keys changed, all keys are read."""


class QueryScope(NamedTuple):
    """The periods and keys of a query. `keys` None: all keys."""

    periods: frozenset[int]
    keys: frozenset[Key] | None


def changed_keys(view: View, by: tuple[str, ...], buckets: Buckets) -> frozenset[Key] | None:
    """The values of the keys `by` in changed buckets of a view; None: any key may have changed."""
    if not by:
        return frozenset({()})
    columns = [list(view.keys).index(name) for name in by]
    changed: set[Key] = set()
    for keys in buckets.values():
        if keys is None:
            return None
        changed.update(tuple(key[column] for column in columns) for key in keys)
    return frozenset(changed)


def changed_periods(alert: Alert, buckets: Iterable[int]) -> frozenset[int]:
    """The periods whose judgement may change with these buckets: their own, and those that are compared with them."""
    own = {bucket - bucket % alert.step_s for bucket in buckets}
    return frozenset(own | ({period + alert.shift_s for period in own} if alert.shift_s else set()))


def with_neighbours(alert: Alert, periods: Iterable[int]) -> frozenset[int]:
    """These periods, and as many before and after as `for_buckets` periods in a row may include."""
    distances = range(1 - alert.for_buckets, alert.for_buckets)
    return frozenset(period + distance * alert.step_s for period in periods for distance in distances)


def build_query(view: View, by: tuple[str, ...], step_s: int, scope: QueryScope, answers: Collection[str]) -> Query:
    """The query for the answers in a scope, with periods of `step_s`."""
    periods = tuple(Period(start, start + step_s) for start in sorted(scope.periods))
    filters: tuple[Filter, ...] = ()
    if scope.keys is not None and by and len(scope.keys) <= MAX_FILTER_VALUES:
        columns = zip(*scope.keys, strict=True) if scope.keys else ((),) * len(by)
        values = [tuple(dict.fromkeys(column)) for column in columns]
        filters = tuple(Filter(name, "is", column) for name, column in zip(by, values, strict=True))
    return Query(
        view=view, range=Period(periods[0].start, periods[-1].end), grain=f"{step_s}s", tz="UTC", periods=periods,
        windows=periods, filters=filters, by=by, answers=tuple(answers), order=order.complete((), by),
        limit=MAX_ROWS,
    )  # fmt: skip


def alert_query(alert: Alert, view: View, scope: QueryScope) -> Query:
    """The query of an alert: the periods of a scope, and those that they are compared with."""
    periods = scope.periods | {period - alert.shift_s for period in scope.periods}
    numeric = {*view.answer_scope().fields} | {name for name, kind in view.answer_types.items() if kind is None}
    names = [name for name in view.answers if name in numeric]
    return build_query(view, alert.keys, alert.step_s, QueryScope(periods, scope.keys), names)
