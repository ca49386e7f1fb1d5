"""What the alert process knows for certain: episodes, what is still to be told, how far it has looked. A SQLite file.

Everything that follows from one look is written in one transaction, which is on the disk when it ends: the episodes,
what is to be told of them (outbox), and the cut. So a process that is killed at any point either has done a look, or
has not: it tells nothing twice by itself, and forgets nothing. Other processes read the file, and write mutes.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from infra.settings import Settings
from master_dataset.cut import Cut, cut_from_json, cut_to_json
from serving_layer.alerts.episodes import Episode, State
from views.keys import pack_key, unpack_key

FILE = "alerts.sqlite"
LAYOUT = 3
BUSY_S = 10.0
MOST_EVALUATIONS = 10_000
MOST_OUTBOX = 10_000
"""Messages that wait for one target."""
PRUNE_EVERY = 100
"""Commits between two looks at what is too old."""
PUT_EPISODE = "insert or replace into episodes values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
TABLES = """
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

log = structlog.get_logger()


class Position(NamedTuple):
    """How far a follower is: the cut up to which it has seen what was touched; until when all was known to be in."""

    cut: Cut
    as_of: float
    run: int | None = None


class Telling(NamedTuple):
    """A message that waits in the outbox. `delivery` is the same however often it is sent."""

    seq: int
    target: str
    delivery: str
    key: str
    body: str
    since: float
    tries: int
    next_at: float
    error: str


class Look(NamedTuple):
    """What follows from one look at the views of a source."""

    source: str
    position: Position
    at: float
    is_exact: bool = True
    """Whether what was looked at stood exactly at the cut."""
    changed: tuple[Episode, ...] = ()
    told: tuple[tuple[Episode, str], ...] = ()
    """Episodes as they are told, each with its JSON."""
    outbox: tuple[tuple[str, str, str, str], ...] = ()
    """(target, delivery, key, body)."""
    seen: Mapping[str, Mapping[tuple[Any, ...], int]] = {}
    settled: Mapping[str, int] = {}
    behind: Mapping[str, bool] = {}
    """Of each alert: whether it has to look at everything of late before anything is concluded."""
    horizons: Mapping[str, float] = {}
    """Of each alert: what looks may still join are episodes whose last period is not before this."""
    no_more_new: tuple[str, ...] = ()
    """Alerts that were looked at with this."""


class Journal:
    """The file of one home. One process writes looks; threads share the object."""

    def __init__(self, path: Path, *, max_episodes: int = 10_000, max_outbox: int = MOST_OUTBOX) -> None:
        self.path, self._max_episodes, self._max_outbox = path, max_episodes, max_outbox
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")  # what was committed survives a loss of power too
        if self._rows("pragma user_version")[0][0] < LAYOUT:  # readers open it often: they write nothing
            self._db.executescript(f"{TABLES} pragma user_version = {LAYOUT};")
        self._commits = 0
        self._horizons: dict[str, float] = {}
        self.given_up: Counter[str] = Counter()
        """Messages by target that were never told because too many waited."""

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("begin immediate")
            try:
                yield self._db
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    # ---- looks ----

    def position(self, follower: str) -> Position | None:
        """Where a follower stands."""
        found = self._rows("select cut, as_of, run from positions where follower = ?", follower)
        return Position(cut_from_json(json.loads(found[0][0])), found[0][1], found[0][2]) if found else None

    def note_position(self, follower: str, position: Position) -> None:
        """A follower has come so far, and what came of it is done."""
        with self._transaction() as db:
            _put_position(db, follower, position)

    def commit(self, look: Look) -> None:
        """All that follows from a look, or nothing."""
        with self._transaction() as db:
            _put_told(db, look)
            for alert, keys in look.seen.items():
                db.executemany(
                    "insert or replace into seen values (?, ?, ?)",
                    [(alert, pack_key(key), last) for key, last in keys.items()],
                )
            for alert, until in look.settled.items():
                db.execute("update rules set settled_until = ? where alert = ?", (until, alert))
            for alert, is_behind in look.behind.items():
                db.execute("delete from behind where alert = ?", (alert,))
                if is_behind:
                    db.execute("insert into behind values (?)", (alert,))
            db.executemany("delete from new where alert = ?", [(name,) for name in look.no_more_new])
            _put_position(db, look.source, look.position)
            db.execute(
                "insert into evaluations (source, cut, as_of, at, is_exact) values (?, ?, ?, ?, ?)",
                (look.source, _cut(look.position.cut), look.position.as_of, look.at, int(look.is_exact)),
            )
            self._commits += 1
            self._horizons |= look.horizons
            if not self._commits % PRUNE_EVERY:
                self._prune(db)

    def _prune(self, db: sqlite3.Connection) -> None:
        """Drop the oldest of what is too many. Open episodes stay, and what looks reach: it would fire again."""
        for table, most in (
            ("evaluations", MOST_EVALUATIONS),
            ("transitions", self._max_episodes),
        ):
            db.execute(f"delete from {table} where seq <= (select max(seq) from {table}) - ?", (most,))  # noqa: S608
        self._prune_outbox(db)
        too_many = (
            "delete from episodes where state = 'resolved' and id in "
            "(select id from episodes order by pending_at desc limit -1 offset ?) and "
        )
        db.execute(too_many + "alert not in (select alert from rules)", (self._max_episodes,))  # noqa: S608  our own text
        for alert, oldest in self._horizons.items():
            db.execute(too_many + "alert = ? and last < ?", (self._max_episodes, alert, oldest))

    def _prune_outbox(self, db: sqlite3.Connection) -> None:
        """Of each target the newest messages stay. The others are given up, and that is said."""
        for target, count in db.execute("select target, count(*) from outbox group by target").fetchall():
            if count > self._max_outbox:
                db.execute(
                    "delete from outbox where seq in (select seq from outbox where target = ? order by seq limit ?)",
                    (target, count - self._max_outbox),
                )
                self.given_up[target] += count - self._max_outbox
                log.error("given_up", target=target, messages=count - self._max_outbox, why="too many wait")

    # ---- alerts ----

    def differing(self, hashes: Mapping[str, str]) -> list[str]:
        """Of these alerts (name -> hash) those that are new or another than before, and those that are gone."""
        known = dict(self._rows("select alert, hash from rules"))
        return [name for name in {**known, **hashes} if known.get(name) != hashes.get(name)]

    def arm(self, hashes: Mapping[str, str], now: float, ended: Look) -> None:
        """Take these alerts as they are declared now; `ended` are the episodes that this ends, and who is told."""
        other = self.differing(hashes)
        with self._transaction() as db:
            for name in other:
                db.execute("delete from rules where alert = ?", (name,))
                db.execute("delete from seen where alert = ?", (name,))
                db.execute("delete from behind where alert = ?", (name,))
                db.execute("delete from new where alert = ?", (name,))
                if name in hashes:
                    db.execute("insert into new values (?)", (name,))
                    db.execute("insert into rules values (?, ?, ?, null)", (name, hashes[name], now))
            _put_told(db, ended)

    def armed(self, alert: str) -> tuple[float, int | None]:
        """Since when an alert is looked at, and up to when its settled periods were judged."""
        found = self._rows("select armed_at, settled_until from rules where alert = ?", alert)
        return (found[0][0], found[0][1]) if found else (0.0, None)

    def is_new(self, alert: str) -> bool:
        """Whether it was never looked at since it is declared so."""
        return bool(self._rows("select 1 from new where alert = ?", alert))

    def is_behind(self, alert: str) -> bool:
        """Whether its answers were too many when it was last looked at."""
        return bool(self._rows("select 1 from behind where alert = ?", alert))

    def seen(self, alert: str) -> dict[tuple[Any, ...], int]:
        """The end of the last bucket with an event, of each key."""
        return {unpack_key(key): last for key, last in self._rows("select key, last from seen where alert = ?", alert)}

    def episodes(self, alert: str | None = None, *, limit: int = -1, is_open: bool = False) -> list[Episode]:
        """The newest episodes, newest first."""
        where = ["alert = ?"] * (alert is not None) + ["state != 'resolved'"] * is_open
        sql = f"select * from episodes {'where ' + ' and '.join(where) if where else ''} "  # noqa: S608
        values = [alert] if alert is not None else []
        return [_episode(row) for row in self._rows(f"{sql} order by pending_at desc, id limit ?", *values, limit)]

    def evaluations(self, source: str) -> list[tuple[Cut, float, float, bool]]:
        """The cuts that were looked at, with until when all was in, when that was, and whether it was exact."""
        found = self._rows("select cut, as_of, at, is_exact from evaluations where source = ? order by seq", source)
        return [(cut_from_json(json.loads(cut)), as_of, at, bool(exact)) for cut, as_of, at, exact in found]

    def last_look(self, source: str) -> float:
        """When a source was last looked at; 0: never."""
        return float(self._rows("select coalesce(max(at), 0) from evaluations where source = ?", source)[0][0])

    # ---- mutes ----

    def mute(self, alert: str, until: float) -> None:
        """Tell no webhook of an alert until then."""
        with self._transaction() as db:
            db.execute("insert or replace into mutes values (?, ?)", (alert, until))

    def unmute(self, alert: str) -> bool:
        """Tell again. False: it was not muted."""
        with self._transaction() as db:
            return db.execute("delete from mutes where alert = ? and until > ?", (alert, time.time())).rowcount > 0

    def mutes(self) -> dict[str, float]:
        """Those that are muted now, and until when."""
        return dict(self._rows("select alert, until from mutes where until > ?", time.time()))

    # ---- telling ----

    def was_muted(self, episode: str) -> bool | None:
        """Whether its alert was muted when an episode fired; None where that is not known, or it has not fired."""
        said = (json.loads(body) for (body,) in self._rows("select body from transitions where episode = ?", episode))
        return next((bool(each["muted"]) for each in said if each["state"] == str(State.FIRING)), None)

    def last_transition(self) -> int:
        """The number of the newest."""
        return int(self._rows("select coalesce(max(seq), 0) from transitions")[0][0])

    def transitions(self, after: int, limit: int = 1000) -> list[tuple[int, str, str]]:
        """(number, view, JSON) of what was told after a number."""
        sql = "select seq, view, body from transitions where seq > ? order by seq limit ?"
        return [(seq, view, body) for seq, view, body in self._rows(sql, after, limit)]

    def due(self, target: str, now: float, limit: int) -> list[Telling]:
        """The oldest messages for a target, in order; none while the first of them has to wait."""
        found = [
            Telling(*row)
            for row in self._rows("select * from outbox where target = ? order by seq limit ?", target, limit)
        ]
        return found if found and found[0].next_at <= now else []

    def outbox(self) -> list[Telling]:
        """All that waits."""
        return [Telling(*row) for row in self._rows("select * from outbox order by seq")]

    def delivered(self, seqs: Iterable[int]) -> None:
        """They need not be sent again."""
        with self._transaction() as db:
            db.executemany("delete from outbox where seq = ?", [(seq,) for seq in seqs])

    def failed(self, seq: int, next_at: float, error: str) -> None:
        """Not before then again."""
        with self._transaction() as db:
            db.execute(
                "update outbox set tries = tries + 1, next_at = ?, error = ? where seq = ?", (next_at, error[:500], seq)
            )


def journal_path(settings: Settings) -> Path:
    """Where the journal of a home is."""
    return settings.home / "alerts" / FILE


def open_journal(settings: Settings) -> Journal:
    """The journal of a home, made where there is none."""
    path = journal_path(settings)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Journal(path, max_episodes=settings.alerts_max_episodes)


def _put_position(db: sqlite3.Connection, follower: str, position: Position) -> None:
    values = (follower, _cut(position.cut), position.as_of, position.run)
    db.execute("insert or replace into positions values (?, ?, ?, ?)", values)


def _put_told(db: sqlite3.Connection, look: Look) -> None:
    for episode in look.changed:
        db.execute(PUT_EPISODE, _row(episode))
    for episode, body in look.told:
        values = (episode.id, episode.view, body)
        db.execute("insert into transitions (episode, view, body) values (?, ?, ?)", values)
    db.executemany(
        "insert into outbox (target, delivery, key, body, since) values (?, ?, ?, ?, ?)",
        [(*each, look.at) for each in look.outbox],
    )


def _cut(cut: Cut) -> str:
    return json.dumps(cut_to_json(cut))


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
        id_, alert, view, tuple(json.loads(names)), unpack_key(key), State(state), first, last, pending_at, fired_at,
        resolved_at, json.loads(value),
    )  # fmt: skip
