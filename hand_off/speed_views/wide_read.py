"""Read very many states of speed views in several short calls, all of one cut, while a writer goes on.

Redis does nothing else while it runs a script, so a reader of very many states must not read them in one. It reads them
in parts, each for a few milliseconds, and then once more those that micro-batches changed meanwhile, until nothing has:

1. `cells` says where the states are, and what is the newest entry of the recent changes (apply.lua).
2. Each bucket is read in parts. A state is read as it is then, at that entry or after it.
3. `catch_up` reads the keys that later entries name. In the call in which no entry is left, each state has been read
   after its last change: they are those of the cut that is applied in this moment.

Where a batch run changes the generations, Redis was restarted, or the recent changes do not reach back far enough, the
reader begins again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hand_off.speed_views.layout import VIEW_HASH, State, cut_text
from hand_off.speed_views.reader import SpeedAnswer, StateRange, answer_of
from hand_off.speed_views.scripts import Outcome, Scripts
from master_dataset.cut import Cut

AT_ONCE = 2_000
"""States that are read in one call: Redis does nothing else for about 5 ms."""
MAX_ROUNDS = 30
"""How often what changed is read before the reader begins again."""

Rows = dict[bytes, bytes]
"""Key -> state."""


@dataclass(frozen=True)
class WideLimits:
    """How much a wide read may read, and until when (by the monotonic clock)."""

    buckets: int
    states: int
    bytes: int
    deadline: float


class Cell(NamedTuple):
    """A bucket of a generation that a range has states in."""

    range: int
    data: bytes
    bucket: int


class _Position(NamedTuple):
    """How far a reader is in the recent changes."""

    entry: bytes
    cut: bytes
    generations: bytes
    made: bytes


class WideReader:
    """Reads the states of ranges that are too many for one call. For one query."""

    def __init__(self, scripts: Scripts, run: int, cut: Cut, ranges: Sequence[StateRange], limits: WideLimits) -> None:
        self._scripts, self._ranges, self._limits = scripts, ranges, limits
        self._run, self._cut = run, cut_text(cut)
        self._keys = [None if each.keys is None else frozenset(each.keys) for each in ranges]
        self._cells: dict[Cell, Rows] = {}
        self._position: _Position | None = None
        """Where the last read ended in the recent changes; None where none came to its end."""

    def read(self, tries: int) -> SpeedAnswer | None:
        """The states of all ranges at one cut; None where the writer or batch runs were faster each time.

        TOO MANY where they are more than the limits allow.
        """
        for _ in range(tries):
            outcome, *reply = self._scripts.call("cells", *self._asked_cells())
            if outcome == b"LOST":
                return SpeedAnswer(Outcome.LOST, {}, 0)
            start = answer_of(outcome, *reply[:5])
            if start.outcome != Outcome.OK:
                return start
            generations, entry, flat, size = reply[5:]
            sizes = {Cell(flat[at] - 1, flat[at + 1], int(flat[at + 2])): flat[at + 3] for at in range(0, len(flat), 4)}
            if sum(sizes.values()) > self._limits.states or size > self._limits.bytes:
                return replace(start, outcome=Outcome.TOO_MANY)
            self._begin()
            self._read_cells(sizes)
            found = self._catch_up(_Position(entry, reply[0], generations, reply[4] or b""))
            if found is not None or time.monotonic() > self._limits.deadline:
                return found
        return None

    def _begin(self) -> None:
        """Forget what was read before."""
        self._cells, self._position = {}, None

    def _asked_cells(self) -> list[Any]:
        asked: list[Any] = [self._run, self._cut, self._scripts.layout.data_prefix, self._limits.buckets]
        for each in self._ranges:
            asked += [each.view[:VIEW_HASH], each.begin, each.end, -1 if each.keys is None else len(each.keys)]
        return asked

    # ---- parts of buckets ----

    def _read_cells(self, sizes: Mapping[Cell, int]) -> None:
        """Small buckets many at a time, large ones a part at a time."""
        few: list[Cell] = []
        count = 0
        for cell, size in sizes.items():
            if size > AT_ONCE:
                self._scan(cell)
                continue
            few.append(cell)
            count += size + 1
            if count >= AT_ONCE:
                self._read_few(few)
                few, count = [], 0
        self._read_few(few)

    def _read_few(self, cells: Sequence[Cell]) -> None:
        with self._scripts.client.pipeline(transaction=False) as pipe:
            for cell in cells:
                keys = self._ranges[cell.range].keys
                if keys is None:
                    pipe.hgetall(cell.data.decode())
                elif keys:
                    pipe.hmget(cell.data.decode(), list(keys))
            replies = iter(pipe.execute() if cells else ())
        for cell in cells:
            keys = self._ranges[cell.range].keys
            rows: Any = {} if keys is not None and not keys else next(replies)
            found = rows if keys is None else dict(zip(keys, rows, strict=True)) if keys else {}
            self._put(cell, found)

    def _scan(self, cell: Cell) -> None:
        """A scan returns every key that is there all the time. One that comes meanwhile is a change."""
        keys = self._ranges[cell.range].keys
        for first in range(0, len(keys or ()), AT_ONCE):
            part = list((keys or ())[first : first + AT_ONCE])
            states: Any = self._scripts.client.hmget(cell.data.decode(), part)
            self._put(cell, dict(zip(part, states, strict=True)))
        cursor = 0
        while keys is None:
            reply: Any = self._scripts.client.hscan(cell.data.decode(), cursor, count=AT_ONCE)
            cursor, rows = reply
            self._put(cell, rows)
            if not cursor:
                break

    def _put(self, cell: Cell, rows: Mapping[bytes, bytes | None]) -> None:
        """Keep the states of the keys that the range asks for."""
        keys, beginning = self._keys[cell.range], self._ranges[cell.range].beginning
        kept = self._cells.setdefault(cell, {})
        for key, state in rows.items():
            if state and key.startswith(beginning) and (keys is None or key in keys):
                kept[key] = state

    # ---- what changed meanwhile ----

    def _catch_up(self, at: _Position) -> SpeedAnswer | None:
        ranges: list[Any] = []
        for each in self._ranges:
            ranges += [each.view[:VIEW_HASH], each.begin, each.end, int(each.heads)]
        for _ in range(MAX_ROUNDS):
            outcome, *reply = self._scripts.call(
                "catch_up",
                self._scripts.layout.data_prefix,
                at.entry,
                at.cut,
                at.generations,
                at.made,
                AT_ONCE,
                *ranges,
            )
            if outcome == b"MOVED":
                return None
            entry, cut, is_all, flat = reply[5:]
            whole: dict[Cell, int] = {}
            for number, data, bucket, rows in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True):
                cell = Cell(number - 1, data, int(bucket))
                if rows:
                    self._put(cell, dict(zip(rows[::2], rows[1::2], strict=True)))
                else:
                    whole[cell] = AT_ONCE + 1
            if is_all and not whole:
                self._position = at._replace(entry=entry, cut=cut)
                states = tuple(list(self._states(number)) for number in range(len(self._ranges)))
                return replace(answer_of(outcome, *reply[:5]), ranges=states)
            self._read_cells(whole)
            at = at._replace(entry=entry, cut=cut)
        return None

    def _states(self, number: int) -> Iterator[State]:
        heads = self._ranges[number].heads
        for cell, rows in self._cells.items():
            if cell.range == number:
                for key, state in rows.items():
                    yield cell.bucket, key, state.partition(b"\n")[0] if heads else state
