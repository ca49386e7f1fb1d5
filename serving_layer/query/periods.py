"""Periods: the range of a question, cut where hours, days, weeks or months begin on the clocks of a time zone.

A period of some hours or minutes begins at a multiple of them on the local clock: those of `6h` at 0, 6, 12 and 18.
When clocks are changed, the period around is shorter or longer; where a stretch that the clock shows twice holds whole
periods, each is there twice. All times are in seconds since 1970, all periods half-open.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise
from math import gcd
from typing import Any, Literal

from serving_layer.errors import BadParameter, TooLarge
from serving_layer.query.model import Period
from serving_layer.query.parameters import shown
from serving_layer.query.times import SECOND, Duration, earlier, first_moment, iso, moments, wall_clock
from views.grain import DAY, GRAIN, UNITS, Grain

Step = int | Literal["week", "month", "all"]
"""How long periods are: seconds that divide a day, or longer periods of the calendar."""
WORDS: dict[str, Step] = {"hour": 3600, "day": DAY, "week": "week", "month": "month", "all": "all"}
COMMON = ("1s", "5s", "15s", "1m", "5m", "15m", "30m", "hour", "6h", "12h", "day", "week", "month", "all")
LENGTHS = {"week": 7 * DAY, "month": 28 * DAY, "all": 0}
LONGEST_MONTH = 31 * DAY


# ---- grains ------------------------------------------------------------------


def parse_step(given: Any, bucket: Grain) -> Step:
    """`day`, `15m` -> how long the periods are. They are made of buckets of the view."""
    match = GRAIN.fullmatch(given) if isinstance(given, str) else None
    step = WORDS.get(given) if isinstance(given, str) else None
    if match:
        step = int(match[1]) * UNITS[match[2]]
    if step is None or (isinstance(step, int) and (DAY % step or step % bucket.seconds)):
        allowed = grains(bucket)
        raise BadParameter(
            "grain", given,
            f"grain is {shown(given)}; it should be {bucket.text}, which the view has, a multiple of it that divides a "
            f"day, or one of: {', '.join(each for each in allowed if each in WORDS)}.",
            allowed,
        )  # fmt: skip
    return step


def grains(bucket: Grain) -> list[str]:
    """The grains that people ask a view for; every other multiple of its own that divides a day is fine too."""
    common = {each: WORDS.get(each) or int(each[:-1]) * UNITS[each[-1]] for each in COMMON}
    fine = [each for each, step in common.items() if not isinstance(step, int) or step % bucket.seconds == 0]
    return fine if bucket.text in fine else [bucket.text, *fine]


def nominal(step: Step) -> int:
    """How long a period is when no clock is changed; a month at least."""
    return step if isinstance(step, int) else LENGTHS[step]


# ---- periods -----------------------------------------------------------------


def cut(whole: Period, step: Step, zone: tzinfo, most: int) -> tuple[Period, ...]:
    """The range cut into periods, of which the first and the last are clipped to it; TooLarge if more than `most`."""
    if step == "all":
        return (whole,)
    expected = (whole.end - whole.start) // nominal(step)
    if expected > most:
        raise TooLarge(
            f"The range has about {expected} periods of this grain; {most} are possible. "
            "Ask for a coarser grain, or a shorter range.",
            limit="max_periods",
        )
    inner = beginnings(step, zone, whole.start, whole.end)[1:]
    return tuple(map(Period._make, pairwise([whole.start, *inner, whole.end])))


def beginnings(step: Step, zone: tzinfo, start: int, end: int) -> list[int]:
    """Where periods begin: the last beginning that is not after `start`, and all others before `end`."""
    if isinstance(step, int) and zone is UTC:
        return [*range(start - start % step, end, step)]
    first = wall_clock(start, zone).date() - timedelta(days=1)
    last = wall_clock(end, zone).date() + timedelta(days=1)
    found = sorted({each for day in _days(step, first, last) for each in _begin_on(day, step, zone)})
    return found[bisect_right(found, start) - 1 : bisect_left(found, end)]


def _days(step: Step, first: date, last: date) -> Iterator[date]:
    """The days on which periods begin, from the last that is not after `first`."""
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
    if end == start:  # the calendar left the whole day out
        return [start]
    return [each for at in range(0, DAY, step) for each in _begin_at(midnight + timedelta(seconds=at), step, zone)]


def _begin_at(wall: datetime, step: int, zone: tzinfo) -> list[int]:
    found = moments(wall, zone)
    if len(found) == 2 and (found[1] - found[0]) % step == 0:
        return found
    return [first_moment(wall, zone)]


# ---- what periods are compared with, and summed over -------------------------


def rolling(of: Sequence[Period], window: Duration, zone: tzinfo) -> tuple[Period, ...]:
    """For each period the window that ends with it."""
    return tuple(Period(earlier(each.end * SECOND, window, zone) // SECOND, each.end) for each in of)


def before(of: Sequence[Period], step: Step, zone: tzinfo) -> tuple[Period, ...]:
    """For each period of a range the one before it that it is compared with: as many periods back for all of them.

    They are the fewest that bring the whole range before itself: [March, April] is compared with [January, February],
    and the half of a day with the same half of the day before. Without periods it is the range of that length before.
    """
    start, end = of[0].start, of[-1].end
    if step == "all":
        return (Period(start - (end - start), start),)
    back = len(of) * (LONGEST_MONTH if step == "month" else nominal(step))
    # Days that are longer or left out, and the parts of periods at both ends, need a little more.
    known = beginnings(step, zone, start - back - 2 * max(nominal(step), DAY) - DAY, end + 1)
    at = bisect_right(known, start) - 1
    found = _moved_back(of, known, at, max(len(of) - 1, 1))
    return tuple(found if found[-1].end <= start else _moved_back(of, known, at, len(of)))


def _moved_back(of: Sequence[Period], known: Sequence[int], at: int, back: int) -> list[Period]:
    """The periods `back` before these, of which the first begins at or after `known[at]`; clipped as far as these."""
    found = [Period(known[place], known[place + 1]) for place in range(at - back, at - back + len(of))]
    into_first, into_last = of[0].start - known[at], of[-1].end - known[at + len(of) - 1]
    last = found[-1]
    if known[-1] != of[-1].end:
        found[-1] = Period(last.start, min(last.start + into_last, last.end))
    found[0] = Period(min(found[0].start + into_first, found[0].end), found[0].end)
    return found


# ---- buckets -----------------------------------------------------------------


def check_buckets(of: Iterable[Period], bucket: Grain, grain: str, zone: tzinfo) -> None:
    """Refuse periods that do not begin or end with buckets of the view: a part of a bucket is not known."""
    inside = next((moment for each in of for moment in each if moment % bucket.seconds), None)
    if inside is not None:
        works = f"grain=all, or a tz like UTC whose clocks differ from UTC by multiples of {bucket.text}"
        raise BadParameter(
            "tz", str(zone),
            f"With grain={grain} and tz={zone} a period begins or ends at {iso(inside, zone)}: within a bucket of the "
            f"view, whose grain is {bucket.text}. Ask with {works}; for {zone} the view would need a grain of "
            f"{_text(gcd(inside, bucket.seconds))}.",
            works,
        )  # fmt: skip


def within_events(of: Sequence[Period]) -> tuple[Period, ...]:
    """The periods, which are in order, without what lies before 1970, where no events are."""
    if of[0].start >= 0:
        return tuple(of)
    return tuple(Period(max(each.start, 0), max(each.end, 0)) for each in of)


def _text(seconds: int) -> str:
    unit = next(unit for unit, size in reversed(UNITS.items()) if seconds % size == 0)
    return f"{seconds // UNITS[unit]}{unit}"
