"""Read the times that files hold and write them as events carry them: ISO 8601 in UTC."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache

from master_dataset.errors import InvalidEvent
from views.formats.times import iso

MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}

_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)? ?(?:Z|z|UTC|[+-]\d{2}:?\d{2})?)?", re.ASCII
)
_EPOCH = re.compile(r"-?\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_FIRST_MS = 100_000_000_000
"""A whole number from here on counts milliseconds: as seconds it would be the year 5138."""


@lru_cache(maxsize=1024)  # the lines of a log come in the order of their times: most have the time of the line before
def from_web_log(text: str) -> str:
    """`16/Nov/2026:03:40:11 +0100` -> `2026-11-16T02:40:11Z`."""
    try:
        offset = timedelta(hours=int(text[22:24]), minutes=int(text[24:26]))
        moment = datetime(
            int(text[7:11]), MONTHS[text[3:6]], int(text[0:2]), int(text[12:14]), int(text[15:17]), int(text[18:20]),
            tzinfo=timezone(-offset if text[21] == "-" else offset),
        )  # fmt: skip
        return iso(moment)
    except (ValueError, KeyError, IndexError, OverflowError):
        raise InvalidEvent(
            "time", f"this should be a time like 16/Nov/2026:02:40:11 +0000; it is {text[:40]!r}"
        ) from None


@lru_cache(maxsize=1024)
def from_date_and_time(day: str, clock: str, zone: tzinfo) -> str:
    """`2026-11-16` and `02:40:11.5` -> `2026-11-16T02:40:11.500000Z`, in a W3C log."""
    try:
        return iso(datetime.combine(date.fromisoformat(day), time.fromisoformat(clock), zone))
    except (ValueError, OverflowError):
        raise InvalidEvent(
            "time", f"this should be a date and a time like 2026-11-16 02:40:11; it is {f'{day} {clock}'[:40]!r}"
        ) from None


def from_text(text: str, zone: tzinfo) -> str:
    """A cell of a CSV file: ISO 8601 with T or a space, in `zone` unless it says its own; or s or ms since 1970."""
    try:
        if _EPOCH.fullmatch(text):
            number = float(text)
            is_ms = abs(number) >= _FIRST_MS
            return iso(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(**{"milliseconds" if is_ms else "seconds": number}))
        if _ISO.fullmatch(text):
            plain = text.replace(",", ".").replace("UTC", "Z").replace("z", "Z")
            moment = datetime.fromisoformat(plain.replace(" ", "T", 1).replace(" ", ""))
            return iso(moment if moment.tzinfo else moment.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        pass
    raise InvalidEvent("", f"this should be a time like 2026-01-31T12:00:00Z; it is {text[:40]!r}")
