"""Parse single values of parameters, from a query string or JSON. Each error says what to give instead."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from master_dataset.cut import Cut, cut_from_json
from serving_layer.errors import BadParameter

WHOLE = re.compile(r"-?[0-9]{1,19}")
NUMBER = re.compile(r"[0-9]{0,20}\.?[0-9]{1,20}([eE][+-]?[0-9]{1,3})?")
OFFSETS = re.compile(r"[0-9]{1,10}:[0-9]{1,19}(,[0-9]{1,10}:[0-9]{1,19})*")
LARGEST_PARTITION, LARGEST_OFFSET = 2**31 - 1, 2**63 - 1
MAX_SHOWN = 200


def wrong(name: str, given: Any, should_be: str, allowed: Any = None) -> BadParameter:
    """`limit is '0'; it should be a whole number, 1 to 10000.`"""
    return BadParameter(name, given, f"{name} is {shown(given)}; it should be {should_be}.", allowed)


def shown(given: Any) -> str:
    """A value for a message, shortened."""
    text = repr(given)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'url'?`, or nothing."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def text(name: str, given: Any) -> str:
    """A string."""
    if not isinstance(given, str):
        raise wrong(name, given, "a string")
    return given


def one_of(name: str, given: Any, allowed: Iterable[str]) -> str:
    """One of a few words."""
    words = [*allowed]
    if given not in words:
        hint = did_you_mean(given, words) if isinstance(given, str) else ""
        raise BadParameter(
            name, given, f"{name} is {shown(given)}; it should be {' or '.join(words)}.{hint}", allowed=words
        )
    return str(given)


def flag(name: str, given: Any) -> bool:
    """`true` or `false`."""
    if given in ("true", "false") or isinstance(given, bool):
        return given in ("true", True)
    raise wrong(name, given, "true or false", ["true", "false"])


def whole_number(name: str, given: Any, lowest: int, highest: int) -> int:
    """An integer within limits."""
    number = int(given) if isinstance(given, str) and WHOLE.fullmatch(given) else given
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number <= highest:
        raise wrong(name, given, f"a whole number, {lowest} to {highest}", {"from": lowest, "to": highest})
    return number


def names(name: str, given: Any, known: Iterable[str], what: str) -> tuple[str, ...]:
    """`url,country`, or a list of strings in JSON: each of them known, and given once."""
    allowed = [*known]
    parts = (given.split(",") if given else []) if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not all(isinstance(each, str) for each in parts):
        raise wrong(name, given, f"a comma-separated list of {what} names", allowed)
    found = tuple(each.strip() for each in parts)
    for each in found:
        if each not in allowed:
            raise BadParameter(
                name, given,
                f"{name}: there is no {what} {shown(each)}.{did_you_mean(each, allowed)} "
                f"There are: {', '.join(allowed) or 'none'}.",
                allowed,
            )  # fmt: skip
        if found.count(each) > 1:
            raise BadParameter(name, given, f"{name} names {each!r} twice. Name it once.", allowed)
    return found


def shares(name: str, given: Any, max_count: int) -> tuple[float, ...]:
    """`0.5,0.99`, or a list of numbers in JSON: each from 0 to 1, and given once."""
    allowed = "numbers from 0 to 1, like 0.5,0.99"
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not parts:
        raise wrong(name, given, allowed, allowed)
    found = tuple(_share(each) for each in parts)
    if None in found:
        raise wrong(name, given, allowed, allowed)
    if len(found) > max_count or len(set(found)) < len(found):
        raise wrong(name, given, f"at most {max_count} numbers, each of them once", allowed)
    return tuple(share for share in found if share is not None)


def _share(given: Any) -> float | None:
    if isinstance(given, str):
        given = float(given) if NUMBER.fullmatch(given.strip()) else None
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return float(given) if is_number and 0 <= given <= 1 else None


def cut(name: str, given: Any) -> Cut:
    """`0:17,1:20`, or {"0": 17, "1": 20}: the next offset of each partition."""
    allowed = 'partition:offset pairs like 0:17,1:20, or JSON like {"0": 17}'
    found = given
    if isinstance(given, str):
        found = _offsets(given) if OFFSETS.fullmatch(given) else _json(given)
    if not isinstance(found, Mapping) or not found or not all(_is_position(*item) for item in found.items()):
        raise wrong(name, given, allowed, allowed)
    if len(parsed := cut_from_json(found)) < len(found):  # "0" and "00"
        raise wrong(name, given, allowed, allowed)
    return parsed


def _offsets(given: str) -> dict[str, int] | None:
    pairs = [pair.split(":") for pair in given.split(",")]
    found = {partition: int(offset) for partition, offset in pairs}
    return found if len(found) == len(pairs) else None


def _is_position(partition: Any, offset: Any) -> bool:
    is_partition = isinstance(partition, str) and partition.isascii() and partition.isdecimal() and len(partition) < 11
    is_offset = isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= LARGEST_OFFSET
    return is_partition and is_offset and int(partition) <= LARGEST_PARTITION


def _json(given: str) -> Any:
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return None
