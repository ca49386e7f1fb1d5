"""Turn the text of a cell or a log field into a value of the type that the source declares."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import tzinfo
from decimal import Decimal
from typing import Any

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import parse_json
from master_dataset.importer import times
from views.field_types import INTEGER_BITS, FieldType

Convert = Callable[[str], Any]
"""Raises InvalidEvent. Whether the value is in range is the event's validator's question."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,5})?")
TRUE, FALSE = {"true", "t", "yes", "y", "1"}, {"false", "f", "no", "n", "0"}


def converter(type_: FieldType, zone: tzinfo) -> Convert:
    """The function for one type, chosen once per field."""
    if type_.kind in INTEGER_BITS:
        return _integer
    match type_.kind:
        case "float" | "double":
            return _double
        case "decimal":
            return _decimal
        case "boolean":
            return _boolean
        case "timestamp":
            return lambda text: times.from_text(text, zone)
        case "array" | "map" | "struct":
            return _json
    return str


def _integer(text: str) -> int:
    if not (len(text) < 20 and text.isascii() and text.isdigit()) and not _INTEGER.fullmatch(text):
        raise _wrong("a whole number", text)
    return int(text)


def _double(text: str) -> float:
    if not _NUMBER.fullmatch(text) or not math.isfinite(number := float(text)):
        raise _wrong("a number", text)
    return number


def _decimal(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise _wrong("a number", text)
    return Decimal(text)


def _boolean(text: str) -> bool:
    word = text.lower()
    if word in TRUE or word in FALSE:
        return word in TRUE
    raise _wrong("true or false", text)


def _json(text: str) -> Any:
    return parse_json(text.encode())


def _wrong(wanted: str, text: str) -> InvalidEvent:
    return InvalidEvent("", f"this should be {wanted}; it is {text[:40]!r}")
