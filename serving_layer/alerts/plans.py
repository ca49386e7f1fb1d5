"""Plans: which periods and keys of an alert an evaluation has to query, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hand_off.change_log import Changes
from serving_layer.alerts.episodes import Rule, rule_of
from serving_layer.alerts.memory import AlertMemory
from serving_layer.alerts.queries import (
    QueryScope,
    alert_query,
    build_query,
    changed_keys,
    changed_periods,
    with_neighbours,
)
from serving_layer.query.model import Query
from views.alert import Alert
from views.typed_expression import TypedExpression
from views.view import View

MAX_AHEAD_S = 60.0
"""A period that starts further ahead of the clock is not evaluated."""
PERIODS_PER_QUERY = 2_000


@dataclass(frozen=True)
class ServedAlert:
    """An alert with its view as it is served now."""

    alert: Alert
    view: View
    condition: TypedExpression | None

    @property
    def name(self) -> str:
        """The name of the alert."""
        return self.alert.name

    @property
    def rule(self) -> Rule:
        """What decides its episodes."""
        return rule_of(self.alert)


class AlertPlan(NamedTuple):
    """The queries of one alert in one evaluation."""

    served: ServedAlert
    scope: QueryScope
    queries: tuple[Query, ...]
    settled_until: int | None = None
    """Up to when this evaluation judges the alert's settled periods."""

    @property
    def name(self) -> str:
        """The name of the alert."""
        return self.served.name


def plan_changes(
    served: ServedAlert, memory: AlertMemory, changes: Changes, now: float, late_s: float
) -> AlertPlan | None:
    """The plan for what micro-batches changed; None: nothing to query."""
    alert, view = served.alert, served.view
    if memory.is_behind:
        return _plan_catch_up(served, memory, now, late_s)
    # The changes before an alert was declared are in the change log of its view. A new alert starts with its last
    # periods instead.
    buckets = None if memory.is_new else changes.of(view.hash)
    if alert.silence_s:
        # A bucket of "any key" (the entry was too long) does not say which key had an event.
        is_known = buckets is not None and not (alert.keys and None in buckets.values())
        return None if is_known else _plan_silence(served, now)
    if buckets is None:
        return _plan_recent(served, memory, now, late_s)
    periods = _in_time(alert, changed_periods(alert, buckets), now, late_s)
    if not periods:
        return None
    scope = QueryScope(with_neighbours(alert, periods), changed_keys(view, alert.keys, buckets))
    return AlertPlan(served, scope, (alert_query(alert, view, scope),))


def plan_settled(served: ServedAlert, memory: AlertMemory, as_of: float, now: float, late_s: float) -> AlertPlan | None:
    """The plan for periods that have ended since they were last judged, of an alert with `settled`."""
    alert = served.alert
    if memory.is_behind:
        return _plan_catch_up(served, memory, now, late_s)
    if not alert.settled or not as_of:
        return None
    until = int(as_of) - int(as_of) % alert.step_s
    since = until - alert.step_s if memory.settled_until is None else memory.settled_until
    if since > until:  # recorded while the clock was ahead
        since = until - alert.step_s
    since = max(since, until - max(int(late_s), alert.step_s))
    periods = frozenset(range(since - since % alert.step_s, until, alert.step_s))
    if not periods:
        return None
    scope = QueryScope(with_neighbours(alert, periods), None)
    return AlertPlan(served, scope, (alert_query(alert, served.view, scope),), until)


def _plan_catch_up(served: ServedAlert, memory: AlertMemory, now: float, late_s: float) -> AlertPlan | None:
    """All recent periods, when the next retry of an alert whose answers were too large is due."""
    if now < memory.retry_at:
        return None
    return _plan_silence(served, now) if served.alert.silence_s else _plan_recent(served, memory, now, late_s)


def _plan_recent(served: ServedAlert, memory: AlertMemory, now: float, late_s: float) -> AlertPlan:
    """All recent periods: it is not known what changed. For a new alert these are its last few periods."""
    alert = served.alert
    back_s = alert.step_s * (alert.for_buckets + 1) if memory.is_new else late_s
    last = int(now) - int(now) % alert.step_s
    first = int(now - back_s) - int(now - back_s) % alert.step_s
    periods = range(first, last + alert.step_s, alert.step_s)
    queries = tuple(alert_query(alert, served.view, QueryScope(chunk, None)) for chunk in _chunks(periods))
    return AlertPlan(served, QueryScope(frozenset(periods), None), queries)


def _plan_silence(served: ServedAlert, now: float) -> AlertPlan:
    """The buckets in which an event would end a silence."""
    alert, view = served.alert, served.view
    step_s = view.bucket.seconds
    first = int(now - alert.silence_s - step_s)
    buckets = range(first - first % step_s, int(now) + step_s, step_s)
    names = list(view.answers)[:1]
    queries = tuple(build_query(view, alert.keys, step_s, QueryScope(chunk, None), names) for chunk in _chunks(buckets))
    return AlertPlan(served, QueryScope(frozenset(buckets), None), queries)


def _chunks(periods: range) -> list[frozenset[int]]:
    return [
        frozenset(periods[start : start + PERIODS_PER_QUERY]) for start in range(0, len(periods), PERIODS_PER_QUERY)
    ]


def _in_time(alert: Alert, periods: Iterable[int], now: float, late_s: float) -> frozenset[int]:
    """The periods that are neither too old nor ahead of the clock."""
    oldest = now - late_s - alert.step_s
    return frozenset(period for period in periods if oldest <= period <= now + MAX_AHEAD_S)
