"""A run in a few lines: what was tried, what was compared, what was wrong, and how long recovery took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import quantiles

from rich.table import Table

from torture.result import Result, Shot


def summary(result: Result) -> list[tuple[str, str]]:
    """Name and value of everything that is to be known."""
    return [
        ("seed", str(result.seed)),
        ("minutes", f"{result.seconds / 60:.1f}"),
        ("faults", f"{len(result.shots):,}"),
        ("of them not injected", f"{len(result.not_injected):,}"),
        ("records sent", f"{result.sent:,} ({result.duplicates:,} copies, {result.poison:,} poison)"),
        ("acknowledged, refused, unknown", f"{result.acknowledged:,}, {result.refused:,}, {result.unknown:,}"),
        ("batch runs published", f"{result.runs:,}"),
        ("answers compared", f"{result.answers:,} ({result.degraded:,} degraded), {result.comparisons:,} values"),
        ("requests without an answer", ", ".join(f"{k}: {n:,}" for k, n in sorted(result.refusals.items())) or "0"),
        ("wrong", f"{len(result.wrong):,}"),
        ("acknowledged events lost", f"{len(result.lost):,}"),
        ("counted twice", f"{len(result.doubled):,}"),
        ("poison without its dead letter", f"{len(result.poison_missing):,}"),
        ("cuts that went back", f"{len(result.cut_regressions):,}"),
        ("not recovered from", f"{len(result.unrecovered):,}"),
    ]


def recovery(shots: Sequence[Shot]) -> list[tuple[str, int, float, float]]:
    """Of each kind of fault: how many shots, and the median and the 95th percentile of recovery, in seconds."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for shot in shots:
        if shot.recovery_s is not None:
            by_kind[shot.kind].append(shot.recovery_s)
    return [(kind, len(found), *_middle_and_most(found)) for kind, found in sorted(by_kind.items())]


def _middle_and_most(found: list[float]) -> tuple[float, float]:
    if len(found) == 1:
        return found[0], found[0]
    parts = quantiles(found, n=20, method="inclusive")
    return parts[9], parts[18]


def tables(result: Result) -> list[Table]:
    """For a terminal."""
    first = Table("", f"fault programme {result.seed}")
    for name, value in summary(result):
        first.add_row(name, value)
    second = Table("kind", "shots", "recovery p50", "p95")
    for kind, count, middle, most in recovery(result.shots):
        second.add_row(kind, str(count), f"{middle:.1f} s", f"{most:.1f} s")
    return [first, second]


def found(result: Result) -> list[str]:
    """Everything that was wrong, a line each."""
    return [
        *(f"{wrong.at:.0f} s: {wrong.what}: {wrong.detail}" for wrong in result.wrong),
        *(f"lost: {each}" for each in result.lost),
        *(f"twice: {each}" for each in result.doubled),
        *(f"poison: {each}" for each in result.poison_missing),
        *(f"cut went back: {each}" for each in result.cut_regressions),
        *(f"not recovered: {each}" for each in result.unrecovered),
        *(f"not injected: {each}" for each in result.not_injected if result.is_idle),
    ]
