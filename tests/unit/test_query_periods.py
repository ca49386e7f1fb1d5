"""Calendar periods in any time zone: they fill the range, begin where clocks say, and are refused within a bucket."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving_layer.errors import BadParameter, TooLarge
from serving_layer.query import periods
from serving_layer.query.periods import Step
from serving_layer.query.times import Duration, parse_time, parse_zone
from serving_layer.readers.selection import Period
from tests.tiers import times
from views.grain import DAY, parse_grain

MOST = 100_000
HOUR = 3600
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe",
         "America/Havana", "America/Santiago", "Asia/Beirut", "Pacific/Apia", "Pacific/Chatham", "Etc/UTC"]  # fmt: skip


def at(text: str, zone: str) -> int:
    """`2026-03-29` -> seconds."""
    return parse_time("from", text, parse_zone("tz", zone), 0) // 1_000_000


def whole(start: str, end: str, zone: str) -> Period:
    return Period(at(start, zone), at(end, zone))


def hours(of: tuple[Period, ...]) -> list[float]:
    return [(each.end - each.start) / HOUR for each in of]


# ---- grains ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "view", "expected"),
    [("1h", "1h", HOUR), ("hour", "1h", HOUR), ("hour", "5s", HOUR), ("60m", "1h", HOUR), ("15m", "5m", 900),
     ("6h", "1h", 6 * HOUR), ("90s", "5s", 90), ("day", "1h", DAY), ("1d", "1h", DAY), ("day", "1d", DAY),
     ("24h", "1d", DAY), ("week", "1d", "week"), ("month", "5s", "month"), ("all", "1h", "all")],
)  # fmt: skip
def test_a_grain_is_a_multiple_of_the_views(text: str, view: str, expected: Step) -> None:
    assert periods.parse_step(text, parse_grain(view)) == expected


@pytest.mark.parametrize(
    ("given", "view"),
    [("30m", "1h"), ("90m", "1h"), ("hour", "1d"), ("5h", "1h"), ("7d", "1h"), ("2d", "1h"), ("1w", "1h"),
     ("Day", "1h"), ("year", "1h"), ("", "1h"), ("0h", "1h"), ("1h ", "1h"), ("hours", "5s"), ("7s", "1s"),
     (3600, "1h"), (None, "1h"),
     (["day"], "1h")],
)  # fmt: skip
def test_another_grain_is_refused_with_those_that_work(given: Any, view: str) -> None:
    with pytest.raises(BadParameter, match=f"it should be {view} .the view's grain., a multiple") as caught:
        periods.parse_step(given, parse_grain(view))
    allowed = caught.value.more["allowed"]
    assert allowed == periods.grains(parse_grain(view))
    assert all(periods.parse_step(each, parse_grain(view)) for each in allowed)
    assert {"week", "month", "all"} <= {*allowed}
    assert caught.value.more["parameter"] == "grain"


# ---- examples ----------------------------------------------------------------

LENGTHS: list[tuple[str, Step, str, str, list[float]]] = [
    ("Europe/Berlin", DAY, "2026-03-28", "2026-03-31", [24, 23, 24]),
    ("Europe/Berlin", DAY, "2026-10-24", "2026-10-27", [24, 25, 24]),
    ("Europe/Berlin", 6 * HOUR, "2026-03-29", "2026-03-30", [5, 6, 6, 6]),
    ("Europe/Berlin", 6 * HOUR, "2026-10-25", "2026-10-26", [7, 6, 6, 6]),
    ("Europe/Berlin", 2 * HOUR, "2026-10-25T00:00", "2026-10-25T06:00", [2, 3, 2]),
    ("Europe/Berlin", 2 * HOUR, "2026-03-29T00:00", "2026-03-29T06:00", [2, 1, 2]),
    ("Europe/Berlin", HOUR, "2026-10-25T01:00", "2026-10-25T04:00", [1, 1, 1, 1]),
    ("Europe/Berlin", HOUR, "2026-03-29T01:00", "2026-03-29T04:00", [1, 1]),
    ("Europe/Berlin", 1800, "2026-10-25T01:30", "2026-10-25T03:30", [0.5] * 6),
    ("Europe/Berlin", "week", "2026-03-23", "2026-04-06", [167, 168]),
    ("Europe/Berlin", "month", "2026-03-01", "2026-05-01", [31 * 24 - 1, 30 * 24]),
    ("Pacific/Chatham", 1800, "2026-04-05T02:00", "2026-04-05T04:00", [0.5] * 6),  # set back from 03:45 to 02:45
    ("Pacific/Chatham", 1800, "2026-09-27T02:00", "2026-09-27T04:00", [0.5, 0.25, 0.25]),
    ("Australia/Lord_Howe", DAY, "2026-04-04", "2026-04-07", [24, 24.5, 24]),
    ("Australia/Lord_Howe", DAY, "2026-10-03", "2026-10-06", [24, 23.5, 24]),
    ("Australia/Lord_Howe", HOUR, "2026-04-05T00:00", "2026-04-05T03:00", [1, 1.5, 1]),
    ("Australia/Lord_Howe", HOUR, "2026-10-04T01:00", "2026-10-04T04:00", [1, 0.5, 1]),
    ("Australia/Lord_Howe", 1800, "2026-04-05T01:00", "2026-04-05T02:30", [0.5] * 4),
    ("America/Havana", DAY, "2026-10-31", "2026-11-03", [24, 25, 24]),
    ("America/Santiago", DAY, "2026-09-05", "2026-09-08", [24, 23, 24]),
    ("Pacific/Apia", DAY, "2011-12-29", "2012-01-01", [24, 24]),  # there was no 30 December
    ("Pacific/Apia", 12 * HOUR, "2011-12-29", "2012-01-01", [12] * 4),
    ("Pacific/Apia", "week", "2011-12-26", "2012-01-09", [144, 168]),
    ("Asia/Kolkata", DAY, "2026-03-01", "2026-03-03", [24, 24]),
    ("UTC", "month", "2024-01-31", "2024-03-02", [24, 29 * 24, 24]),
    ("UTC", "week", "2026-01-01", "2026-01-13", [4 * 24, 7 * 24, 24]),  # 1 January is a Thursday
    ("UTC", DAY, "2026-01-01T18:00", "2026-01-02T06:00", [6, 6]),
    ("UTC", HOUR, "2026-01-01T18:30", "2026-01-01T18:45", [0.25]),
    ("UTC", "all", "2026-01-01", "2026-03-01", [59 * 24]),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "step", "start", "end", "expected"), LENGTHS)
def test_periods_are_as_long_as_clocks_make_them(
    zone: str, step: Step, start: str, end: str, expected: list[float]
) -> None:
    found = periods.cut(whole(start, end, zone), step, parse_zone("tz", zone), MOST)
    assert hours(found) == expected


def test_weeks_begin_on_monday() -> None:
    found = periods.cut(whole("2026-01-01", "2026-02-01", "UTC"), "week", UTC, MOST)
    assert {datetime.fromtimestamp(each.start, UTC).strftime("%a") for each in found[1:]} == {"Mon"}


def test_a_range_of_too_many_periods_is_refused_before_they_are_made() -> None:
    with pytest.raises(
        TooLarge, match=r"about 6574230 periods .* the maximum is 1000. Ask for a coarser grain"
    ) as caught:
        periods.cut(whole("2000-01-01", "2199-12-30", "UTC"), 960, parse_zone("tz", "Europe/Berlin"), 1000)
    assert caught.value.more["limit"] == "max_periods"


# ---- laws --------------------------------------------------------------------


def naive_beginnings(step: Step, zone: tzinfo, start: int, end: int) -> list[int]:
    """Where a clock that is looked at every 15 minutes has gone on to another period."""
    found: list[int] = []
    reached: Any = None
    offset = 0.0
    for moment in range(start - 40 * DAY, end, 900):
        local = datetime.fromtimestamp(moment, zone)
        set_back = offset - (offset := (local.utcoffset() or timedelta()).total_seconds())
        label: Any = local.date()
        if isinstance(step, int):
            since_midnight = (local.hour * 60 + local.minute) * 60
            label = (label, since_midnight // step)
            if found and set_back > 0 and set_back % step == 0:  # it goes through whole periods again
                reached = label if since_midnight % step else None
        elif step == "week":
            label = label.isocalendar()[:2]
        elif step == "month":
            label = (local.year, local.month)
        if reached is None or label > reached:
            found.append(moment)
            reached = label
    return [max(each for each in found if each <= start), *(each for each in found if each > start)]


STEPS: list[Step] = [900, 1800, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, "week", "month"]
CHANGES = [at(day, "UTC") for day in ("2026-03-29", "2026-10-25", "2026-04-05", "2026-10-04", "2026-11-01",
                                      "2026-09-06", "2011-12-30", "2026-03-08")]  # fmt: skip
QUARTERS = st.integers(at("2010-01-01", "UTC") // 900, at("2030-01-01", "UTC") // 900).map(lambda each: each * 900)
STARTS = QUARTERS | st.builds(lambda near, off: near + off * 900, st.sampled_from(CHANGES), st.integers(-200, 100))


@settings(deadline=None, max_examples=times(50, 1500))
@given(STARTS, st.integers(1, 300), st.sampled_from(STEPS), st.sampled_from(ZONES))
@example(at("2011-12-28", "UTC"), 300, 900, "Pacific/Apia")
@example(at("2026-04-04", "UTC"), 300, HOUR, "Australia/Lord_Howe")
@example(at("2026-10-24", "UTC"), 300, HOUR, "Europe/Berlin")
@example(at("2026-10-31", "UTC"), 300, 12 * HOUR, "America/Havana")
def test_periods_begin_where_a_naive_clock_says(start: int, quarters: int, step: Step, name: str) -> None:
    zone, end = parse_zone("tz", name), start + quarters * 900
    assert periods.beginnings(step, zone, start, end) == naive_beginnings(step, zone, start, end)


@settings(deadline=None)
@given(STARTS, st.integers(1, 3000), st.sampled_from([*STEPS, "all"]), st.sampled_from(ZONES))
def test_periods_fill_the_range_and_do_not_overlap(start: int, quarters: int, step: Step, name: str) -> None:
    whole = Period(start, start + quarters * 900)
    found = periods.cut(whole, step, parse_zone("tz", name), MOST)
    assert found[0].start == whole.start
    assert found[-1].end == whole.end
    assert all(left.end == right.start for left, right in pairwise(found))
    assert all(each.start < each.end for each in found)


@settings(deadline=None)
@given(STARTS, st.integers(1, 3000), st.sampled_from([*STEPS, "all"]), st.sampled_from(ZONES))
@example(at("2026-01-30", "UTC"), 4 * 24 * 30, "month", "UTC")
@example(at("2011-12-31", "UTC"), 4 * 24 * 3, DAY, "Pacific/Apia")
def test_what_is_compared_with_lies_before_the_range(start: int, quarters: int, step: Step, name: str) -> None:
    zone = parse_zone("tz", name)
    now = periods.cut(Period(start, start + quarters * 900), step, zone, MOST)
    then = periods.before(now, step, zone)
    assert len(then) == len(now)
    assert then[-1].end <= start
    assert all(left.end == right.start for left, right in pairwise(then))
    assert all(each.start <= each.end for each in then)
    if isinstance(step, int) and zone is UTC:
        (moved,) = {new.start - old.start for old, new in zip(then, now, strict=True)}
        assert moved % step == 0
        assert hours(then) == hours(now)
        assert moved - step < max(quarters * 900, step)  # no further back than needed


COMPARED: list[tuple[str, Step, str, str, str, str]] = [
    ("UTC", "all", "2026-03-01", "2026-03-08", "2026-02-22", "2026-03-01"),
    ("UTC", "all", "2026-03-01T06:00", "2026-03-01T12:30", "2026-02-28T23:30", "2026-03-01T06:00"),
    ("UTC", DAY, "2026-03-01", "2026-03-08", "2026-02-22", "2026-03-01"),
    ("UTC", "month", "2026-03-01", "2026-05-01", "2026-01-01", "2026-03-01"),
    ("UTC", "month", "2026-03-15", "2026-05-15", "2026-01-15", "2026-03-15"),
    ("UTC", "month", "2026-03-01", "2026-03-31", "2026-02-01", "2026-03-01"),  # 30 days of March, all of February
    ("UTC", "month", "2026-01-01", "2026-01-11", "2025-12-01", "2025-12-11"),
    ("UTC", "month", "2026-02-01", "2026-03-01", "2026-01-01", "2026-02-01"),  # 28 days, and all 31 before
    ("UTC", "week", "2026-03-02", "2026-03-16", "2026-02-16", "2026-03-02"),
    ("UTC", DAY, "2026-03-02T12:00", "2026-03-09T12:00", "2026-02-23T12:00", "2026-03-02T12:00"),
    ("UTC", DAY, "2026-03-02T06:00", "2026-03-02T12:00", "2026-03-01T06:00", "2026-03-01T12:00"),
    ("UTC", DAY, "2026-03-02T06:00", "2026-03-03T18:00", "2026-02-28T06:00", "2026-03-01T18:00"),
    ("UTC", HOUR, "2026-03-02T06:00", "2026-03-03T06:00", "2026-03-01T06:00", "2026-03-02T06:00"),
    ("Europe/Berlin", "month", "2026-03-01", "2026-04-01", "2026-02-01", "2026-03-01"),
    ("Europe/Berlin", DAY, "2026-03-28", "2026-04-04", "2026-03-21", "2026-03-28"),
    ("Europe/Berlin", DAY, "2026-03-25T12:00", "2026-04-01T12:00", "2026-03-18T12:00", "2026-03-25T12:00"),
    ("Europe/Berlin", 6 * HOUR, "2026-03-30", "2026-04-06", "2026-03-23", "2026-03-30"),
    ("Asia/Kolkata", DAY, "2026-03-02", "2026-03-03", "2026-03-01", "2026-03-02"),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "step", "start", "end", "start_before", "end_before"), COMPARED)
def test_a_range_is_compared_with_as_many_periods_before(
    zone: str, step: Step, start: str, end: str, start_before: str, end_before: str
) -> None:
    now = periods.cut(whole(start, end, zone), step, parse_zone("tz", zone), MOST)
    then = periods.before(now, step, parse_zone("tz", zone))
    assert Period(then[0].start, then[-1].end) == whole(start_before, end_before, zone)


def test_each_day_is_compared_with_the_day_as_many_days_before() -> None:
    zone = parse_zone("tz", "Europe/Berlin")
    now = periods.cut(whole("2026-03-29", "2026-04-01", "Europe/Berlin"), DAY, zone, MOST)
    then = periods.before(now, DAY, zone)
    assert [datetime.fromtimestamp(each.start, zone).isoformat() for each in then] == [
        "2026-03-26T00:00:00+01:00", "2026-03-27T00:00:00+01:00", "2026-03-28T00:00:00+01:00",
    ]  # fmt: skip
    assert (hours(now), hours(then)) == ([23, 24, 24], [24, 24, 24])


# ---- rolling windows ---------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "window", "expected"),
    [("UTC", Duration(7, 0), [168] * 3), ("Europe/Berlin", Duration(7, 0), [168, 167, 167]),
     ("Europe/Berlin", Duration(0, 48 * HOUR * 10**6), [48] * 3), ("Europe/Berlin", Duration(1, 0), [24, 23, 24])],
)  # fmt: skip
def test_a_window_ends_with_its_period(zone: str, window: Duration, expected: list[float]) -> None:
    of = periods.cut(whole("2026-03-28", "2026-03-31", zone), DAY, parse_zone("tz", zone), MOST)
    found = periods.rolling(of, window, parse_zone("tz", zone))
    assert [each.end for each in found] == [each.end for each in of]
    assert hours(found) == expected


def test_the_window_of_a_clipped_period_is_as_long_as_the_others() -> None:
    of = periods.cut(whole("2026-03-01", "2026-03-02T12:00", "UTC"), DAY, UTC, MOST)
    assert hours(of) == [24, 12]
    assert hours(periods.rolling(of, Duration(7, 0), UTC)) == [168, 168]


def test_what_lies_before_1970_is_left_out() -> None:
    assert periods.within_events([Period(-20, -10), Period(-10, 5), Period(5, 8)]) == (
        Period(0, 0), Period(0, 5), Period(5, 8),
    )  # fmt: skip


# ---- buckets of the view -----------------------------------------------------

ALIGNED: list[tuple[str, str, str, str, bool]] = [
    ("day", "Asia/Kolkata", "1h", "2026-03-01", False),
    ("day", "Asia/Kolkata", "30m", "2026-03-01", True),
    ("hour", "Asia/Kolkata", "1h", "2026-03-01", False),
    ("day", "Asia/Kathmandu", "30m", "2026-03-01", False),
    ("day", "Asia/Kathmandu", "15m", "2026-03-01", True),
    ("day", "Australia/Lord_Howe", "1h", "2026-01-10", True),  # + 11:00 in summer
    ("day", "Australia/Lord_Howe", "1h", "2026-07-10", False),  # + 10:30 in winter
    ("day", "Europe/Berlin", "1h", "2026-03-29", True),
    ("day", "Europe/Berlin", "1d", "2026-03-01", False),
    ("month", "Europe/Berlin", "1h", "2026-03-01", True),
    ("6h", "Europe/Berlin", "6h", "2026-03-01", False),
    ("week", "UTC", "1d", "2026-03-01", True),
    ("all", "Asia/Kolkata", "1h", "2026-03-01", True),
]  # fmt: skip


@pytest.mark.parametrize(("grain", "zone", "view", "day", "works"), ALIGNED)
def test_a_period_that_begins_within_a_bucket_is_refused(
    grain: str, zone: str, view: str, day: str, works: bool
) -> None:
    bucket, tz = parse_grain(view), parse_zone("tz", zone)
    start = at(day, zone) // bucket.seconds * bucket.seconds
    found = periods.cut(Period(start, start + 3 * DAY), periods.parse_step(grain, bucket), tz, MOST)
    if works:
        periods.check_buckets(found, bucket, grain, tz)
        return
    with pytest.raises(BadParameter) as caught:
        periods.check_buckets(found, bucket, grain, tz)
    for words in (f"grain={grain}", f"tz={zone}", f"whose grain is {view}", "grain=all", "UTC", "the view would need"):
        assert words in caught.value.detail
    assert caught.value.more["parameter"] == "tz"
    assert caught.value.more["given"] == zone


def test_a_refused_zone_names_the_grain_that_it_needs() -> None:
    with pytest.raises(BadParameter, match=r"begins or ends at 2026-03-02T00:00:00\+05:45.*need a grain of 15m"):
        periods.check_buckets(
            periods.cut(whole("2026-03-01T00:45", "2026-03-03T00:45", "Asia/Kathmandu"), DAY,
                        parse_zone("tz", "Asia/Kathmandu"), MOST),
            parse_grain("1h"), "day", parse_zone("tz", "Asia/Kathmandu"),
        )  # fmt: skip
