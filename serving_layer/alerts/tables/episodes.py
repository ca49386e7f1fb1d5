"""Episodes as they are now, and the transitions that led there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.tables.database import Database
from views.keys import pack_key, shorten_key, unpack_key

EXCESS = (
    "delete from episodes where state = 'resolved' and id in "
    "(select id from episodes order by pending_at desc limit -1 offset ?) and "
)


class EpisodeTable:
    """Every open episode, and the newest resolved ones."""

    def __init__(self, database: Database, max_episodes: int) -> None:
        self._database, self._max_episodes = database, max_episodes

    def all(self, alert: str | None = None, *, limit: int = -1, is_open: bool = False) -> list[Episode]:
        """Episodes, newest first."""
        where = ["alert = ?"] * (alert is not None) + ["state != 'resolved'"] * is_open
        sql = f"select * from episodes {'where ' + ' and '.join(where) if where else ''} "  # noqa: S608
        values = [alert] if alert is not None else []
        rows = self._database.rows(f"{sql} order by pending_at desc, id limit ?", *values, limit)
        return [_episode(row) for row in rows]

    def write(self, transaction: sqlite3.Connection, episode: Episode) -> None:
        """Insert or replace an episode."""
        sql = "insert or replace into episodes values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        transaction.execute(sql, _row(episode))

    def prune(self, transaction: sqlite3.Connection, horizons: Mapping[str, float]) -> None:
        """Delete the oldest beyond the limit, but none that an evaluation may still join: it would fire again."""
        transaction.execute(f"{EXCESS} alert not in (select alert from rules)", (self._max_episodes,))  # noqa: S608
        for alert, oldest in horizons.items():
            transaction.execute(EXCESS + "alert = ? and last < ?", (self._max_episodes, alert, oldest))

    def prune_before(self, transaction: sqlite3.Connection, time_s: float, horizons: Mapping[str, float]) -> None:
        """Delete those that were resolved before a time. Open ones and those that an evaluation may join stay."""
        old = "delete from episodes where state = 'resolved' and coalesce(resolved_at, last) < ? and "
        transaction.execute(f"{old} alert not in (select alert from rules)", (time_s,))  # noqa: S608
        for alert, oldest in horizons.items():
            transaction.execute(f"{old} alert = ? and last < ?", (time_s, alert, oldest))


class TransitionTable:
    """The newest transitions, numbered without gaps: what `/alerts/live` pushes."""

    def __init__(self, database: Database, max_transitions: int) -> None:
        self._database, self._max_transitions = database, max_transitions

    def newest(self) -> int:
        """The number of the newest transition; 0: there is none."""
        return int(self._database.rows("select coalesce(max(seq), 0) from transitions")[0][0])

    def after(self, number: int, limit: int = 1000) -> list[tuple[int, str, str]]:
        """(number, view, JSON) of the transitions after a number, oldest first."""
        sql = "select seq, view, body from transitions where seq > ? order by seq limit ?"
        return [(seq, view, body) for seq, view, body in self._database.rows(sql, number, limit)]

    def was_muted(self, episode: str) -> bool | None:
        """Whether the alert was muted when an episode fired; None if it has not fired, or that is no longer known."""
        rows = self._database.rows("select body from transitions where episode = ?", episode)
        bodies = (json.loads(body) for (body,) in rows)
        return next((bool(body["muted"]) for body in bodies if body["state"] == str(EpisodeState.FIRING)), None)

    def write(self, transaction: sqlite3.Connection, episode: Episode, body: str) -> None:
        """Add a transition."""
        values = (episode.id, episode.view, body)
        transaction.execute("insert into transitions (episode, view, body) values (?, ?, ?)", values)

    def prune(self, transaction: sqlite3.Connection) -> None:
        """Keep the newest."""
        sql = "delete from transitions where seq <= (select max(seq) from transitions) - ?"
        transaction.execute(sql, (self._max_transitions,))

    def prune_forgotten(self, transaction: sqlite3.Connection) -> None:
        """Delete those before the first of an episode that is still known, so that their numbers stay without gaps.

        The newest stays in any case: its number is where the next one continues.
        """
        known = "select min(seq) from transitions where episode in (select id from episodes)"
        newest = "select max(seq) from transitions"
        transaction.execute(f"delete from transitions where seq < coalesce(({known}), ({newest}))")  # noqa: S608


def _row(episode: Episode) -> tuple[Any, ...]:
    value = dict(episode.value or {})
    return (
        episode.id, episode.alert, episode.view, json.dumps(episode.names), pack_key(episode.key),
        str(episode.state), episode.first, episode.last, episode.pending_at, episode.fired_at,
        episode.resolved_at, json.dumps(value),
    )  # fmt: skip


def _episode(row: tuple[Any, ...]) -> Episode:
    id_, alert, view, names, key, state, first, last, pending_at, fired_at, resolved_at, value = row
    return Episode(
        id_, alert, view, tuple(json.loads(names)), unpack_key(shorten_key(key)), EpisodeState(state), first, last,
        pending_at, fired_at, resolved_at, json.loads(value),
    )  # fmt: skip
