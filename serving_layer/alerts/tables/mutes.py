"""Mutes: alerts of which webhooks are not notified for a while. The command line writes them."""

from __future__ import annotations

import time

from serving_layer.alerts.tables.database import Database


class MuteTable:
    """Until when each alert is muted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def active(self) -> dict[str, float]:
        """The alerts that are muted now, and until when."""
        return dict(self._database.rows("select alert, until from mutes where until > ?", time.time()))

    def add(self, alert: str, until: float) -> None:
        """Mute an alert."""
        with self._database.transaction() as transaction:
            transaction.execute("insert or replace into mutes values (?, ?)", (alert, until))

    def remove(self, alert: str) -> bool:
        """Unmute an alert. Returns whether it was muted."""
        with self._database.transaction() as transaction:
            deleted = transaction.execute("delete from mutes where alert = ? and until > ?", (alert, time.time()))
            return deleted.rowcount > 0
