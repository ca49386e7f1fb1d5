"""The journal of the alert process, a SQLite file: episodes, notifications to deliver, how far evaluation is.

Everything that follows from one evaluation is written in one transaction: the episodes, the notifications about them
(outbox) and the cut. A process that is killed at any point has made an evaluation completely or not at all: it creates
no notification twice and loses none. Other processes read the file and write mutes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from infra.settings import Settings
from serving_layer.alerts.episodes import Episode
from serving_layer.alerts.notifications import Notification
from serving_layer.alerts.tables.database import Database
from serving_layer.alerts.tables.episodes import EpisodeTable, TransitionTable
from serving_layer.alerts.tables.mutes import MuteTable
from serving_layer.alerts.tables.outbox import MAX_WAITING, OutboxTable
from serving_layer.alerts.tables.positions import EvaluationTable, FollowerPosition, PositionTable
from serving_layer.alerts.tables.rules import RuleTable

FILE = "alerts.sqlite"
PRUNE_EVERY = 100
"""Commits between two prunings."""
DAY_S = 86_400.0


class Transitions(NamedTuple):
    """Episodes that changed state, and the notifications about them."""

    bodies: tuple[tuple[Episode, str], ...] = ()
    """Each episode as it was then, with its JSON."""
    notifications: tuple[Notification, ...] = ()


NO_TRANSITIONS = Transitions()


class Evaluation(NamedTuple):
    """What follows from one evaluation of a source's alerts."""

    source: str
    position: FollowerPosition
    at: float
    is_exact: bool = True
    """Whether the answers stood exactly at the cut."""
    changed: tuple[Episode, ...] = ()
    transitions: Transitions = NO_TRANSITIONS
    last_events: Mapping[str, Mapping[tuple[Any, ...], int]] = {}
    """By alert and key: the end of the last bucket with an event."""
    settled: Mapping[str, int] = {}
    """By alert: up to when its settled periods are judged."""
    behind: Mapping[str, bool] = {}
    """By alert: whether it must evaluate all recent periods before it concludes anything."""
    horizons: Mapping[str, float] = {}
    """By alert: later evaluations join no episode whose last period is before this."""
    evaluated: tuple[str, ...] = ()
    """Alerts that are no longer new."""


class Journal:
    """The journal of one home. One process writes evaluations; its threads share the object."""

    def __init__(
        self, path: Path, *, max_episodes: int = 10_000, max_waiting: int = MAX_WAITING, history_days: float = 0
    ) -> None:
        """With `history_days`, what is older is pruned too; 0: age does not matter."""
        self.path = path
        self._history_days = history_days
        self._database = Database(path)
        self.positions = PositionTable(self._database)
        self.evaluations = EvaluationTable(self._database)
        self.rules = RuleTable(self._database)
        self.episodes = EpisodeTable(self._database, max_episodes)
        self.transitions = TransitionTable(self._database, max_episodes)
        self.mutes = MuteTable(self._database)
        self.outbox = OutboxTable(self._database, max_waiting)
        self._commits = 0
        self._horizons: dict[str, float] = {}

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def commit(self, evaluation: Evaluation) -> None:
        """Write all that follows from an evaluation, or nothing."""
        with self._database.transaction() as transaction:
            self._write_episodes(transaction, evaluation.changed, evaluation.transitions, evaluation.at)
            for alert, ends in evaluation.last_events.items():
                self.rules.write_last_events(transaction, alert, ends)
            for alert, until in evaluation.settled.items():
                self.rules.write_settled(transaction, alert, until)
            for alert, is_behind in evaluation.behind.items():
                self.rules.write_behind(transaction, alert, is_behind=is_behind)
            for alert in evaluation.evaluated:
                self.rules.write_evaluated(transaction, alert)
            source, position = evaluation.source, evaluation.position
            self.positions.write(transaction, source, position)
            self.evaluations.write(transaction, source, position, evaluation.at, is_exact=evaluation.is_exact)
            self._commits += 1
            self._horizons |= evaluation.horizons
            if not self._commits % PRUNE_EVERY:
                self._prune(transaction, evaluation.at)

    def arm(
        self, hashes: Mapping[str, str], now: float, ended: tuple[Episode, ...] = (),
        transitions: Transitions = NO_TRANSITIONS,
    ) -> None:  # fmt: skip
        """Take these alerts (name -> hash) as they are declared now, and write the episodes that end with that."""
        changed = self.rules.changed(hashes)
        with self._database.transaction() as transaction:
            self.rules.replace(transaction, changed, hashes, now)
            self._write_episodes(transaction, ended, transitions, now)

    def _write_episodes(
        self, transaction: sqlite3.Connection, changed: tuple[Episode, ...], transitions: Transitions, at: float
    ) -> None:
        for episode in changed:
            self.episodes.write(transaction, episode)
        for episode, body in transitions.bodies:
            self.transitions.write(transaction, episode, body)
        self.outbox.write(transaction, transitions.notifications, at)

    def _prune(self, transaction: sqlite3.Connection, now: float) -> None:
        self.evaluations.prune(transaction)
        self.transitions.prune(transaction)
        self.outbox.prune(transaction)
        self.episodes.prune(transaction, self._horizons)
        if self._history_days:
            oldest = now - self._history_days * DAY_S
            self.evaluations.prune_before(transaction, oldest)
            self.episodes.prune_before(transaction, oldest, self._horizons)
            self.transitions.prune_forgotten(transaction)


def journal_path(settings: Settings) -> Path:
    """The journal file of a home."""
    return settings.home / "alerts" / FILE


def open_journal(settings: Settings) -> Journal:
    """Open the journal of a home; create it if there is none."""
    path = journal_path(settings)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Journal(path, max_episodes=settings.alerts_max_episodes, history_days=settings.alerts_history_days)
