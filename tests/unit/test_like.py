"""`like` gives what its definition says, for every pattern and text, in work that grows with the text and no faster."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from views.like import LikePattern, without_backtracking
from views.types import literal

TEXTS = st.text(alphabet="ab\n%_\\.😀", max_size=12)
PATTERNS = st.lists(st.sampled_from(["%", "_", "a", "b", "\n", ".", "😀", r"\%", r"\_", "\\\\"]), max_size=8).map(
    "".join
)
SEVERAL = ("%a%a%a%a%a%a%a%a%b", "a%a%a%a%a%a%a%a%a_b", "%%%%%%%%%%b", "%a_a%a_a%a_a%a_a%b_", "a%_%_%_%_%_%_%_%b")
POISON = "a" * 20_000
DEADLINE_S = 60
"""The usual translation needs longer than the age of the universe for each of these."""


def is_like(text: str, pattern: str) -> bool:
    """The definition: for each beginning of the pattern, which beginnings of the text it matches."""
    matched = [True, *[False] * len(text)]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            matched = [any(matched[: end + 1]) for end in range(len(text) + 1)]
            continue
        wanted = next(characters) if character == "\\" else None if character == "_" else character
        matched = [False, *(before and wanted in (None, found) for before, found in zip(matched, text, strict=False))]
    return matched[-1]


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """End what does not end by itself: `re` looks for signals while it works."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"the match was not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@given(TEXTS, PATTERNS)
def test_a_text_is_like_a_pattern_where_the_definition_says_so(text: str, pattern: str) -> None:
    assert LikePattern(pattern).matches(text) is is_like(text, pattern)


@pytest.mark.parametrize("pattern", SEVERAL)
def test_a_text_that_almost_matches_everywhere_is_refused_without_trying_every_place(pattern: str) -> None:
    with deadline(DEADLINE_S):
        assert not LikePattern(pattern).matches(POISON)
        assert LikePattern(pattern).matches(f"{POISON}{pattern[-2:].replace('_', 'b')}") is is_like(
            f"{'a' * 30}{pattern[-2:].replace('_', 'b')}", pattern
        )


@given(PATTERNS)
def test_what_can_be_in_several_places_is_never_tried_again_once_it_is_found(pattern: str) -> None:
    """At most one part may give back what it took, and only to what ends the text."""
    outside = re.sub(r"\(\?>\.\*\?(\\.|[^\\)])*\)", "", LikePattern(pattern).regex, flags=re.DOTALL)
    assert len(re.findall(r"(?<!\\)\.\*", re.sub(r"\\\\", "", outside))) <= 1


@given(PATTERNS)
def test_sparks_own_like_is_used_only_where_it_cannot_go_back_more_than_once(pattern: str) -> None:
    sql = f"(`a LIKE '%b%c'` LIKE {literal(pattern)})"
    parts = re.sub(r"\\.", "x", pattern, flags=re.DOTALL).split("%")
    goes_back = len(parts) - 1 - (parts[-1] == "")
    assert (without_backtracking(sql) == sql) == (goes_back <= 1)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("(x LIKE '%a%b')", r"(x RLIKE '(?s)\\A(?>.*?a).*b\\z')"),
        ("(x LIKE '%a%') AND NOT (y LIKE 'a%b%c')", r"(x LIKE '%a%') AND NOT (y RLIKE '(?s)\\Aa(?>.*?b).*c\\z')"),
        (r"(x LIKE '%\u0024%it\'s')", r"(x RLIKE '(?s)\\A(?>.*?\\\u0024).*it\'s\\z')"),
        (r"(x LIKE '%\\%%\\_')", r"(x RLIKE '(?s)\\A(?>.*?%).*_\\z')"),
        ("(x = ' LIKE \\'%a%b\\' ')", "(x = ' LIKE \\'%a%b\\' ')"),
        ("(`x LIKE '%a%b'` = 1)", "(`x LIKE '%a%b'` = 1)"),
    ],
)
def test_only_patterns_are_translated_for_spark(sql: str, expected: str) -> None:
    assert without_backtracking(sql) == expected
