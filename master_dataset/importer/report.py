"""What a person or a program sees of an import: a bar while it runs, figures and reasons at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from infra import terminal
from master_dataset.importer.formats import ImportFormat
from master_dataset.importer.tally import Tally


@dataclass(frozen=True)
class ImportOutcome:
    """What became of one file. The figures of `tally` are of the whole file, `sent_now` and `seconds` of this run."""

    file: str
    format: ImportFormat
    state: str
    note: str
    tally: Tally
    sent_now: int
    seconds: float
    in_answers: bool | None = None
    """Whether the answers hold what was sent now; None: that was not waited for."""
    answers_s: float | None = None
    """How long it was waited for after all files were sent."""
    not_in_answers: str = ""
    """Why the answers do not hold it."""

    def as_json(self) -> dict[str, Any]:
        """For `--output json`."""
        reasons = [{"reason": name, **vars(reason)} for name, reason in self.tally.reasons.items()]
        return {
            "file": self.file,
            "format": self.format,
            "state": self.state,
            "note": self.note,
            "lines": self.tally.lines,
            "sent": self.tally.sent,
            "refused": self.tally.refused,
            "sent_now": self.sent_now,
            "seconds": round(self.seconds, 3),
            "in_answers": self.in_answers,
            "answers_seconds": None if self.answers_s is None else round(self.answers_s, 3),
            "not_in_answers": self.not_in_answers,
            "reasons": reasons,
        }


@contextmanager
def progress_bar(name: str, total_bytes: int | None) -> Iterator[Callable[[int, Tally], None]]:
    """A bar with bytes, events a second and refused lines; nothing unless stderr is a terminal."""
    if not terminal.err.is_terminal:
        yield lambda _done, _tally: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=terminal.err, transient=True) as bar:
        task = bar.add_task(Text(name).markup, total=total_bytes, figures="")
        sent_before: int | None = None

        def show(done: int, tally: Tally) -> None:
            nonlocal sent_before
            sent_before = tally.sent if sent_before is None else sent_before
            rate = (tally.sent - sent_before) / (bar.tasks[0].elapsed or 1)
            figures = f"{rate:,.0f} events/s, {tally.refused:,} refused"
            bar.update(task, completed=done, figures=figures)

        yield show


def print_outcomes(outcomes: list[ImportOutcome]) -> None:
    """The tables at the end: one line a file, and one a reason."""
    files, reasons = [], []
    for outcome in outcomes:
        tally = outcome.tally
        rate = round(outcome.sent_now / outcome.seconds) if outcome.sent_now and outcome.seconds else None
        counts = {"sent": tally.sent, "refused": tally.refused, "events/s": rate}
        files.append({"file": outcome.file, "format": str(outcome.format), "state": outcome.state, **counts})
        for name, reason in tally.reasons.items():
            example = f"{outcome.file}:{reason.first_line}: {reason.example}"
            reasons.append({"refused because": name, "lines": reason.count, "first": example})
    terminal.print_result(files, "table")
    for outcome in outcomes:
        if outcome.note:
            terminal.out.print(f"{outcome.file}: {outcome.note}.", highlight=False, markup=False)
    for outcome in outcomes[-1:]:  # all files were waited for together
        if outcome.in_answers:
            text = f"The answers hold all events, {outcome.answers_s or 0:.1f} s after the last one was sent."
            terminal.out.print(text, highlight=False, markup=False)
        elif outcome.in_answers is False:
            text = f"The answers do not hold all events yet: {outcome.not_in_answers}."
            terminal.out.print(text, highlight=False, markup=False)
    terminal.print_result(reasons, "table")
