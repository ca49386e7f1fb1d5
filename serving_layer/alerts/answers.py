"""The answers that a look needs: in one reading where they fit, else alert by alert, in halves that do.

One reading is at one cut. Where there are several, each answer is right at a cut of its own, none before the reading
began. An alert whose answers are too many even in single periods is left out, with the reason: the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from master_dataset.cut import Cut
from serving_layer.alerts.episodes import Rule
from serving_layer.alerts.questions import Wanted
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError, TooLarge, TooLong
from serving_layer.query.model import Period, Query
from serving_layer.query.result import Result
from views.alert import Alert
from views.typed_expression import Typed
from views.view import View

TOO_MUCH = (TooLarge, TooLong)


class NotNow(Exception):
    """There is no complete answer at the moment."""


@dataclass(frozen=True)
class Watched:
    """An alert with its view as it is served now."""

    alert: Alert
    view: View
    condition: Typed | None

    @property
    def rule(self) -> Rule:
        """What decides its episodes."""
        return rule_of(self.alert)


def rule_of(alert: Alert) -> Rule:
    """What of an alert decides its episodes."""
    return Rule(alert.name, alert.view.name, alert.keys, alert.step_s, alert.for_buckets, alert.keep_s, alert.hash)


class Asking(NamedTuple):
    """What is asked for an alert in one look."""

    watched: Watched
    wanted: Wanted
    questions: tuple[Query, ...]
    settled_until: int | None = None
    """Up to where its settled periods are judged with this."""


@dataclass
class Found:
    """The answers by alert."""

    answers: dict[str, Result] = field(default_factory=dict)
    too_large: dict[str, str] = field(default_factory=dict)
    """Alerts that were left out, and why."""
    cut: Cut | None = None
    """Of all answers; None where they are at several."""
    applied: Cut = field(default_factory=dict)
    """Where the speed side stood when the reading began."""
    as_of: float | None = None
    """Until then everything is in what was applied."""


def read(engine: QueryEngine, source: str, asking: Sequence[Asking], now: float) -> Found:
    """The answers to all that is asked. NotNow where one is not complete."""
    try:
        standing = engine.status(source)
        if standing.why is not None or standing.speed is None:
            raise NotNow(standing.why or "there are no speed views")
        found = _at_once(engine, asking) or _one_by_one(engine, asking)
    except ServingError as error:
        raise NotNow(error.detail) from None
    incomplete = next((answer.meta.why for answer in found.answers.values() if answer.meta.degraded), None)
    if incomplete is not None:
        raise NotNow(incomplete)
    found.applied = standing.speed.applied
    if not asking:
        found.cut = found.applied
    lag_s = standing.speed.lag_s
    found.as_of = None if lag_s is None else now - lag_s
    return found


def _at_once(engine: QueryEngine, asking: Sequence[Asking]) -> Found | None:
    """All in one reading; None where that is too much."""
    try:
        answers = engine.execute_all([question for each in asking for question in each.questions])
    except TOO_MUCH:
        return None
    rest = iter(answers)
    found = Found({each.watched.alert.name: _one([next(rest) for _ in each.questions]) for each in asking})
    found.cut = _cut_of(answers)
    return found


def _one_by_one(engine: QueryEngine, asking: Sequence[Asking]) -> Found:
    found, answers = Found(), []
    for each in asking:
        try:
            ours = [answer for question in each.questions for answer in _halved(engine, question)]
        except TOO_MUCH as error:
            found.too_large[each.watched.alert.name] = error.detail
        else:
            found.answers[each.watched.alert.name] = _one(ours)
            answers += ours
    found.cut = _cut_of(answers)
    return found


def _halved(engine: QueryEngine, question: Query) -> list[Result]:
    """The answers to a question, in as few parts as fit."""
    try:
        return [engine.execute(question)]
    except TooLarge:
        if len(question.periods) == 1:
            raise
    middle = len(question.periods) // 2
    halves = question.periods[:middle], question.periods[middle:]
    return [answer for half in halves for answer in _halved(engine, _over(question, half))]


def _over(question: Query, periods: tuple[Period, ...]) -> Query:
    range_ = Period(periods[0].start, periods[-1].end)
    return replace(question, range=range_, periods=periods, windows=periods)


def _cut_of(answers: Sequence[Result]) -> Cut | None:
    if answers and all(answer.meta.cut == answers[0].meta.cut for answer in answers):
        return answers[0].meta.cut
    return None


def _one(answers: Sequence[Result]) -> Result:
    """The rows of several answers in one; it is complete if all of them are."""
    degraded = next((answer for answer in answers if answer.meta.degraded), answers[0])
    return replace(degraded, rows=[row for answer in answers for row in answer.rows])
