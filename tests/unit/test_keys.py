"""The byte form of keys: one for one, in the order of the values, prefixes by bytes."""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from views.errors import StateError
from views.keys import pack_key, pack_prefix, unpack_key

TEXTS = st.text(st.characters(codec="utf-8"))
NUMBERS = st.integers(-(2**63), 2**63 - 1)
KEYS = st.lists(st.none() | st.booleans() | NUMBERS | st.dates() | TEXTS | st.just("a\x00b")).map(tuple)


@given(KEYS)
def test_a_key_comes_back_as_it_was(key: tuple[Any, ...]) -> None:
    found = unpack_key(pack_key(key))
    assert found == key
    assert list(map(type, found)) == list(map(type, key))


@given(
    st.sampled_from([TEXTS, NUMBERS, st.booleans(), st.dates()]).flatmap(lambda kind: st.lists(st.tuples(kind, kind)))
)
def test_bytes_are_ordered_as_values_are(keys: list[tuple[Any, Any]]) -> None:
    assert sorted(keys) == [unpack_key(packed) for packed in sorted(map(pack_key, keys))]


@given(TEXTS, TEXTS)
def test_a_prefix_is_a_prefix_of_bytes(text: str, prefix: str) -> None:
    packed = pack_key(("x", text, 1))
    assert packed.startswith(pack_prefix(("x",), prefix)) == text.startswith(prefix)


def test_null_comes_first() -> None:
    values = [None, False, True, -5, 5, date(1960, 1, 1), date(2026, 1, 1), "", "a"]
    assert sorted((pack_key((value,)), place) for place, value in enumerate(values)) == [
        (pack_key((value,)), place) for place, value in enumerate(values)
    ]


@given(st.binary())
def test_other_bytes_are_refused_or_read(packed: bytes) -> None:
    with suppress(StateError):
        unpack_key(packed)


@pytest.mark.parametrize("value", [1.5, b"x", [1]])
def test_what_cannot_be_a_key_is_named(value: Any) -> None:
    with pytest.raises(StateError, match="cannot be part of a key"):
        pack_key((value,))
