"""A run in a few lines: what was tried, what was compared, what was wrong, and how long recovery took."""

from __future__ import annotations

from rich.table import Table

from torture.report import COLUMNS, by_kind, cells, idle_reason
from torture.result import ProgrammeResult


def summary(result: ProgrammeResult) -> list[tuple[str, str]]:
    """Name and value of everything that is to be known."""
    return [
        ("seed", str(result.seed)),
        ("minutes", f"{result.seconds / 60:.1f}"),
        ("faults", f"{len(result.shots):,}"),
        ("of which not injected", f"{len(result.not_injected):,}" + (", which is too many" if result.is_idle else "")),
        ("records sent", f"{result.sent:,} ({result.duplicates:,} copies, {result.poison:,} poison)"),
        ("acknowledged, refused, unknown", f"{result.acknowledged:,}, {result.refused:,}, {result.unknown:,}"),
        ("batch runs published, failed", f"{result.runs:,}, {len(result.failed_runs):,}"),
        ("answers compared", f"{result.answers:,} ({result.degraded:,} degraded), {result.comparisons:,} values"),
        ("episodes of alerts compared", f"{result.episodes:,}"),
        ("requests without an answer", ", ".join(f"{k}: {n:,}" for k, n in sorted(result.refusals.items())) or "0"),
        ("wrong", f"{len(result.wrong):,}"),
        ("acknowledged events lost", f"{len(result.lost):,}"),
        ("counted twice", f"{len(result.doubled):,}"),
        ("poison without its dead letter", f"{len(result.poison_missing):,}"),
        ("cuts that went back", f"{len(result.cut_regressions):,}"),
        ("not recovered from", f"{len(result.unrecovered):,}"),
    ]


def tables(result: ProgrammeResult) -> list[Table]:
    """For a terminal."""
    first = Table("", f"fault programme {result.seed}")
    for name, value in summary(result):
        first.add_row(name, value)
    second = Table(*COLUMNS)
    for line in by_kind(result.shots):
        second.add_row(*cells(line))
    return [first, second]


def findings(result: ProgrammeResult) -> list[str]:
    """Everything that was wrong, a line each, and that too little was tried."""
    return [
        *broken_promises(result),
        *([f"{idle_reason(result)}: {'; '.join(result.not_injected)}"] if result.is_idle else []),
    ]


def broken_promises(result: ProgrammeResult) -> list[str]:
    """Everything that was wrong with the platform, a line each."""
    return [
        *(f"{wrong.at:.0f} s: {wrong.what}: {wrong.detail}" for wrong in result.wrong),
        *(f"lost: {each}" for each in result.lost),
        *(f"twice: {each}" for each in result.doubled),
        *(f"poison: {each}" for each in result.poison_missing),
        *(f"cut went back: {each}" for each in result.cut_regressions),
        *(f"not recovered: {each}" for each in result.unrecovered),
        *(f"set aside: {each}" for each in result.quarantined),
    ]


def remarks(result: ProgrammeResult) -> list[str]:
    """What is no wrong, and to be known all the same, a line each."""
    return [
        *(f"not injected: {each}" for each in result.not_injected if not result.is_idle),  # else it is among `found`
        *(f"not tried, for lack of time: {each}" for each in result.not_tried),
    ]
