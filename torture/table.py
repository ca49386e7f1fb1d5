"""The result of a run for a terminal: what was tried, compared and wrong, and how long recovery took."""

from __future__ import annotations

from rich.table import Table

from torture.report import COLUMNS, broken_promises, by_kind, cells, idle_reason
from torture.result import ProgrammeResult


def summary(result: ProgrammeResult) -> list[tuple[str, str]]:
    """Names and values of a run."""
    return [
        ("seed", str(result.seed)),
        ("minutes", f"{result.seconds / 60:.1f}"),
        ("faults", f"{len(result.shots):,}"),
        ("not injected", f"{len(result.not_injected):,}" + (", which is too many" if result.is_idle else "")),
        ("records sent", f"{result.sent:,} ({result.duplicates:,} duplicates, {result.poison:,} poison)"),
        ("acknowledged, refused, unknown", f"{result.acknowledged:,}, {result.refused:,}, {result.unknown:,}"),
        ("batch runs published, failed", f"{result.runs:,}, {len(result.failed_runs):,}"),
        ("answers compared", f"{result.answers:,} ({result.degraded:,} degraded), {result.comparisons:,} values"),
        ("episodes of alerts compared", f"{result.episodes:,}"),
        (
            "requests without an answer, by status",
            ", ".join(f"{k}: {n:,}" for k, n in sorted(result.refusals.items())) or "0",
        ),
        ("wrong", f"{len(result.wrong):,}"),
        ("acknowledged events lost", f"{len(result.lost):,}"),
        ("events counted twice", f"{len(result.doubled):,}"),
        ("poison records without a dead letter", f"{len(result.poison_missing):,}"),
        ("cuts that went back", f"{len(result.cut_regressions):,}"),
        ("not recovered from", f"{len(result.unrecovered):,}"),
    ]


def tables(result: ProgrammeResult) -> list[Table]:
    """The summary, and recovery by kind of fault."""
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


def remarks(result: ProgrammeResult) -> list[str]:
    """What is not wrong but proves less than planned, a line each."""
    return [
        *(f"not injected: {each}" for each in result.not_injected if not result.is_idle),  # else it is among `findings`
        *(f"not tried, for lack of time: {each}" for each in result.not_tried),
    ]
