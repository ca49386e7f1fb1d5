"""Times as other protocols write them, as an event's time is written."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from master_dataset.errors import InvalidEvent
from views.formats.times import iso, moment_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_NANOSECOND = 230 * 366 * 86_400 * 10**9
"""A number beyond it is no time that an event may have; it must not overflow either."""


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


def from_nanoseconds(nanoseconds: int, where: str) -> str:
    """Nanoseconds since 1970 as an event's time; what is below a microsecond is dropped."""
    if not 0 <= nanoseconds <= LAST_NANOSECOND:
        raise InvalidEvent(where, f"{nanoseconds} nanoseconds since 1970 are no time in 1970 to 2199")
    return iso(_EPOCH + timedelta(microseconds=nanoseconds // 1000))
