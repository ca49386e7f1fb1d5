"""Min and Max of long texts: cutting keeps the order, so it makes no difference when a text is cut, or how often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.serving_data import without_limit
from tests.tiers import times
from views import in_memory
from views.aggregates import Max, Min
from views.in_memory import Event
from views.short_texts import CUT, MAX_CHARACTERS, cut
from views.source import Source
from views.states import merge_packed, pack, unpack
from views.view import View

ALPHABET = "\x00a\u2025…\u2027\ud7ff\ue000\uffff𝄞\U0010ffff"
"""Characters of one to four bytes, below and above that of a cut, and at the gap of UTF-16."""
NEAR = (0, 1, *range(MAX_CHARACTERS - 3, MAX_CHARACTERS + 2))
LIMIT = "a" * MAX_CHARACTERS
TEXTS = st.builds(
    lambda begins, length, ends: begins * length + ends,
    st.sampled_from("a…𝄞"), st.sampled_from(NEAR), st.text(ALPHABET, max_size=3),
)  # fmt: skip
"""Many of them differ first just before, at or after the last character that is kept."""
VISITS = Source("visits", fields="event_id string, event_time timestamp, url string")
URLS = View("urls", source=VISITS, answers={"least": Min("url"), "most": Max("url")})
OLDER = without_limit(replace(URLS))
START = datetime(2026, 3, 1, tzinfo=UTC)


def state_of(view: View, texts: Iterable[str]) -> bytes:
    events = [Event(0, offset, f"e{offset}", START, {"url": text}) for offset, text in enumerate(texts)]
    (state,) = in_memory.fold(view, events).values()
    return pack(view.algebras, state)


@settings(max_examples=times(300, 5_000), deadline=None)
@given(TEXTS, TEXTS)
@example(LIMIT, LIMIT + "\x00")
@example(LIMIT + CUT, LIMIT + "𝄞")
@example(LIMIT, LIMIT[:-1] + CUT)
@example(LIMIT[:-3] + "\uffff", LIMIT[:-3] + "𝄞")  # what a limit in bytes would turn round
@example("𝄞" * MAX_CHARACTERS, "𝄞" * MAX_CHARACTERS + "a")
def test_cutting_keeps_the_order_and_changes_nothing_twice(left: str, right: str) -> None:
    smaller, larger = sorted((left, right))
    assert smaller.encode() <= larger.encode(), "Spark compares the bytes"
    assert cut(smaller) <= cut(larger)
    assert cut(smaller).encode() <= cut(larger).encode()
    for text in (left, right):
        assert cut(cut(text)) == cut(text)
        assert len(cut(text)) <= MAX_CHARACTERS + len(CUT)


@pytest.mark.parametrize("choose", [min, max])
@settings(max_examples=times(150, 2_000), deadline=None)
@given(texts=st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=8))
def test_it_makes_no_difference_which_texts_are_cut_before_one_is_chosen(
    choose: Callable[..., str], texts: list[tuple[str, bool]]
) -> None:
    """Also where an older version merges a state of a newer one into its own."""
    expected = cut(choose(text for text, _ in texts))
    assert choose(cut(text) for text, _ in texts) == expected
    assert cut(choose(cut(text) if is_cut else text for text, is_cut in texts)) == expected


@settings(max_examples=times(100, 1_000), deadline=None)
@given(st.lists(st.tuples(TEXTS, st.booleans(), st.integers(0, 2)), min_size=1, max_size=8))
@example([(LIMIT + "b", True, 0), (LIMIT + "a", False, 0)])
@example([(LIMIT + "𝄞", True, 0), (LIMIT, True, 1), (LIMIT + CUT, False, 1)])
def test_states_of_older_and_newer_versions_give_the_answers_of_all_events(texts: list[tuple[str, bool, int]]) -> None:
    parts: dict[tuple[bool, int], list[str]] = {}
    for text, is_old, part in texts:
        parts.setdefault((is_old, part), []).append(text)
    states = [state_of(OLDER if is_old else URLS, each) for (is_old, _), each in parts.items()]
    expected = {"least": cut(min(text for text, _, _ in texts)), "most": cut(max(text for text, _, _ in texts))}
    for order in (states, states[::-1]):
        assert URLS.present(unpack(URLS.algebras, merge_packed(URLS.algebras, order))) == expected
    assert URLS.present(unpack(URLS.algebras, state_of(URLS, [text for text, _, _ in texts]))) == expected
