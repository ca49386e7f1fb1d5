"""Presented answers are kept by the bytes of their states, and never take more room than they may."""

from __future__ import annotations

import pytest

from serving_layer.query.presentation_cache import OVERHEAD, Presentation, PresentationCache

ONE, OTHER = Presentation({"hits": 1}, {"hits": 1}), Presentation({"hits": 2}, {"hits": 2})


def test_the_same_states_are_presented_once() -> None:
    cache = PresentationCache(1)
    cache.put("hits", [b"a", b"b"], ONE)
    assert cache.get("hits", [b"a", b"b"]) is ONE


@pytest.mark.parametrize(
    ("how", "packed"),
    [
        ("hits", [b"ab"]),
        ("hits", [b"b", b"a"]),
        ("hits", [b"a"]),
        ("hits", [b"a", b"b", b""]),
        ("others", [b"a", b"b"]),
    ],
)
def test_other_states_or_another_question_find_nothing(how: str, packed: list[bytes]) -> None:
    cache = PresentationCache(1)
    cache.put("hits", [b"a", b"b"], ONE)
    assert cache.get(how, packed) is None


def test_what_is_asked_for_again_outlives_what_is_not() -> None:
    room_for_four = 4 * (OVERHEAD + 1) / 1_000_000
    cache = PresentationCache(room_for_four)
    cache.put("hits", [b"x"], ONE)
    for each in (b"a", b"b", b"c", b"d", b"e"):
        cache.put("hits", [each], OTHER)
        assert cache.get("hits", [b"x"]) is ONE
    assert cache.get("hits", [b"a"]) is None


def test_nothing_is_kept_where_there_is_no_room() -> None:
    for cache, packed in ((PresentationCache(0), b""), (PresentationCache(0.01), bytes(10_000))):
        cache.put("hits", [packed], ONE)
        assert cache.get("hits", [packed]) is None
