"""Evaluate the alerts of one source when micro-batches change their views, and when time alone decides.

    change log (Redis) -> plans -> merged answers at one cut -> judgements -> episodes -> journal

Only complete answers are evaluated: while Redis is unavailable or being rebuilt, nothing is concluded. Periods end not
by the clock but by `as_of`: all events that Kafka had up to then are in the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog

from hand_off.change_log import Changes
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.cut import Cut, cut_to_json
from serving_layer.alerts.answers import AlertAnswers, read_answers
from serving_layer.alerts.change_follower import ChangesSince
from serving_layer.alerts.episodes import Episode, EpisodeState, Step
from serving_layer.alerts.journal import Evaluation, Journal
from serving_layer.alerts.memory import AlertMemory, load_memory
from serving_layer.alerts.notifier import Notifier
from serving_layer.alerts.plans import AlertPlan, ServedAlert, plan_changes, plan_settled
from serving_layer.alerts.steps import condition_steps, silence_steps
from serving_layer.alerts.tables.positions import FollowerPosition
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError
from views.alert import Alert
from views.declarations import Declarations
from views.errors import AlertError

MAX_TRIES = 10
"""Reads until answers and changes are at one cut. After that an evaluation includes newer events too."""
RETRY_S = 30.0
"""Until an alert whose answers were too large is evaluated again."""

log = structlog.get_logger()


class EvaluationSnapshot(NamedTuple):
    """What one evaluation reads: the answers, and the changes that they belong to."""

    plans: Sequence[AlertPlan]
    answers: AlertAnswers
    changes: Changes | None
    """None: only time has passed."""
    cut: Cut
    """Up to here changes are processed with this evaluation."""
    is_exact: bool
    """Whether the answers stand exactly at the cut."""


@dataclass
class Evaluator:
    """Evaluates the alerts of one source. Used by one thread; others read `memory`."""

    settings: Settings
    declarations: Declarations
    source: str
    engine: QueryEngine
    journal: Journal
    notifier: Notifier
    on_notifications: Callable[[], None] = lambda: None
    failpoint: Callable[[str], None] = reach
    clock: Callable[[], float] = time.time
    memory: dict[str, AlertMemory] = field(default_factory=dict)
    as_of: float = 0.0
    evaluations: int = 0
    cut: Cut = field(default_factory=dict)
    _postponed: int = 0
    """Evaluations of time in a row that were left to the next, because the views had moved on."""

    @property
    def alerts(self) -> list[Alert]:
        """The alerts of the source."""
        return self.declarations.alerts_of(self.source)

    def resume(self) -> None:
        """Load the state of the journal."""
        for alert in self.alerts:
            self.memory[alert.name] = load_memory(self.journal, alert)
        position = self.journal.positions.get(self.source)
        self.as_of = position.as_of if position else 0.0

    def evaluate(self, changes: Changes | None, since: ChangesSince) -> bytes | None:
        """Evaluate changes, or without them what time alone decides. Returns the new location in the change log.

        Raises AnswersIncomplete if the views are not complete now.
        """
        now = self.clock()
        if self.as_of > now:  # the clock was ahead and was set back: what it said then is not valid
            self.as_of = 0.0
        alerts = list(self._served_alerts())
        if changes is None:
            snapshot = self._read_for_time(alerts, now)
            if snapshot.answers.applied != snapshot.cut or snapshot.answers.cut not in (None, snapshot.cut):
                return self._postpone(snapshot.answers.applied, since)
            self._postponed = 0
        else:
            snapshot = self._read_changes(alerts, changes, since, now)
        self.as_of = max(self.as_of, snapshot.answers.as_of or 0.0)
        steps = [step for served in alerts for step in self._steps(served, snapshot, now)]
        self._commit(snapshot, steps, now)
        return snapshot.changes.entry_id if snapshot.changes is not None else None

    # ---- read ----

    def _served_alerts(self) -> Iterator[ServedAlert]:
        """The alerts that can be evaluated. The memory of the others gets the reason."""
        for alert in self.alerts:
            memory = self.memory[alert.name]
            try:
                view = self.engine.served_view(alert.view.name)
                yield ServedAlert(alert, view, alert.condition_for(view) if alert.when else None)
                memory.error = memory.error if memory.is_behind else ""
            except ServingError as error:
                memory.error = error.detail
            except AlertError as error:  # the version that is served lacks an answer; the next run has it
                memory.error = str(error)

    def _read_changes(
        self, alerts: Sequence[ServedAlert], changes: Changes, since: ChangesSince, now: float
    ) -> EvaluationSnapshot:
        """Read until the answers are at the cut of the changes, adding what changed meanwhile."""
        late_s = self.settings.alerts_late_s
        for tries in range(1, MAX_TRIES + 1):
            plans = [
                plan
                for served in alerts
                if (plan := plan_changes(served, self.memory[served.name], changes, now, late_s)) is not None
            ]
            answers = self._read(plans, now)
            is_ahead = answers.cut is not None and answers.cut != changes.cut
            more = since(changes.cut, changes.entry_id) if is_ahead else None
            if more is None or tries == MAX_TRIES:
                break
            changes = _joined(changes, more)
        if changes.views is None and answers.cut is not None:  # all was evaluated: everything up to the answers' cut
            return EvaluationSnapshot(plans, answers, changes, answers.cut, is_exact=True)
        return EvaluationSnapshot(plans, answers, changes, changes.cut, is_exact=answers.cut == changes.cut)

    def _read_for_time(self, alerts: Sequence[ServedAlert], now: float) -> EvaluationSnapshot:
        late_s = self.settings.alerts_late_s
        plans = [
            plan
            for served in alerts
            if (plan := plan_settled(served, self.memory[served.name], self.as_of, now, late_s)) is not None
        ]
        answers = self._read(plans, now)
        position = self.journal.positions.get(self.source)
        cut = position.cut if position else answers.applied
        return EvaluationSnapshot(plans, answers, None, cut, is_exact=answers.cut == cut)

    def _read(self, plans: Sequence[AlertPlan], now: float) -> AlertAnswers:
        """The answers. An alert whose answers are too large has to catch up later."""
        answers = read_answers(self.engine, self.source, plans, now)
        for memory in (self.memory[name] for name in answers.by_alert):
            memory.is_behind, memory.error = False, ""
        for name, reason in answers.too_large.items():
            memory = self.memory[name]
            if not memory.is_behind:
                log.error("answers_too_large", alert=name, reason=reason)
            memory.is_behind, memory.retry_at, memory.error = True, now + RETRY_S, reason
        return answers

    def _postpone(self, applied: Cut, since: ChangesSince) -> bytes | None:
        """Leave what time decides to the next evaluation: an event applied since may be the one that seems missing.

        If the change log never says what changed since, as in a rebuilt Redis, all recent periods are evaluated.
        """
        self._postponed += 1
        if self._postponed < MAX_TRIES:
            return None
        self._postponed = 0
        return self.evaluate(Changes(applied, None), since)

    # ---- conclude ----

    def _steps(self, served: ServedAlert, snapshot: EvaluationSnapshot, now: float) -> list[Step]:
        memory = self.memory[served.name]
        if memory.is_behind:
            return []
        plan = next((each for each in snapshot.plans if each.name == served.name), None)
        answer = snapshot.answers.by_alert[served.name] if plan is not None else None
        if served.alert.silence_s:
            max_keys = self.settings.alerts_max_keys
            return list(silence_steps(served, memory, answer, snapshot.changes, self.as_of, now, max_keys))
        return list(condition_steps(served, memory, plan, answer, self.as_of, now))

    def _commit(self, snapshot: EvaluationSnapshot, steps: Sequence[Step], now: float) -> None:
        """Write the journal, then the memory. An evaluation of time that changed nothing is not written."""
        has_changes = snapshot.changes is not None
        changed = tuple(episode for step in steps for episode in step.changed)
        settled = {
            plan.name: plan.settled_until
            for plan in snapshot.plans
            if plan.settled_until is not None and plan.name in snapshot.answers.by_alert
        }
        if not (changed or has_changes or settled):
            return
        evaluation = Evaluation(
            self.source, FollowerPosition(snapshot.cut, self.as_of), now, snapshot.is_exact, changed,
            transitions=self.notifier.transitions(episode for step in steps for episode in step.transitions),
            last_events={name: dict(memory.unwritten) for name, memory in self.memory.items() if memory.unwritten},
            settled=settled,
            behind={name: memory.is_behind for name, memory in self.memory.items()},
            horizons={alert.name: self._horizon(alert, now) for alert in self.alerts},
            evaluated=tuple(self.memory) if has_changes else (),
        )  # fmt: skip
        self.failpoint("alerts.before_commit")
        self.journal.commit(evaluation)
        self.failpoint("alerts.after_commit")
        self._remember(changed, settled, now, has_changes=has_changes)
        self.cut = snapshot.cut
        self.evaluations += 1
        if evaluation.transitions.bodies:
            self.on_notifications()
            log.info("episodes_changed", source=self.source, cut=cut_to_json(snapshot.cut),
                     episodes=[f"{each.id} {each.state}" for each, _ in evaluation.transitions.bodies])  # fmt: skip

    def _remember(
        self, changed: Iterable[Episode], settled: Mapping[str, int], now: float, *, has_changes: bool
    ) -> None:
        for episode in changed:
            self.memory[episode.alert].put(episode)
        for name, until in settled.items():
            self.memory[name].settled_until = until
        for alert in self.alerts:
            memory = self.memory[alert.name]
            memory.unwritten.clear()
            memory.is_new = memory.is_new and not has_changes
            memory.forget_before(self._horizon(alert, now))

    def _horizon(self, alert: Alert, now: float) -> float:
        """No evaluation joins anything to an episode whose last period is before this."""
        return now - 2 * self.settings.alerts_late_s - alert.keep_s - alert.step_s * (alert.for_buckets + 2)


def ended(episodes: Iterable[Episode], now: float) -> list[Episode]:
    """The open ones of these episodes, resolved: their alert was redefined or removed."""
    return [replace(each, state=EpisodeState.RESOLVED, resolved_at=now) for each in episodes if each.is_open]


def _joined(changes: Changes, more: Changes) -> Changes:
    """Earlier and later changes together."""
    if changes.views is None or more.views is None:
        return Changes(more.cut, None, more.entry_id)
    views = {view: dict(buckets) for view, buckets in changes.views.items() if view in more.views}
    for view in views:
        for bucket, keys in more.views[view].items():
            known = views[view].get(bucket, frozenset())
            views[view][bucket] = None if known is None or keys is None else known | keys
    return Changes(more.cut, views, more.entry_id)
