"""The first n keys by a count or a sum, without reading the states of all others.

The read index has the whole numbers of all keys apart from their states, and adds them up by itself. With those of the
speed side added, they say which keys can be on a page. Only these are then read, merged and presented as always.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving_layer.query.key_selection import KeySelection
from serving_layer.query.model import Query
from views.aggregates.counting import adds_up
from views.states import HeadReader

Values = NDArray[np.int64]

LARGEST = 2**62
"""Numbers of both sides are added while neither passes this, so that the sum fits into 64 bits."""
MOST = 20_000
"""More candidates than these (of equal numbers, mostly) are not looked up one by one."""


def rank_by(question: Query, wanted: KeySelection) -> str | None:
    """The answer that decides which keys are on a page; None where it takes more than that.

    One period, all keys apart, not filtered but by what their bytes begin with, the largest of a number first.
    """
    first = question.order[0]
    is_plain = (
        len(question.windows) == 1
        and question.previous is None
        and question.having is None
        and not question.fill
        and {*question.by} == {*question.view.keys}
        and wanted.keys is None
        and _is_beginning(question)
    )
    return first.name if is_plain and first.descending and adds_up(question.view.algebras.get(first.name)) else None


def _is_beginning(question: Query) -> bool:
    """Whether the filters say no more than what the bytes of a key begin with: first keys, and a prefix of the next."""
    names = list(question.view.keys)
    filters = sorted(question.filters, key=lambda each: names.index(each.key))
    return [each.key for each in filters] == names[: len(filters)] and all(
        len(each.values) == 1 and each.kind == ("is" if place < len(filters) - 1 else each.kind) and each.kind != "not"
        for place, each in enumerate(filters)
    )


class Numbers(Protocol):
    """The numbers of the batch side by place, and the keys of the places."""

    @property
    def values(self) -> Values:
        """By place."""

    def key(self, place: int) -> bytes:
        """The packed key of a place."""

    def place(self, key: bytes) -> int | None:
        """Where a packed key stands; None where it has no number."""


class _Nothing:
    values: Values = np.zeros(0, np.int64)

    def key(self, place: int) -> bytes:
        raise IndexError(place)

    def place(self, key: bytes) -> int | None:
        return None


NOTHING: Numbers = _Nothing()
"""Of a batch side that has no groups in that time."""


def added(heads: Iterable[tuple[int, bytes, bytes]], reader: HeadReader) -> dict[bytes, int]:
    """The numbers of the speed side by key, from the headers of its states."""
    found: dict[bytes, int] = {}
    read = reader.read
    for _, key, head in heads:
        found[key] = found.get(key, 0) + read(head)
    return found


def candidates(
    sums: Numbers, speed: Mapping[bytes, int], beginning: bytes, *, count: int, highest: int | None
) -> list[bytes] | None:
    """The packed keys that can be among the first `count` rows; None where they are too many to be looked up.

    `highest`: the rows after a position that has this number. A key that is not among them has more than `highest`, or
    less than all the rows of the page.
    """
    largest = max(int(np.abs(sums.values).max(initial=0)), *map(abs, speed.values()), 0)
    if largest > LARGEST:
        return None
    if highest is None and not beginning:
        return _first(sums, speed, count)
    numbers, more = _numbers(sums, speed)
    if highest is not None:
        highest = max(min(highest, LARGEST), -LARGEST)  # a stranger's cursor may say anything

    def key(place: int) -> bytes:
        return sums.key(place) if place < len(sums.values) else more[place - len(sums.values)]

    places = np.arange(len(numbers)) if highest is None else np.flatnonzero(numbers <= highest)
    if not beginning:
        chosen = places[numbers[places] >= _least(numbers[places], count, highest)]
        return [key(int(place)) for place in chosen] if len(chosen) <= MOST else None
    found: list[bytes] = []
    least: int | None = None
    after = 0
    for looked, place in enumerate(places[np.argsort(numbers[places], kind="stable")[::-1]]):
        number = int(numbers[place])
        if least is not None and number < least:
            break
        if looked >= MOST:
            return None
        each = key(int(place))
        if each.startswith(beginning):
            found.append(each)
            after += highest is None or number < highest
            least = number if after >= count and least is None else least
    return found


def _first(sums: Numbers, speed: Mapping[bytes, int], count: int) -> list[bytes] | None:
    """The same for a first page of all keys, without looking for every key of the speed side in the index.

    The page's last number is at least what the batch side alone gives, less what the speed side may take away. What
    does not come up to it with the most that the speed side gives to any key is not looked at.
    """
    gives, takes = max(speed.values(), default=0), min(speed.values(), default=0)
    gives, takes = max(gives, 0), min(takes, 0)
    least = -LARGEST if len(sums.values) < count else _least(sums.values, count, None) + takes
    places = np.flatnonzero(sums.values >= least - gives)
    if len(places) > MOST:
        return None
    numbers = {}
    for place, value in zip(places.tolist(), sums.values[places].tolist(), strict=True):
        key = sums.key(place)
        numbers[key] = value + speed.get(key, 0)
    # A key with so much from the speed side alone. One that has a number of the batch side as well has too small a one.
    numbers |= {
        key: number
        for key, number in speed.items()
        if number >= least and key not in numbers and sums.place(key) is None
    }
    if len(numbers) > count:
        least = max(least, heapq.nlargest(count, numbers.values())[-1])
    chosen = [key for key, number in numbers.items() if number >= least]
    return chosen if len(chosen) <= MOST else None


def _least(numbers: Values, count: int, highest: int | None) -> int:
    """The smallest number of the first `count` that are below `highest`: those that are equal to it may come first."""
    below = numbers if highest is None else numbers[numbers < highest]
    if len(below) <= count:
        return -(2**63)
    return int(np.partition(below, len(below) - count)[len(below) - count])


def _numbers(sums: Numbers, speed: Mapping[bytes, int]) -> tuple[Values, list[bytes]]:
    """The numbers of both sides by place, and the keys of the last places, which the batch side does not have."""
    numbers, more = sums.values.copy(), []
    for packed, number in speed.items():
        place = sums.place(packed)
        if place is None:
            more.append(packed)
        else:
            numbers[place] += number
    return np.concatenate([numbers, np.array([speed[packed] for packed in more], np.int64)]), more
