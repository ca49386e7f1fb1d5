"""How far each follower has read the change log, and the evaluations that were made on the way."""

from __future__ import annotations

import json
import sqlite3
from typing import NamedTuple

from master_dataset.cut import Cut, cut_from_json, cut_to_json
from serving_layer.alerts.tables.database import Database

MAX_EVALUATIONS = 10_000


class FollowerPosition(NamedTuple):
    """How far a follower is: the cut up to which it has processed changes, and the time up to which all events are in.

    Feeds also record the batch run that they last sent.
    """

    cut: Cut
    as_of: float
    run: int | None = None


class PositionTable:
    """The position of each follower, by name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, follower: str) -> FollowerPosition | None:
        """The position of a follower; None before its first."""
        rows = self._database.rows("select cut, as_of, run from positions where follower = ?", follower)
        return FollowerPosition(cut_from_json(json.loads(rows[0][0])), rows[0][1], rows[0][2]) if rows else None

    def put(self, follower: str, position: FollowerPosition) -> None:
        """Record a position in a transaction of its own, after its results are safe elsewhere."""
        with self._database.transaction() as transaction:
            self.write(transaction, follower, position)

    def write(self, transaction: sqlite3.Connection, follower: str, position: FollowerPosition) -> None:
        """Record a position."""
        values = (follower, _cut_text(position.cut), position.as_of, position.run)
        transaction.execute("insert or replace into positions values (?, ?, ?, ?)", values)


class EvaluationTable:
    """The newest evaluations: at which cut and when. The tests compare episodes with a reference at these cuts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, source: str) -> list[tuple[Cut, float, float, bool]]:
        """(cut, as_of, at, is_exact) of each evaluation of a source, oldest first."""
        sql = "select cut, as_of, at, is_exact from evaluations where source = ? order by seq"
        return [
            (cut_from_json(json.loads(cut)), as_of, at, bool(is_exact))
            for cut, as_of, at, is_exact in self._database.rows(sql, source)
        ]

    def last_at(self, source: str) -> float:
        """When a source was last evaluated; 0: never."""
        sql = "select coalesce(max(at), 0) from evaluations where source = ?"
        return float(self._database.rows(sql, source)[0][0])

    def write(
        self, transaction: sqlite3.Connection, source: str, position: FollowerPosition, at: float, *, is_exact: bool
    ) -> None:
        """Add an evaluation."""
        transaction.execute(
            "insert into evaluations (source, cut, as_of, at, is_exact) values (?, ?, ?, ?, ?)",
            (source, _cut_text(position.cut), position.as_of, at, int(is_exact)),
        )

    def prune(self, transaction: sqlite3.Connection) -> None:
        """Keep the newest."""
        sql = "delete from evaluations where seq <= (select max(seq) from evaluations) - ?"
        transaction.execute(sql, (MAX_EVALUATIONS,))

    def prune_before(self, transaction: sqlite3.Connection, time_s: float) -> None:
        """Delete those that were made before a time, but the newest of each source."""
        newest = "select max(seq) from evaluations group by source"
        transaction.execute(f"delete from evaluations where at < ? and seq not in ({newest})", (time_s,))  # noqa: S608


def _cut_text(cut: Cut) -> str:
    return json.dumps(cut_to_json(cut))
