"""Periods: the range of a query, split where hours, days, weeks or months begin in a time zone.

A period of some hours or minutes begins at a multiple of them on the local clock: those of `6h` at 0, 6, 12 and 18.
Around a change of clocks a period is shorter or longer. Where an interval that the clock shows twice holds whole
periods, each of them exists twice. All times are in seconds since 1970, all periods half-open.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise
from math import gcd
from typing import Any, Literal

from serving_layer.errors import BadParameter, TooLarge
from serving_layer.query.parameters import shown
from serving_layer.query.times import SECOND, Duration, earlier, first_moment, iso, moments, wall_clock
from serving_layer.readers.selection import Period
from views.grain import DAY, GRAIN, UNITS, Grain

Step = int | Literal["week", "month", "all"]
"""The length of periods: seconds that divide a day, or longer periods of the calendar."""
WORDS: dict[str, Step] = {"hour": 3600, "day": DAY, "week": "week", "month": "month", "all": "all"}
COMMON = ("1s", "5s", "15s", "1m", "5m", "15m", "30m", "hour", "6h", "12h", "day", "week", "month", "all")
LENGTHS = {"week": 7 * DAY, "month": 28 * DAY, "all": 0}
LONGEST_MONTH = 31 * DAY


# ---- grains ------------------------------------------------------------------


def parse_step(given: Any, bucket: Grain) -> Step:
    """`day`, `15m` -> the length of the periods, which are made of whole buckets of the view."""
    match = GRAIN.fullmatch(given) if isinstance(given, str) else None
    step = WORDS.get(given) if isinstance(given, str) else None
    if match:
        step = int(match[1]) * UNITS[match[2]]
    if step is None or (isinstance(step, int) and (DAY % step or step % bucket.seconds)):
        allowed = grains(bucket)
        raise BadParameter(
            "grain", given,
            f"grain is {shown(given)}; it should be {bucket.text} (the view's grain), a multiple of it that divides "
            f"a day, or one of: {', '.join(each for each in allowed if each in WORDS)}.",
            allowed,
        )  # fmt: skip
    return step


def grains(bucket: Grain) -> list[str]:
    """The usual grains for a view. Every other multiple of its own that divides a day works too."""
    common = {each: WORDS.get(each) or int(each[:-1]) * UNITS[each[-1]] for each in COMMON}
    fine = [each for each, step in common.items() if not isinstance(step, int) or step % bucket.seconds == 0]
    return fine if bucket.text in fine else [bucket.text, *fine]


def nominal(step: Step) -> int:
    """The length of a period without a change of clocks; for a month the shortest."""
    return step if isinstance(step, int) else LENGTHS[step]


# ---- periods -----------------------------------------------------------------


def cut(whole: Period, step: Step, zone: tzinfo, max_periods: int) -> tuple[Period, ...]:
    """The range split into periods, the first and the last clipped to it; TooLarge beyond `max_periods`."""
    if step == "all":
        return (whole,)
    expected = (whole.end - whole.start) // nominal(step)
    if expected > max_periods:
        raise TooLarge(
            f"The range has about {expected} periods of this grain; the maximum is {max_periods}. "
            "Ask for a coarser grain or a shorter range.",
            limit="max_periods",
        )
    inner = beginnings(step, zone, whole.start, whole.end)[1:]
    return tuple(map(Period._make, pairwise([whole.start, *inner, whole.end])))


def beginnings(step: Step, zone: tzinfo, start: int, end: int) -> list[int]:
    """Where periods begin: the last beginning at or before `start`, and all others before `end`."""
    if isinstance(step, int) and zone is UTC:
        return [*range(start - start % step, end, step)]
    first = wall_clock(start, zone).date() - timedelta(days=1)
    last = wall_clock(end, zone).date() + timedelta(days=1)
    found = sorted({each for day in _days(step, first, last) for each in _begin_on(day, step, zone)})
    return found[bisect_right(found, start) - 1 : bisect_left(found, end)]


def _days(step: Step, first: date, last: date) -> Iterator[date]:
    """The days on which periods begin, from the last one at or before `first`."""
    day = first
    if step == "week":
        day -= timedelta(days=day.weekday())
    elif step == "month":
        day = day.replace(day=1)
    while day <= last:
        yield day
        day += timedelta(days=7 if step == "week" else 1)
        if step == "month":
            day = (day + timedelta(days=31)).replace(day=1)


def _begin_on(day: date, step: Step, zone: tzinfo) -> Iterable[int]:
    """The beginnings of periods on one day of the calendar."""
    midnight = datetime.combine(day, time())
    start = first_moment(midnight, zone)
    if not isinstance(step, int) or step == DAY:
        return [start]
    end = first_moment(midnight + timedelta(days=1), zone)
    if end - start == DAY:
        return range(start, end, step)
    if end == start:  # the calendar skipped the whole day
        return [start]
    return [each for at in range(0, DAY, step) for each in _begin_at(midnight + timedelta(seconds=at), step, zone)]


def _begin_at(wall: datetime, step: int, zone: tzinfo) -> list[int]:
    found = moments(wall, zone)
    if len(found) == 2 and (found[1] - found[0]) % step == 0:
        return found
    return [first_moment(wall, zone)]


# ---- windows and comparisons -------------------------


def rolling(of: Sequence[Period], window: Duration, zone: tzinfo) -> tuple[Period, ...]:
    """For each period, the window that ends with it."""
    return tuple(Period(earlier(each.end * SECOND, window, zone) // SECOND, each.end) for each in of)


def before(of: Sequence[Period], step: Step, zone: tzinfo) -> tuple[Period, ...]:
    """For each period of a range, the earlier one that it is compared with: the same number of periods back for all.

    That number is the smallest that moves the whole range before itself: [March, April] is compared with [January,
    February], and half a day with the same half of the day before. For `all` it is the range of that length before.
    """
    start, end = of[0].start, of[-1].end
    if step == "all":
        return (Period(start - (end - start), start),)
    back = len(of) * (LONGEST_MONTH if step == "month" else nominal(step))
    # Longer or skipped days, and partial periods at both ends, need a little more.
    known = beginnings(step, zone, start - back - 2 * max(nominal(step), DAY) - DAY, end + 1)
    at = bisect_right(known, start) - 1
    found = _moved_back(of, known, at, max(len(of) - 1, 1))
    return tuple(found if found[-1].end <= start else _moved_back(of, known, at, len(of)))


def _moved_back(of: Sequence[Period], known: Sequence[int], at: int, back: int) -> list[Period]:
    """The periods `back` before these, the first of which begins at or after `known[at]`; clipped like these."""
    found = [Period(known[index], known[index + 1]) for index in range(at - back, at - back + len(of))]
    into_first, into_last = of[0].start - known[at], of[-1].end - known[at + len(of) - 1]
    last = found[-1]
    if known[-1] != of[-1].end:
        found[-1] = Period(last.start, min(last.start + into_last, last.end))
    found[0] = Period(min(found[0].start + into_first, found[0].end), found[0].end)
    return found


# ---- buckets -----------------------------------------------------------------


def check_buckets(of: Iterable[Period], bucket: Grain, grain: str, zone: tzinfo) -> None:
    """Refuse periods that begin or end inside a bucket of the view: a part of a bucket is not stored."""
    inside = next((moment for each in of for moment in each if moment % bucket.seconds), None)
    if inside is not None:
        works = f"grain=all, or a tz whose offset from UTC is a multiple of {bucket.text}"
        raise BadParameter(
            "tz", str(zone),
            f"With grain={grain} and tz={zone} a period begins or ends at {iso(inside, zone)}, inside a bucket of the "
            f"view, whose grain is {bucket.text}. Use {works}; for {zone} the view would need a grain of "
            f"{_text(gcd(inside, bucket.seconds))}.",
            works,
        )  # fmt: skip


def within_events(of: Sequence[Period]) -> tuple[Period, ...]:
    """The periods, which are in order, clipped to the time since 1970: earlier there are no events."""
    if of[0].start >= 0:
        return tuple(of)
    return tuple(Period(max(each.start, 0), max(each.end, 0)) for each in of)


def _text(seconds: int) -> str:
    unit = next(unit for unit, size in reversed(UNITS.items()) if seconds % size == 0)
    return f"{seconds // UNITS[unit]}{unit}"
