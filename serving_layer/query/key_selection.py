"""Key selection: the keys that pass the filters of a query, as a list where possible, a prefix, and a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

from serving_layer.query.model import Filter
from serving_layer.readers.selection import KeySelection, Test
from views.keys import pack_key, pack_prefix
from views.short_texts import shorten_value
from views.view import View


def select_keys(view: View, filters: Iterable[Filter], max_listed: int) -> KeySelection:
    """The keys of a view that pass the filters. Up to `max_listed` of them are listed."""
    given: dict[str, list[Filter]] = {name: [] for name in view.keys}
    for each in filters:
        given[each.key].append(each)
    tests = {name: _test(each) for name, each in given.items() if each}
    fixed = [_fixed(given[name], tests.get(name)) for name in view.keys]
    keys: tuple[bytes, ...] | None = None
    if any(values == [] for values in fixed):
        keys = ()  # no key passes, whatever the others are
    elif all(values is not None for values in fixed) and prod(len(values or ()) for values in fixed) <= max_listed:
        long_texts = [[text for one in given[name] if one.kind == "is" for text in one.long_texts] for name in given]
        stored = (
            [*(values or ()), *(text for text in texts if shorten_value(text) in (values or ()))]
            for values, texts in zip(fixed, long_texts, strict=True)
        )
        keys = tuple(sorted(pack_key(key) for key in product(*stored)))
    by_index = tuple((index, tests[name]) for index, name in enumerate(view.keys) if name in tests)
    return KeySelection(keys, _prefix([*given.values()], fixed), by_index)


def _test(filters: Sequence[Filter]) -> Test:
    """Whether a value passes all filters of one key."""
    every = [test_of(each) for each in filters]
    return every[0] if len(every) == 1 else lambda value: all(test(value) for test in every)


def test_of(of: Filter) -> Test:
    """Whether a value passes one filter."""
    values = frozenset(of.values)
    match of.kind:
        case "is":
            return lambda value: value in values
        case "not":
            return lambda value: value not in values
    return lambda value: value is not None and value.startswith(of.values)


def _fixed(filters: Sequence[Filter], test: Test | None) -> list[Any] | None:
    """The values that one key can have, where `is` names them."""
    named = next((each.values for each in filters if each.kind == "is"), None)
    return None if named is None or test is None else [value for value in dict.fromkeys(named) if test(value)]


def _prefix(filters: Sequence[Sequence[Filter]], fixed: Sequence[list[Any] | None]) -> bytes:
    """The bytes that all selected keys begin with: fixed keys, then the prefix of the first one that is not fixed."""
    found = b""
    for each, values in zip(filters, fixed, strict=True):
        if values is None:
            texts = [text for one in each if one.kind == "prefix" for text in one.values]
            return found + _common([pack_prefix((), text) for text in texts])
        if any(one.long_texts for one in each):
            break  # a run of an older Tidemark has them as they are
        found += _common([pack_key((value,)) for value in values])
        if len(values) != 1:
            break
    return found


def _common(every: Sequence[bytes]) -> bytes:
    """The common prefix of all: that of the first and the last."""
    if not every:
        return b""
    first, last = min(every), max(every)
    same = next((at for at, (left, right) in enumerate(zip(first, last, strict=False)) if left != right), len(first))
    return first[:same]
