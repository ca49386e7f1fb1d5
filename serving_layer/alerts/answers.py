"""The answers that an evaluation needs: in one read if they fit, otherwise alert by alert, in parts that fit.

One read is at one cut. If there are several, each answer is correct at a cut of its own, none before the first read
began. An alert whose answers are too large even for single periods is left out, with the reason; the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from master_dataset.cut import Cut
from serving_layer.alerts.plans import AlertPlan
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError, TooLarge, TooLong
from serving_layer.query.model import Query
from serving_layer.query.result import Result
from serving_layer.readers.selection import Period

TOO_MUCH = (TooLarge, TooLong)


class AnswersIncomplete(Exception):
    """The batch view or the speed view is not complete at the moment: nothing may be concluded from it."""


@dataclass
class AlertAnswers:
    """Answers by alert."""

    by_alert: dict[str, Result] = field(default_factory=dict)
    too_large: dict[str, str] = field(default_factory=dict)
    """Alerts that were left out, and why."""
    cut: Cut | None = None
    """The cut of all answers; None if they are at different ones."""
    applied: Cut = field(default_factory=dict)
    """The cut of the speed view before the first read."""
    as_of: float | None = None
    """All events up to this time are applied."""


def read_answers(engine: QueryEngine, source: str, plans: Sequence[AlertPlan], now: float) -> AlertAnswers:
    """The answers to all plans. Raises AnswersIncomplete if one of them is incomplete."""
    try:
        status = engine.status(source)
        if status.why is not None or status.speed is None:
            raise AnswersIncomplete(status.why or "there are no speed views")
        answers = _read_together(engine, plans) or _read_apart(engine, plans)
    except ServingError as error:
        raise AnswersIncomplete(error.detail) from None
    reason = next((answer.meta.why for answer in answers.by_alert.values() if answer.meta.degraded), None)
    if reason is not None:
        raise AnswersIncomplete(reason)
    answers.applied = status.speed.applied
    if not plans:
        answers.cut = answers.applied
    lag_s = status.speed.lag_s
    answers.as_of = None if lag_s is None else now - lag_s
    return answers


def _read_together(engine: QueryEngine, plans: Sequence[AlertPlan]) -> AlertAnswers | None:
    """All in one read; None if that is too much."""
    try:
        answers = engine.execute_all([query for plan in plans for query in plan.queries])
    except TOO_MUCH:
        return None
    remaining = iter(answers)
    by_alert = {plan.name: _combined([next(remaining) for _ in plan.queries]) for plan in plans}
    return AlertAnswers(by_alert, cut=_common_cut(answers))


def _read_apart(engine: QueryEngine, plans: Sequence[AlertPlan]) -> AlertAnswers:
    result, answers = AlertAnswers(), list[Result]()
    for plan in plans:
        try:
            parts = [answer for query in plan.queries for answer in _read_in_parts(engine, query)]
        except TOO_MUCH as error:
            result.too_large[plan.name] = error.detail
        else:
            result.by_alert[plan.name] = _combined(parts)
            answers += parts
    result.cut = _common_cut(answers)
    return result


def _read_in_parts(engine: QueryEngine, query: Query) -> list[Result]:
    """The answers to a query, halved until each part fits."""
    try:
        return [engine.execute(query)]
    except TooLarge:
        if len(query.periods) == 1:
            raise
    middle = len(query.periods) // 2
    halves = query.periods[:middle], query.periods[middle:]
    return [answer for half in halves for answer in _read_in_parts(engine, _over(query, half))]


def _over(query: Query, periods: tuple[Period, ...]) -> Query:
    return replace(query, range=Period(periods[0].start, periods[-1].end), periods=periods, windows=periods)


def _common_cut(answers: Sequence[Result]) -> Cut | None:
    if answers and all(answer.meta.cut == answers[0].meta.cut for answer in answers):
        return answers[0].meta.cut
    return None


def _combined(answers: Sequence[Result]) -> Result:
    """One answer with the rows of all; it is complete if all of them are."""
    degraded = next((answer for answer in answers if answer.meta.degraded), answers[0])
    return replace(degraded, rows=[row for answer in answers for row in answer.rows])
