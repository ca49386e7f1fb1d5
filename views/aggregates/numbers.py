"""How numbers and other scalars stand in a state's parts, in Python and in Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from views.field_types import FieldType
from views.types import EPOCH, MICROSECOND

FIRST_DAY = date(1970, 1, 1)
MAX_DIGITS = 100
"""More than any sum of decimals has, before or after the point."""


def to_part(value: Any) -> str | bytes | None:
    """A scalar as a part: numbers and times as text, strings as a blob."""
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case bool():
            return "1" if value else "0"
        case float():
            return repr(value + 0.0)  # -0.0 + 0.0 is 0.0: one zero, however the values were ordered
        case Decimal():
            return f"{value:f}"
        case datetime():
            return str((value - EPOCH) // MICROSECOND)
        case date():
            return str((value - FIRST_DAY).days)
    return str(value)


def from_part(part: str | bytes | None, kind: FieldType) -> Any:
    """A part as a scalar: the inverse of `to_part`."""
    if part is None or isinstance(part, bytes):
        return None if part is None else part.decode()
    match kind.kind:
        case "double":
            return float(part)
        case "decimal":
            return _checked(Decimal(part))
        case "boolean":
            return part == "1"
        case "timestamp":
            return EPOCH + timedelta(microseconds=int(part))
        case "date":
            return FIRST_DAY + timedelta(days=int(part))
    return int(part)


def _checked(number: Decimal) -> Decimal:
    """ValueError where no sum can be so large or so fine: a changed byte can make an exponent of a digit."""
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -MAX_DIGITS or number.adjusted() > MAX_DIGITS:
        raise ValueError(f"{number} is no decimal of ours")
    return number


def part_kind(kind: FieldType) -> str:
    """'b' for strings, 't' for everything else."""
    return "b" if kind.kind == "string" else "t"


def part_sql(column: str, kind: FieldType) -> str:
    """The same as `to_part`, in Spark; null stays null."""
    match kind.kind:
        case "string":
            return f"cast({column} AS binary)"
        case "boolean":
            return f"cast(cast({column} AS int) AS string)"
        case "timestamp":
            return f"cast(unix_micros({column}) AS string)"
        case "date":
            return f"cast(unix_date({column}) AS string)"
        case "double":
            return f"cast({column} + 0D AS string)"
    return f"cast({column} AS string)"


def present(value: Any) -> Any:
    """A scalar as an answer that JSON can hold: decimals and times as text."""
    match value:
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
    return value
