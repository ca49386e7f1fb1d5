"""The rows that an answer must have, from the parameters as they were sent and from what docs/queries.md says of them.

Nothing of the serving layer is in here: what it takes for a day, a week, a window or a filter is what is judged. Only
what questions.py asks is understood, about any view; and only places whose clocks are changed by whole hours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from master_dataset.cut import Cut
from torture.readings import read_by
from torture.truth import Truth
from views import in_memory, states
from views.view import View

HOUR_S, DAY_S, SECOND = 3600, 24 * 3600, 1_000_000
UNITS = {"s": 1, "m": 60, "h": HOUR_S, "d": DAY_S}
WORDS = {"hour": "1h", "day": "1d", "week": "7d"}
PARAMETERS = ("from", "to", "grain", "tz", "window", "by", "order", "limit")
Row = tuple[Any, ...]
"""When its period begins, in seconds since 1970, and the values of its keys."""
Window = tuple[int, int, int]
"""When a period begins, and the range of time that its answers cover."""


def expected_rows(view: View, query: Mapping[str, str], cut: Cut, truth: Truth) -> dict[Row, dict[str, Any]]:
    """All rows over the events below a cut, with all answers, however they are ordered and paged."""
    every = windows(view, query)
    ends = [end for _, _, end in every]
    keys, passes, by = [*view.keys], _filter(view, query), keys_of_rows(query)
    found: dict[Row, dict[str, Any]] = {}
    events = read_by(view.source, truth.events(cut, min(start for _, start, _ in every), ends[-1]))
    for (micros, key), state in in_memory.fold(view, in_memory.counted(events)).items():
        named = dict(zip(keys, key, strict=True))
        if not passes(named):
            continue
        part, at = tuple(named[name] for name in by), micros // SECOND
        for begin, start, _ in every[bisect_right(ends, at) :]:
            if at < start:  # so it is before all that follow
                break
            place = (begin, *part)
            found[place] = states.merge(view.algebras, found[place], state) if place in found else state
    return {place: view.present(state) for place, state in found.items()}


def keys_of_rows(query: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that identify a row."""
    return tuple(query["by"].split(",")) if "by" in query else ()


def zone_of(query: Mapping[str, str]) -> tzinfo:
    """The place whose clocks are asked for."""
    return ZoneInfo(query["tz"]) if query.get("tz", "UTC") != "UTC" else UTC


# ---- when ----


def windows(view: View, query: Mapping[str, str]) -> list[Window]:
    """The periods of the range, the first and the last of them clipped to it, and what each is taken over."""
    bucket, zone = view.bucket.seconds, zone_of(query)
    start, end = (int(datetime.fromisoformat(query[name]).timestamp()) for name in ("from", "to"))
    start, end = start // bucket * bucket, -(-end // bucket) * bucket
    begins = _begins(start, end, query["grain"], zone) if query.get("grain", "all") != "all" else [start]
    window = query.get("window")
    return [
        (begin, _before(until, window, zone) if window else begin, until) for begin, until in pairwise([*begins, end])
    ]


def _begins(start: int, end: int, grain: str, zone: tzinfo) -> list[int]:
    """The clock is looked at once or more in each period: when did that begin?"""
    length = _seconds(WORDS.get(grain, grain))
    every = min(length, DAY_S if zone is UTC else HOUR_S)
    ahead = int((datetime.fromtimestamp(start, zone).utcoffset() or timedelta()).total_seconds())
    looks = range((start + ahead) // every * every - ahead, end, every)
    return sorted({max(_begin(at, length, zone), start) for at in looks})


def _begin(at: int, length: int, zone: tzinfo) -> int:
    """When the period around a moment began, by the clock: a week on Monday, a day at 0:00, 6 hours at 0, 6, 12 or 18.

    Clocks that were set back show an hour again, which is a period of its own, but only a part of a longer one.
    """
    local = datetime.fromtimestamp(at, zone)
    clock_s = local.hour * HOUR_S + local.minute * 60 + local.second
    back = timedelta(days=local.weekday()) if length > DAY_S else timedelta()
    began = local - back - timedelta(seconds=clock_s % length)  # on the clock, whatever was done to it between
    return int(began.replace(fold=local.fold if length <= HOUR_S else 0).timestamp())


def _before(end: int, window: str, zone: tzinfo) -> int:
    """A day of a window is one of the calendar: back to the same time of the clock. An hour is an hour."""
    if window.endswith("d"):
        return int((datetime.fromtimestamp(end, zone) - timedelta(days=int(window[:-1]))).timestamp())
    return end - _seconds(window)


def _seconds(length: str) -> int:
    """`6h` -> 21600."""
    return int(length[:-1]) * UNITS[length[-1]]


# ---- which keys ----


def _filter(view: View, query: Mapping[str, str]) -> Callable[[Mapping[str, Any]], bool]:
    """Whether the values of a group's keys pass all filters."""
    tests = [*_tests(view, query)]
    return lambda named: all(_passes(_text(named[key]), how, value) for key, how, value in tests)


def _tests(view: View, query: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, value in query.items():
        key, _, how = name.partition(".")
        if name in PARAMETERS:
            continue
        if key not in view.keys or how not in ("", "not", "prefix"):
            raise ValueError(f"{name}={value} was asked of {view.name}, and the checker does not know what it means")
        yield key, how, value


def _passes(text: str | None, how: str, value: str) -> bool:
    """Null is a value like any other, and not the one that was named."""
    if how == "prefix":
        return text is not None and text.startswith(value)
    return (text == value) != (how == "not")


def _text(value: Any) -> str | None:
    """The value of a key as a filter names it."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case date():
            return value.isoformat()
    return str(value)
