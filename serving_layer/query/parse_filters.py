"""Parse filters on keys, from a query string or JSON.

    url=/a&url=/b           one of these            {"url": ["/a", "/b"]}
    url.not=/a              none of these           {"url": {"not": ["/a"]}}
    url.prefix=/d           strings with a prefix   {"url": {"prefix": "/d"}}
    url.null=true           the null key            {"url": null}
    key.limit=5             the key `limit`: `limit` alone is the parameter

Null is a value like any other: `url.not=/a` keeps it, `url.null=false` does not. Several filters must all hold. A text
that is too long to be stored finds the key that it is stored as (views/short_texts.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from typing import Any, Literal, NamedTuple, cast

from serving_layer.errors import BadParameter, TooLarge
from serving_layer.query.model import Filter
from serving_layer.query.parameters import did_you_mean, flag, shown, whole_number, wrong
from views.short_texts import KEPT, is_long, shorten_value
from views.types import LARGEST, SMALLEST
from views.view import View

Kind = Literal["is", "not", "prefix"]
KINDS: tuple[Kind, ...] = ("is", "not", "prefix")
SUFFIXES = ("not", "prefix", "null")
ESCAPE = "key."
"""The prefix of a key that has the name of a parameter. Any key may have it."""
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class FilterTerm(NamedTuple):
    """One value of a filter, as it was given."""

    parameter: str
    key: str
    kind: str
    """One of KINDS, or `null`."""
    value: Any


def names_of(view: View, parameters: Collection[str]) -> list[str]:
    """The names of a view's filters in a query string."""
    keys = [f"{ESCAPE}{key}" if key in parameters else key for key in view.keys]
    return [name for key in keys for name in (key, *(f"{key}.{suffix}" for suffix in SUFFIXES))]


def find(name: str, view: View, parameters: Collection[str]) -> tuple[str, str] | None:
    """`url.not` -> the key `url` and the kind `not`; None where the view has no such filter."""
    for given, is_escaped in ((name, False), (name.removeprefix(ESCAPE), name.startswith(ESCAPE))):
        key, _, suffix = given.partition(".")
        is_key = key in view.keys and (is_escaped or suffix or key not in parameters)
        if is_key and (given == key or suffix in SUFFIXES):
            return key, suffix or "is"
    return None


def from_json(given: Any, view: View) -> Iterator[FilterTerm]:
    """The terms of the filters in a JSON body."""
    if not isinstance(given, Mapping):
        raise wrong("filters", given, 'an object like {"url": "/docs"}', [*view.keys])
    for key, value in given.items():
        name = f"filters.{key}"
        if key not in view.keys:
            raise BadParameter(
                name, value,
                f"The view has no key {shown(key)}.{did_you_mean(str(key), view.keys)} "
                f"There are: {', '.join(view.keys) or 'none'}.",
                [*view.keys],
            )  # fmt: skip
        if value == {}:
            raise wrong(name, value, "at least one condition; leave the filter out for all values")
        for kind, values in (value if isinstance(value, Mapping) else {"is": value}).items():
            if kind not in (*KINDS, "null"):
                raise wrong(name, value, 'a value, a list, or an object with "is", "not", "prefix" or "null"', KINDS)
            if isinstance(values, list) and not values:
                raise wrong(name, value, "at least one value; leave the filter out for all values")
            yield from (
                FilterTerm(name, key, kind, each) for each in (values if isinstance(values, list) else [values])
            )


def filters(terms: Iterable[FilterTerm], view: View, max_values: int) -> tuple[Filter, ...]:
    """The filters of a query, checked, in the order of the view's keys."""
    found: dict[tuple[str, Kind], dict[Any, None]] = {}
    with_null: set[str] = set()
    for count, term in enumerate(terms, 1):
        if count > max_values:
            raise TooLarge(
                f"The filters name more than {max_values} values. Name fewer at a time, or use a prefix.",
                limit="max_values",
            )
        if term.kind == "null" and term.key in with_null:
            raise BadParameter(term.parameter, term.value, f"{term.parameter} is given twice. Give it once.")
        with_null |= {term.key} if term.kind == "null" else set()
        kind, value = _kind_and_value(term, view)
        found.setdefault((term.key, kind), {})[value] = None
    return tuple(_filter(key, kind, found[key, kind]) for key in view.keys for kind in KINDS if (key, kind) in found)


def _filter(key: str, kind: Kind, given: Iterable[Any]) -> Filter:
    long_texts = tuple(value for value in given if isinstance(value, str) and is_long(value))
    return Filter(key, kind, tuple(dict.fromkeys(map(shorten_value, given))), long_texts)


def _kind_and_value(term: FilterTerm, view: View) -> tuple[Kind, Any]:
    type_of_key = view.key_expressions[term.key].type.kind
    if term.kind == "null":
        return ("is" if flag(term.parameter, term.value) else "not"), None
    if term.kind == "prefix" and type_of_key != "string":
        raise BadParameter(
            term.parameter, term.value,
            f"Only strings have a prefix; the key {term.key!r} is {type_of_key}. Name its values.",
        )  # fmt: skip
    kind = cast(Kind, term.kind)
    if term.value is None and kind != "prefix":
        return kind, None
    value = parse_value(term.parameter, term.value, type_of_key)
    if kind == "prefix" and len(value) > KEPT:
        raise BadParameter(
            term.parameter, term.value,
            f"A prefix has at most {KEPT} characters, and this one has {len(value)}: of a long key no more than that "
            f"is stored. Shorten the prefix, or name the whole key.",
            f"up to {KEPT} characters",
        )  # fmt: skip
    return kind, value


def parse_value(name: str, given: Any, kind: str) -> Any:
    """A value of a key by its type: `"200"` of a bigint -> 200. JSON also has numbers and booleans."""
    match kind:
        case "bigint":
            return whole_number(name, given, SMALLEST, LARGEST)
        case "boolean":
            return flag(name, given)
        case "date":
            try:
                if isinstance(given, str) and DATE.fullmatch(given):
                    return date.fromisoformat(given)
            except ValueError:  # 2026-02-30
                pass
            raise wrong(name, given, "a date like 2026-01-31", "a date like 2026-01-31")
    if not isinstance(given, str) or not _is_unicode(given):
        raise wrong(name, given, "a string", "a string")
    return given


def _is_unicode(given: str) -> bool:
    """Whether it can be encoded as UTF-8. JSON can hold half of a surrogate pair, which cannot."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True
