"""Age an installation by so many nights, and judge its curves: `python -m torture.age --nights 730`.

It exits with 1 where an answer was wrong, or a curve is not as declared, or the time is up. With `--sabotage` the
installation ages badly, and the verdict has to fail.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import tempfile
import time
from pathlib import Path

import structlog

from torture.age.clock import SimulatedClock
from torture.age.errors import WrongAnswer
from torture.age.installation import AgeingInstallation, redis_server
from torture.age.measures import DECLARED
from torture.age.nights import WARM_UP, Nights
from torture.age.processes import ServiceFailed
from torture.age.report import write_report
from torture.age.sabotages import NAMES, OLD_VERSION, patched
from torture.age.verdict import MIN_POINTS, Judged, Point, judge

Curves = dict[str, list[Point]]


def main() -> int:
    """Simulate, judge, and write the report."""
    given = _arguments().parse_args()
    sabotages = OLD_VERSION if given.without_upkeep else tuple(given.sabotage)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    began, failure = time.monotonic(), ""
    curves: Curves = {name: [] for name in DECLARED}
    clock = SimulatedClock()
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-age-") as place,
        redis_server(Path(place) / "redis") as redis,
        clock.installed(),
        patched(sabotages),
    ):
        installation = AgeingInstallation(Path(place), redis, clock, sabotages)
        nights = Nights(installation, given.nights, has_upgrade=not sabotages)
        try:
            passed = _simulate(nights, began + given.minutes * 60, curves)
        except (WrongAnswer, ServiceFailed) as error:
            passed, failure = len(curves["run_s"]), str(error)
        finally:
            installation.close()
    done = {
        "nights": passed,
        "wanted": given.nights,
        "warm_up": WARM_UP,
        "commits": installation.commits,
        "events": len(installation.truth.events),
        "compared": installation.compared,
        "view_changes": installation.changes,
        "seconds": round(time.monotonic() - began),
        "phases": {name: round(seconds, 1) for name, seconds in nights.phases.items()},
        "upgraded": dataclasses.asdict(nights.upgraded),
        "sabotages": sabotages,
        "failure": failure,
    }
    judged = judge_all(curves)
    is_right = passed >= given.nights and not failure and all(each.is_right for each in judged)
    is_right = is_right and len(judged) == len(DECLARED)
    write_report(given.report, done, judged, curves, is_right=is_right)
    return 0 if is_right else 1


def judge_all(curves: Curves) -> list[Judged]:
    """The verdict over the curves that have enough points; a life that ended early may lack some."""
    enough = {name for name, curve in curves.items() if len(curve) >= MIN_POINTS}
    return judge(
        {name: curves[name] for name in enough}, {name: each for name, each in DECLARED.items() if name in enough}
    )


def _arguments() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--nights", type=int, default=730)
    arguments.add_argument("--minutes", type=float, default=20.0, help="end after so long, whatever was simulated")
    arguments.add_argument("--report", type=Path, default=Path("artifacts/age.md"))
    arguments.add_argument("--sabotage", action="append", default=[], choices=NAMES, help="age badly on purpose")
    arguments.add_argument("--without-upkeep", action="store_true", help=f"the same as {', '.join(OLD_VERSION)}")
    return arguments


def _simulate(nights: Nights, until: float, curves: Curves) -> int:
    """Pass the nights. Returns how many were measured."""
    for night in range(WARM_UP + nights.count):
        if time.monotonic() > until:
            return max(0, night - WARM_UP)
        found = nights.pass_night(night)
        if night < WARM_UP:
            continue
        for name, value in found.items():
            curves[name].append(Point(night, value))
        if night % 10 == 0:
            compared = nights.installation.compared
            sys.stdout.write(f"night {night}: run {found['run_s']:.1f} s, {compared:,} numbers compared\n")
            sys.stdout.flush()
    return nights.count


if __name__ == "__main__":
    sys.exit(main())
