"""The query cache: a query that was parsed before is the one that parsing it now would give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving_layer.errors import BadParameter
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from serving_layer.query.plan import plan
from serving_layer.query.query_cache import QueryCache
from tests.serving_data import SALES

LIMITS = QueryLimits()
NOW = 1_767_225_600.0 + 17 * 60
TIMES = [NOW, NOW + 1, NOW + 59, NOW + 3_600, NOW + 86_400, NOW + 1, NOW + 40 * 86_400]
QUERIES: list[list[tuple[str, str]]] = [
    [],
    [("from", "-24h")],
    [("from", "-7d"), ("grain", "day"), ("tz", "Europe/Berlin"), ("window", "7d")],
    [("from", "2026-01-01"), ("to", "2026-01-05"), ("by", "item"), ("order", "-orders")],
    [("from", "2026-01-01"), ("grain", "day"), ("compare", "previous_period")],
    [("to", "-1h"), ("by", "item"), ("item", "a"), ("limit", "3")],
]


@pytest.mark.parametrize("pairs", QUERIES)
def test_it_is_the_query_that_parsing_now_gives(pairs: list[tuple[str, str]]) -> None:
    cache = QueryCache()
    for now in TIMES:
        found = cache.parse(SALES, pairs, now=now, limits=LIMITS)
        assert found == parse_query(SALES, pairs, now=now, limits=LIMITS)
        assert cache.plan(found) == plan(found)


def test_the_same_query_is_parsed_once_while_its_range_is_the_same() -> None:
    cache = QueryCache()
    first = cache.parse(SALES, QUERIES[1], now=NOW, limits=LIMITS)
    assert cache.parse(SALES, QUERIES[1], now=NOW + 1, limits=LIMITS) is first
    assert cache.plan(first) is cache.plan(first)
    later = cache.parse(SALES, QUERIES[1], now=NOW + 86_400, limits=LIMITS)
    assert later.range != first.range
    other = replace(first, limit=1)
    assert cache.plan(other).query is other, "a plan belongs to its own query"


def test_it_is_bounded_and_remembers_no_errors() -> None:
    cache = QueryCache(max_periods=70)
    hours = [("from", "2026-01-01"), ("to", "2026-01-02"), ("grain", "hour")]
    first = cache.parse(SALES, hours, now=NOW, limits=LIMITS)
    assert cache.parse(SALES, hours, now=NOW, limits=LIMITS) is first
    cache.parse(SALES, [*hours, ("by", "item")], now=NOW, limits=LIMITS)
    assert cache.parse(SALES, hours, now=NOW, limits=LIMITS) is not first, "it was emptied"
    many = [*hours, *(("item", f"item-{number}" * 10) for number in range(100))]
    assert cache.parse(SALES, many, now=NOW, limits=LIMITS) is not cache.parse(SALES, many, now=NOW, limits=LIMITS)
    long = [("from", "2026-01-01"), ("to", "2026-02-02"), ("grain", "hour")]
    assert cache.parse(SALES, long, now=NOW, limits=LIMITS) is not cache.parse(SALES, long, now=NOW, limits=LIMITS)
    for _ in range(2):
        with pytest.raises(BadParameter):
            cache.parse(SALES, [("by", "nothing")], now=NOW, limits=LIMITS)
