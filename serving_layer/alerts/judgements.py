"""Judgements: in which periods an alert's condition is true, by the answers to its query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving_layer.alerts.episodes import Judgement, Key
from serving_layer.alerts.queries import QueryScope
from serving_layer.query.result import Result
from views.alert import Alert, compared, nothing, numbers
from views.typed_expression import TypedExpression
from views.view import View


def judge(
    alert: Alert, view: View, condition: TypedExpression, scope: QueryScope, answer: Result, as_of: float
) -> dict[Key, dict[int, Judgement]]:
    """The judgement of each period of the scope, for each key that has rows or is named by the scope.

    A period without events is false, except with `compare`: then its answers are those over no events. An alert with
    `settled` judges a period false until it is over.
    """
    rows: dict[Key, dict[int, Mapping[str, Any]]] = {}
    for row in answer.rows:
        rows.setdefault(row.key, {})[row.period.start] = row.answers
    empty = numbers(view, nothing(view))
    keys = [*rows, *(key for key in scope.keys or () if key not in rows)]
    if scope.keys is not None:
        keys = [key for key in keys if key in scope.keys]
    return {
        key: {
            period: _judge(alert, view, condition, rows.get(key, {}), period, empty, as_of) for period in scope.periods
        }
        for key in keys
    }


def _judge(
    alert: Alert, view: View, condition: TypedExpression, rows: Mapping[int, Mapping[str, Any]], period: int,
    empty: Mapping[str, Any], as_of: float,
) -> Judgement:  # fmt: skip
    if period not in rows and (not alert.shift_s or period - alert.shift_s not in rows):
        return Judgement(False, {})
    if alert.settled and as_of < period + alert.step_s:
        return Judgement(False, {})
    value = numbers(view, rows[period]) if period in rows else dict(empty)
    if alert.shift_s:
        before = rows.get(period - alert.shift_s)
        value = compared(value, numbers(view, before) if before is not None else empty)
    return Judgement(bool(condition.evaluate(value)), value)
