"""A pattern matches whole names of topics, by RE2."""

from __future__ import annotations

import pytest

from master_dataset.kafka.topic_patterns import MAX_PATTERN, PatternError, matching_names

NAMES = ["shop", "shop-eu", "shop.us", "xshop", "Größe"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("shop", ["shop"]),
        ("shop-.*", ["shop-eu"]),
        (r"shop\..*", ["shop.us"]),
        ("shop|xshop", ["shop", "xshop"]),
        ("(?i)SHOP", ["shop"]),
        (".*", NAMES),
        ("none", []),
        ("", []),
    ],
)
def test_the_whole_name_is_matched(pattern: str, expected: list[str]) -> None:
    assert list(matching_names(pattern, NAMES)) == expected
    assert matching_names(pattern, []) == ()


@pytest.mark.parametrize("pattern", ["(", "a)|(b", r"(a)\1", "(?=a)", "x" * (MAX_PATTERN + 1)])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        matching_names(pattern, NAMES)


def test_a_pattern_that_others_would_take_for_ever_takes_no_time() -> None:
    assert matching_names("(a*)*b", ["a" * 200]) == ()
