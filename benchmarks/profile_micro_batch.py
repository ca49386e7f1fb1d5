"""Where the time of a micro-batch goes: step by step, at 500 and at 5,000 events a second.

    python benchmarks/profile_micro_batch.py [--seconds 20] [--warm 25]

The speed layer runs in a process of its own, on the stack and the view of bench_speed.py. Its functions are wrapped
there, and write how long each took. Times are wall times, because most of the work is Spark's, in another process.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import report
from bench_speed import RATES, Applied, Bench

from infra.settings import child_environment
from infra.stack import up

TIMINGS = "BENCH_TIMINGS"
STEPS = {
    "planned": "Spark: ask Kafka for its end, write the offsets, plan",
    "job": "Spark: read Kafka, parse, judge, evaluate; collect by Arrow",
    "fold": "duplicates, groups, fold the columns",
    "read": "read states from Redis",
    "merge": "add to the states",
    "pack": "pack the states",
    "apply": "one atomic script in Redis",
    "other": "the rest of our part",
    "closed": "Spark: commit the offsets",
}
"""The steps in the order in which they happen, and what each does."""


class TracedBench(Bench):
    """The stack and the load of bench_speed.py, with a speed layer whose steps are timed."""

    @property
    def timings(self) -> Path:
        """A line for each micro-batch."""
        return self.place / "timings"

    @contextmanager
    def running(self, name: str) -> Iterator[Callable[[], Applied]]:
        """The speed layer, as `python -m speed_layer` runs it."""
        environment = {**os.environ, **child_environment(self.settings), TIMINGS: str(self.timings)}
        environment |= {"TIDEMARK_KAFKA_BOOTSTRAP": self.kafka, "TIDEMARK_REDIS_URL": self.redis_url}
        with self.log.open("ab") as log:
            self.job = subprocess.Popen([sys.executable, __file__, "--traced"], env=environment, stdout=log, stderr=log)
        try:
            yield self.applied
        finally:
            self.job.kill()
            self.job.wait()

    def profile(self, seconds: float) -> dict[int, dict[str, float]]:
        """By rate: how many micro-batches, and the median of each step in ms."""
        found = {}
        with self.running(name="speed layer") as applied:
            self.send(RATES[-1], self.warm_s)
            self.wait_for(applied, 300)
            for rate in RATES:
                before = len(self.lines())
                self.send(rate, seconds)
                self.wait_for(applied, 120)
                batches = [line for line in self.lines()[before:] if line["events"]]
                found[rate] = {"micro-batches": len(batches), "events": median(line["events"] for line in batches)}
                found[rate] |= {step: median(line.get(step, 0.0) for line in batches) for step in STEPS}
        return found

    def lines(self) -> list[dict[str, float]]:
        """What was written so far."""
        return [json.loads(line) for line in self.timings.read_text().splitlines()] if self.timings.exists() else []


def run_traced() -> int:
    """The process of the speed layer, with its steps timed."""
    from pyspark.sql.classic.dataframe import DataFrame

    from hand_off.speed_views import SpeedReader, SpeedWriter
    from speed_layer import process, stream

    spent: dict[str, float] = {}

    def timed(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                spent[step] = spent.get(step, 0.0) + (time.perf_counter() - began) * 1000

        return call

    delta_of, take = stream.delta_of, stream.Stream._take

    def traced_delta(*given: Any, **named: Any) -> Any:
        delta = timed("fold", delta_of)(*given, **named)
        return delta._replace(add=timed("merge", delta.add))

    def traced_take(self: Any, rows: Any, batch_id: int) -> None:
        progress = self._query.lastProgress if self._query is not None else None
        events = self.pace.events
        spent.clear()
        began = time.perf_counter()
        take(self, rows, batch_id)
        whole = (time.perf_counter() - began) * 1000
        spent["fold"] -= spent.get("job", 0.0)
        spent["other"] = whole - sum(spent.values())
        spark = (progress.durationMs if progress is not None else None) or {}
        spent["planned"] = sum(
            spark.get(name, 0) for name in ("latestOffset", "walCommit", "getBatch", "queryPlanning")
        )
        spent["closed"] = spark.get("commitOffsets", 0)
        with Path(os.environ[TIMINGS]).open("a") as file:
            file.write(json.dumps({"events": self.pace.events - events, **spent}) + "\n")

    DataFrame.toArrow = timed("job", DataFrame.toArrow)
    stream.delta_of = traced_delta
    stream.pack_short = timed("pack", stream.pack_short)
    SpeedReader.read_states = timed("read", SpeedReader.read_states)
    SpeedWriter.apply = timed("apply", SpeedWriter.apply)
    stream.Stream._take = traced_take
    return process.main()


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=20, help="how long each rate is sent")
    options.add_argument("--warm", type=float, default=25, help="seconds of load before that")
    options.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.traced:
        return run_traced()
    with tempfile.TemporaryDirectory() as folder:
        bench = TracedBench(Path(folder), given.warm)
        try:
            found = bench.profile(given.seconds)
        finally:
            up.stop(bench.settings, lambda _status: None)
    rows = [(what, *(f"{found[rate][step]:.1f} ms" for rate in RATES)) for step, what in STEPS.items()] + [
        ("together", *(f"{sum(found[rate][step] for step in STEPS):.1f} ms" for rate in RATES))
    ]
    text = report.table(("", *(f"{rate:,} events/s" for rate in RATES)), *rows)
    sizes = " and ".join(f"{found[rate]['events']:,.0f}" for rate in RATES)
    counts = " and ".join(f"{found[rate]['micro-batches']:,.0f}" for rate in RATES)
    what = (
        f"Medians of {counts} micro-batches, of {sizes} events in the middle. Spark's own steps are those of the "
        "micro-batch before, rounded to milliseconds."
    )
    report.write(
        "profile_micro_batch", "Speed layer: where the time of a micro-batch goes", {"ms": found}, f"{text}\n\n{what}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
