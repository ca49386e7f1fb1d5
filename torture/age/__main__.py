"""Age an installation by so many nights, and judge its curves: `python -m torture.age --nights 730`.

It exits with 1 where an answer was wrong, or a curve is not as declared, or the time is up.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from torture.age.clock import SimulatedClock
from torture.age.installation import AgeingInstallation, WrongAnswer, redis_server
from torture.age.measures import DECLARED, measure
from torture.age.verdict import Judged, judge

RESTART, FAILED_RUN, VIEW_CHANGE, LOST_REDIS, WHOLE = 6, 9, 20, 25, 10
"""Each so many nights: services start again, a run ends in the middle, a view changes, Redis forgets everything, and
answers over all time are compared instead of the last days."""
STEPS = ("run.after_open", "run.after_views", "run.before_publish", "run.after_publish")
"""Where runs end in the middle, in turn."""
WARM_UP = 5
"""Nights that are simulated before those that are measured: the first ones load classes and fill caches."""

Curves = dict[str, list[float]]


def main() -> int:
    """Simulate, judge, and write the report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--nights", type=int, default=730)
    arguments.add_argument("--minutes", type=float, default=20.0, help="end after so long, whatever was simulated")
    arguments.add_argument("--report", type=Path, default=Path("artifacts/age.md"))
    given = arguments.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    began, wrong = time.monotonic(), ""
    curves: Curves = {name: [] for name in DECLARED}
    clock = SimulatedClock()
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-age-") as place,
        redis_server(Path(place) / "redis") as redis,
        clock.installed(),
    ):
        installation = AgeingInstallation(Path(place), redis, clock)
        try:
            _simulate(installation, given.nights, began + given.minutes * 60, curves)
        except WrongAnswer as error:
            wrong = str(error)
        finally:
            installation.close()
    nights = len(curves["run_s"])
    done = {
        "nights": nights,
        "wanted": given.nights,
        "commits": installation.commits,
        "events": len(installation.events),
        "compared": installation.compared,
        "view_changes": installation.changes,
        "seconds": round(time.monotonic() - began),
        "wrong_answer": wrong,
    }
    judged = judge(curves, DECLARED) if min(map(len, curves.values())) >= 3 else []
    is_right = nights >= given.nights and not wrong and bool(judged) and all(each.is_right for each in judged)
    _write(given.report, done, judged, curves, is_right)
    return 0 if is_right else 1


def _simulate(installation: AgeingInstallation, nights: int, until: float, curves: Curves) -> None:
    for night in range(WARM_UP + nights):
        if time.monotonic() > until:
            return
        found = _night(installation, night)
        if night < WARM_UP:
            continue
        for name, value in found.items():
            curves[name].append(value)
        if night % 10 == 0:
            figures = f"run {found['run_s']:.1f} s, Python {found['python_mb']:.0f} MB, {found['handles']:.0f} handles"
            sys.stdout.write(f"night {night}: {figures}, {installation.compared:,} numbers compared\n")
            sys.stdout.flush()


def _night(installation: AgeingInstallation, night: int) -> dict[str, float]:
    found: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        found[name] = time.monotonic() - began

    def is_due(every: int) -> bool:
        return night % every == every - 1

    installation.clock.skip_day()
    with timed("archive_s"):
        records = installation.archive()
    with timed("archiver_start_s"):
        installation.start_archiver()
    if installation.writer is None:
        installation.start_writer()
    with timed("micro_batch_s"):
        installation.count(records, night)
    if installation.engine is not None:
        installation.compare(whole=False)
    if is_due(VIEW_CHANGE):
        installation.change_view()
    if is_due(FAILED_RUN):
        installation.run_and_die(STEPS[night // FAILED_RUN % len(STEPS)])
    with timed("run_s"):
        installation.run()
    if is_due(LOST_REDIS):
        installation.lose_redis()
    if installation.engine is None or is_due(RESTART):
        with timed("speed_start_s"):
            installation.start_writer()
        with timed("serving_start_s"):
            installation.start_serving()
    installation.compare(whole=is_due(WHOLE))
    with timed("upkeep_s"):
        installation.keep_up()
    installation.clock.date_files(installation.settings.home)
    return found | measure(installation)


def _write(path: Path, done: Mapping[str, Any], judged: Sequence[Judged], curves: Curves, is_right: bool) -> None:
    """The report as Markdown, and all curves as JSON beside it."""
    lines = [
        "# Ageing",
        "",
        f"{done['nights']:,} of {done['wanted']:,} nights in {done['seconds']:,} s: {done['commits']:,} commits of "
        f"the archiver, {done['events']:,} events, {done['view_changes']} changes of a view, {done['compared']:,} "
        f"numbers compared with the reference interpreter. {'All is as declared.' if is_right else 'NOT as declared.'}",
        "",
        "| curve | declared | because | first third | last third | a night | |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in judged:
        numbers = f"{each.first:,.2f} | {each.last:,.2f} | {each.slope:+,.3f}"
        verdict = "" if each.is_right else "**grows**"
        lines.append(f"| {each.name} | {_text(each)} | {each.declared.why} | {numbers} | {verdict} |")
    if done["wrong_answer"]:
        lines += ["", f"A wrong answer: {done['wrong_answer'][:2000]}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps({**done, "is_right": is_right, "curves": curves}) + "\n")
    sys.stdout.write("\n".join(lines) + "\n")


def _text(each: Judged) -> str:
    declared = each.declared
    return {
        "flat": f"flat: ×{declared.factor:g} + {declared.slack:g}",
        "bounded": f"bounded: + {declared.slack:g}",
        "linear": f"linear: {declared.slope:g} a night",
    }[declared.growth]


if __name__ == "__main__":
    sys.exit(main())
