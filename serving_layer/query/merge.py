"""Merge: tiles of the batch view and states of the speed view -> states by window and group. Pure.

    tiles, states  --gather-->  packed states by group and segment  --by_window, slide-->  states by window

The batch view holds the events below its cut and the speed view those from it on, so their states are merged like any
other two. Where only one view has a group, its states are all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from serving_layer.query.limits import CHECK_EVERY, QueryBudget
from serving_layer.query.segments import Segments, Span
from views.keys import unpack_key
from views.short_texts import MAX_BYTES, shorten_value
from views.states import Reader, merge
from views.view import View

Group = tuple[Any, ...]
"""The values of the keys in `by`."""
State = dict[str, Any]
"""The states of a group, by answer."""
Cells = dict[Group, dict[int, list[bytes]]]
"""The packed states by group and segment."""
MAX_UNPACKED = 256
"""States that are unpacked at a time."""


class KeyGroups:
    """The group of each packed key; None where the key does not pass the filters."""

    def __init__(self, view: View, by: Sequence[str], matches: Callable[[Group], bool]) -> None:
        names = list(view.keys)
        self._indexes, self._matches = [names.index(name) for name in by], matches
        self.known: dict[bytes, Group | None] = {}

    def of(self, key: bytes) -> Group | None:
        """The group of a key that is not in `known` yet."""
        values = unpack_key(key)
        if len(key) > MAX_BYTES:
            values = tuple(map(shorten_value, values))  # a run of an older Tidemark has long texts as they are
        found = tuple([values[index] for index in self._indexes]) if self._matches(values) else None
        self.known[key] = found
        return found


def gather(
    cells: Cells,
    tiles: Iterable[tuple[int, bytes, bytes]],
    segments: Segments,
    groups: KeyGroups,
    budget: QueryBudget,
) -> int:
    """Add tiles (bucket, key, state) to the cells of their group and segment. Returns how many there were."""
    count = spent = size = 0
    known, at = groups.known, segments.at
    for bucket, key, state in tiles:
        count += 1
        size += len(state)
        if not count % CHECK_EVERY:
            budget.spend(count - spent, size)
            spent, size = count, 0
        try:
            group = known[key]
        except KeyError:
            group = groups.of(key)
        if group is None:
            continue
        by_segment = cells.get(group)
        if by_segment is None:
            by_segment = cells[group] = {}
        segment = at(bucket)
        if segment in by_segment:
            by_segment[segment].append(state)
        else:
            by_segment[segment] = [state]
    budget.spend(count - spent, size)
    return count


def both(left: Cells, right: Cells) -> Cells:
    """The cells of both views together; neither is changed."""
    if not left or not right:
        return left or right
    found = dict(left)
    for group, by_segment in right.items():
        known = found.get(group)
        if known is None:
            found[group] = by_segment
        else:
            found[group] = known | {n: known.get(n, []) + packed for n, packed in by_segment.items()}
    return found


def by_window(by_segment: Mapping[int, list[bytes]], window_of: Mapping[int, int]) -> Iterator[tuple[int, list[bytes]]]:
    """The packed states of a group for each window in which it has any, with the number of the window, in order."""
    found: dict[int, list[bytes]] = {}
    for segment, packed in by_segment.items():
        number = window_of.get(segment)
        if number is not None:
            found[number] = found[number] + packed if number in found else packed
    for number in sorted(found):
        yield number, found[number]


class WindowSpans:
    """The windows of a query, as spans of segments."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self.window_of: dict[int, int] | None = {}
        """The window of each segment; None where windows overlap."""
        for number, span in enumerate(spans):
            for segment in range(*span):
                if segment in self.window_of:
                    self.window_of = None
                    return
                self.window_of[segment] = number


def merged(reader: Reader, packed: Sequence[bytes], budget: QueryBudget) -> State:
    """All of them merged, some at a time."""
    if len(packed) <= MAX_UNPACKED:
        return reader.merged(packed)
    found = reader.merged(packed[:MAX_UNPACKED])
    for first in range(MAX_UNPACKED, len(packed), MAX_UNPACKED):
        budget.check_time()
        found = merge(reader.algebras, found, reader.merged(packed[first : first + MAX_UNPACKED]))
    return found


def slide(
    by_segment: Mapping[int, list[bytes]], spans: Sequence[Span], reader: Reader, budget: QueryBudget
) -> Iterator[tuple[int, State]]:
    """The merged states of a group for each window in which it has any, with the number of the window, in order.

    For windows that overlap: each segment is merged once, and each window takes about three more merges.

    States cannot be subtracted. So the window has two parts: `older`, with the merge of each of its segments and all
    later ones of this part, and `newer`, of which only the total is needed. When the older part is used up, the newer
    one becomes it.
    """
    if any(left.first > right.first or left.end > right.end for left, right in pairwise(spans)):
        raise ValueError("Overlapping windows must be in the order of time.")
    coming = iter(sorted(by_segment))
    following = next(coming, None)
    older: list[tuple[int, State]] = []
    newer: list[tuple[int, State]] = []
    total_of_newer: State | None = None
    for number, span in enumerate(spans):
        while following is not None and following < span.end:
            if following >= span.first:
                state = merged(reader, by_segment[following], budget)
                newer.append((following, state))
                total_of_newer = _both(reader, total_of_newer, state)
            following = next(coming, None)
        while older and older[-1][0] < span.first:
            older.pop()
        if not older:
            total: State | None = None
            for segment, state in reversed(newer):
                if segment < span.first:
                    break
                total = _both(reader, state, total)
                older.append((segment, total))
            newer, total_of_newer = [], None
        found = _both(reader, older[-1][1] if older else None, total_of_newer)
        if found is not None and span.first < span.end:
            yield number, found
        budget.check_time()


def _both(reader: Reader, left: State | None, right: State | None) -> Any:
    if left is None or right is None:
        return right if left is None else left
    return merge(reader.algebras, left, right)
