"""How fast questions over very many keys are answered after a run: the top 10, the first page, and the total.

    python benchmarks/bench_wide.py [--urls 150000] [--rounds 20]

Most urls have one event, so very many have the same number. The floor is the total of the same hour, for which one
state of each view is read. Everything runs in this process except Redis, without HTTP.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import report
from made_home import SpeedWriter
from own_redis import own_redis
from questions import DAY
from redis import Redis
from wide_home import WideHome

from hand_off.speed_views import SpeedViews
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import execution_limits, query_limits
from serving_layer.rest import formats
from views.declarations import declared_by

SPEED_STATES = 2_000
FLOOR = "total"
QUESTIONS = {
    FLOOR: {},
    "top 10 by hits": {"by": "url", "order": "-hits", "limit": "10"},
    "the first 10 by url": {"by": "url", "limit": "10"},
    "the first 1,000 by url": {"by": "url", "limit": "1000"},
}


def measure(home: WideHome, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each question, from the parameters to the bytes."""
    engine = QueryEngine(home.settings, declared_by(home.settings), execution_limits(home.settings))
    limits, found = query_limits(home.settings), dict[str, list[float]]()
    for number in range(rounds + 1):
        for name, more in QUESTIONS.items():
            began = time.perf_counter()
            query = engine.parse("reference", list({**DAY, **more}.items()), now=time.time(), limits=limits)
            result = engine.execute(query)
            formats.body(result, "json")
            if result.meta.degraded:
                raise SystemExit(f"{name}: {result.meta.why}")
            if number:  # the first one opens files and reads the numbers of all keys
                found.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    engine.close()
    return {name: report.median(times) for name, times in found.items()}


def main() -> None:
    """Measure, and write the result and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--urls", type=int, default=150_000)
    options.add_argument("--rounds", type=int, default=20)
    given = options.parse_args()
    os.environ["TIDEMARK_CONFIG"] = os.devnull
    with tempfile.TemporaryDirectory() as folder, own_redis(folder) as url:
        home = WideHome(Path(folder) / "made", given.urls, redis_url=url)
        home.make(lambda function, every: list(map(function, every)))
        with Redis.from_url(url) as client:
            speed_views = SpeedViews(client, home.view.source.name)
            SpeedWriter(speed_views, home.view, home.folder, SPEED_STATES).fill(1)
        found = measure(home, given.rounds)
    floor = found[FLOOR]["median"]
    rows = [
        (name, f"{m['median']:,.1f} ms ({m['least']:,.1f} – {m['most']:,.1f})", f"{m['median'] / floor:,.1f}")
        for name, m in found.items()
    ]
    text = report.table(("", "median (least – most)", "over the total's"), *rows)
    what = (
        f"{given.urls:,} urls in one hour of the batch view, most with one event, and {SPEED_STATES:,} states of the "
        f"speed view. {given.rounds} rounds, in process."
    )
    report.write("wide", "Serving layer: very many keys", {"ms": found, "urls": given.urls}, f"{text}\n\n{what}")


if __name__ == "__main__":
    main()
