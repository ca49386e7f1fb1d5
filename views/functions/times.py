"""Parts of times and dates, always in UTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any

from views.errors import ExpressionError
from views.functions.registry import call, check, function
from views.typed_expression import TypedExpression
from views.types import BIGINT, DATE, EPOCH, MICROSECOND, TIMESTAMP


def _part_of_time(name: str, kinds: tuple[str, ...], python: Callable[[Any], int]) -> None:
    @function(name, 1)
    def build_it(value: TypedExpression) -> TypedExpression:
        check(name, value, *kinds)
        return call(BIGINT, f"cast({name}({value.sql}) AS bigint)", python, value)


DAYS = ("timestamp", "date")
_part_of_time("year", DAYS, lambda moment: moment.year)
_part_of_time("month", DAYS, lambda moment: moment.month)
_part_of_time("day", DAYS, lambda moment: moment.day)
_part_of_time("dayofweek", DAYS, lambda moment: moment.isoweekday() % 7 + 1)
_part_of_time("hour", ("timestamp",), lambda moment: moment.hour)
_part_of_time("minute", ("timestamp",), lambda moment: moment.minute)
_part_of_time("unix_seconds", ("timestamp",), lambda moment: (moment - EPOCH) // MICROSECOND // 1_000_000)
_part_of_time("unix_millis", ("timestamp",), lambda moment: (moment - EPOCH) // MICROSECOND // 1_000)


@function("to_date", 1)
def _to_date(value: TypedExpression) -> TypedExpression:
    check("to_date", value, *DAYS)
    if value.type == DATE:
        return value
    return call(DATE, f"try_cast({value.sql} AS date)", _utc_date, value)


def _utc_date(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def truncated(value: TypedExpression, unit: str, units: Sequence[str]) -> TypedExpression:
    """`date_trunc('hour', event_time)`, in UTC."""
    if unit not in units:
        raise ExpressionError(f"date_trunc knows no {unit.lower()!r}. There are: {', '.join(units).lower()}.")
    check("date_trunc", value, "timestamp")
    later = units[: units.index(unit)]
    parts = {
        "SECOND": "microsecond",
        "MINUTE": "second",
        "HOUR": "minute",
        "DAY": "hour",
        "MONTH": "day",
        "YEAR": "month",
    }
    cleared = {"microsecond": 0} | {parts[each]: 0 for each in (*later, unit)}
    cleared = {part: 1 if part in ("day", "month") else 0 for part in cleared}
    return call(TIMESTAMP, f"date_trunc('{unit}', {value.sql})", lambda moment: moment.replace(**cleared), value)
