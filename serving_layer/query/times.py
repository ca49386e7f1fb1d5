"""Parse times, durations and time zones; format times.

Clocks that are set back show a time twice; clocks that are set forward skip some. A time without an offset is refused
in both cases. A day or an hour that begins at such a time begins when clocks first show it, or where they skip it,
right after the skipped time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from serving_layer.errors import BadParameter
from serving_layer.query.parameters import did_you_mean, shown, text, wrong
from views.grain import DAY
from views.types import EPOCH, MICROSECOND

NAIVE_EPOCH = datetime(1970, 1, 1)
SECOND = 1_000_000
"""In microseconds: times are parsed to these."""
LATEST = 7_258_118_400
"""2200, in seconds since 1970. Events have times from 1970 up to this."""
UNITS = {"ms": 1000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}
DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
ISO = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ](?P<clock>(?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)"
    r"(?P<offset>Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
LOST_PLUS = re.compile(r".*[T ][0-9:.]+ [0-9]{2}:[0-9]{2}")
EPOCH_MS = re.compile(r"-?[0-9]{1,15}")
FIRST_MS = 100_000_000_000
"""A whole number below this (March 1973) probably means seconds and is refused; 0 is 1970 either way."""
TIMES = (
    "a time like 2026-01-31T12:00:00Z, 2026-01-31T12:00 or 2026-01-31 (in tz), milliseconds since 1970, now, or -24h"
)
DURATIONS = "a duration like 5s, 15m, 24h or 7d"
ZONES = "an IANA name like UTC or Europe/Berlin"
NO_ZONES = ("Factory", "localtime")
"""Not zones but files beside them, whose content depends on the machine."""


class Duration(NamedTuple):
    """`7d` is 7 days of the calendar, each of 23 to 25 hours; `168h` is 168 hours."""

    days: int
    micros: int

    @property
    def seconds(self) -> float:
        """As if each day had 24 hours."""
        return self.days * DAY + self.micros / SECOND


# ---- parsing -----------------------------------------------------------------


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The time zones that this machine or the package tzdata has."""
    return frozenset(available_timezones()) - {*NO_ZONES}


def parse_zone(name: str, given: Any) -> tzinfo:
    """A time zone by its IANA name."""
    if given == "UTC":
        return UTC  # also on a machine without a database of time zones
    known = zone_names()
    if text(name, given) not in known:
        if not known:
            raise wrong(name, given, "UTC: this machine has no time zone database. Install the package tzdata")
        raise BadParameter(
            name, given, f"There is no time zone {shown(given)}.{did_you_mean(given, known)} Write {ZONES}.", ZONES
        )
    return ZoneInfo(given)


def parse_duration(name: str, given: Any) -> Duration:
    """`15m` -> a Duration."""
    match = DURATION.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise wrong(name, given, DURATIONS, DURATIONS)
    number, unit = int(match[1]), match[2]
    return Duration(number, 0) if unit == "d" else Duration(0, number * UNITS[unit])


def is_relative(given: Any) -> bool:
    """Whether a time moves with the clock: `now`, `-24h`."""
    return isinstance(given, str) and (given == "now" or bool(DURATION.fullmatch(given[1:]) and given[0] == "-"))


def parse_time(name: str, given: Any, zone: tzinfo, now: float) -> int:
    """A time, in microseconds since 1970."""
    try:
        found = _parse_time(name, given, zone, now)
    except (ValueError, OverflowError):  # 2026-02-30, or a year beyond 9999
        raise wrong(name, given, TIMES, TIMES) from None
    if not 0 <= found <= LATEST * SECOND:
        raise wrong(name, given, "a time in 1970 to 2199, as events have", TIMES)
    return found


def _parse_time(name: str, given: Any, zone: tzinfo, now: float) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return _from_ms(name, given, given)
    if given == "now":
        return int(now * SECOND)
    if is_relative(given):
        return earlier(int(now * SECOND), parse_duration(name, given[1:]), zone)
    if isinstance(given, str) and EPOCH_MS.fullmatch(given):
        return _from_ms(name, given, int(given))
    match = ISO.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        if isinstance(given, str) and LOST_PLUS.fullmatch(given):
            raise wrong(name, given, "a time with + written as %2B: in a URL a + is a space", TIMES)
        raise wrong(name, given, TIMES, TIMES)
    wall = datetime.fromisoformat(f"{match['date']}T{match['clock'] or '00:00'}")
    if match["offset"]:
        return _micros(datetime.fromisoformat(f"{wall.isoformat()}{match['offset'].replace('Z', '+00:00')}"))
    second = wall.replace(microsecond=0)
    start = first_moment(second, zone) if match["clock"] is None else _only_moment(name, given, second, zone)
    return start * SECOND + wall.microsecond


def _from_ms(name: str, given: Any, ms: int) -> int:
    if 0 < ms < FIRST_MS:
        as_ms = f"as milliseconds this would be {iso(ms // 1000, UTC)}"
        raise wrong(name, given, f"milliseconds since 1970: {as_ms}. If you mean seconds, write {ms}000", TIMES)
    return ms * 1000


def _only_moment(name: str, given: str, wall: datetime, zone: tzinfo) -> int:
    """When clocks show this time, if they show it exactly once."""
    found = moments(wall, zone)
    if len(found) == 1:
        return found[0]
    if found:
        both = " or ".join(iso(each, zone) for each in found)
        raise BadParameter(name, given, f"{name} is {shown(given)}, which occurs twice in {zone}. Write {both}.", TIMES)
    after = iso(first_moment(wall, zone), zone)
    raise BadParameter(
        name,
        given,
        f"{name} is {shown(given)}, which does not occur in {zone}: clocks were set forward to {after}.",
        TIMES,
    )


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


# ---- clocks ------------------------------------------------------------------


def wall_clock(seconds: int, zone: tzinfo) -> datetime:
    """What clocks of the zone show at a moment."""
    return datetime.fromtimestamp(seconds, zone).replace(tzinfo=None, fold=0)


def moments(wall: datetime, zone: tzinfo) -> list[int]:
    """When clocks show this time: once, twice when they are set back, never when they are set forward over it."""
    before, after = _readings(wall, zone)
    if before == after:
        return [before]
    return [each for each in sorted((before, after)) if wall_clock(each, zone) == wall]


@lru_cache(maxsize=10_000)  # most queries are about the days of the last months
def first_moment(wall: datetime, zone: tzinfo) -> int:
    """When clocks first show this time; where they skip it, right after the skipped time."""
    found = moments(wall, zone)
    if found:
        return found[0]
    after, before = _readings(wall, zone)  # the clocks were set forward between the two
    while after - before > 1:
        middle = (before + after) // 2
        if wall_clock(middle, zone) < wall:
            before = middle
        else:
            after = middle
    return after


def _readings(wall: datetime, zone: tzinfo) -> tuple[int, int]:
    """The moments that this time means with the offsets before and after a change of clocks around it."""
    since = wall - NAIVE_EPOCH
    seconds = since.days * DAY + since.seconds
    before, after = zone.utcoffset(wall), zone.utcoffset(wall.replace(fold=1))
    return seconds - _seconds(before), seconds - _seconds(after)


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset.days * DAY + offset.seconds


def earlier(micros: int, by: Duration, zone: tzinfo) -> int:
    """A time minus a duration: days back to the same time on the clock, then the rest. Both in microseconds."""
    if by.days and zone is not UTC:
        seconds, rest = divmod(micros, SECOND)
        micros = first_moment(wall_clock(seconds, zone) - timedelta(days=by.days), zone) * SECOND + rest
    elif by.days:
        micros -= by.days * DAY * SECOND
    return micros - by.micros


def iso(seconds: int, zone: tzinfo) -> str:
    """`2026-03-01T00:00:00+05:30`, and `2026-02-28T18:30:00Z` in UTC."""
    written = datetime.fromtimestamp(seconds, zone).isoformat()
    return written.replace("+00:00", "Z") if zone is UTC else written
