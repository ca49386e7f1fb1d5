"""Cron texts: when something is due. The words of crontab(5), computed by APScheduler."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from apscheduler.triggers.base import BaseTrigger

FIELDS = ("minute", "hour", "day", "month", "weekday")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
WEEKDAY = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[1-9]\d*))?")


def parse_cron(text: str, zone: tzinfo = UTC) -> BaseTrigger:
    """The trigger of a cron text with five fields; a ValueError explains what is wrong with it.

    As in crontab(5), and unlike APScheduler by itself, weekday 0 and 7 are Sunday, and where both the day and the
    weekday are restricted, either is enough: `0 4 1 * 5` is due on the first of each month and on each Friday.
    """
    from apscheduler.triggers.combining import OrTrigger
    from apscheduler.triggers.cron import CronTrigger

    fields = text.split()
    if len(fields) != len(FIELDS):
        raise ValueError(f"it has {len(fields)} fields instead of {len(FIELDS)} ({' '.join(FIELDS)})")
    minute, hour, day, month, weekday = fields
    days = [(day, _weekdays(weekday))]
    if not day.startswith("*") and not weekday.startswith("*"):
        days = [(day, "*"), ("*", _weekdays(weekday))]
    triggers = [
        CronTrigger(minute=minute, hour=hour, day=day, month=month, day_of_week=weekday, timezone=zone)
        for day, weekday in days
    ]
    trigger = triggers[0] if len(triggers) == 1 else OrTrigger(triggers)
    if next_due(trigger, datetime.now(UTC)) is None:
        raise ValueError("there is no such day")
    return trigger


def next_due(trigger: BaseTrigger, after: datetime) -> datetime | None:
    """The first due time after a moment, not counting the moment itself; None where there is none."""
    due: datetime | None = trigger.get_next_fire_time(None, after + timedelta(microseconds=1))
    return due


def parse_zone(name: str) -> tzinfo:
    """A time zone by its name, like Europe/Berlin; a ValueError where there is none of that name."""
    if name == "UTC":
        return UTC  # also on a machine without a database of time zones
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r} on this machine") from None


def _weekdays(field: str) -> str:
    """A weekday field by names, because APScheduler counts from Monday: `0-2` -> `sun,mon,tue`."""
    if field == "*":
        return field
    days: set[int] = set()
    for part in field.split(","):
        found = WEEKDAY.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is no weekday")
        step = int(found["step"] or 1)
        first = 0 if found["first"] == "*" else _weekday(found["first"])
        until = _weekday(found["last"]) if found["last"] else first if found["first"] != "*" and step == 1 else 6
        until += 7 if until < first else 0  # fri-mon goes over the end of the week
        days |= {day % 7 for day in range(first, until + 1, step)}
    return ",".join(WEEKDAYS[day] for day in sorted(days))


def _weekday(word: str) -> int:
    if word.lower() in WEEKDAYS:
        return WEEKDAYS.index(word.lower())
    if word.isdecimal() and int(word) <= 7:
        return int(word)
    raise ValueError(f"{word!r} is no weekday: 0 to 7, or sun to sat")
