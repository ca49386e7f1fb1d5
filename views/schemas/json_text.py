"""JSON as schemas are written in it: read within bounds, and written in one way, which is that of Java's registries."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, NoReturn

from views.schemas.model import InvalidSchema

MAX_DEPTH = 100

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def read(text: str, what: str, *, deeper: int = 0) -> Any:
    """The value of a JSON text; numbers with a fraction or an exponent are Decimals, which keep their digits.

    `deeper` is by how many levels it may be nested more than a schema.
    """
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidSchema(_too_deep(what)) from None
    except json.JSONDecodeError as error:
        raise InvalidSchema(f"{what} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}.") from None
    except ValueError as error:  # numbers with thousands of digits, and NaN
        raise InvalidSchema(f"{what} is not JSON: {error}.") from None
    _check(value, what, MAX_DEPTH + deeper)
    return value


def write(value: Any, *, sort: bool = False) -> str:
    """The one compact text of a value; with `sort`, members are in the order of their names."""
    match value:
        case dict():
            names = sorted(value, key=_utf16) if sort else value
            return "{" + ",".join(f"{quoted(name)}:{write(value[name], sort=sort)}" for name in names) + "}"
        case list() | tuple():
            return "[" + ",".join(write(item, sort=sort) for item in value) + "]"
        case str():
            return quoted(value)
        case float():
            return java_double(value)
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case _:
            return str(value)  # int, and Decimal, whose text follows the same rules as that of Java's BigDecimal


def quoted(text: str) -> str:
    """A JSON string; only what has to be escaped is."""
    return '"' + _ESCAPED.sub(lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04X}", text) + '"'


def java_double(number: float) -> str:
    """A double as Java prints it: 0.5, 100.0, 1.0E10."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(float(number))
    mantissa, exponent = f"{Decimal(repr(number)):E}".split("E")
    mantissa = mantissa.rstrip("0") if "." in mantissa else mantissa
    whole, _, fraction = mantissa.partition(".")
    return f"{whole}.{fraction or '0'}E{int(exponent)}"


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")  # Java compares texts by their UTF-16 units


def _check(value: Any, what: str, max_depth: int) -> None:
    """Refuse what later steps could not walk through or write: deep nesting, half characters, endless numbers."""
    level = [value]
    for _ in range(max_depth):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, str) and not item.isascii():
                _refuse_half_characters(item, what)
            elif isinstance(item, Decimal) and not math.isfinite(float(item)):
                raise InvalidSchema(f"{what} holds the number {item}, which is larger than a double can be.")
        if not inner:
            return
        level = inner
    raise InvalidSchema(_too_deep(what))


def _refuse_half_characters(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSchema(f"{what} holds half a surrogate pair, which is no character.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _too_deep(what: str) -> str:
    return f"{what} is nested more than {MAX_DEPTH} levels deep. Give inner types a name, and use that."
