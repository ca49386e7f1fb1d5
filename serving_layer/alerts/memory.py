"""What the evaluator remembers of each alert between evaluations. The journal holds the same."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from serving_layer.alerts.episodes import Episode, Key, is_of, rule_of
from serving_layer.alerts.journal import Journal
from views.alert import Alert


@dataclass
class AlertMemory:
    """The memory of one alert."""

    episodes: dict[Key, list[Episode]] = field(default_factory=lambda: defaultdict(list))
    last_events: dict[Key, int] = field(default_factory=dict)
    """By key: the end of the last bucket with an event. For alerts on silence."""
    unwritten: dict[Key, int] = field(default_factory=dict)
    """The part of `last_events` that is not in the journal yet."""
    settled_until: int | None = None
    armed_at: float = 0.0
    is_new: bool = True
    """Whether it was never evaluated."""
    is_behind: bool = False
    """Whether its answers were too large: it concludes nothing until it has evaluated all recent periods."""
    retry_at: float = 0.0
    """When it is behind: not before then."""
    error: str = ""

    def put(self, episode: Episode) -> None:
        """Insert or replace an episode."""
        of_key = self.episodes[episode.key]
        of_key[:] = [each for each in of_key if each.id != episode.id] + [episode]

    def forget_before(self, oldest: float) -> None:
        """Drop resolved episodes whose last period is before `oldest`: evaluations no longer reach them."""
        for key in [key for key, known in self.episodes.items() if known and known[0].last < oldest]:
            self.episodes[key] = [each for each in self.episodes[key] if each.is_open or each.last >= oldest]
            if not self.episodes[key]:
                del self.episodes[key]


def load_memory(journal: Journal, alert: Alert) -> AlertMemory:
    """The memory of an alert as the journal has it."""
    memory = AlertMemory()
    memory.armed_at, memory.settled_until = journal.rules.armed(alert.name)
    memory.is_new = journal.rules.is_new(alert.name)
    memory.is_behind = journal.rules.is_behind(alert.name)
    memory.last_events = journal.rules.last_events(alert.name)
    rule = rule_of(alert)
    for episode in reversed(journal.episodes.all(alert.name)):
        if is_of(rule, episode):  # not by its time: the clock may have been wrong when it fired
            memory.episodes[episode.key].append(episode)
    if alert.silence_s and not alert.keys:
        memory.last_events.setdefault((), int(memory.armed_at))
    return memory
