"""Followed numbers: what each key of a view has of one answer, kept by a reader and brought up to date at each read.

To rank very many keys a reader needs one number of each, and most of them are the same a second later. So it reads the
headers of all states once, in parts (wide_read.py), and keeps the numbers. After that it reads only what the recent
changes name. Where these no longer reach back to its last read, a batch run changed the generations, or Redis was
restarted, it reads all headers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hand_off.speed_views.layout import State
from hand_off.speed_views.reader import SpeedAnswer, StateRange
from hand_off.speed_views.scripts import Scripts
from hand_off.speed_views.wide_read import AT_ONCE, Cell, WideLimits, WideReader
from master_dataset.cut import Cut

Period = tuple[int, int]
"""Buckets in [begin, end), seconds since 1970."""
Numbers = dict[bytes, int]
"""By key."""

MAX_PERIODS = 4
"""Periods whose sums are kept, the last ones that were asked for."""


class FollowedNumbers(WideReader):
    """The numbers of a view in a range of buckets, since the cut of a run. Threads take turns.

    `read` gives the number from the header of a state.
    """

    def __init__(
        self, scripts: Scripts, run: int, cut: Cut, states: StateRange, read: Callable[[bytes], int], limits: WideLimits
    ) -> None:
        super().__init__(scripts, run, cut, [states._replace(keys=None, beginning=b"", heads=True)], limits)
        self.run, self.begin = run, states.begin
        self._read = read
        self._numbers: dict[Cell, Numbers] = {}
        self._shared: dict[bytes, bytes] = {}
        """One object for a key that is in many buckets."""
        self._sums: dict[Period, Numbers] = {}
        self._count = 0

    @property
    def size(self) -> int:
        """How many numbers are kept, sums among them."""
        return self._count + sum(map(len, self._sums.values()))

    def has_sums(self, period: Period) -> bool:
        """Whether the sums of a period are kept."""
        return period in self._sums

    def catch_up(self) -> SpeedAnswer | None:
        """Read what changed since the last read; None where that is no longer known, or nothing was read yet."""
        return None if self._position is None else self._catch_up(self._position)

    def sums(self, period: Period) -> Mapping[bytes, int]:
        """The sum over the buckets of a period, by key, as of the last read."""
        found = self._sums.pop(period, None)
        if found is None:
            found = {}
            for cell, numbers in self._numbers.items():
                if period[0] <= cell.bucket < period[1]:
                    for key, number in numbers.items():
                        found[key] = found.get(key, 0) + number
        self._sums[period] = found
        while len(self._sums) > MAX_PERIODS:
            del self._sums[next(iter(self._sums))]
        return found

    def shrink(self, limit: int) -> None:
        """Let sums go, those that were not asked for longest first, until no more than `limit` numbers are kept."""
        while self._sums and self.size > limit:
            del self._sums[next(iter(self._sums))]

    # ---- how a wide read goes on here ----

    def _begin(self) -> None:
        super()._begin()
        self._numbers, self._shared, self._count = {}, {}, 0
        self._sums = {}

    def _read_cells(self, sizes: Mapping[Cell, int]) -> None:
        """The headers of all cells, those of several small ones in one call."""
        left = [(cell, 0, size) for cell, size in sizes.items()]
        while left:
            part = [left.pop()]
            count = part[0][2] + 1
            while left and count + left[-1][2] < AT_ONCE:
                part.append(left.pop())
                count += part[-1][2] + 1
            asked: list[Any] = [each for cell, cursor, _ in part for each in (cell.data, cursor)]
            reply = self._scripts.call("heads", AT_ONCE, *asked)
            for (cell, _, size), cursor, rows in zip(part, reply[::2], reply[1::2], strict=True):
                self._put(cell, dict(zip(rows[::2], rows[1::2], strict=True)))
                if int(cursor):
                    left.append((cell, int(cursor), size))

    def _put(self, cell: Cell, rows: Mapping[bytes, bytes | None]) -> None:
        """A number replaces the one that was read before: reading a state twice is as good as once."""
        kept = self._numbers.setdefault(cell, {})
        before = len(kept)
        sums = [each for (begin, end), each in self._sums.items() if begin <= cell.bucket < end]
        read, shared = self._read, self._shared
        for key, head in rows.items():
            if head:
                number = read(head)
                change = number - kept.get(key, 0)
                one = shared.setdefault(key, key)
                kept[one] = number
                for each in sums:
                    each[one] = each.get(one, 0) + change
        self._count += len(kept) - before

    def _states(self, number: int) -> Iterator[State]:
        """None: the numbers are what was asked for."""
        return iter(())
