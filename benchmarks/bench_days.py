"""What one more day costs a run: as many events and groups over a year and over 37 days, in turns.

    python benchmarks/bench_days.py [--events 340000] [--rounds 3]

The same two views of 15 and 4 answers. Fewer days have more keys, so that only the number of days differs: the files,
the ranges of the index, and what is done for each of them. The difference of the times divided by that of the days is
what a day costs. Each run computes everything, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import profile_run
import report

from infra.settings import load_settings
from infra.spark.session import spark_session

SOURCE, VIEWS = "year", ("wide", "daily")
AIM_S = 0.01
MANY, FEW = (366, 35), (37, 346)
"""Days, and keys in each of them."""
Phases = Sequence[tuple[str, float, int]]


def main() -> None:
    """Measure, and write the result and the page; or one step in this process."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--events", type=int, default=profile_run.SIZES[SOURCE])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--step", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.step:
        print(json.dumps(do(**json.loads(given.step))))
        return
    found: dict[int, list[dict[str, Any]]] = {days: [] for days, _ in (MANY, FEW)}
    with tempfile.TemporaryDirectory() as folder:
        for days, urls in (MANY, FEW):
            in_process(home=f"{folder}/{days}", days=days, urls=urls, events=given.events)
        for number in range(given.rounds):
            for days in found:
                run = in_process(home=f"{folder}/{days}")
                found[days].append(run)
                sys.stderr.write(f"round {number}: {days} days: {json.dumps(run)}\n")
    write(found, given.events)


def in_process(**step: Any) -> Any:
    """Do a step in a process of its own."""
    command = [sys.executable, __file__, "--step", json.dumps(step)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def do(home: str, days: int = 0, urls: int = 0, events: int = 0) -> dict[str, Any]:
    """Fill a home, where days are given; else run."""
    place = Path(home)
    (place / "views").mkdir(parents=True, exist_ok=True)
    (place / "views" / "made.py").write_text(profile_run.DECLARED)
    settings = load_settings(home=place / "home", views_dir=place / "views", with_examples=False)
    settings.home.mkdir(exist_ok=True)
    if not days:
        return profile_run.timed_run(settings, SOURCE, None, full=True)
    profile_run.SIZES[SOURCE], profile_run.DAYS[SOURCE], profile_run.URLS[SOURCE] = events, days, urls
    profile_run.fill(spark_session(settings, "days", output=place / "spark.log"), settings, SOURCE, is_more=False)
    return {}


def seconds_of(phases: Phases, view: str) -> float:
    """How long a run took for a view: its files and its index."""
    return sum(seconds for name, seconds, _ in phases if name in (f"{view}: compute", f"{view}: index"))


def medians_of(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The usual seconds of each view."""
    return {view: statistics.median(seconds_of(each["phases"], view) for each in runs) for view in VIEWS}


def slopes_of(found: dict[int, list[dict[str, Any]]]) -> dict[str, float]:
    """What one more day costs each view, in seconds."""
    usual = {days: medians_of(runs) for days, runs in found.items()}
    many, few = max(usual), min(usual)
    return {view: round((usual[many][view] - usual[few][view]) / (many - few), 4) for view in VIEWS}


def write(found: dict[int, list[dict[str, Any]]], events: int) -> None:
    """Into benchmarks/results, and the page."""
    (many, _), (few, _) = MANY, FEW
    slopes = slopes_of(found)
    rows = [("run", "groups", "files", "whole run", *(f"{view}: files and index" for view in VIEWS))]
    for days, runs in found.items():
        spread = [[seconds_of(each["phases"], view) for each in runs] for view in VIEWS]
        rows.append((
            f"{days} days", f"{runs[0]['rows']:,}", f"{runs[0]['files']:,}",
            f"{statistics.median(each['seconds'] for each in runs):.1f} s",
            *(f"{statistics.median(each):.2f} s ({min(each):.2f} – {max(each):.2f})" for each in spread),
        ))  # fmt: skip
    of_view = " and ".join(f"{slope:.4f} s in `{view}`" for view, slope in slopes.items())
    text = (
        f"{report.table(*rows)}\n\n{events:,} events each, {len(found[many])} rounds in turns, each run in a process "
        f"of its own. One more day costs {of_view}: the difference of the medians divided by {many - few} days. The "
        f"aim is {AIM_S:g} s."
    )
    report.write("days", "Batch runs: what one more day costs", {"slopes_s": slopes, "runs": found}, text)


if __name__ == "__main__":
    main()
