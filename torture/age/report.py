"""The report of an aged installation: a page, and its curves as JSON, thinned."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from torture.age.verdict import Curve, Judged

POINTS = 60
"""Of each curve in the JSON."""
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 30


def write_report(
    path: Path, done: Mapping[str, Any], judged: Sequence[Judged], curves: Mapping[str, Curve], *, is_right: bool
) -> None:
    """Write the page, print it, and write the curves beside it."""
    lines = [
        "# Ageing",
        "",
        f"{done['nights']:,} of {done['wanted']:,} nights in {done['seconds']:,} s: {done['commits']:,} commits of the "
        f"archiver, {done['events']:,} events, {done['view_changes']} changes of a view, {done['compared']:,} "
        f"numbers compared with the reference interpreter. {_verdict(done, judged, is_right)}",
    ]
    if done["sabotages"]:
        lines += ["", f"Aged badly on purpose: {', '.join(done['sabotages'])}."]
    if (upgraded := done["upgraded"])["night"]:
        lines += [
            "",
            f"Upgrade from the formats of 0.1.0 in night {upgraded['night']}: {upgraded['commits']:,} sealed commits "
            f"were back in the log, {upgraded['seconds']:.0f} s, {upgraded['requests']:,} requests "
            "meanwhile, all with status 200.",
        ]
    if done["failure"]:
        lines += ["", f"It ended early: {done['failure'][:2000]}"]
    lines += [
        "",
        "| curve | from first to last night | declared | because | first third | last third | a night | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in judged:
        numbers = f"{each.first:,.2f} | {each.last:,.2f} | {each.slope:+,.3f}"
        verdict = "" if each.is_right else "**grows**"
        chart = draw([point.value for point in curves[each.name]])
        lines.append(f"| {each.name} | {chart} | {each.declared.text} | {each.declared.why} | {numbers} | {verdict} |")
    lines += ["", "| part of the nights | seconds together | a night |", "|---|---|---|"]
    for name, seconds in sorted(done["phases"].items(), key=lambda each: -each[1]):
        lines.append(f"| {name} | {seconds:,.0f} | {seconds / max(1, done['nights'] + done['warm_up']):.2f} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    kept = {name: [[night, round(value, 3)] for night, value in thin(curve)] for name, curve in curves.items()}
    path.with_suffix(".json").write_text(json.dumps({**done, "is_right": is_right, "curves": kept}) + "\n")
    sys.stdout.write("\n".join(lines) + "\n")


def _verdict(done: Mapping[str, Any], judged: Sequence[Judged], is_right: bool) -> str:
    grown = sum(not each.is_right for each in judged)
    if is_right:
        return "All is as declared."
    if grown:
        return f"NOT as declared: {grown} of {len(judged)} curves grow."
    is_short = done["nights"] < done["wanted"]
    return "It did not reach the last night; until then all is as declared." if is_short else "NOT as declared."


def thin(curve: Curve, points: int = POINTS) -> Curve:
    """About so many of its points, spread evenly, with the first and the last."""
    if len(curve) <= points:
        return curve
    step = (len(curve) - 1) / (points - 1)
    return [curve[round(number * step)] for number in range(points)]


def draw(values: Sequence[float], width: int = WIDTH) -> str:
    """A chart of one line, from 0 to the highest value: [1, 2, 4] -> "▂▄█"."""
    if not values or max(values) <= 0:
        return BARS[0] * min(len(values), width)
    width = min(width, len(values))
    ends = [round(number * len(values) / width) for number in range(width + 1)]
    highest = [max(values[begin:end]) for begin, end in pairwise(ends)]
    return "".join(BARS[max(0, round(value / max(values) * len(BARS)) - 1)] for value in highest)
