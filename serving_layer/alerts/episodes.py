"""Episodes: when an alert becomes pending, fires and is resolved, for one key. Pure: no clock, no storage.

A period is *true* if the alert's condition holds for the merged answers at a cut. Two true periods belong together if
no more than `keep_s` lies between them. An episode consists of true periods that belong together, and fires once:

- `in_row` true periods in a row fire, unless one of them belongs together with an episode that has already fired. Then
  they join that episode without another notification, however late their events arrived.
- Fewer are pending, as long as the next period may still become true.
- It is resolved when `keep_s` have passed since the end of its last true period.

So transitions depend on the events and the cuts alone. A late event can extend an episode, or fire one of its own that
is resolved at once. It never takes back a notification.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from typing import Any, NamedTuple

from views.alert import Alert

Key = tuple[Any, ...]


class EpisodeState(StrEnum):
    """The state of an episode."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class Episode:
    """One episode of one key. `first` and `last` are its periods, by their start; times are seconds since 1970.

    An episode that was pending and never fired is resolved without `fired_at`.
    """

    id: str
    alert: str
    view: str
    names: tuple[str, ...]
    """The names of the view's keys whose values are in `key`."""
    key: Key
    state: EpisodeState
    first: int
    last: int
    pending_at: float
    fired_at: float | None = None
    resolved_at: float | None = None
    value: Mapping[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is not resolved."""
        return self.state is not EpisodeState.RESOLVED


class Judgement(NamedTuple):
    """Whether the condition holds in a period, and the answers that decide it."""

    is_true: bool
    value: Mapping[str, Any]


class Rule(NamedTuple):
    """What decides the episodes of an alert."""

    alert: str
    view: str
    names: tuple[str, ...]
    step_s: int
    in_row: int
    keep_s: int
    definition: str = ""
    """Changes whenever the meaning of the alert changes."""


class Step(NamedTuple):
    """What happened to the episodes of a key: those that are new or changed, and their transitions.

    An episode that fires and is resolved in one step has two transitions, in this order.
    """

    changed: list[Episode]
    transitions: list[Episode]


def rule_of(alert: Alert) -> Rule:
    """The rule of an alert."""
    return Rule(alert.name, alert.view.name, alert.keys, alert.step_s, alert.for_buckets, alert.keep_s, alert.hash)


def advance(
    rule: Rule, key: Key, known: Iterable[Episode], judgements: Mapping[int, Judgement], now: float, at: float
) -> Step:
    """Advance the `known` episodes of one key at one cut by the judgements of its periods.

    `now` is the time up to which all events are in; `at` is the time of the clock, which notifications show.
    For each period that changed, `judgements` must include `rule.in_row` periods on each side of it.
    """
    before = {episode.id: episode for episode in known}
    episodes = dict(before)
    transitions: list[Episode] = []
    for first, last in _runs(rule, judgements):
        value = judgements[last].value
        fired = _fired_near(rule, episodes.values(), first, last)
        if fired is not None:
            episodes[fired.id] = _extended(fired, first, last, value)
        elif (last - first) // rule.step_s + 1 >= rule.in_row:
            pending = _pending_near(rule, episodes.values(), first, last)
            episode = pending or _new(rule, key, episodes, first, last, at)
            episodes[episode.id] = replace(
                _extended(episode, first, last, value), state=EpisodeState.FIRING, fired_at=at, value=value
            )
            transitions.append(episodes[episode.id])
        elif now < last + 2 * rule.step_s:
            pending = _pending_near(rule, episodes.values(), first, last)
            if pending is None:
                pending = replace(_new(rule, key, episodes, first, last, at), value=value)
                transitions.append(pending)
            episodes[pending.id] = _extended(pending, first, last, value)
    for episode in list(episodes.values()):
        if episode.is_open and now >= over_at(rule, episode):
            episodes[episode.id] = replace(episode, state=EpisodeState.RESOLVED, resolved_at=at)
            transitions.append(episodes[episode.id])
    return Step([each for each in episodes.values() if before.get(each.id) != each], transitions)


def advance_silence(
    rule: Rule, key: Key, known: Iterable[Episode], last: int, silence_s: int, now: float, at: float
) -> Step:
    """As `advance`, for silence. `last` is the end of the last bucket with an event."""
    known = list(known)
    silent = next((episode for episode in known if episode.is_open), None)
    if silent is not None and last > silent.first:
        resolved = replace(silent, state=EpisodeState.RESOLVED, last=last, resolved_at=at)
        return Step([resolved], [resolved])
    if silent is None and now >= last + silence_s:
        if any(episode.first == last for episode in known):
            return Step([], [])
        new = _new(rule, key, {each.id: each for each in known}, last, last, at)
        fired = replace(new, state=EpisodeState.FIRING, fired_at=at, value={"silent_s": round(now - last, 3)})
        return Step([fired], [fired])
    return Step([], [])


def over_at(rule: Rule, episode: Episode) -> float:
    """When an episode is resolved, unless another period joins it."""
    if episode.state is EpisodeState.PENDING:
        return episode.last + 2 * rule.step_s
    return episode.last + rule.step_s + rule.keep_s


def named(names: Iterable[str], key: Key) -> dict[str, Any]:
    """A key as a JSON object, by the names of the view's keys."""
    values = (value.isoformat() if isinstance(value, date) else value for value in key)
    return dict(zip(names, values, strict=True))


def is_of(rule: Rule, episode: Episode) -> bool:
    """Whether an episode belongs to the alert as it is declared now, not to an earlier definition."""
    return episode.id.startswith(_id_prefix(rule, episode.key))


def _runs(rule: Rule, judgements: Mapping[int, Judgement]) -> Iterator[tuple[int, int]]:
    """Runs of true periods in a row, oldest first, as (start of the first, start of the last)."""
    first = last = None
    for period in sorted(period for period, judgement in judgements.items() if judgement.is_true):
        if first is not None and last is not None:
            if period == last + rule.step_s:
                last = period
                continue
            yield first, last
        first = last = period
    if first is not None and last is not None:
        yield first, last


def _fired_near(rule: Rule, episodes: Iterable[Episode], first: int, last: int) -> Episode | None:
    """The newest episode that has fired and to which these periods belong."""
    distance = rule.step_s + rule.keep_s
    near = [
        episode
        for episode in episodes
        if episode.fired_at is not None and first <= episode.last + distance and episode.first <= last + distance
    ]
    return max(near, key=lambda episode: episode.last, default=None)


def _pending_near(rule: Rule, episodes: Iterable[Episode], first: int, last: int) -> Episode | None:
    """The pending episode that has one of these periods, or one next to them."""
    for episode in episodes:
        is_near = first <= episode.last + rule.step_s and episode.first <= last + rule.step_s
        if episode.state is EpisodeState.PENDING and is_near:
            return episode
    return None


def _extended(episode: Episode, first: int, last: int, value: Mapping[str, Any]) -> Episode:
    """The episode with these periods. While it is open, its value is that of its last period."""
    is_newest = episode.is_open and last >= episode.last
    return replace(
        episode,
        first=min(first, episode.first),
        last=max(last, episode.last),
        value=value if is_newest else episode.value,
    )


def _new(rule: Rule, key: Key, known: Mapping[str, Episode], first: int, last: int, now: float) -> Episode:
    """A new episode. Its id is made from the alert's definition, the key and the first period: it can be made again."""
    base = f"{_id_prefix(rule, key)}{first}"
    number, id_ = 1, base
    while id_ in known:
        number += 1
        id_ = f"{base}-{number}"
    return Episode(id_, rule.alert, rule.view, rule.names, key, EpisodeState.PENDING, first, last, pending_at=now)


def _id_prefix(rule: Rule, key: Key) -> str:
    text = json.dumps([rule.alert, rule.definition, named(rule.names, key)], sort_keys=True)
    return f"{rule.alert}-{hashlib.sha256(text.encode()).hexdigest()[:12]}-"
