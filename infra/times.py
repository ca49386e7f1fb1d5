"""Points in time as text, always in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_utc(seconds: float) -> str:
    """Seconds since 1970 in ISO 8601: 0 -> `1970-01-01T00:00:00Z`, 0.5 -> `1970-01-01T00:00:00.500000Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def readable_utc(seconds: float) -> str:
    """Seconds since 1970 for people: 0 -> `1970-01-01 00:00:00 UTC`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
