"""Steps: what an evaluation's answers do to the episodes of one alert."""

from __future__ import annotations

from collections.abc import Iterator

from hand_off.change_log import Changes
from serving_layer.alerts.episodes import Judgement, Key, Step, advance, advance_silence, over_at
from serving_layer.alerts.judgements import judge
from serving_layer.alerts.memory import AlertMemory
from serving_layer.alerts.plans import MAX_AHEAD_S, AlertPlan, ServedAlert
from serving_layer.alerts.queries import changed_keys
from serving_layer.query.result import Result


def condition_steps(
    served: ServedAlert, memory: AlertMemory, plan: AlertPlan | None, answer: Result | None, as_of: float, now: float
) -> Iterator[Step]:
    """The steps of an alert with a condition. Without a plan only time advances its episodes."""
    rule = served.rule
    judgements: dict[Key, dict[int, Judgement]] = {}
    if plan is not None and answer is not None and served.condition is not None:
        judgements = judge(served.alert, served.view, served.condition, plan.scope, answer, as_of)
    until = _judged_until(served, memory, plan, as_of)
    due = (
        key
        for key, known in memory.episodes.items()
        if any(each.is_open and until >= over_at(rule, each) for each in known)
    )
    for key in dict.fromkeys([*judgements, *due]):
        of_key = judgements.get(key, {})
        if key in memory.episodes or any(each.is_true for each in of_key.values()):
            yield advance(rule, key, memory.episodes.get(key, ()), of_key, until or now, now)


def _judged_until(served: ServedAlert, memory: AlertMemory, plan: AlertPlan | None, as_of: float) -> float:
    """Up to when all events are in and judged: a period that has ended since may make an episode longer."""
    alert = served.alert
    settled = (plan.settled_until if plan else None) or memory.settled_until
    if not alert.settled or settled is None or as_of < settled + alert.step_s:
        return as_of
    return float(settled)


def silence_steps(
    served: ServedAlert, memory: AlertMemory, answer: Result | None, changes: Changes | None, as_of: float,
    now: float, max_keys: int,
) -> Iterator[Step]:  # fmt: skip
    """The steps of an alert on silence: its keys' last events come from the answer, or else from the changes."""
    alert, bucket_s = served.alert, served.view.bucket.seconds
    for key, end in _newest_events(served, answer, changes).items():
        is_remembered = key in memory.last_events or len(memory.last_events) < max_keys
        if is_remembered and memory.last_events.get(key, 0) < end <= now + MAX_AHEAD_S + bucket_s:
            memory.last_events[key] = memory.unwritten[key] = end
    for key, end in memory.last_events.items():
        known = memory.episodes.get(key, [])
        if as_of >= end + alert.silence_s or any(each.is_open for each in known):
            step = advance_silence(served.rule, key, known, end, alert.silence_s, as_of, now)
            if step.changed:
                yield step


def _newest_events(served: ServedAlert, answer: Result | None, changes: Changes | None) -> dict[Key, int]:
    """By key: the end of its newest bucket with an event."""
    alert, view = served.alert, served.view
    newest: dict[Key, int] = {}
    if answer is not None:
        for row in answer.rows:
            newest[row.key] = max(newest.get(row.key, 0), row.period.end)
    buckets = changes.of(view.hash) if changes is not None and answer is None else None
    for bucket, keys in (buckets or {}).items():
        for key in changed_keys(view, alert.keys, {bucket: keys}) or ():
            newest[key] = max(newest.get(key, 0), bucket + view.bucket.seconds)
    return newest
