"""What an alert or a feed asks of its view: the answers of some keys in some periods, at one cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from hand_off.change_log import Buckets
from serving_layer.alerts.episodes import Judged, Key
from serving_layer.query import order
from serving_layer.query.model import Filter, Period, Query
from serving_layer.query.result import Result
from views.alert import Alert, compared, nothing, numbers
from views.typed_expression import Typed
from views.view import View

MOST_ROWS = 1_000_000
MOST_VALUES = 2_000
"""Where more keys were touched, all keys are read."""


class Wanted(NamedTuple):
    """Keys and periods to look at. `keys` None: all."""

    periods: frozenset[int]
    keys: frozenset[Key] | None


def touched_keys(view: View, by: tuple[str, ...], buckets: Buckets) -> frozenset[Key] | None:
    """The keys of a view that were touched, as far as `by` tells them apart; None: any of them."""
    if not by:
        return frozenset({()})
    places = [list(view.keys).index(name) for name in by]
    found: set[Key] = set()
    for keys in buckets.values():
        if keys is None:
            return None
        found.update(tuple(key[place] for place in places) for key in keys)
    return frozenset(found)


def touched_periods(alert: Alert, buckets: Iterable[int]) -> frozenset[int]:
    """The periods whose judgement a touched bucket may change: its own, and the one that is compared with it."""
    own = {bucket - bucket % alert.step_s for bucket in buckets}
    return frozenset(own | ({period + alert.shift_s for period in own} if alert.shift_s else set()))


def around(alert: Alert, periods: Iterable[int]) -> frozenset[int]:
    """These periods and their neighbours: as many as it takes to see a whole row of them."""
    reach = range(1 - alert.for_buckets, alert.for_buckets)
    return frozenset(period + number * alert.step_s for period in periods for number in reach)


def question(view: View, by: tuple[str, ...], step_s: int, wanted: Wanted, answers: Collection[str]) -> Query:
    """The question for the answers of these keys in these periods."""
    periods = tuple(Period(start, start + step_s) for start in sorted(wanted.periods))
    filters: tuple[Filter, ...] = ()
    if wanted.keys is not None and by and len(wanted.keys) <= MOST_VALUES:
        columns = zip(*wanted.keys, strict=True) if wanted.keys else ((),) * len(by)
        values = [tuple(dict.fromkeys(column)) for column in columns]
        filters = tuple(Filter(name, "is", each) for name, each in zip(by, values, strict=True))
    return Query(
        view=view, range=Period(periods[0].start, periods[-1].end), grain=f"{step_s}s", tz="UTC", periods=periods,
        windows=periods, filters=filters, by=by, answers=tuple(answers), order=order.complete((), by),
        limit=MOST_ROWS,
    )  # fmt: skip


def alert_question(alert: Alert, view: View, wanted: Wanted) -> Query:
    """What an alert asks: its periods, and those that they are compared with."""
    periods = wanted.periods | {period - alert.shift_s for period in wanted.periods}
    numeric = {*view.answer_scope().fields} | {name for name, kind in view.answer_types.items() if kind is None}
    names = [name for name in view.answers if name in numeric]
    return question(view, alert.keys, alert.step_s, Wanted(periods, wanted.keys), names)


def judged(
    alert: Alert, view: View, condition: Typed, wanted: Wanted, answer: Result, as_of: float
) -> dict[Key, dict[int, Judged]]:
    """The judgement of each key and period that has rows, or is named.

    With `compare` no events are as good as some: their answers are those over nothing. Else a period without events is
    not so. One that is to be settled first is not so before it is over.
    """
    rows: dict[Key, dict[int, Mapping[str, Any]]] = {}
    for row in answer.rows:
        rows.setdefault(row.key, {})[row.period.start] = row.answers
    empty = numbers(view, nothing(view))
    keys = [*rows, *(key for key in wanted.keys or () if key not in rows)]
    if wanted.keys is not None:
        keys = [key for key in keys if key in wanted.keys]
    found: dict[Key, dict[int, Judged]] = {}
    for key in keys:
        of_key = rows.get(key, {})
        found[key] = {}
        for period in wanted.periods:
            found[key][period] = _judge(alert, view, condition, of_key, period, empty, as_of)
    return found


def _judge(
    alert: Alert, view: View, condition: Typed, rows: Mapping[int, Mapping[str, Any]], period: int,
    empty: Mapping[str, Any], as_of: float,
) -> Judged:  # fmt: skip
    if period not in rows and (not alert.shift_s or period - alert.shift_s not in rows):
        return Judged(False, {})
    if alert.settled and as_of < period + alert.step_s:
        return Judged(False, {})
    value = numbers(view, rows[period]) if period in rows else dict(empty)
    if alert.shift_s:
        before = rows.get(period - alert.shift_s)
        value = compared(value, numbers(view, before) if before is not None else empty)
    return Judged(bool(condition.evaluate(value)), value)
