"""Which tiles are read: just the windows that were asked for, nothing twice, and no plan with fewer tiles."""

from __future__ import annotations

from calendar import timegm
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_layer.index.layout import DAY_S, Level, TileRange
from serving_layer.query.segments import segments
from serving_layer.readers.selection import Period
from tests.tiers import times

LEVELS = [(Level.GRAIN,), (Level.DAY, Level.GRAIN), (Level.MONTH, Level.GRAIN), (Level.MONTH, Level.DAY, Level.GRAIN)]


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def next_bound(level: Level, second: int, grain_s: int) -> int | None:
    """Where the tile that begins at `second` ends; None: no tile of that level begins there."""
    if level == Level.GRAIN:
        return second + grain_s if second % grain_s == 0 else None
    if level == Level.DAY:
        return second + DAY_S if second % DAY_S == 0 else None
    begins = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    if (begins.day, begins.hour, begins.minute, begins.second) != (1, 0, 0, 0):
        return None
    year, month = divmod(begins.year * 12 + begins.month, 12)
    return timegm((year, month + 1, 1, 0, 0, 0))


def tiles(tile_ranges: list[TileRange], grain_s: int) -> list[Period]:
    found = []
    for tile_range in tile_ranges:
        start = tile_range.start
        while start < tile_range.end:
            end = next_bound(tile_range.level, start, grain_s)
            assert end is not None, f"no {tile_range.level} begins at {start}"
            found.append(Period(start, end))
            start = end
        assert start == tile_range.end, f"{tile_range} ends within a tile"
    return found


def fewest(period: Period, levels: tuple[Level, ...], grain_s: int) -> int:
    """How many tiles are needed at least, by trying everything from the end on."""
    needed = {period.end: 0}
    for start in range(period.end - grain_s, period.start - 1, -grain_s):
        ends = (next_bound(level, start, grain_s) for level in levels)
        needed[start] = 1 + min(needed[end] for end in ends if end is not None and end <= period.end)
    return needed[period.start]


@st.composite
def periods(draw: st.DrawFn, grain_s: int) -> Period:
    first = draw(st.sampled_from(["1969-11-20", "2024-02-01", "2025-12-25", "2026-01-01", "2026-02-27T12:00"]))
    start = at(first) // grain_s * grain_s + grain_s * draw(st.just(0) | st.integers(0, 40))
    lengths = st.integers(0, 400) | st.sampled_from([DAY_S // grain_s * days for days in (1, 28, 29, 31, 59, 90)])
    return Period(start, start + grain_s * draw(lengths))


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("grain_s", [3600, 21600, DAY_S])
@settings(max_examples=times(20, 600), deadline=None)
@given(data=st.data())
def test_a_period_is_covered_by_the_fewest_tiles(levels: tuple[Level, ...], grain_s: int, data: st.DataObject) -> None:
    period = data.draw(periods(grain_s))
    found = tiles(segments([period]).tile_ranges(levels), grain_s)
    assert all(left.end == right.start for left, right in pairwise(found)), "a gap, or time that is read twice"
    if period.start == period.end:
        assert found == []
    else:
        assert Period(found[0].start, found[-1].end) == period
        assert len(found) == fewest(period, levels, grain_s)


def test_months_are_taken_whole_and_days_around_them() -> None:
    found = segments([Period(at("2026-01-30T22:00"), at("2026-04-02T01:00"))]).tile_ranges(LEVELS[-1])
    assert found == [
        TileRange(Level.GRAIN, at("2026-01-30T22:00"), at("2026-01-31")),
        TileRange(Level.DAY, at("2026-01-31"), at("2026-02-01")),
        TileRange(Level.MONTH, at("2026-02-01"), at("2026-04-01")),
        TileRange(Level.DAY, at("2026-04-01"), at("2026-04-02")),
        TileRange(Level.GRAIN, at("2026-04-02"), at("2026-04-02T01:00")),
    ]


# ---- windows -------------------------------------------------------------------

WINDOWS = st.lists(
    st.tuples(st.integers(-50, 200), st.integers(0, 60)).map(lambda pair: Period(pair[0], sum(pair))), max_size=12
)


@given(windows=WINDOWS, bucket=st.integers(-60, 300))
@example(windows=[Period(0, 4), Period(2, 6), Period(9, 10)], bucket=7)
def test_segments_are_the_windows_and_a_window_is_whole_segments(windows: list[Period], bucket: int) -> None:
    found = segments(windows)
    pieces = list(zip(found.starts, found.ends, strict=True))
    assert all(start < end for start, end in pieces)
    assert all(left[1] <= right[0] for left, right in pairwise(pieces)), "disjoint, in order"
    is_asked = any(window.start <= bucket < window.end for window in windows)
    assert is_asked == any(start <= bucket < end for start, end in pieces)
    assert is_asked == any(start <= bucket < end for start, end in found.ranges())
    if is_asked:
        assert found.starts[found.at(bucket)] <= bucket < found.ends[found.at(bucket)]
    for window in windows:
        span = found.span(window)
        assert span.first < span.end or window.start == window.end
        if window.start < window.end:
            assert (found.starts[span.first], found.ends[span.end - 1]) == window
    assert len(found.ranges()) <= len(pieces)


def test_days_side_by_side_are_one_tile_range_and_what_lies_between_is_not_read() -> None:
    days = [Period(at(f"2026-01-{day:02}"), at(f"2026-01-{day + 1:02}")) for day in (*range(1, 20), *range(25, 29))]
    assert segments(days).tile_ranges(LEVELS[-1]) == [
        TileRange(Level.DAY, at("2026-01-01"), at("2026-01-20")),
        TileRange(Level.DAY, at("2026-01-25"), at("2026-01-29")),
    ]


def test_what_overlapping_windows_share_is_read_once() -> None:
    weeks = [Period(at("2026-01-01") + day * DAY_S, at("2026-01-08") + day * DAY_S) for day in range(10)]
    found = segments(weeks)
    assert found.tile_ranges(LEVELS[-1]) == [TileRange(Level.DAY, at("2026-01-01"), at("2026-01-17"))]
    assert [found.span(week) for week in weeks[:2]] == [(0, 7), (1, 8)]
