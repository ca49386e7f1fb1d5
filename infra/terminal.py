"""Output for people: results, the live status and progress bars."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from infra.tables import pairs_table, result_table
from infra.times import readable_utc

if TYPE_CHECKING:
    from infra.settings import Row
    from infra.stack.doctor import Finding

# No markup: messages and paths may hold brackets, which are no tags.
out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """A result for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_json_line(value: Any) -> None:
    """One of several results for programs, each on a line of its own, at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


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


def status_table(status: dict[str, Any]) -> RenderableType:
    """One line a service, and below them the messages of those that have one."""
    home = f"{status['home']}{os.sep}"
    rows = [
        {
            "service": service["name"],
            "state": service["state"],
            "address": service["address"].removeprefix(home),
            "pid": service["pid"],
            "memory": memory(service["pid"]),
            "restarts": service["restarts"],
        }
        for service in status["services"]
    ]
    title = Text(f"Tidemark {status['version']} in {status['home']}", style="bold", overflow="fold")
    table = result_table(rows, out.width, as_is=("pid",), optional=("pid", "restarts")) if rows else ""
    notes = {service["name"]: service["message"] for service in status["services"] if service["message"]}
    return Group(title, table, pairs_table(notes)) if notes else Group(title, table)


def print_status(status: dict[str, Any]) -> None:
    """The table of `tidemark status`."""
    out.print(status_table(status))
    out.print(
        f"supervisor: process {status['pid']}, up for {duration(time.time() - status['began'])}",
        highlight=False,
    )
    for service in status["services"]:
        if last := service.get("last_restart"):
            when = readable_utc(last["at"])
            text = f"{service['name']} was last restarted at {when}: {last['reason']}"
            out.print(text, highlight=False, soft_wrap=True)


def print_result(
    rows: Sequence[Mapping[str, Any]],
    output: str,
    if_empty: str = "",
    *,
    as_is: Collection[str] = (),
    optional: Sequence[str] = (),
    group_by: str = "",
) -> None:
    """The result of a command: JSON, or a table whose columns are the keys of its rows, or `if_empty`.

    Counts are written like 1,204; numbers in the columns `as_is`, which one pastes into another command, like 1204.
    A table that is too wide for the terminal loses the columns `optional`, and else becomes one block a row.
    """
    if output == "json":
        print_json(rows)
    elif rows:
        out.print(result_table(rows, out.width, as_is=as_is, optional=optional, group_by=group_by))
    elif if_empty:
        sys.stdout.write(f"{if_empty}\n")


def print_pairs(pairs: Mapping[str, Any]) -> None:
    """The parts of one result, a line each."""
    out.print(pairs_table(pairs))


def print_findings(findings: Sequence[Finding]) -> None:
    """The table of `tidemark doctor`."""
    rows = [
        {
            "check": finding.what,
            "verdict": str(finding.verdict),
            "found": f"{finding.found}\nFix: {finding.fix}" if finding.fix else finding.found,
        }
        for finding in findings
    ]
    out.print(result_table(rows, out.width))


def print_settings(rows: Sequence[Row]) -> None:
    """Every setting with its value and what it is for; where the value comes from unless it is the default."""
    for row in rows:
        origin = "" if row.origin == "default" else f"  (from {row.origin})"
        out.print(Text(f"{row.name} = {row.value}{origin}", style="bold" if origin else ""), soft_wrap=True)
        out.print(Padding(Text(row.help, style="dim"), (0, 0, 0, 4)))


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


def memory(pid: int | None) -> str:
    """Resident memory of a service like `412 MB`: its process and all below it, such as its JVM."""
    found = memory_mb(pid)
    return "" if found is None else f"{found:,} MB"


def memory_mb(pid: int | None) -> int | None:
    """The same in MB; None where there is no such process."""
    try:
        process = psutil.Process(pid) if pid else None
        below = process.children(recursive=True) if process else []
    except psutil.Error:
        return None
    return None if process is None else sum(map(_resident, [process, *below])) // 2**20


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it ended meanwhile
        return 0


def duration(seconds: float) -> str:
    """Like `3 h 12 min`, `12 min 5 s` or `42 s`."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
