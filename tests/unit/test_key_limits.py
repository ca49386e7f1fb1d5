"""What a key is limited to: patterns of sources, topics and views, and how they add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.rest.key_limits import NO_LIMITS, PATTERN, KeyLimits, without_wildcards, wrong_pattern

NAMES = st.text(st.sampled_from("abz09._-"), min_size=1, max_size=20)
PATTERNS = st.from_regex(r"\A[a-c.*?_-]{1,12}\Z")


@pytest.mark.parametrize(
    ("limits", "topic", "source", "is_allowed"),
    [
        (NO_LIMITS, "anything", None, True),
        (KeyLimits(views=("page_*",)), "web", "web", True),  # views limit queries alone, as they always did
        (KeyLimits(sources=("web",)), "web", "web", True),
        (KeyLimits(sources=("web",)), "web.dead", "web", True),
        (KeyLimits(sources=("web",)), "shop", "shop", False),
        (KeyLimits(sources=("web",)), "web", None, False),  # a topic of that name, but of no declared source
        (KeyLimits(sources=("web",)), "website", "website", False),
        (KeyLimits(sources=("shop_*",)), "orders", "shop_orders", True),
        (KeyLimits(sources=("shop_?",)), "x", "shop_12", False),
        (KeyLimits(topics=("a.*",)), "a.b", None, True),
        (KeyLimits(topics=("a.*",)), "web", "web", False),
        (KeyLimits(sources=("web",), topics=("a.*",)), "a.b", None, True),
        (KeyLimits(sources=("web",), topics=("a.*",)), "web", "web", True),
        (KeyLimits(sources=()), "web", "web", False),
        (KeyLimits(sources=("WEB",)), "web", "web", False),
    ],
)
def test_topics_are_those_of_the_sources_and_those_that_are_named(
    limits: KeyLimits, topic: str, source: str | None, *, is_allowed: bool
) -> None:
    assert limits.allows_topic(topic, source) is is_allowed


@pytest.mark.parametrize(
    ("limits", "is_allowed"),
    [
        (NO_LIMITS, True),
        (KeyLimits(sources=("web",)), True),
        (KeyLimits(topics=("clicks",)), True),
        (KeyLimits(sources=("shop",)), False),
        (KeyLimits(views=("page_*",)), True),
        (KeyLimits(views=("signups",)), False),
        (KeyLimits(sources=("shop",), views=("page_hits",)), True),  # views decide where they are named
        (KeyLimits(sources=("web",), views=("signups",)), False),
        (KeyLimits(views=()), False),
    ],
)
def test_views_are_those_that_are_named_or_else_those_of_the_sources(limits: KeyLimits, *, is_allowed: bool) -> None:
    assert limits.allows_view("page_hits", "web", "clicks") is is_allowed


def test_limits_are_described_in_words() -> None:
    assert KeyLimits(sources=("web",)).describe_topics() == "the source web"
    both = KeyLimits(sources=("web", "shop"), topics=("a.*",))
    assert both.describe_topics() == "the sources web, shop and the topics a.*"
    assert both.describe_views() == "the views of the sources web, shop and the topics a.*"
    assert KeyLimits(views=("page_*",)).describe_views() == "the views page_*"
    assert KeyLimits(sources=()).describe_topics() == "no source and no topic"
    assert KeyLimits(views=()).describe_views() == "no view"
    assert len(KeyLimits(topics=tuple(f"t{n}" for n in range(100))).describe_topics()) < 100


@given(PATTERNS, NAMES)
def test_whatever_a_pattern_allows_without_wildcards_is_the_name_itself(pattern: str, name: str) -> None:
    allowed = KeyLimits(topics=(pattern,)).allows_topic(name, None)
    assert PATTERN.fullmatch(pattern)
    if without_wildcards([pattern]):
        assert allowed == (pattern == name)
    if set(pattern) == {"*"}:
        assert allowed


def test_a_long_name_and_a_pattern_of_many_stars_take_no_time() -> None:
    pattern = "*a" * 124
    assert wrong_pattern([pattern]) is None
    assert not KeyLimits(topics=(pattern,)).allows_topic("a" * 100_000 + "b", None)


@pytest.mark.parametrize("text", ["", "a b", "a/b", "[ab]", "a" * 250, "ä", "a\n", "{a,b}"])
def test_what_is_no_pattern_is_named(text: str) -> None:
    assert wrong_pattern(["web", text, "x"]) == text
