"""What bench_serving.py asks: of Tidemark by HTTP, of DuckDB and ClickHouse in SQL over the Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import urlencode
from zlib import crc32

from made_home import DAYS, END, KEYS, key_name

ONE_KEY = "one key, 30 days by day"
TOP = f"top 10 of {KEYS:,} keys, 24 h"
TOTAL = "total, 30 days by day"
QUESTIONS = (ONE_KEY, TOP, TOTAL)
ASKED_KEYS = [key_name(number) for number in range(0, KEYS, KEYS // 200)]
"""Each of them in turn, popular ones and others."""
OTHER_KEYS = sorted({key_name(number) for number in range(KEYS)} - set(ASKED_KEYS), key=lambda key: crc32(key.encode()))
"""All others, in no order: what nobody asked for of late."""


def _text(days_back: int) -> str:
    return f"{END - timedelta(days=days_back):%Y-%m-%dT%H:%M:%SZ}"


MONTH = {"from": _text(DAYS), "to": _text(0), "grain": "day"}
DAY = {"from": _text(1), "to": _text(0)}
PARAMETERS: dict[str, list[dict[str, str]]] = {
    ONE_KEY: [{**MONTH, "url": key} for key in ASKED_KEYS],
    TOP: [{**DAY, "by": "url", "order": "-hits", "limit": "10"}],
    TOTAL: [MONTH],
}
"""Of each question the queries, which are asked in turn."""
COLD = [{**MONTH, "url": key} for key in OTHER_KEYS]
"""The first question again, each for another key."""


def path_of(parameters: dict[str, str]) -> str:
    """Where it is asked."""
    return f"/views/reference/query?{urlencode(parameters)}"


class Files(NamedTuple):
    """The Parquet files of a batch view. Nobody has to find out which ones are of the last day."""

    all_days: list[str]
    last_day: list[str]


def sql(files: Files, reading: Callable[[list[str]], str], day: str) -> dict[str, list[str]]:
    """The same in SQL. They add counts and sums alone: states of distinct users and quantiles are nothing to them.

    `reading` says where files are read from, and `day` the day of a bucket.
    """
    added = "sum(hits) AS all_hits, sum(ms) AS all_ms"
    by_day = f"SELECT {day} AS began, {added} FROM {reading(files.all_days)}"
    by_url = f"SELECT url, {added} FROM {reading(files.last_day)} GROUP BY url"
    return {
        ONE_KEY: [f"{by_day} WHERE url = '{key}' GROUP BY began ORDER BY began" for key in ASKED_KEYS],
        TOP: [f"{by_url} ORDER BY all_hits DESC LIMIT 10"],
        TOTAL: [f"{by_day} GROUP BY began ORDER BY began"],
    }
