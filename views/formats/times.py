"""Times as other protocols write them (RFC 3339), as an event's time is written."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from views.errors import InvalidEvent

_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}):(\d{2})(?:[.,](\d{1,6})\d{0,12})? ?([Zz]|[+-]\d{2}:?\d{2})?", re.ASCII
)


def iso(moment: datetime) -> str:
    """As an event's time is written."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


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


def time_text(moment: datetime, where: str) -> str:
    """As an event has it, in UTC."""
    try:
        return iso(moment)
    except (OverflowError, ValueError):
        raise InvalidEvent(where, f"this time is beyond what can be kept: {moment.isoformat()[:40]}") from None


def event_time(text: object, where: str) -> str:
    """`2026-01-31t13:00:00.123456789+01:00` -> `2026-01-31T12:00:00.123456Z`."""
    return time_text(moment_of(text, where), where)
