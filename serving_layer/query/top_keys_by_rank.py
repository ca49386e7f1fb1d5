"""Top keys by rank: the first keys in one read of the speed view, without reading all of its keys.

The batch view names the keys that are probably first. Redis returns these, and the first keys of each of its buckets,
which it keeps in order. A key in neither list has at most what the batch view gives to the best of the others plus what
each bucket gives to the last of its list. If that is less than the last row of the page, the page is known. It is also
known if that is as much, but any key in neither list that has it comes after the last row in the order of keys: many
keys may have the same number. If not, longer lists are read, and at last all keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from hand_off.ranks import ranked
from hand_off.speed_views import Ranked, State, StateRange
from serving_layer.query.plan import QueryPlan
from serving_layer.query.top_keys import LARGEST, NO_NUMBERS, Numbers, breaks_ties_by_key, largest_of, nth_largest
from serving_layer.readers.batch import FirstKeys, OpenRun, read_errors
from views.states import HeadReader, head_of

MAX_ROWS = 200
"""For larger pages all keys are read."""
EXACT = 2**52
"""Redis ranks by doubles, which are exact below this."""
MIN_KEYS, EXTRA_STATES = 100, 20
"""Keys that are read at least, and whole states that are read beyond those of the page."""


@dataclass(frozen=True)
class Ranking:
    """How the first page of a query is ranked, with the numbers of the batch view."""

    rank: int
    """Which of the numbers that Redis keeps, from 1."""
    count: int
    """Rows that decide: those of the page, and one more."""
    first: dict[bytes, int]
    """The first keys of the batch view with their numbers, the best first."""
    rest: int
    """The most that any other key has there."""
    numbers: Numbers
    reader: HeadReader
    last: bytes | None = None
    """A key that comes before any other key that has that most; None where that is unknown."""
    by_key: bool = False
    """Whether rows with the same number come in the order of their keys."""

    def state_range(self, plan: QueryPlan, more: Collection[bytes], deeper: int = 1) -> StateRange:
        """What is read of the speed view: headers of the first keys, whole states of the very first and of `more`.

        `deeper`: how many times as many keys of each bucket as at first.
        """
        whole = self._whole(more)
        keys = list(dict.fromkeys((*whole, *self.first)))
        what = Ranked(self.rank, deeper * max(4 * self.count, MIN_KEYS), len(whole))
        return StateRange(plan.query.view.hash, *plan.ranges[0], keys, ranked=what)

    def has_whole(self, keys: Collection[bytes], more: Collection[bytes]) -> bool:
        """Whether the whole states of all these keys were read."""
        return self._whole(more).keys() >= {*keys}

    def decided(self, states: Iterable[State], rest: float, lasts: Iterable[bytes] = ()) -> set[bytes] | None:
        """The keys that can be on the page; None where a key that was not read could be.

        `states` are those of the speed view, or their headers. `rest`: the most that a key without any has there, and
        `lasts`: keys that come before any such key.
        """
        if not 0 <= rest < EXACT:
            return None
        speed: dict[bytes, int] = {}
        for _, key, state in states:
            speed[key] = speed.get(key, 0) + self.reader.read(head_of(state))
        totals = {key: self._number(key) + speed.get(key, 0) for key in {*self.first, *speed}}
        if len(totals) < self.count:
            return None
        page = heapq.nsmallest(self.count, ((-total, key) for key, total in totals.items()))
        least, most = -page[-1][0], self.rest + int(rest)
        if least > most:
            return {key for key, total in totals.items() if total >= least}
        # A key that was not read and has as much comes after all of these.
        bounds = [key for key in (self.last, *lasts) if key is not None]
        if self.by_key and least == most and bounds and page[-1][1] <= max(bounds):
            return {key for _, key in page}
        return None

    def _whole(self, more: Collection[bytes]) -> dict[bytes, None]:
        return dict.fromkeys((*list(self.first)[: self.count + EXTRA_STATES], *more))

    def _number(self, key: bytes) -> int:
        found = self.first.get(key)
        if found is None:
            place = self.numbers.place(key)
            found = 0 if place is None else int(self.numbers.values[place])
        return found


def batch_numbers(plan: QueryPlan, run: OpenRun) -> Numbers | None:
    """What the batch view has of the answer that a plan ranks by; None where it cannot be compared as numbers."""
    name = plan.query.view.name
    if plan.rank is None or not plan.ranges or run.has_long_keys(name):
        return None
    return run.sums(name, plan.rank, plan.ranges[0]) if run.has_days(name, plan.ranges) else NO_NUMBERS


def ranking_of(plan: QueryPlan, run: OpenRun) -> Ranking | None:
    """How a plan is ranked over a run; None where only all keys can tell."""
    query = plan.query
    names = ranked(query.view)
    if plan.rank not in names or query.cursor or query.filters or query.limit > MAX_ROWS:
        return None
    with read_errors(run):
        numbers = batch_numbers(plan, run)
        if numbers is None:
            return None
        count, by_key = query.limit + 1, breaks_ties_by_key(query)
        at_least = max(4 * count, MIN_KEYS)
        question = (query.view.name, plan.rank, plan.ranges[0], at_least, by_key)
        first = run.first_keys(question, lambda: _first(numbers, at_least, by_key=by_key))
    if first.largest > LARGEST:
        return None
    reader = HeadReader(query.view.algebras, plan.rank)
    rank = names.index(plan.rank) + 1
    return Ranking(rank, count, first.numbers, first.rest, numbers, reader, first.last, by_key)


def _first(numbers: Numbers, count: int, *, by_key: bool) -> FirstKeys:
    """The keys with the largest numbers. `by_key`: of equal ones those that come first in the order of bytes."""
    values = numbers.values
    places, rest, last = np.arange(len(values)), 0, None
    if count < len(values):
        least = nth_largest(values, count)
        places, equal = np.flatnonzero(values > least), np.flatnonzero(values == least)
        missing = count - len(places)
        chosen = numbers.first(equal, missing) if by_key and len(equal) > missing and least > 0 else None
        if chosen:
            last = numbers.key(chosen[-1])
        else:
            chosen = equal[:missing].tolist()
        is_left = np.ones(len(values), np.bool_)
        places = np.concatenate([places, np.array(chosen, np.int64)])
        is_left[places] = False
        rest = max(int(values[is_left].max(initial=0)), 0)
    ordered = places[np.argsort(values[places], kind="stable")[::-1]]
    found = {numbers.key(place): int(values[place]) for place in ordered.tolist()}
    return FirstKeys(found, rest, last, largest_of(values))
