"""Read JSON so that nothing is guessed, dropped or rounded: what is accepted can be stored as it was meant.

orjson does the work. It is strict about grammar, UTF-8 and surrogates, but it keeps the last of two equal keys and
rounds numbers that do not fit 64 bits; both are looked for afterwards, by comparing what was read with what was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

from views.errors import InvalidEvent

_WHITESPACE = b" \t\r\n"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG_NUMBER = re.compile(rb"[0-9][0-9.]{15,}(?:[eE][+-]?[0-9]+)?|[eE]-[0-9]{3,}")
_INT64 = 2**63
MAX_DEPTH = 64
MAX_NUMBER_CHARACTERS = 1000
"""Spark's JSON reader takes no longer ones."""


def parse_json(data: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """The one JSON value in `data`, or InvalidEvent that says where and why.

    Refused beyond the grammar: a byte order mark, bytes that are not UTF-8, lone surrogates, NaN and Infinity, a key
    twice in one object, nesting deeper than `max_depth`. A number that neither a 64-bit integer nor a double holds
    as it is written comes back as a Decimal; `dump_json` writes all of it back.
    """
    value = _load(data, max_depth)
    return value if _is_kept_whole(data, orjson.dumps(value)) else _parse_exactly(data)


def parse_with_text(data: bytes) -> tuple[Any, bytes | None]:
    """As `parse_json`, with what `dump_json` writes for the value; None where that is not known.

    The comparison needs the text anyway. Whoever stores it should not write it a second time.
    """
    value = _load(data)
    text = orjson.dumps(value)
    return (value, text) if _is_kept_whole(data, text) else (_parse_exactly(data), None)


def parse_list_with_texts(data: bytes, max_texts: int) -> tuple[list[Any], Sequence[bytes | None]]:
    """The same for each element of an array, up to `max_texts` of them; any other value is the only element."""
    value = _load(data)
    is_list = type(value) is list
    if is_list and len(value) <= max_texts:
        texts = list(map(orjson.dumps, value))
        if _is_kept_whole(data, b"[%b]" % b",".join(texts)):
            return value, texts
    elif _is_kept_whole(data, text := orjson.dumps(value)):
        return (value, [None] * len(value)) if is_list else ([value], [text])
    exact = _parse_exactly(data)
    return (exact, [None] * len(exact)) if is_list else ([exact], [None])


def dump_json(value: object) -> bytes:
    """Compact JSON; a Decimal is written digit for digit."""
    return orjson.dumps(value, dump_decimal)


def dump_decimal(value: object) -> orjson.Fragment:
    """For `orjson.dumps`, where a call of `dump_json` would be felt: what it does with a value it does not know."""
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(str(value).encode())
    raise TypeError(f"{value!r} has no JSON form")


def _load(data: bytes, max_depth: int = MAX_DEPTH) -> Any:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _explained(data, error) from None
    _check_depth(data, value, max_depth)
    return value


def _is_kept_whole(data: bytes, dumped: bytes) -> bool:
    """Whether nothing was lost between the bytes that were read and those that orjson writes for what it read."""
    if dumped == data or dumped.translate(None, _WHITESPACE) == data.translate(None, _WHITESPACE):
        return True  # written back the same: no key was dropped and no number rounded
    # An escaped quote is the one thing that could hide a dropped key from this count.
    return dumped.count(b'"') == data.count(b'"') and b"\\u0022" not in data and _keeps_numbers(data)


def _explained(data: bytes, error: orjson.JSONDecodeError) -> InvalidEvent:
    if not data.strip(_WHITESPACE):
        return InvalidEvent("", "there is nothing in it; a JSON value is expected")
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        return InvalidEvent(f"byte {wrong.start}", f"0x{data[wrong.start]:02x} is not valid UTF-8 here")
    return InvalidEvent(f"line {error.lineno} column {error.colno}", f"this is not JSON: {error.msg}")


def _check_depth(data: bytes, value: object, max_depth: int) -> None:
    """Take the innermost brackets away, level by level. Brackets inside strings only make it look deeper."""
    brackets = data.translate(None, _NOT_BRACKETS)
    for _level in range(max_depth):
        if not brackets:
            return
        fewer = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(fewer) == len(brackets):
            break
        brackets = fewer
    if brackets and _depth(value, max_depth) > max_depth:
        raise InvalidEvent("", f"it is nested deeper than {max_depth} levels")


def _depth(value: object, enough: int) -> int:
    """How deeply a value is nested; counting ends beyond `enough`."""
    level, depth = [value], 0
    while True:
        level = [
            part
            for whole in level
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
            if isinstance(part, dict | list)
        ]
        depth += 1
        if not level or depth > enough:
            return depth


def _keeps_numbers(data: bytes) -> bool:
    """Whether every number is written back with the value it had: those of 15 digits always are."""
    for number in _LONG_NUMBER.findall(data):
        if number.isdigit():
            if len(number) > 19 or int(number) >= _INT64:
                return False
        elif number[:1] in b"eE" or not _is_kept(number):
            return False
    return True


def _is_kept(number: bytes) -> bool:
    """Whether a double is written back like this. Digits in a string may be no number at all, as in an address."""
    try:
        return repr(float(number)).encode() == number
    except ValueError:
        return False


def _parse_exactly(data: bytes) -> Any:
    """The same, slower, with every key seen and every number kept."""
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_object_of_different_keys, parse_int=_exact_int, parse_float=_exact_float
        )
    except (ValueError, ArithmeticError) as error:  # the two parsers do not agree: the strict answer is no
        raise InvalidEvent("", f"this cannot be read exactly: {error}") from None


def _object_of_different_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidEvent(_first_repeated(pairs), "this key is given twice in one object")
    return found


def _first_repeated(pairs: list[tuple[str, Any]]) -> str:
    """The first key that was there before. One pass: an object may have a million keys."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise LookupError("every key is there once")


def _exact_int(digits: str) -> int | Decimal:
    if len(digits) > 20:
        return _decimal(digits)
    number = int(digits)
    return number if -_INT64 <= number < 2 * _INT64 else _decimal(digits)


def _exact_float(digits: str) -> float | Decimal:
    exact = _decimal(digits)  # first: it refuses those that are too long
    number = float(digits)
    return number if Decimal(repr(number)) == exact else exact


def _decimal(digits: str) -> Decimal:
    if len(digits) > MAX_NUMBER_CHARACTERS:
        raise InvalidEvent("", f"a number has {len(digits)} characters; at most {MAX_NUMBER_CHARACTERS} are taken")
    try:
        return Decimal(digits)
    except InvalidOperation:
        raise InvalidEvent("", f"the exponent of {digits[:60]} is beyond what can be kept") from None
