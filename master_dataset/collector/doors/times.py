"""Times as other protocols write them, as an event's time is written."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from master_dataset.errors import InvalidEvent
from master_dataset.importer.times import iso

_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}):(\d{2})(?:[.,](\d{1,6})\d{0,12})? ?([Zz]|[+-]\d{2}:?\d{2})?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_NANOSECOND = 230 * 366 * 86_400 * 10**9
"""A number beyond it is no time that an event may have; it must not overflow either."""


def moment_of(text: object, where: str) -> datetime:
    """RFC 3339 with any number of digits, of which six are kept; UTC where it has no offset. A leap second is the
    last microsecond before it.
    """
    found = _RFC3339.fullmatch(text) if isinstance(text, str) and len(text) < 64 else None
    try:
        if found is not None:
            day, clock, second, fraction, offset = found.groups()
            if second == "60":
                second, fraction = "59", "999999"
            zone = "+00:00" if offset in (None, "Z", "z") else offset
            return datetime.fromisoformat(f"{day}T{clock}:{second}.{(fraction or '').ljust(6, '0')}{zone}")
    except ValueError:
        pass
    raise InvalidEvent(where, f"this should be a time like 2026-01-31T12:00:00.25Z; it is {str(text)[:40]!r}")


def moment_or_none(text: object) -> datetime | None:
    """When a client says that it sent something. One that says nothing of use is taken to have the right time."""
    with suppress(InvalidEvent):
        return moment_of(text, "")
    return None


def by_our_clock(happened: datetime, sent: datetime | None, received: datetime, where: str) -> datetime:
    """A time of a client's clock, corrected by what that clock said when the client sent it."""
    try:
        return happened if sent is None else happened + (received - sent)
    except OverflowError:
        raise InvalidEvent(where, "with this the time of the event is beyond what can be kept") from None


def time_text(moment: datetime, where: str) -> str:
    """As an event has it, in UTC."""
    try:
        return iso(moment)
    except (OverflowError, ValueError):
        raise InvalidEvent(where, f"this time is beyond what can be kept: {moment.isoformat()[:40]}") from None


def event_time(text: object, where: str) -> str:
    """`2026-01-31t13:00:00.123456789+01:00` -> `2026-01-31T12:00:00.123456Z`."""
    return time_text(moment_of(text, where), where)


def from_nanoseconds(nanoseconds: int, where: str) -> str:
    """Nanoseconds since 1970 as an event's time; what is below a microsecond is dropped."""
    if not 0 <= nanoseconds <= LAST_NANOSECOND:
        raise InvalidEvent(where, f"{nanoseconds} nanoseconds since 1970 are no time in 1970 to 2199")
    return iso(_EPOCH + timedelta(microseconds=nanoseconds // 1000))
