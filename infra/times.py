"""Points in time as text, always in UTC, and durations."""

from __future__ import annotations

import re
from datetime import UTC, datetime

DURATION = re.compile(r"([0-9]{1,10})([smhdw])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
LONGEST_S = 36_525 * 86_400


def iso_utc(seconds: float) -> str:
    """Seconds since 1970 in ISO 8601: 0 -> `1970-01-01T00:00:00Z`, 0.5 -> `1970-01-01T00:00:00.500000Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def readable_utc(seconds: float) -> str:
    """Seconds since 1970 for people: 0 -> `1970-01-01 00:00:00 UTC`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def parse_duration(text: str) -> int | None:
    """`90d` -> 7776000 seconds; None for what is no duration of at least 0 s and at most 100 years."""
    match = DURATION.fullmatch(text)
    seconds = int(match[1]) * UNITS[match[2]] if match else -1
    return seconds if 0 <= seconds <= LONGEST_S else None
