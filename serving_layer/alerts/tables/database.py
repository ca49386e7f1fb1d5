"""The SQLite file of the journal: its connection, its schema, its transactions."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAYOUT = 3
BUSY_TIMEOUT_S = 10.0
SCHEMA = """
create table if not exists rules (
    alert text primary key, hash text not null, armed_at real not null, settled_until integer);
create table if not exists positions (follower text primary key, cut text not null, as_of real not null, run integer);
create table if not exists evaluations (
    seq integer primary key autoincrement, source text not null, cut text not null, as_of real not null,
    at real not null, is_exact integer not null);
create table if not exists episodes (
    id text primary key, alert text not null, view text not null, names text not null, key blob not null,
    state text not null, first integer not null, last integer not null, pending_at real not null, fired_at real,
    resolved_at real, value text not null);
create index if not exists episodes_by_time on episodes (pending_at);
create table if not exists transitions (
    seq integer primary key autoincrement, episode text not null, view text not null, body text not null);
create table if not exists outbox (
    seq integer primary key autoincrement, target text not null, delivery text not null, key text not null,
    body text not null, since real not null, tries integer not null default 0, next_at real not null default 0,
    error text not null default '');
create table if not exists seen (
    alert text not null, key blob not null, last integer not null, primary key (alert, key)) without rowid;
create table if not exists mutes (alert text primary key, until real not null);
create table if not exists behind (alert text primary key);
create table if not exists new (alert text primary key);
"""


class Database:
    """One connection that the threads of a process share."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")  # a commit survives a power failure
        if self.rows("pragma user_version")[0][0] < LAYOUT:  # readers open the file often and must not write
            self._connection.executescript(f"{SCHEMA} pragma user_version = {LAYOUT};")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write what the block writes, or nothing. It is on disk when the block ends."""
        with self._lock:
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._lock:
            return self._connection.execute(sql, values).fetchall()
