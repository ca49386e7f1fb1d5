"""The alerts as they were last declared, and what evaluation has to remember about each besides its episodes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from serving_layer.alerts.tables.database import Database
from views.keys import pack_key, shorten_key, unpack_key

PER_ALERT = ("rules", "seen", "behind", "new")


class RuleTable:
    """What is stored per alert, by its name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def changed(self, hashes: Mapping[str, str]) -> list[str]:
        """The alerts that are new or redefined in `hashes` (name -> hash of the definition), or missing from it."""
        known = dict(self._database.rows("select alert, hash from rules"))
        return [name for name in {**known, **hashes} if known.get(name) != hashes.get(name)]

    def armed(self, alert: str) -> tuple[float, int | None]:
        """Since when an alert is evaluated as it is declared, and up to when its settled periods were judged."""
        rows = self._database.rows("select armed_at, settled_until from rules where alert = ?", alert)
        return (rows[0][0], rows[0][1]) if rows else (0.0, None)

    def is_new(self, alert: str) -> bool:
        """Whether the alert was never evaluated as it is declared now."""
        return bool(self._database.rows("select 1 from new where alert = ?", alert))

    def is_behind(self, alert: str) -> bool:
        """Whether its answers were too large when it was last evaluated."""
        return bool(self._database.rows("select 1 from behind where alert = ?", alert))

    def last_events(self, alert: str) -> dict[tuple[Any, ...], int]:
        """By key: the end of the last bucket with an event."""
        rows = self._database.rows("select key, last from seen where alert = ?", alert)
        return {unpack_key(shorten_key(key)): last for key, last in rows}

    def replace(
        self, transaction: sqlite3.Connection, changed: list[str], hashes: Mapping[str, str], now: float
    ) -> None:
        """Forget the changed alerts, and start again with those that are still declared."""
        for name in changed:
            for table in PER_ALERT:
                transaction.execute(f"delete from {table} where alert = ?", (name,))  # noqa: S608  our own names
            if name in hashes:
                transaction.execute("insert into new values (?)", (name,))
                transaction.execute("insert into rules values (?, ?, ?, null)", (name, hashes[name], now))

    def write_last_events(
        self, transaction: sqlite3.Connection, alert: str, ends: Mapping[tuple[Any, ...], int]
    ) -> None:
        """Record the end of the last bucket with an event for some keys."""
        rows = [(alert, pack_key(key), end) for key, end in ends.items()]
        transaction.executemany("insert or replace into seen values (?, ?, ?)", rows)

    def write_settled(self, transaction: sqlite3.Connection, alert: str, until: int) -> None:
        """Record up to when settled periods were judged."""
        transaction.execute("update rules set settled_until = ? where alert = ?", (until, alert))

    def write_behind(self, transaction: sqlite3.Connection, alert: str, *, is_behind: bool) -> None:
        """Record whether its answers were too large."""
        transaction.execute("delete from behind where alert = ?", (alert,))
        if is_behind:
            transaction.execute("insert into behind values (?)", (alert,))

    def write_evaluated(self, transaction: sqlite3.Connection, alert: str) -> None:
        """Record that the alert is no longer new."""
        transaction.execute("delete from new where alert = ?", (alert,))
