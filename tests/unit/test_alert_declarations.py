"""Alerts, watches and feeds are checked where they are declared, and found beside the views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from views.alert import Alert, compared, nothing, numbers
from views.catalog.card_attempts import card_attempts, cards
from views.catalog.page_hits import page_hits
from views.catalog.page_latency import page_latency
from views.declarations import load_declarations
from views.errors import AlertError, DeclarationError
from views.feed import Feed
from views.watch import Watch

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"when": "attempt > 3"}, "there is no numeric answer 'attempt'. Did you mean 'attempts'?"),
    ({"when": "attempts"}, "a condition is boolean"),
    ({"when": "rand() > 3"}, "gives another value each time"),
    ({"when": "previous_attempts > 3"}, "there is no numeric answer 'previous_attempts'"),
    ({}, "either when='attempts > 3', a condition, or silence='5m'"),
    ({"when": "attempts > 3", "silence": "5m"}, "and not both"),
    ({"when": "attempts > 3", "by": ("merchant",)}, "by names 'merchant', which is not a key of 'card_attempts'"),
    ({"when": "attempts > 3", "by": "card"}, "by is 'card'; it should be a tuple"),
    ({"when": "attempts > 3", "by": ("card", "card")}, "each name should appear once"),
    ({"when": "attempts > 3", "over": "7s"}, "over is '7s'; it should be a multiple of the grain"),
    ({"when": "attempts > 3", "over": "soon"}, "over: 'soon' is not a duration"),
    ({"when": "attempts > 3", "for_buckets": 0}, "for_buckets is 0"),
    ({"when": "attempts > 3", "for_buckets": True}, "for_buckets is True"),
    ({"when": "attempts > 3", "compare": "7s"}, "compare is '7s'; it should be 'previous' or a multiple"),
    ({"when": "attempts > 3", "keep": "1s"}, "keep is '1s', less than a period"),
    ({"when": "attempts > 3", "settled": 1}, "settled is 1"),
    ({"silence": "5m", "for_buckets": 2}, "silence stands alone"),
    ({"silence": "8d"}, "at most 7d"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_what_cannot_work_is_refused_where_it_is_declared(given: dict[str, Any], said: str) -> None:
    with pytest.raises(AlertError) as refused:
        Alert("many", card_attempts, **given)
    assert said in str(refused.value)
    assert str(refused.value).startswith("Alert 'many'")


def test_a_watch_and_a_feed_are_refused_likewise() -> None:
    with pytest.raises(AlertError, match=r"Watch 'w', where: .*there is no field 'cad'. Did you mean 'card'\?"):
        Watch("w", cards, where="cad = 'a'")
    with pytest.raises(AlertError, match=r"Feed 'f': by names 'x'"):
        Feed("f", card_attempts, by=("x",))
    with pytest.raises(AlertError, match="is not a topic name"):
        Feed("f", card_attempts, topic="a b")


def test_by_is_all_keys_unless_given_and_a_period_is_a_bucket() -> None:
    alert = Alert("many", card_attempts, when="attempts > 3")
    assert (alert.keys, alert.step_s, alert.keep_s, alert.shift_s) == (("card",), 5, 10, 0)
    assert Alert("many", card_attempts, when="attempts > 3", by=()).keys == ()


@pytest.mark.parametrize(
    ("alert", "now", "before", "is_true"),
    [
        (Alert("a", card_attempts, when="attempts > 3"), {"attempts": 4}, None, True),
        (Alert("a", card_attempts, when="attempts > 3"), {"attempts": 3}, None, False),
        (Alert("a", card_attempts, when="amount > 3"), {"amount": "3.01"}, None, True),
        (Alert("a", page_latency, when="p95_ms > 800"), {"ms": {"p50": 1.0, "p95": 801.0, "p99": 900.0}}, None, True),
        (Alert("a", page_latency, when="p95_ms > 800"), {"ms": {"p50": None, "p95": None, "p99": None}}, None, False),
        (Alert("a", page_latency, when="slow_share > 0.1"), {"slow_share": 0.2}, None, True),
        (Alert("a", page_hits, when="hits < previous_hits", compare="previous"), {"hits": 1}, {"hits": 2}, True),
        (Alert("a", page_hits, when="hits < previous_hits", compare="1d"), {"hits": 1}, {}, False),
    ],
)
def test_a_condition_computes_with_numbers_quantiles_and_the_period_before(
    alert: Alert, now: dict[str, Any], before: dict[str, Any] | None, is_true: bool
) -> None:
    view = alert.view
    value = numbers(view, {**nothing(view), **now})
    if before is not None:
        value = compared(value, numbers(view, {**nothing(view), **before}))
    assert alert.condition is not None
    assert bool(alert.condition.evaluate(value)) is is_true


def test_the_hash_is_another_exactly_where_the_meaning_is() -> None:
    alert = Alert("a", card_attempts, when="attempts > 3", doc="one")
    assert alert.hash == Alert("a", card_attempts, when="attempts>3", over="5s", doc="two").hash
    assert alert.hash != Alert("a", card_attempts, when="attempts > 4").hash
    assert alert.hash != Alert("a", card_attempts, when="attempts > 3", keep="20s").hash


def test_they_are_loaded_with_what_they_stand_on(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from views.alert import Alert\nfrom views.catalog.card_attempts import card_attempts\n"
        "mine = Alert('mine', card_attempts, when='declined > 2')\n"
    )
    found = load_declarations(tmp_path, with_catalog=False)
    assert "mine" in found.alerts
    assert "card_attempts" in found.views
    assert "cards" in found.sources
    assert found.followed_views("cards") == {"card_attempts"}
    assert [each.name for each in found.alerts_of("cards")] == ["mine"]


def test_a_feed_takes_no_topic_that_is_somebodys(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from views.feed import Feed\nfrom views.catalog.card_attempts import card_attempts\n"
        "mine = Feed('mine', card_attempts, topic='cards')\n"
    )
    with pytest.raises(DeclarationError, match=r"Feed 'mine': the topic 'cards' is of source 'cards'"):
        load_declarations(tmp_path, with_catalog=False)
