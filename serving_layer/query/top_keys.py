"""Top keys: the first n keys by a count or a sum, without reading the states of all others. Pure.

The read index has the whole numbers of all keys apart from their states, and adds them up. With those of the speed
view added, they decide which keys can be on a page. Only these are then read, merged and presented.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving_layer.query.model import Query
from serving_layer.query.order import BUCKET
from serving_layer.readers.selection import KeySelection
from views.aggregates.counting import adds_up
from views.states import HeadReader

Values = NDArray[np.int64]

LARGEST = 2**62
"""Numbers of both views are added while neither exceeds this, so that the sum fits into 64 bits."""
BLOCK = 64
"""Numbers of which the largest is found at once."""
DEPTHS = (200, 1_000)
"""How many of the largest numbers of each view are looked at before all are."""
MAX_CANDIDATES = 20_000
"""More candidates (mostly with equal numbers) are not looked up one by one."""


def rank_by(query: Query, selection: KeySelection) -> str | None:
    """The answer that decides which keys are on a page; None where it takes more than that.

    The query has one period, all keys in `by`, no filter but a prefix of their bytes, and the largest number first.
    """
    first = query.order[0]
    is_plain = (
        len(query.windows) == 1
        and query.previous is None
        and query.having is None
        and not query.fill
        and {*query.by} == {*query.view.keys}
        and selection.keys is None
        and _is_prefix(query)
    )
    return first.name if is_plain and first.descending and adds_up(query.view.algebras.get(first.name)) else None


def _is_prefix(query: Query) -> bool:
    """Whether the filters are a prefix of the bytes of a key: values of the first keys, and a prefix of the next."""
    names = list(query.view.keys)
    filters = sorted(query.filters, key=lambda each: names.index(each.key))
    return [each.key for each in filters] == names[: len(filters)] and all(
        len(each.values) == 1
        and not each.long_texts
        and each.kind == ("is" if place < len(filters) - 1 else each.kind)
        and each.kind != "not"
        for place, each in enumerate(filters)
    )


def breaks_ties_by_key(query: Query) -> bool:
    """Whether rows with the same number come in the order of the bytes of their keys."""
    others = [each for each in query.order[1:] if each.name != BUCKET]
    return [each.name for each in others] == [*query.view.keys] and not any(each.descending for each in others)


class Numbers(Protocol):
    """The numbers of the batch view by index, and the keys."""

    @property
    def values(self) -> Values:
        """By index."""

    def key(self, place: int) -> bytes:
        """The packed key at an index."""

    def place(self, key: bytes) -> int | None:
        """The index of a packed key; None where it has no number."""

    def first(self, places: Values, count: int) -> list[int] | None:
        """The `count` of these indexes whose keys come first in the order of bytes; None where that takes too long."""


class _NoNumbers:
    values: Values = np.zeros(0, np.int64)

    def key(self, place: int) -> bytes:
        raise IndexError(place)

    def place(self, key: bytes) -> int | None:
        return None

    def first(self, places: Values, count: int) -> list[int] | None:
        return []


NO_NUMBERS: Numbers = _NoNumbers()
"""Of a batch view without groups in that time."""


def added(heads: Iterable[tuple[int, bytes, bytes]], reader: HeadReader) -> dict[bytes, int]:
    """The numbers of the speed view by key, from the headers of its states."""
    found: dict[bytes, int] = {}
    read = reader.read
    for _, key, head in heads:
        found[key] = found.get(key, 0) + read(head)
    return found


def candidates(
    sums: Numbers,
    speed: Mapping[bytes, int],
    prefix: bytes,
    *,
    count: int,
    highest: int | None,
    by_key: bool = False,
) -> list[bytes] | None:
    """The packed keys that can be among the first `count` rows; None where they are too many to look up.

    `highest`: the number of the position after which the page begins. Any other key has more than `highest`, or less
    than all rows of the page. `by_key`: rows with the same number come in the order of their keys.
    """
    if max(largest_of(sums.values), max(speed.values(), default=0), -min(speed.values(), default=0)) > LARGEST:
        return None
    if highest is None and not prefix:
        for depth in DEPTHS:
            first = _first_of_lists(sums, speed, count, depth, by_key=by_key)
            if first is not None:
                return first
        return _first(sums, speed, count, by_key=by_key)
    numbers, more = _numbers(sums, speed)
    if highest is not None:
        highest = max(min(highest, LARGEST), -LARGEST)  # a forged cursor can hold any number

    def key(place: int) -> bytes:
        return sums.key(place) if place < len(sums.values) else more[place - len(sums.values)]

    places = np.arange(len(numbers)) if highest is None else np.flatnonzero(numbers <= highest)
    if not prefix:
        chosen = places[numbers[places] >= _least(numbers[places], count, highest)]
        return [key(int(place)) for place in chosen] if len(chosen) <= MAX_CANDIDATES else None
    found: list[bytes] = []
    least: int | None = None
    after = 0
    for looked, place in enumerate(places[np.argsort(numbers[places], kind="stable")[::-1]]):
        number = int(numbers[place])
        if least is not None and number < least:
            break
        if looked >= MAX_CANDIDATES:
            return None
        each = key(int(place))
        if each.startswith(prefix):
            found.append(each)
            after += highest is None or number < highest
            least = number if after >= count and least is None else least
    return found


def _first_of_lists(
    sums: Numbers, speed: Mapping[bytes, int], count: int, depth: int, *, by_key: bool
) -> list[bytes] | None:
    """The same for a first page of all keys, by about `depth` keys of each view; None where these do not decide it.

    A key in neither list has at most what the last of each list has.
    """
    added = np.fromiter(speed.values(), np.int64, len(speed))
    of_batch, of_speed = (nth_largest(each, depth) if len(each) > depth else -(2**63) for each in (sums.values, added))
    places = np.flatnonzero(sums.values > of_batch)
    totals = {}
    for place, value in zip(places.tolist(), sums.values[places].tolist(), strict=True):
        key = sums.key(place)
        totals[key] = value + speed.get(key, 0)
    for key, number in speed.items():
        if number > of_speed and key not in totals:
            at = sums.place(key)
            totals[key] = number + (0 if at is None else int(sums.values[at]))
    page = heapq.nsmallest(count, ((-total, key) for key, total in totals.items()))
    if len(page) < count or -page[-1][0] <= max(of_batch, 0) + max(of_speed, 0):
        return None
    if by_key:
        return [key for _, key in page]
    chosen = [key for key, total in totals.items() if total >= -page[-1][0]]
    return chosen if len(chosen) <= MAX_CANDIDATES else None


def _first(sums: Numbers, speed: Mapping[bytes, int], count: int, *, by_key: bool) -> list[bytes] | None:
    """The same for a first page of all keys, without looking up every key of the speed view in the index.

    The last number of the page is at least what the batch view alone gives, less what the speed view may take away. A
    key that cannot reach it even with the most that the speed view gives to any key is skipped.
    """
    gives, takes = max(speed.values(), default=0), min(speed.values(), default=0)
    gives, takes = max(gives, 0), min(takes, 0)
    least = -LARGEST if len(sums.values) < count else _least(sums.values, count, None) + takes
    places = np.flatnonzero(sums.values >= least - gives)
    if len(places) > MAX_CANDIDATES:
        return None
    numbers = {}
    for place, value in zip(places.tolist(), sums.values[places].tolist(), strict=True):
        key = sums.key(place)
        numbers[key] = value + speed.get(key, 0)
    # Keys with that much from the speed view alone. One that is in the batch view too has too small a number there.
    numbers |= {
        key: number
        for key, number in speed.items()
        if number >= least and key not in numbers and sums.place(key) is None
    }
    if by_key:
        return [key for _, key in heapq.nsmallest(count, ((-number, key) for key, number in numbers.items()))]
    if len(numbers) > count:
        least = max(least, heapq.nlargest(count, numbers.values())[-1])
    chosen = [key for key, number in numbers.items() if number >= least]
    return chosen if len(chosen) <= MAX_CANDIDATES else None


def _least(numbers: Values, count: int, highest: int | None) -> int:
    """The smallest of the first `count` numbers below `highest`: equal numbers may come first."""
    below = numbers if highest is None else numbers[numbers < highest]
    return -(2**63) if len(below) <= count else nth_largest(below, count)


def largest_of(values: Values) -> int:
    """The largest number without its sign, at least 0."""
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def nth_largest(values: Values, count: int) -> int:
    """The number that `count` of these numbers reach; there are at least so many.

    numpy's own selection takes a hundred times as long where very many numbers are equal. So the numbers are split into
    blocks. Of the `count` blocks with the largest maxima each has a number that reaches the least of these maxima, and
    only the others of these blocks can have more numbers above it.
    """
    blocks = len(values) // BLOCK
    if blocks < count:
        return int(np.sort(values)[len(values) - count])
    whole = values[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
    bound = int(np.sort(whole)[blocks - count])
    above = values[values > bound]
    return bound if len(above) < count else int(np.sort(above)[len(above) - count])


def _numbers(sums: Numbers, speed: Mapping[bytes, int]) -> tuple[Values, list[bytes]]:
    """The numbers of both views by index, and the keys of the last indexes, which the batch view does not have."""
    numbers, more = sums.values.copy(), []
    for packed, number in speed.items():
        place = sums.place(packed)
        if place is None:
            more.append(packed)
        else:
            numbers[place] += number
    return np.concatenate([numbers, np.array([speed[packed] for packed in more], np.int64)]), more
