"""Long texts become short ones: the same everywhere, once and for all."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from views import in_memory, short_texts
from views.aggregates import Count, Distinct, First, Last, Max, Min, TopK
from views.in_memory import Event
from views.keys import has_long_text, pack_key, shorten_key, unpack_key
from views.sample_events import START
from views.short_texts import CUT, KEPT, MAX_BYTES, MAX_CHARACTERS, cut, is_long, is_short_form, shorten
from views.source import Source
from views.states import merge_packed, pack, unpack
from views.view import View

VISITS = Source("visits", fields="event_id string, event_time timestamp, url string, n int")
PAGES = View(
    "pages",
    source=VISITS,
    keys={"url": "url", "n": "n"},
    answers={"hits": Count(), "top": TopK("url"), "urls": Distinct("url", exact=True)},
)
LONG = "https://shop.example/" + "ä✓𝄞" * 20_000


NO_KEYS = replace(PAGES, keys={})


def visit(offset: int, url: str | None) -> Event:
    return Event(0, offset, f"e{offset}", START, {"url": url, "n": 1})


@pytest.mark.parametrize("text", ["", "/docs", "x" * MAX_BYTES, "ä" * (MAX_BYTES // 2)])
def test_a_text_of_up_to_the_limit_is_stored_as_it_is(text: str) -> None:
    assert shorten(text) == text
    assert not is_long(text)
    assert not is_short_form(text)


@pytest.mark.parametrize("text", ["x" * (MAX_BYTES + 1), "ä" * (MAX_BYTES // 2 + 1), "𝄞" * 300, LONG])
def test_a_longer_text_is_its_beginning_and_its_hash(text: str) -> None:
    short = shorten(text)
    assert short == f"{text[:KEPT]}…sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert is_long(text)
    assert is_short_form(short)
    assert len(short.encode()) <= MAX_BYTES


@given(st.text(max_size=40).map(lambda text: text * 40))
def test_shortening_twice_changes_nothing(text: str) -> None:
    assert shorten(shorten(text)) == shorten(text)


def test_long_texts_that_begin_alike_stay_apart() -> None:
    assert shorten(LONG) != shorten(LONG + "/")
    assert shorten(LONG)[:KEPT] == shorten(LONG + "/")[:KEPT]


@pytest.mark.parametrize("key", [(), (None, 7), ("/docs", True, date(2026, 1, 31)), (LONG, 7), ("x" * 1_000,) * 16])
def test_a_packed_key_is_shortened_text_by_text(key: tuple[Any, ...]) -> None:
    assert unpack_key(shorten_key(pack_key(key))) == tuple(map(short_texts.shorten_value, key))
    assert has_long_text(pack_key(key)) == (LONG in key)


def test_no_key_of_a_view_is_long_and_the_definition_does_not_say_so() -> None:
    found = in_memory.answers(PAGES, [visit(1, LONG), visit(2, LONG + "/"), visit(3, None), visit(4, LONG)])
    hits = {key[0]: answers["hits"] for (_, key), answers in found.items()}
    assert hits == {shorten(LONG): 2, shorten(LONG + "/"): 1, None: 1}
    assert "octet_length" in PAGES.key_expressions["url"].sql
    assert "octet_length" not in PAGES.definition()


def test_the_definition_hash_is_that_of_the_first_version() -> None:
    """Data that was computed before there was a limit goes on to be served."""
    assert PAGES.hash == "17dbd84c983b8b70f8e4bb50d7f290cdc60c52208fa54fcb287eb06a9349eace"


def test_states_with_long_values_of_an_older_version_meet_the_new_ones() -> None:
    """An older Tidemark stored values as they are. Merged with a newer state, a value is still counted once."""
    (new,) = in_memory.fold(NO_KEYS, [visit(1, LONG), visit(2, "/a")]).values()
    old = {
        "hits": 3,
        "top": _top(LONG, 3),
        "urls": frozenset([LONG]),
    }
    packed = merge_packed(PAGES.algebras, [pack(PAGES.algebras, old), pack(PAGES.algebras, new)])
    assert PAGES.present(unpack(PAGES.algebras, packed)) == {
        "hits": 5,
        "top": [{"value": shorten(LONG), "count": 4}, {"value": "/a", "count": 1}],
        "urls": 2,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("x" * MAX_CHARACTERS, "x" * MAX_CHARACTERS),
        ("𝄞" * MAX_CHARACTERS, "𝄞" * MAX_CHARACTERS),
        ("𝄞" * (MAX_CHARACTERS + 1), "𝄞" * MAX_CHARACTERS + CUT),
        ("é" * MAX_CHARACTERS + "a", "é" * MAX_CHARACTERS + CUT),
        ("é" * MAX_CHARACTERS + CUT, "é" * MAX_CHARACTERS + CUT),
    ],
)
def test_min_and_max_cut_a_text_after_so_many_characters(text: str, expected: str) -> None:
    assert cut(text) == expected


def test_a_text_that_keys_store_as_it_is_is_not_cut() -> None:
    assert cut("x" * MAX_BYTES) == "x" * MAX_BYTES


EDGES = replace(
    NO_KEYS,
    answers={"first": First("url"), "last": Last("url"), "least": Min("url"), "most": Max("url"), "n": Max("n")},
)


def test_whatever_is_stored_of_a_long_text_is_bounded() -> None:
    (state,) = in_memory.fold(EDGES, [visit(1, LONG), visit(2, "/a"), visit(3, LONG + "/")]).values()
    assert EDGES.present(state) == {
        "first": shorten(LONG), "last": shorten(LONG + "/"), "least": "/a", "most": cut(LONG), "n": 1,
    }  # fmt: skip
    assert len(pack(EDGES.algebras, state)) < 2 * MAX_BYTES + 4 * MAX_CHARACTERS
    assert EDGES.hash == "3a731fbb047d6af2d4c4245db7ed67799ae84a6428fef640a0cf5998055a3c6e", (
        "as before there was a limit"
    )


def test_min_and_max_of_texts_with_the_same_beginning_are_that_beginning() -> None:
    (state,) = in_memory.fold(EDGES, [visit(1, LONG + "a"), visit(2, LONG + "…"), visit(3, LONG + "𝄞")]).values()
    found = EDGES.present(state)
    assert found["least"] == found["most"] == LONG[:MAX_CHARACTERS] + "…"


@pytest.mark.parametrize("is_older_first", [True, False])
def test_texts_of_an_older_version_meet_the_new_ones(is_older_first: bool) -> None:
    """A long text of an older version wins where it won then, and is stored in its bounded form from there on."""
    of = [visit(1, LONG), visit(2, LONG + "/")]
    older, newer = of if is_older_first else reversed(of)
    older_view = replace(EDGES)
    older_view.__dict__["measures"] = {name: replace(each, of=each.declared) for name, each in EDGES.measures.items()}
    (old,) = in_memory.fold(older_view, [older]).values()
    (new,) = in_memory.fold(EDGES, [newer]).values()
    packed_old = pack(EDGES.algebras, old)
    assert len(packed_old) > len(LONG), "nothing was long: this shows nothing"
    for order in ([packed_old, pack(EDGES.algebras, new)], [pack(EDGES.algebras, new), packed_old]):
        found = EDGES.present(unpack(EDGES.algebras, merge_packed(EDGES.algebras, order)))
        assert (found["first"], found["last"]) == (shorten(LONG), shorten(LONG + "/"))
        assert found["least"] == found["most"] == cut(LONG)
    assert EDGES.present(unpack(EDGES.algebras, packed_old))["first"] == shorten(older.fields["url"])


def _top(value: str, count: int) -> Any:
    algebra = PAGES.algebras["top"]
    state = algebra.zero()
    for _ in range(count):
        state = algebra.add(state, value, in_memory.Position(0, 0, 0))
    return state
