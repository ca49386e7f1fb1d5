"""Segments: the windows of a query split into pieces, and the tiles that cover these. Pure.

Windows may overlap (rolling ones do). A segment begins wherever a window begins or ends: every segment is read and
merged once, and a window is a run of segments. A segment is covered by whole months where possible, else days, else
buckets of the view's grain, all in UTC, as the read index has them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batch_layer.index.layout import DAY_S, Level, TileRange, cover
from serving_layer.readers.selection import Period

SHORTEST_MONTH_S = 28 * DAY_S


class Span(NamedTuple):
    """A window as the numbers of its segments, half-open."""

    first: int
    end: int


@dataclass(frozen=True)
class Segments:
    """The pieces that windows are made of: segment n is from `starts[n]` to `ends[n]`."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    _spans: dict[tuple[Period, ...], tuple[Span, ...]] = field(default_factory=dict, compare=False, repr=False)
    _tile_ranges: dict[tuple[Level, ...], list[TileRange]] = field(default_factory=dict, compare=False, repr=False)
    """What was computed before: plans are cached, and used by many queries."""

    def at(self, bucket: int) -> int:
        """The number of the segment that holds a bucket. The bucket must be in one."""
        return bisect_right(self.starts, bucket) - 1

    def span(self, window: Period) -> Span:
        """The segments of a window; none for an empty one."""
        if window.start >= window.end:
            return Span(0, 0)
        return Span(self.at(window.start), self.at(window.end - 1) + 1)

    def spans(self, windows: Sequence[Period]) -> tuple[Span, ...]:
        """The segments of each of these windows."""
        key = tuple(windows)
        found = self._spans.get(key)
        if found is None:
            found = self._spans[key] = tuple([self.span(window) for window in windows])
        return found

    def tile_ranges(self, levels: Sequence[Level]) -> list[TileRange]:
        """The tile ranges to read, in the order of time: as few tiles as possible. `levels` are coarsest first."""
        key = tuple(levels)
        known = self._tile_ranges.get(key)
        if known is None:
            known = self._tile_ranges[key] = self._find_tile_ranges(levels)
        return known

    def _find_tile_ranges(self, levels: Sequence[Level]) -> list[TileRange]:
        found: list[TileRange] = []
        for start, end in zip(self.starts, self.ends, strict=True):
            for level, first, last in _cover(levels, start, end):
                if found and found[-1].end == first and found[-1].level is level:
                    found[-1] = TileRange(level, found[-1].start, last)
                else:
                    found.append(TileRange(level, first, last))
        return found

    def ranges(self) -> list[Period]:
        """The same time as few periods, without the gaps."""
        found: list[Period] = []
        for start, end in zip(self.starts, self.ends, strict=True):
            if found and found[-1].end == start:
                found[-1] = Period(found[-1].start, end)
            else:
                found.append(Period(start, end))
        return found


def _cover(levels: Sequence[Level], start: int, end: int) -> Iterable[tuple[Level, int, int]]:
    """Like `cover`, but short for most segments: they are days, or parts of one."""
    if end - start < SHORTEST_MONTH_S and not start % DAY_S and not end % DAY_S:
        return ((Level.DAY if Level.DAY in levels else Level.GRAIN, start, end),)
    if end - start < DAY_S:
        return ((Level.GRAIN, start, end),)
    return cover(levels, start, end)


def segments(windows: Iterable[Period]) -> Segments:
    """Split windows where one of them begins or ends. Time outside of all windows is in no segment."""
    windows = [window for window in windows if window.start < window.end]
    bounds = sorted({bound for window in windows for bound in window})
    number_of = {bound: number for number, bound in enumerate(bounds)}
    held = [0] * len(bounds)
    for window in windows:
        held[number_of[window.start]] += 1
        held[number_of[window.end]] -= 1
    starts, ends, depth = [], [], 0
    for number, change in enumerate(held[:-1]):
        depth += change
        if depth:
            starts.append(bounds[number])
            ends.append(bounds[number + 1])
    return Segments(tuple(starts), tuple(ends))
