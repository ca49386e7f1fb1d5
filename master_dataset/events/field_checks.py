"""Whether a parsed value is of a declared type, with the path and the reason where it is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from master_dataset.errors import InvalidEvent
from views.constants import exact_decimal
from views.field_types import INTEGER_BITS, Field, FieldType
from views.source import Source
from views.strict_json import dump_json

MAX_ID_CHARACTERS = 512
FIRST_TIME = datetime(1970, 1, 1, tzinfo=UTC)
END_TIME_EXCLUSIVE = datetime(2200, 1, 1, tzinfo=UTC)
LARGEST_FLOAT = 3.4028234663852886e38

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))?"
)

_DECIMAL_TEXT = re.compile(r"-?[0-9]{1,76}(?:\.[0-9]{1,76})?")
"""As answers write decimals."""

Check = Callable[[Any], None]
"""Raises InvalidEvent, with a path inside the value, unless the value is of the type. Never sees None."""


def explaining_check(source: Source) -> Check:
    """Raises InvalidEvent, with path and reason, unless a parsed value is an event of this source."""
    roles = {source.id_field: _check_id, source.time_field: _check_event_time}
    check_fields = _check_fields(source.schema, roles)

    def check(event: object) -> None:
        if type(event) is not dict:
            raise InvalidEvent("", f"an event is a JSON object, not {_shown(event)}")
        check_fields(event)

    return check


# ---- types -------------------------------------------------------------------


def check_of(type_: FieldType) -> Check:
    """The check of one type."""
    if type_.kind in INTEGER_BITS:
        return _check_integer(type_.kind, INTEGER_BITS[type_.kind])
    match type_.kind:
        case "decimal":
            return _check_decimal(type_.precision, type_.scale)
        case "array" if type_.element:
            return _check_array(check_of(type_.element))
        case "map" if type_.element:
            return _check_map(check_of(type_.element))
        case "struct":
            return _check_struct(type_.fields)
    return SCALAR_CHECKS[type_.kind]


def _check_fields(fields: tuple[Field, ...], roles: Mapping[str, Check] | None = None) -> Check:
    """Check the declared fields of a dict, under all their names; unknown ones may be anything."""
    special = roles or {}
    checks = [(name, special.get(field.name) or check_of(field.type)) for field in fields for name in field.names]
    required = [field for field in fields if field.is_required]

    def check(value: dict[str, Any]) -> None:
        for name, check_field in checks:
            found = value.get(name)
            if found is not None:
                _check_under(name, check_field, found)
        for field in required:
            present = [name for name in field.names if name in value]
            is_there = any(value[name] is not None for name in present)
            if not is_there and (present or field.default is None):
                raise InvalidEvent(field.name, "it is required, and it is absent or null")

    return check


def _check_under(name: str, check: Check, value: object) -> None:
    """Check a part, and put its name before the path of what is wrong in it."""
    try:
        check(value)
    except InvalidEvent as error:
        raise InvalidEvent(_joined(name, error.where), error.reason) from None


def _check_struct(fields: tuple[Field, ...]) -> Check:
    check_fields = _check_fields(fields)

    def check(value: object) -> None:
        if type(value) is not dict:
            raise _wrong("an object", value)
        check_fields(value)

    return check


def _check_array(check_element: Check) -> Check:
    def check(value: object) -> None:
        if type(value) is not list:
            raise _wrong("an array", value)
        for index, element in enumerate(value):
            if element is not None:
                _check_under(f"[{index}]", check_element, element)

    return check


def _check_map(check_value: Check) -> Check:
    def check(value: object) -> None:
        if type(value) is not dict:
            raise _wrong("an object", value)
        for key, found in value.items():
            _check_under(key, _check_string, key)
            if found is not None:
                _check_under(key, check_value, found)

    return check


def _check_string(value: object) -> None:
    if type(value) is not str:
        raise _wrong("a string", value)
    if "\0" in value:
        raise InvalidEvent("", "it contains the character U+0000")


def _check_boolean(value: object) -> None:
    if type(value) is not bool:
        raise _wrong("true or false", value)


def _check_integer(kind: str, bits: int) -> Check:
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def check(value: object) -> None:
        if type(value) is not int:
            raise _wrong(f"an integer without point or exponent ({kind})", value)
        if not lowest <= value <= highest:
            raise _wrong(f"a {kind}, {lowest} to {highest}", value)

    return check


def _check_double(value: object) -> None:
    if type(value) is not float and type(value) is not int and type(value) is not Decimal:
        raise _wrong("a number", value)


def _check_float(value: Any) -> None:
    _check_double(value)
    if not -LARGEST_FLOAT <= value <= LARGEST_FLOAT:
        raise _wrong("a float of 32 bits", value)


def _check_decimal(precision: int, scale: int) -> Check:
    def check(value: Any) -> None:
        if type(value) is not str or not _DECIMAL_TEXT.fullmatch(value):
            _check_double(value)
        if exact_decimal(Decimal(repr(value) if type(value) is float else value), precision, scale) is None:
            raise _wrong(f"a decimal({precision},{scale})", value)

    return check


def _check_date(value: object) -> None:
    try:
        if type(value) is str and _DATE.fullmatch(value) and date.fromisoformat(value):
            return
    except ValueError:
        pass
    raise _wrong('a date like "2026-01-31"', value)


def _read_timestamp(value: object) -> datetime:
    try:
        if type(value) is str and TIMESTAMP.fullmatch(value):
            return datetime.fromisoformat(value)
    except ValueError:
        pass
    raise _wrong('a time like "2026-01-31T12:00:00.25Z"', value)


def _check_timestamp(value: object) -> None:
    _read_timestamp(value)


# ---- the two fields with a role ----------------------------------------------


def _check_event_time(value: object) -> None:
    moment = _read_timestamp(value)
    if 1970 < moment.year < 2199:  # whatever the offset
        return
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not FIRST_TIME <= moment < END_TIME_EXCLUSIVE:
        raise InvalidEvent("", f"an event's time lies in 1970 to 2199; this is {_shown(value)}")


def _check_id(value: object) -> None:
    _check_string(value)
    if not 1 <= len(str(value)) <= MAX_ID_CHARACTERS:
        raise InvalidEvent("", f"an event's id has 1 to {MAX_ID_CHARACTERS} characters; this has {len(str(value))}")


SCALAR_CHECKS: dict[str, Check] = {
    "string": _check_string,
    "boolean": _check_boolean,
    "float": _check_float,
    "double": _check_double,
    "date": _check_date,
    "timestamp": _check_timestamp,
}


# ---- texts -------------------------------------------------------------------


def _wrong(wanted: str, value: object) -> InvalidEvent:
    return InvalidEvent("", f"this should be {wanted}; it is {_shown(value)}")


def _shown(value: object) -> str:
    """The value as JSON, cut short."""
    try:
        text = dump_json(value).decode()
    except TypeError:  # an integer beyond 64 bits that was not read from JSON
        text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _joined(name: str, rest: str) -> str:
    if not rest:
        return name
    return f"{name}{rest}" if rest.startswith("[") else f"{name}.{rest}"
