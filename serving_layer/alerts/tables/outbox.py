"""The outbox: notifications that wait to be delivered."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from serving_layer.alerts.notifications import Notification
from serving_layer.alerts.tables.database import Database

MAX_WAITING = 10_000
"""Notifications for one target."""
MAX_ERROR = 500

log = structlog.get_logger()


class WaitingNotification(NamedTuple):
    """A notification in the outbox. `delivery` is the same however often it is sent."""

    seq: int
    target: str
    delivery: str
    key: str
    body: str
    since: float
    tries: int
    next_at: float
    error: str


class OutboxTable:
    """Notifications for all targets. Those of one target are delivered in order."""

    def __init__(self, database: Database, max_waiting: int) -> None:
        self._database, self._max_waiting = database, max_waiting
        self.given_up: Counter[str] = Counter()
        """By target: notifications that were dropped because too many were waiting."""

    def all(self) -> list[WaitingNotification]:
        """All that wait, oldest first."""
        return [WaitingNotification(*row) for row in self._database.rows("select * from outbox order by seq")]

    def due(self, target: str, now: float, limit: int) -> list[WaitingNotification]:
        """The oldest notifications for a target, in order; none while the first of them waits for a retry."""
        sql = "select * from outbox where target = ? order by seq limit ?"
        waiting = [WaitingNotification(*row) for row in self._database.rows(sql, target, limit)]
        return waiting if waiting and waiting[0].next_at <= now else []

    def remove(self, seqs: Iterable[int]) -> None:
        """Remove notifications that were delivered, or given up."""
        with self._database.transaction() as transaction:
            transaction.executemany("delete from outbox where seq = ?", [(seq,) for seq in seqs])

    def postpone(self, seq: int, next_at: float, error: str) -> None:
        """Record a failed delivery and when to retry."""
        with self._database.transaction() as transaction:
            transaction.execute(
                "update outbox set tries = tries + 1, next_at = ?, error = ? where seq = ?",
                (next_at, error[:MAX_ERROR], seq),
            )

    def write(self, transaction: sqlite3.Connection, notifications: Iterable[Notification], since: float) -> None:
        """Add notifications."""
        transaction.executemany(
            "insert into outbox (target, delivery, key, body, since) values (?, ?, ?, ?, ?)",
            [(*each, since) for each in notifications],
        )

    def prune(self, transaction: sqlite3.Connection) -> None:
        """Keep the newest of each target. The others are given up."""
        waiting = transaction.execute("select target, count(*) from outbox group by target").fetchall()
        for target, count in waiting:
            excess = count - self._max_waiting
            if excess > 0:
                transaction.execute(
                    "delete from outbox where seq in (select seq from outbox where target = ? order by seq limit ?)",
                    (target, excess),
                )
                self.given_up[target] += excess
                log.error("given_up", target=target, notifications=excess, reason="too many are waiting")
