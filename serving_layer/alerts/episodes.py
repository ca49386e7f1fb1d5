"""Episodes: when an alert begins to wait, fires and is over, for one key. Pure: the same judgements, the same episodes.

A period is *true* where the alert's condition holds of the merged answers at a cut. Two true periods belong together if
no more than `keep_s` lies between them. An episode is made of true periods that belong together, and it fires once:

- `in_row` true periods in a row fire, unless one of them belongs together with an episode that has fired already. Then
  they join that episode, and nobody is told again, however late their events came.
- Fewer wait (pending), as long as the next period may still become true.
- It is over (resolved) when `keep_s` have passed since the end of its last true period.

So what is told depends on the events and the cuts alone. An event that comes late can make an episode longer, or fire
one of its own, which is over at once. It never takes back what was told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from typing import Any, NamedTuple

Key = tuple[Any, ...]


class State(StrEnum):
    """Of an episode."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class Episode:
    """One episode of one key. `first` and `last`: its periods, by their beginnings; times are seconds since 1970.

    One that was pending and never fired is resolved without `fired_at`.
    """

    id: str
    alert: str
    view: str
    names: tuple[str, ...]
    """Of the view's keys that `key` has the values of."""
    key: Key
    state: State
    first: int
    last: int
    pending_at: float
    fired_at: float | None = None
    resolved_at: float | None = None
    value: Mapping[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is not over."""
        return self.state is not State.RESOLVED


class Judged(NamedTuple):
    """Whether the condition holds in a period, and the answers by which it does or does not."""

    is_true: bool
    value: Mapping[str, Any]


class Rule(NamedTuple):
    """What of an alert decides its episodes."""

    alert: str
    view: str
    names: tuple[str, ...]
    step_s: int
    in_row: int
    keep_s: int
    definition: str = ""
    """The same as long as the alert means the same."""


class Step(NamedTuple):
    """What became of the episodes of a key: those that are new or another than before, and what is to be told.

    An episode that fires and is over in one step is told twice, in this order.
    """

    changed: list[Episode]
    told: list[Episode]


def advance(
    rule: Rule, key: Key, known: Iterable[Episode], judged: Mapping[int, Judged], now: float, at: float
) -> Step:
    """One key, one cut. `known` are its episodes, `judged` its periods that were looked at.

    `now` is until when all events are known to be in, `at` the time by the clock, which stands in what is told.

    Of each period that was touched, those next to it, `rule.in_row` on each side, must be among `judged`.
    """
    before = {episode.id: episode for episode in known}
    episodes = dict(before)
    told: list[Episode] = []
    for first, last in _runs(rule, judged):
        value = judged[last].value
        fired = _together(rule, episodes.values(), first, last)
        if fired is not None:
            episodes[fired.id] = _longer(fired, first, last, value)
        elif (last - first) // rule.step_s + 1 >= rule.in_row:
            waiting = _waiting(rule, episodes.values(), first, last)
            begun = waiting or _new(rule, key, episodes, first, last, at)
            episodes[begun.id] = replace(
                _longer(begun, first, last, value), state=State.FIRING, fired_at=at, value=value
            )
            told.append(episodes[begun.id])
        elif now < last + 2 * rule.step_s:
            waiting = _waiting(rule, episodes.values(), first, last)
            if waiting is None:
                waiting = replace(_new(rule, key, episodes, first, last, at), value=value)
                told.append(waiting)
            episodes[waiting.id] = _longer(waiting, first, last, value)
    for episode in list(episodes.values()):
        if episode.is_open and now >= over_at(rule, episode):
            episodes[episode.id] = replace(episode, state=State.RESOLVED, resolved_at=at)
            told.append(episodes[episode.id])
    return Step([each for each in episodes.values() if before.get(each.id) != each], told)


def advance_silence(
    rule: Rule, key: Key, known: Iterable[Episode], last: int, silence_s: int, now: float, at: float
) -> Step:
    """The same for silence: `last` is the end of the last bucket with an event. What is late in Kafka is no silence."""
    known = list(known)
    silent = next((episode for episode in known if episode.is_open), None)
    if silent is not None and last > silent.first:
        over = replace(silent, state=State.RESOLVED, last=last, resolved_at=at)
        return Step([over], [over])
    if silent is None and now >= last + silence_s:
        if any(episode.first == last for episode in known):
            return Step([], [])
        new = _new(rule, key, {each.id: each for each in known}, last, last, at)
        fired = replace(new, state=State.FIRING, fired_at=at, value={"silent_s": round(now - last, 3)})
        return Step([fired], [fired])
    return Step([], [])


def over_at(rule: Rule, episode: Episode) -> float:
    """When an episode is over, unless another period joins it."""
    if episode.state is State.PENDING:
        return episode.last + 2 * rule.step_s
    return episode.last + rule.step_s + rule.keep_s


def named(names: Iterable[str], key: Key) -> dict[str, Any]:
    """A key as JSON has it: by the names of the view's keys."""
    values = (value.isoformat() if isinstance(value, date) else value for value in key)
    return dict(zip(names, values, strict=True))


def _runs(rule: Rule, judged: Mapping[int, Judged]) -> Iterator[tuple[int, int]]:
    """Stretches of true periods in a row, oldest first, as (beginning of the first, of the last)."""
    first = last = None
    for period in sorted(period for period, found in judged.items() if found.is_true):
        if first is not None and last is not None:
            if period == last + rule.step_s:
                last = period
                continue
            yield first, last
        first = last = period
    if first is not None and last is not None:
        yield first, last


def _together(rule: Rule, episodes: Iterable[Episode], first: int, last: int) -> Episode | None:
    """The newest episode that fired and to which these periods belong."""
    room = rule.step_s + rule.keep_s
    found = [
        episode
        for episode in episodes
        if episode.fired_at is not None and first <= episode.last + room and episode.first <= last + room
    ]
    return max(found, key=lambda episode: episode.last, default=None)


def _waiting(rule: Rule, episodes: Iterable[Episode], first: int, last: int) -> Episode | None:
    """The episode that is pending with one of these periods or one next to them."""
    for episode in episodes:
        is_near = first <= episode.last + rule.step_s and episode.first <= last + rule.step_s
        if episode.state is State.PENDING and is_near:
            return episode
    return None


def _longer(episode: Episode, first: int, last: int, value: Mapping[str, Any]) -> Episode:
    """With these periods. The answers of an episode are those of its last period, while it is open."""
    is_newest = episode.is_open and last >= episode.last
    return replace(
        episode,
        first=min(first, episode.first),
        last=max(last, episode.last),
        value=value if is_newest else episode.value,
    )


def _new(rule: Rule, key: Key, known: Mapping[str, Episode], first: int, last: int, now: float) -> Episode:
    """Its id says which alert, as it is declared, key and period it began with: found again, it is the same."""
    base = f"{_begin_of_id(rule, key)}{first}"
    number, id_ = 1, base
    while id_ in known:
        number += 1
        id_ = f"{base}-{number}"
    return Episode(id_, rule.alert, rule.view, rule.names, key, State.PENDING, first, last, pending_at=now)


def is_of(rule: Rule, episode: Episode) -> bool:
    """Whether an episode is of the alert as it is declared now, not of what it was before."""
    return episode.id.startswith(_begin_of_id(rule, episode.key))


def _begin_of_id(rule: Rule, key: Key) -> str:
    text = json.dumps([rule.alert, rule.definition, named(rule.names, key)], sort_keys=True)
    return f"{rule.alert}-{hashlib.sha256(text.encode()).hexdigest()[:12]}-"
