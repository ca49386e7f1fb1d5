"""How fast questions over very many keys are answered, before and after a run: the top 10, the first page, the total.

    python benchmarks/bench_wide.py [--urls 150000] [--many 1000000] [--year-events 336776] [--rounds 20]

Most urls have one event, so very many have the same number. The floor is the total of the same time, for which one
state of each bucket is read. Before each round a micro-batch comes for the speed view, so that no answer is a repeated
one. Everything runs in this process except Redis, without HTTP.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_history
import report
from made_home import MadeHome, SpeedWriter
from own_redis import own_redis
from questions import DAY
from redis import Redis
from wide_home import SpeedHome, WideHome, WideSpeedWriter, YearHome, YearSpeedWriter

from hand_off.speed_views import SpeedViews
from serving_layer.engine import QueryEngine
from serving_layer.errors import TooLarge, TooLong
from serving_layer.query.limits import execution_limits, query_limits
from serving_layer.rest import formats
from views.declarations import declared_by

SPEED_STATES = 2_000
NEW_STATES = 500
"""Of the micro-batch before each round."""
FLOOR, TOP, AIM_MS = "total", "top 10 by hits", 50
YEAR = {"from": "2025-01-01", "to": "2026-01-02"}
BY_URL = {
    FLOOR: {},
    TOP: {"by": "url", "order": "-hits", "limit": "10"},
    "the first 10 by url": {"by": "url", "limit": "10"},
    "the first 1,000 by url": {"by": "url", "limit": "1000"},
}
BY_TWO_KEYS = {
    FLOOR: {},
    "by two keys": {"by": "carrier,origin"},
    "by two keys, 12 months": {"by": "carrier,origin", "grain": "month"},
    "top 10 pairs by flights": {"by": "carrier,origin", "order": "-flights", "limit": "10"},
}


@dataclass(frozen=True)
class Scenario:
    """A home, what its speed view has, and what is asked of it."""

    what: str
    home: Callable[..., MadeHome]
    writer: type[SpeedWriter]
    an_hour: int
    """Groups of each hour of the speed view; of the year the flights."""
    hours: int
    range: Mapping[str, str]
    questions: Mapping[str, Mapping[str, str]]


def scenarios(given: argparse.Namespace) -> list[Scenario]:
    """All of them, in the order of the page."""

    def wide(kind: type[WideHome], urls: int) -> Callable[..., MadeHome]:
        return lambda place, **settings: kind(place, urls, **settings)

    urls = given.urls
    return [
        Scenario(
            f"before the run: {urls:,} urls of the current hour in the speed view",
            wide(SpeedHome, urls), WideSpeedWriter, urls, 1, DAY, BY_URL,
        ),
        Scenario(
            f"after the run: {urls:,} urls in the batch view, {SPEED_STATES:,} states in the speed view",
            wide(WideHome, urls), SpeedWriter, SPEED_STATES, 1, DAY, BY_URL,
        ),
        Scenario(
            f"after the run: {given.many:,} urls in the batch view, {SPEED_STATES:,} states in the speed view",
            wide(WideHome, given.many), SpeedWriter, SPEED_STATES, 1, DAY, BY_URL,
        ),
        Scenario(
            f"a year of {given.year_events:,} flights by the hour and two keys, with 15 answers, before the run",
            wide(YearHome, 1), YearSpeedWriter, given.year_events, 1, YEAR, BY_TWO_KEYS,
        ),
    ]  # fmt: skip


def measure(scenario: Scenario, rounds: int) -> tuple[dict[str, dict[str, Any]], int]:
    """Milliseconds of each question, from the parameters to the bytes; the first one, which nothing is kept for, apart.

    A question that is refused says so: `refused`. And how many states the speed view had.
    """
    with tempfile.TemporaryDirectory() as folder, own_redis(folder) as url:
        home = scenario.home(Path(folder) / "made", redis_url=url)
        home.make(lambda function, every: list(map(function, every)))
        with Redis.from_url(url) as client:
            views = SpeedViews(client, home.view.source.name)
            writer = scenario.writer(views, home.view, home.folder, scenario.an_hour)
            writer.fill(scenario.hours)
            states, _ = views.reader.size()
            engine = QueryEngine(home.settings, declared_by(home.settings), execution_limits(home.settings))
            try:
                found = {name: ask(engine, home, writer, scenario, name, rounds) for name in scenario.questions}
            finally:
                engine.close()
    return found, states


def ask(
    engine: QueryEngine, home: MadeHome, writer: SpeedWriter, scenario: Scenario, name: str, rounds: int
) -> dict[str, Any]:
    """Milliseconds of one question."""
    parameters = list({**scenario.range, **scenario.questions[name]}.items())
    limits, times = query_limits(home.settings), list[float]()
    for _ in range(rounds + 1):
        writer.add(0, min(NEW_STATES, scenario.an_hour))
        began = time.perf_counter()
        try:
            result = engine.execute(engine.parse(home.view.name, parameters, now=time.time(), limits=limits))
        except (TooLarge, TooLong) as error:
            return {"refused": str(error)}
        formats.body(result, "json")
        times.append((time.perf_counter() - began) * 1000)
        if result.meta.degraded:
            raise SystemExit(f"{scenario.what}, {name}: {result.meta.why}")
    first, *others = times
    sys.stderr.write(f"{scenario.what}: {name}: {first:.1f} ms, then {sorted(others)[len(others) // 2]:.1f} ms\n")
    return {"first": round(first, 1), **report.median(others)}


def text(found: dict[str, dict[str, dict[str, Any]]], sizes: Mapping[str, int], rounds: int) -> str:
    """The result as the page shows it; `sizes`: how many states each speed view had."""
    parts = []
    for what, questions in found.items():
        rows = [
            (name, "refused", each["refused"], "")
            if "refused" in each
            else (
                name,
                f"{each['first']:,.1f} ms",
                f"{each['median']:,.1f} ms ({each['least']:,.1f} – {each['most']:,.1f})",
                f"{each['median'] / questions[FLOOR]['median']:,.1f}",
            )
            for name, each in questions.items()
        ]
        head = (
            f"{what} ({sizes[what]:,} states of the speed view)",
            "the first time",
            "then: median (least – most)",
            "over the total's",
        )
        parts.append(report.table(head, *rows))
    parts.append(
        f"{rounds} rounds, in process; before each a micro-batch of {NEW_STATES} states. The first time, the numbers "
        "of all keys are read; of the speed view as many are kept as `serving_followed_states` allows. The aim for "
        f"the top 10 is {AIM_MS} ms."
    )
    return "\n\n".join(parts)


def main() -> None:
    """Measure, and write the result and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--urls", type=int, default=150_000)
    options.add_argument("--many", type=int, default=1_000_000, help="urls of the largest batch view")
    options.add_argument("--year-events", type=int, default=bench_history.EVENTS, help="flights of the year")
    options.add_argument("--rounds", type=int, default=20)
    given = options.parse_args()
    os.environ["TIDEMARK_CONFIG"] = os.devnull
    found, sizes = dict[str, dict[str, dict[str, Any]]](), dict[str, int]()
    for scenario in scenarios(given):
        found[scenario.what], sizes[scenario.what] = measure(scenario, given.rounds)
    result = {"scenarios": found, "sizes": sizes, "urls": given.urls, "many": given.many, "aim_ms": AIM_MS}
    report.write("wide", "Serving layer: very many keys", result, text(found, sizes, given.rounds))


if __name__ == "__main__":
    main()
