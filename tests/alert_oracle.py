"""The reference evaluator of alerts: every period of every key at every cut, by the reference interpreter.

It shares nothing with serving_layer/alerts but the declarations: docs/alerts.md says what an episode is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from master_dataset.cut import Cut
from views import in_memory
from views.alert import Alert, compared, nothing, numbers
from views.in_memory import Event

MICROS = 1_000_000


@dataclass
class FiredEpisode:
    """An episode that fired, as the set of its periods."""

    periods: set[int]
    is_over: bool = False


@dataclass
class Oracle:
    """One alert over a sequence of evaluations."""

    alert: Alert
    fired: dict[Any, list[FiredEpisode]] = field(default_factory=dict)

    def evaluate(self, events: Sequence[Event], cut: Cut, as_of: float) -> None:
        """Evaluate the events below the cut, of all that were sent."""
        below = [event for event in events if event.offset < cut.get(event.partition, 0)]
        answers = self._answers(below)
        for key in {key for key, _ in answers} | set(self.fired):
            of_key = {period: value for (each, period), value in answers.items() if each == key}
            if self.alert.silence_s:
                self._silence(key, of_key, as_of)
            else:
                self._episodes(key, sorted(self._true(of_key, as_of)), as_of)

    def _answers(self, below: Iterable[Event]) -> dict[tuple[Any, int], dict[str, Any]]:
        """Merged over the keys that the alert does not distinguish, and over the buckets of each period."""
        view, alert = self.alert.view, self.alert
        columns = [list(view.keys).index(name) for name in alert.keys]
        merged: dict[tuple[Any, int], Any] = {}
        for (bucket, key), state in in_memory.fold(view, in_memory.counted(below)).items():
            step_s = view.bucket.seconds if alert.silence_s else alert.step_s
            group = tuple(key[column] for column in columns), bucket // MICROS // step_s * step_s
            known = {group: merged[group]} if group in merged else {}
            merged[group] = in_memory.merge(view, known, {group: state})[group]  # type: ignore[dict-item,index]
        return {group: view.present(state) for group, state in merged.items()}

    def _true(self, of_key: dict[int, Any], as_of: float) -> set[int]:
        alert, view = self.alert, self.alert.view
        condition = alert.condition
        assert condition is not None
        periods = set(of_key) | {period + alert.shift_s for period in of_key if alert.shift_s}
        found = set()
        for period in periods:
            if alert.settled and as_of < period + alert.step_s:
                continue
            value = numbers(view, of_key.get(period, nothing(view)))
            if alert.shift_s:
                value = compared(value, numbers(view, of_key.get(period - alert.shift_s, nothing(view))))
            if condition.evaluate(value):
                found.add(period)
        return found

    def _episodes(self, key: Any, true: list[int], as_of: float) -> None:
        alert, fired = self.alert, self.fired.setdefault(key, [])
        room = alert.step_s + alert.keep_s
        for run in _rows(true, alert.step_s):
            near = [
                each for each in fired if any(abs(mine - theirs) <= room for mine in run for theirs in each.periods)
            ]
            if near:
                max(near, key=lambda each: max(each.periods)).periods.update(run)
            elif len(run) >= alert.for_buckets:
                fired.append(FiredEpisode(set(run)))
        for each in fired:
            each.is_over = each.is_over or as_of >= max(each.periods) + room

    def _silence(self, key: Any, of_key: dict[int, Any], as_of: float) -> None:
        fired = self.fired.setdefault(key, [])
        last = max(of_key, default=0) + self.alert.view.bucket.seconds
        if fired and not fired[-1].is_over and last > max(fired[-1].periods):
            fired[-1].is_over = True
        elif as_of >= last + self.alert.silence_s and all(last not in each.periods for each in fired):
            fired.append(FiredEpisode({last}))


def _rows(periods: list[int], step_s: int) -> list[list[int]]:
    found: list[list[int]] = []
    for period in periods:
        if found and found[-1][-1] + step_s == period:
            found[-1].append(period)
        else:
            found.append([period])
    return found
