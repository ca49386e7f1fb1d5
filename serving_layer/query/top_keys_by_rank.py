"""The first keys of a ranking in one read of the speed side, without looking at all keys of it.

The batch side says which keys are likely to be first. The speed side is asked for these, and for the keys that come
first in any of its buckets, where Redis keeps them in order. A key that is in neither list has at most what the batch
side gives to the best of the others, and what each bucket gives to the last of its own list. If that is less than what
the last row of the page has, the page is known. If not, all headers are looked at (`top.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from hand_off.ranks import ranked
from hand_off.speed_views import Ranked, State, StateRange
from serving_layer.query.execute import QueryPlan, numbers_of
from serving_layer.query.top_keys import LARGEST, Numbers
from serving_layer.readers.batch import OpenRun, read_errors
from views.states import HeadReader, head_of

MOST_ROWS = 200
"""Of larger pages all keys are looked at."""
EXACT = 2**52
"""Redis ranks by doubles: below this they are the numbers themselves."""
LIKELY, WHOLE = 100, 20
"""So many keys are asked for at least, and the states of so many more than are on the page."""


@dataclass(frozen=True)
class Ranking:
    """How the first page of a question is ranked, and what the batch side has to say to it."""

    rank: int
    """Which of the numbers that Redis keeps, from 1."""
    count: int
    """So many rows decide: those of the page, and one more."""
    first: dict[bytes, int]
    """The keys that come first on the batch side with their numbers, the best first."""
    rest: int
    """What any other key has there at most, be it unknown there."""
    numbers: Numbers
    reader: HeadReader

    def stretch(self, asked: QueryPlan, more: Collection[bytes]) -> StateRange:
        """What is asked of the speed side: the first keys; of the very first and of `more` the states as they are."""
        whole = self._whole(more)
        keys = list(dict.fromkeys((*whole, *self.first)))
        what = Ranked(self.rank, max(4 * self.count, LIKELY), len(whole))
        return StateRange(asked.question.view.hash, *asked.ranges[0], keys, ranked=what)

    def has_whole(self, keys: Collection[bytes], more: Collection[bytes]) -> bool:
        """Whether the states of all these keys came as they are."""
        return self._whole(more).keys() >= {*keys}

    def decided(self, states: Iterable[State], rest: float) -> set[bytes] | None:
        """The keys that can be on the page; None where a key that nobody looked at could be.

        `states` are those of the speed side, or their headers; `rest`: what a key without any has there at most.
        """
        if not 0 <= rest < EXACT:
            return None
        speed: dict[bytes, int] = {}
        for _, key, state in states:
            speed[key] = speed.get(key, 0) + self.reader.read(head_of(state))
        totals = {key: self._number(key) + speed.get(key, 0) for key in {*self.first, *speed}}
        if len(totals) < self.count:
            return None
        least = heapq.nlargest(self.count, totals.values())[-1]
        if least <= self.rest + rest:
            return None
        return {key for key, total in totals.items() if total >= least}

    def _whole(self, more: Collection[bytes]) -> dict[bytes, None]:
        return dict.fromkeys((*list(self.first)[: self.count + WHOLE], *more))

    def _number(self, key: bytes) -> int:
        found = self.first.get(key)
        if found is None:
            place = self.numbers.place(key)
            found = 0 if place is None else int(self.numbers.values[place])
        return found


def ranking_of(asked: QueryPlan, run: OpenRun) -> Ranking | None:
    """How a question is ranked over a run; None where only a look at all keys can tell."""
    question = asked.question
    names = ranked(question.view)
    if asked.rank not in names or question.cursor or question.filters or question.limit > MOST_ROWS:
        return None
    with read_errors(run):
        numbers = numbers_of(asked, run)
        if numbers is None or int(np.abs(numbers.values).max(initial=0)) > LARGEST:
            return None
        count = question.limit + 1
        first, rest = _first(numbers, max(4 * count, LIKELY))
    reader = HeadReader(question.view.algebras, asked.rank)
    return Ranking(names.index(asked.rank) + 1, count, first, rest, numbers, reader)


def _first(numbers: Numbers, count: int) -> tuple[dict[bytes, int], int]:
    """The keys with the largest numbers, the best first; and the largest number of the others, 0 at least."""
    values = numbers.values
    places, others = np.arange(len(values)), values[:0]
    if count < len(values):
        places = np.argpartition(values, len(values) - count)
        places, others = places[-count:], values[places[:-count]]
    ordered = places[np.argsort(values[places], kind="stable")[::-1]]
    return {numbers.key(place): int(values[place]) for place in ordered.tolist()}, max(int(others.max(initial=0)), 0)
