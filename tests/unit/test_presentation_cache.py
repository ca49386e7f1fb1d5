"""Presented answers are kept by the digest of their states, and never take more room than they may."""

from __future__ import annotations

import pytest

from infra.settings import Settings
from serving_layer.query.limits import execution_limits
from serving_layer.query.presentation_cache import OVERHEAD, Presentation, PresentationCache, size_of

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
    room_for_four = 4 * (OVERHEAD + size_of(ONE.shown) + size_of(ONE.all) + 1) / 1_000_000
    cache = PresentationCache(room_for_four)
    cache.put("hits", [b"x"], ONE)
    for each in (b"a", b"b", b"c", b"d", b"e"):
        cache.put("hits", [each], OTHER)
        assert cache.get("hits", [b"x"]) is ONE
    assert cache.get("hits", [b"a"]) is None


def test_large_states_of_small_answers_are_cached_and_large_answers_are_not() -> None:
    """A sketch of some kilobytes becomes one number: it is the number that takes room."""
    cache = PresentationCache(0.01)
    cache.put("hits", [bytes(10_000)], ONE)
    assert cache.get("hits", [bytes(10_000)]) is ONE
    names = {"names": [{"value": "x" * 100, "count": 1}] * 100}
    cache.put("hits", [b"names"], Presentation(names, names))
    assert cache.get("hits", [b"names"]) is None


def test_a_month_of_each_of_200_keys_is_cached_with_the_default_settings() -> None:
    cache = PresentationCache(execution_limits(Settings()).cache_mb)
    rows = [b"%d" % number * 1_000 for number in range(200 * 30)]
    answers = {"hits": 1, "users": 1, "ms": 1.0, "ms_by_share": {"p50": 1.0, "p99": 1.0}}
    for row in rows:
        cache.put("hits", [row], Presentation(answers, answers))
    assert all(cache.get("hits", [row]) is not None for row in rows)


def test_nothing_is_kept_where_there_is_no_room() -> None:
    cache = PresentationCache(0)
    cache.put("hits", [b""], ONE)
    assert cache.get("hits", [b""]) is None
