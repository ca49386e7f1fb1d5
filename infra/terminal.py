"""What a person sees in the terminal: tables, live status, progress bars."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from infra.settings import Row
    from infra.stack.doctor import Finding

# No markup: messages and paths may hold brackets, which are no tags.
out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)

COLOURS = {
    "ready": "green", "ok": "green", "starting": "yellow", "waiting": "yellow", "pausing": "yellow",
    "warning": "yellow", "stopping": "yellow", "unresponsive": "red", "failed": "red", "stopped": "dim",
}  # fmt: skip


def print_json(value: Any) -> None:
    """A result for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_first_key(secret: str) -> None:
    """The first access key, which nobody can read again."""
    out.print(
        f"The first access key of this home: name admin, secret {secret}\n"
        "It is shown only now; keep it. `tidemark keys add` makes more.",
        highlight=False,
        soft_wrap=True,
    )


@contextmanager
def live_status() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show each status as it comes: one table that changes in a terminal, a line for each change elsewhere."""
    if not out.is_terminal:
        yield _line_printer()
        return
    with Live(console=out, auto_refresh=False) as live:

        def show(status: dict[str, Any]) -> None:
            live.update(status_table(status), refresh=True)

        yield show


def _line_printer() -> Callable[[dict[str, Any]], None]:
    states: dict[str, str] = {}

    def show(status: dict[str, Any]) -> None:
        for service in status["services"]:
            if states.get(service["name"]) != service["state"]:
                states[service["name"]] = service["state"]
                out.print(f"{service['name']} {service['state']} {service['address']}", highlight=False)

    return show


def status_table(status: dict[str, Any]) -> Table:
    """One line a service."""
    table = Table(title=f"Tidemark {status['version']} in {status['home']}", title_justify="left", title_style="bold")
    for heading in ("service", "state", "address", "pid", "memory", "restarts", "note"):
        table.add_column(heading, justify="right" if heading in ("pid", "memory", "restarts") else "left")
    for service in status["services"]:
        table.add_row(
            service["name"],
            coloured(service["state"]),
            service["address"],
            str(service["pid"] or ""),
            memory(service["pid"]),
            str(service["restarts"]),
            service["message"],
        )
    return table


def print_status(status: dict[str, Any]) -> None:
    """The table of `tidemark status`."""
    out.print(status_table(status))
    out.print(
        f"supervisor: process {status['pid']}, up for {duration(time.time() - status['began'])}",
        highlight=False,
    )


def print_result(
    rows: Sequence[Mapping[str, Any]], output: str, if_empty: str = "", as_is: Collection[str] = ()
) -> None:
    """What a command found: JSON, or a table whose columns are the keys of its rows, or `if_empty`.

    Counts are written like 1,204; numbers in the columns `as_is`, which one pastes into another command, like 1204.
    """
    if output == "json":
        print_json(rows)
    elif rows:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(Text(_cell(value, name in as_is)) for name, value in row.items()))
        out.print(table)
    elif if_empty:
        sys.stdout.write(f"{if_empty}\n")


def _cell(value: Any, as_is: bool) -> str:
    is_count = isinstance(value, int) and not isinstance(value, bool) and not as_is
    return f"{value:,}" if is_count else str(value)


def print_findings(findings: Sequence[Finding]) -> None:
    """The table of `tidemark doctor`."""
    table = Table("check", "verdict", "found", "fix")
    for finding in findings:
        table.add_row(finding.what, coloured(finding.verdict), finding.found, finding.fix)
    out.print(table)


def print_settings(rows: Sequence[Row]) -> None:
    """The table of `tidemark config`."""
    table = Table("setting", "value", "from", "what it is for")
    for row in rows:
        table.add_row(row.name, Text(row.value), row.origin, Text(row.help))
    out.print(table)


def jar_progress() -> AbstractContextManager[Callable[[int, int, str], None]]:
    """A bar for fetching jars; nothing is drawn while nothing has to be fetched."""
    return step_progress("fetching jars")


@contextmanager
def step_progress(what_is_done: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar for counted steps: call it with how many of how many are done, and what comes next."""
    columns = (
        TextColumn(what_is_done),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", visible=False)

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what, visible=True)

        yield advance


@contextmanager
def run_progress(source: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for a batch run: call it with the stage, and how many rows of how many are done; 0 of 0: not known."""
    columns = (
        TextColumn(f"{source}: {{task.description}}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", visible=False, rows="")
        stages = [""]

        def report(stage: str, done: int, total: int) -> None:
            if stage != stages[0]:
                stages[0] = stage
                bar.reset(task, description=stage)  # the time left is that of the stage
            rows = f"{done:,} of {total:,} rows" if total else ""
            bar.update(task, completed=done, total=total or None, rows=rows, visible=True)

        yield report


def coloured(word: str) -> Text:
    """A state or verdict in its colour."""
    return Text(str(word), style=COLOURS.get(str(word), ""))


def memory(pid: int | None) -> str:
    """Resident memory of a process, like `412 MB`."""
    try:
        return f"{psutil.Process(pid).memory_info().rss // 2**20} MB" if pid else ""
    except psutil.Error:
        return ""


def duration(seconds: float) -> str:
    """Like `3 h 12 min`, `12 min 5 s` or `42 s`."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
