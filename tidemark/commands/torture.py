"""`tidemark torture`: the fault programme, on an installation of its own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from infra import terminal
from infra.home import read_json
from torture.errors import TortureError
from torture.fault import KINDS
from torture.faults import all_faults
from torture.home_copy import copied
from torture.links import PAIRS
from torture.plan import usable
from torture.programme import ON_DISKS, RATE, ProgrammeOptions, torture
from torture.report import is_tables, tables_path, write_report
from torture.result import ProgrammeResult, Shot
from torture.table import findings, remarks, tables

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def command(
    shots: Annotated[int, typer.Option(min=1, envvar="TIDEMARK_CLI_SHOTS", help="Number of faults.")] = 90,
    seed: Annotated[
        int | None,
        typer.Option(
            envvar="TIDEMARK_CLI_SEED", help="The same seed gives the same events and faults.", show_default="any"
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, envvar="TIDEMARK_CLI_MINUTES", help="Start no new fault after this time.")
    ] = 15,
    kinds: Annotated[
        str,
        typer.Option(
            envvar="TIDEMARK_CLI_KINDS",
            help=f"Only these kinds, separated by commas: {', '.join(KINDS)}.",
            show_default="all",
        ),
    ] = "",
    rate: Annotated[float, typer.Option(min=1, envvar="TIDEMARK_CLI_RATE", help="Records sent a second.")] = RATE,
    copy_of: Annotated[
        Path | None,
        typer.Option(
            envvar="TIDEMARK_CLI_COPY_OF",
            help="A home whose views and settings are tested instead of the built-in shop. It is only read.",
            show_default="none",
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            envvar="TIDEMARK_CLI_SOURCE", help="The source of that home to test (--copy-of).", show_default="the first"
        ),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            envvar="TIDEMARK_CLI_FOLDER",
            help="An empty or new folder for the installation.",
            show_default="a temporary one",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            envvar="TIDEMARK_CLI_REPORT",
            help="Write a report as an HTML page, and its tables as Markdown beside it: page.html and page.md.",
            show_default="none",
        ),
    ] = None,
    sabotages: Annotated[
        Path | None,
        typer.Option(
            envvar="TIDEMARK_CLI_SABOTAGES",
            help="The sabotages.json of `python -m tests.torture.all_sabotages`, for the report.",
            show_default="none",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder even when nothing was wrong.")] = False,
) -> None:
    """Inject faults into an installation of its own, and compare every answer with the reference interpreter."""
    options = ProgrammeOptions(_seed(seed), shots, minutes, _kinds(kinds), rate)
    if source and copy_of is None:
        raise typer.BadParameter(
            f"{source!r} needs --copy-of, which names the home that has this source. "
            "The built-in shop has only one source.",
            param_hint="--source (TIDEMARK_CLI_SOURCE)",
        )
    if report is not None:
        _check_report(report, folder)
    installation_options: dict[str, Any] = {} if copy_of is None else copied(copy_of, source)
    faults, left_out = usable(all_faults(), options.kinds)
    workdir = _own_folder(folder)
    terminal.err.print(f"seed {options.seed}, {shots} of {len(faults)} faults, in {workdir}", highlight=False)
    for name, reason in left_out.items():
        terminal.err.print(f"left out: {name}: {reason}", highlight=False)
    installation_options["has_disks"] = any(fault.kind in ON_DISKS for fault in faults)
    with _left_as_evidence(workdir, keep=keep):
        with ended_by_signals():
            result = torture(workdir, options, faults, _tell, links=PAIRS, **installation_options)
        _show(result)
        if report is not None:
            write_report(result, report, None if sabotages is None else read_json(sabotages))
            terminal.err.print(f"wrote {report} and {tables_path(report)}", highlight=False, soft_wrap=True)
        if not result.is_right:
            raise typer.Exit(1)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does: processes, mounts and what lies in memory go with it.

    Once it is ending, further ones do not disturb it, but for Ctrl-C. A signal that is ignored (nohup) stays so.
    """
    is_ending = False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal is_ending
        if number == signal.SIGINT or not is_ending:
            is_ending = True
            raise KeyboardInterrupt

    before = {each: signal.getsignal(each) for each in ENDING if signal.getsignal(each) != signal.SIG_IGN}
    for each in before:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _left_as_evidence(workdir: Path, *, keep: bool) -> Iterator[None]:
    """Remove the folder after a block that ends well; otherwise keep it, and print its path."""
    is_well = False
    try:
        yield
        is_well = True
    finally:
        if keep or not is_well:
            what = "fates.jsonl, result.json, and the home or its logs"
            terminal.err.print(f"kept {workdir}: {what}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(workdir, ignore_errors=True)


def _show(result: ProgrammeResult) -> None:
    for table in tables(result):
        terminal.out.print(table)
    for line in (*findings(result), *remarks(result)):
        terminal.out.print(line, highlight=False, markup=False, soft_wrap=True)


def _check_report(report: Path, folder: Path | None) -> None:
    """Fail now if the report cannot be written at the end."""
    above = report.absolute().parent
    if folder is not None and report.absolute().is_relative_to(folder.absolute()):
        raise typer.BadParameter(
            f"{str(report)!r} is in --folder, which is removed when nothing was wrong.", param_hint="--report"
        )
    if not above.is_dir():
        raise typer.BadParameter(f"{str(report)!r}: there is no folder {str(above)!r}.", param_hint="--report")
    if not report.name or report == tables_path(report):
        raise typer.BadParameter(f"{str(report)!r} cannot be written. Name a page: page.html.", param_hint="--report")
    for path in (report, tables_path(report)):
        if path.is_dir() or not os.access(path if path.exists() else above, os.W_OK):
            raise typer.BadParameter(f"{str(path)!r} cannot be written. Name a file.", param_hint="--report")
    if tables_path(report).exists() and not is_tables(tables_path(report)):
        raise typer.BadParameter(
            f"the tables would go to {str(tables_path(report))!r}, which is something else. Name another page.",
            param_hint="--report",
        )


def _seed(given: int | None) -> int:
    return random.randrange(10**6) if given is None else given  # noqa: S311  # which faults, no secret


def _own_folder(folder: Path | None) -> Path:
    """A folder that is ours: all of it is removed in the end."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="tidemark-torture-"))
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise TortureError(
            f"--folder is {str(folder)!r}, which is not empty. It is removed at the end; name a new one."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _kinds(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise TortureError(f"--kinds names {name!r}, which is no kind of fault. The kinds are {', '.join(KINDS)}.")
    return names


def _tell(number: int, shot: Shot) -> None:
    recovered = "next fault at once" if shot.recovery_s is None else f"recovered in {shot.recovery_s:.1f} s"
    if not shot.is_injected:
        recovered = f"not injected, {recovered}"
    note = f" ({shot.note})" if shot.note else ""
    terminal.err.print(
        f"{shot.at:7.1f} s  {number:3}  {shot.fault}{note}: {recovered}, {shot.comparisons:,} values compared",
        highlight=False,
    )
