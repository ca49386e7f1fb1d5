"""Constants of a field's type: what a DEFAULT says, as Python has the values."""

from __future__ import annotations

import math
import re
import struct
from datetime import UTC, date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

MAX_PRECISION = 38
INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
MAX_TEXT = 1_000
"""The most characters of a text that is a default."""

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?(?:[0-9]{1,76}(?:\.[0-9]{0,76})?|\.[0-9]{1,76})(?:[eE][+-]?[0-9]{1,3})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EARLIEST_YEAR = 1583
"""Before it calendars differ."""
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)


def constant_of(kind: str, text: str | bool, precision: int = 0, scale: int = 0, *, is_text: bool = False) -> Any:
    """A constant of DDL as a value of a type; None where it is none of that type. `is_text`: it stood in quotes."""
    if isinstance(text, bool):
        return text if kind == "boolean" else None
    if is_text:
        return _of_text(kind, text)
    if kind in INTEGER_BITS:
        end = 2 ** (INTEGER_BITS[kind] - 1)
        return int(text) if _INTEGER.fullmatch(text) and -end <= int(text) < end else None
    if not _NUMBER.fullmatch(text):
        return None
    match kind:
        case "decimal":
            return exact_decimal(Decimal(text), precision, scale)
        case "double":
            return float(text) if math.isfinite(float(text)) else None
        case "float":
            return _as_float(float(text))
    return None


def exact_decimal(number: Decimal, precision: int, scale: int) -> Decimal | None:
    """The number with the scale of a decimal(precision, scale); None where digits would be lost."""
    short = number.normalize(_EXACT)
    digits, exponent = len(short.as_tuple().digits), int(short.as_tuple().exponent)
    if short and (-exponent > scale or digits + exponent > precision - scale):
        return None
    scaled = short.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return scaled or scaled.copy_abs()  # one zero, as Spark has


def _of_text(kind: str, text: str) -> Any:
    try:
        match kind:
            case "string" if len(text) <= MAX_TEXT and "\0" not in text and text.encode("utf-8"):
                return text
            case "string" if not text:
                return text
            case "date" if _DATE.fullmatch(text) and int(text[:4]) >= _EARLIEST_YEAR:
                return date.fromisoformat(text)
            case "timestamp" if int(text[:4]) >= _EARLIEST_YEAR:
                moment = datetime.fromisoformat(text)
                return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    return None


def _as_float(number: float) -> float | None:
    """The nearest number of 32 bits."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return None
    return rounded if math.isfinite(rounded) else None
