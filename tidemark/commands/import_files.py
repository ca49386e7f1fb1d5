"""`tidemark import`: files of events into a source."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from infra import terminal
from infra.clients.redis import redis_client
from infra.errors import NotRunning
from infra.home import Home
from infra.settings import Settings, load_settings
from infra.stack.addresses import addresses
from master_dataset.cut import ranges
from master_dataset.errors import MasterDatasetError
from master_dataset.importer.detect import make_reader
from master_dataset.importer.errors import UnusableInput
from master_dataset.importer.formats import ImportFormat, Options
from master_dataset.importer.import_loop import Import, Interrupted
from master_dataset.importer.inputs import Input, find_input, open_input
from master_dataset.importer.journal import ImportJournal, Start, find_start
from master_dataset.importer.rejects import Rejects
from master_dataset.importer.report import ImportOutcome, print_outcomes, progress_bar
from master_dataset.importer.sender import Sender, ensure_topic
from master_dataset.kafka.positions import KafkaBehind, check_topic_id, logical_positions, read_positions
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from tidemark.commands.import_load import Load, announced_load, total_bytes
from tidemark.commands.import_wait import is_awaited, progress_of, wait_for_answers
from tidemark.commands.options import Output, OutputOption
from views.declarations import declared_by
from views.source import Source

DONE, INTERRUPTED = "done", "interrupted"
WAITING = "sent"
"""All is sent, and somebody did not wait until the answers hold it."""


def command(
    files: Annotated[list[str], typer.Argument(help="Files to import, plain or gzip; - is standard input.")],
    source: Annotated[
        str, typer.Option("--source", "-s", envvar="TIDEMARK_CLI_SOURCE", help="The source that gets the events.")
    ],
    format_: Annotated[
        ImportFormat, typer.Option("--format", "-f", envvar="TIDEMARK_CLI_FORMAT", help="How the lines are written.")
    ] = ImportFormat.AUTO,
    timezone: Annotated[
        str,
        typer.Option(
            envvar="TIDEMARK_CLI_TIMEZONE",
            help="Time zone of times without one, in CSV and W3C files: Europe/Vienna, for example.",
        ),
    ] = "UTC",
    delimiter: Annotated[
        str,
        typer.Option(envvar="TIDEMARK_CLI_DELIMITER", help="Delimiter of CSV cells; empty: detected from the header."),
    ] = "",
    origin: Annotated[
        str,
        typer.Option(
            envvar="TIDEMARK_CLI_ORIGIN",
            help="Name of the machine that wrote the file: equal lines of different origins are different events.",
        ),
    ] = "",
    ignore_unknown: Annotated[
        bool,
        typer.Option(
            "--ignore-unknown",
            envvar="TIDEMARK_CLI_IGNORE_UNKNOWN",
            help="Leave out columns of CSV that the source does not declare.",
        ),
    ] = False,
    rejects: Annotated[
        Path | None,
        typer.Option(envvar="TIDEMARK_CLI_REJECTS", help="File for the refused lines, each with its reason."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            envvar="TIDEMARK_CLI_AGAIN",
            help="Send the files again from their beginning, even if they were imported before.",
        ),
    ] = False,
    wait: Annotated[
        float, typer.Option(min=1, envvar="TIDEMARK_CLI_WAIT", help="Seconds to wait for Kafka before giving up.")
    ] = 30,
    no_wait: Annotated[
        bool,
        typer.Option(
            "--no-wait",
            envvar="TIDEMARK_CLI_NO_WAIT",
            help="Return once Kafka has the events, without waiting until the answers hold them.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send the lines of files as events into a source: NDJSON, CSV, W3C and web-server logs.

    Ids come from the content, so importing twice counts once. If it is interrupted, the same command continues where
    it stopped. It ends when the answers hold the events. Exit code 1 when every line of a file was refused.
    """
    options = _options(format_, timezone, delimiter, origin, ignore_unknown=ignore_unknown)
    settings = load_settings()
    declarations = declared_by(settings)
    into = declarations.source(source)
    bootstrap = _kafka_address(settings)
    found = {each.path or each.name: each for each in map(find_input, files)}  # a file named twice is imported once
    plans = [_Plan(settings, into, options, each, again=again) for each in found.values()]

    @cache
    def sender() -> Sender:
        ensure_topic(settings, bootstrap, into, wait)
        return Sender(settings, bootstrap, into.topic, wait)

    outcomes: list[ImportOutcome] = []
    try:
        with (
            Rejects(rejects, go_on=any(plan.is_known for plan in plans)) as rejected,
            announced_load(settings, source, total_bytes([each.size for each in found.values()])) as load,
        ):
            for plan in plans:
                outcomes.append(plan.run(sender, rejected, load))
                if outcomes[-1].state == INTERRUPTED:
                    break
        has_views = any(declarations.views_of(source))
        if not no_wait and any(each.sent_now for each in outcomes) and is_awaited(settings, has_views=has_views):
            outcomes = _wait(settings, bootstrap, into, outcomes)
    finally:  # what was done before an error is reported as well
        if outcomes:
            _print(outcomes, output)
    if outcomes[-1].state == INTERRUPTED:
        sys.stderr.write("tidemark: interrupted. Run the same command again: it continues where it stopped.\n")
        raise typer.Exit(130)
    if outcomes[-1].state == WAITING:
        sys.stderr.write("tidemark: interrupted. Kafka has all events; the answers will hold them by themselves.\n")
        raise typer.Exit(130)
    raise typer.Exit(1 if any(each.tally.lines and not each.tally.sent for each in outcomes) else 0)


def _wait(settings: Settings, bootstrap: str, into: Source, outcomes: list[ImportOutcome]) -> list[ImportOutcome]:
    """Wait until the answers hold all that Kafka has now. Ctrl-C ends the waiting alone."""
    if outcomes[-1].state == INTERRUPTED:
        return outcomes
    held = coverage.of(table_path(settings, into.name))
    try:
        positions = logical_positions(read_positions(settings, bootstrap, into), held.offset_base)
        check_topic_id(into, positions.topic_id, held.topic_id)
        if behind := list(ranges(positions.latest, held.cut)):
            raise KafkaBehind(into, behind)
    except MasterDatasetError as error:  # all is sent, but nobody reads it before this is fixed
        note = str(error)
        return [replace(each, in_answers=False, not_in_answers=note) if each.sent_now else each for each in outcomes]
    target = positions.latest
    try:
        with (
            redis_client(settings, addresses(settings).redis, timeout_s=5) as client,
            terminal.step_progress("in the answers") as show,
        ):
            awaited = wait_for_answers(lambda: progress_of(settings, into.name, client), target, show)
    except KeyboardInterrupt:
        return [replace(each, state=WAITING) if each.sent_now else each for each in outcomes]
    return [
        replace(each, in_answers=awaited.is_complete, answers_s=awaited.seconds, not_in_answers=awaited.note)
        if each.sent_now
        else each
        for each in outcomes
    ]


class _Plan:
    """A file whose format is known. Files are looked at all before the first line is sent, and opened one by one."""

    def __init__(self, settings: Settings, source: Source, options: Options, found: Input, *, again: bool) -> None:
        self._found, self._source, self._again = found, source, again
        self._options = options
        self._journal: ImportJournal | None = None
        if found.path is not None:
            with open_input(found) as stream:
                format_ = make_reader(source, options, stream.peek(), found.name).format
            home = Home(settings.home)
            home.prepare()
            self._journal = ImportJournal(home.root / "imports", found, source.name, format_, options)
        self.is_known = self._journal is not None and not again and self._journal.read() is not None

    def run(self, sender: Callable[[], Sender], rejects: Rejects, load: Load) -> ImportOutcome:
        """Import it, unless it is done."""
        if self._journal is None:
            return self._run(Start(), sender, rejects, load)
        with self._journal.locked():
            start = find_start(self._journal.read(), self._found, again=self._again)
            return self._run(start, sender, rejects, load)

    def _run(self, start: Start, sender: Callable[[], Sender], rejects: Rejects, load: Load) -> ImportOutcome:
        name, entry, began = self._found.name, start.entry, time.monotonic()
        with open_input(self._found) as stream, progress_bar(name, self._found.size) as show:
            reader = make_reader(self._source, self._options, stream.peek(), name)
            if entry is not None and start.is_done:
                return ImportOutcome(name, reader.format, "done before", start.note, entry.tally, 0, 0)
            if start.note:
                terminal.err.print(f"{name}: {start.note}.", highlight=False, markup=False)
            work = Import(
                self._found, self._source, reader, stream, self._options.origin, start, self._journal,
                sender(), rejects, load.shown_by(show),
            )  # fmt: skip
            state = DONE
            try:
                work.run()
            except Interrupted:
                state = INTERRUPTED
        load.finish_file(self._found.size or 0, work.tally.sent)
        sent_now = work.tally.sent - (entry.tally.sent if entry else 0)
        return ImportOutcome(name, reader.format, state, start.note, work.tally, sent_now, time.monotonic() - began)


def _options(format_: ImportFormat, timezone: str, delimiter: str, origin: str, *, ignore_unknown: bool) -> Options:
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UnusableInput(
            f"--timezone is {timezone!r}, which is no time zone. Name one like UTC or Europe/Vienna."
        ) from None
    delimiter = {"tab": "\t", r"\t": "\t"}.get(delimiter, delimiter)
    if len(delimiter) > 1 or delimiter in ('"', "\n", "\r"):
        raise UnusableInput(f"--delimiter is {delimiter!r}; it should be one character, or tab.")
    return Options(format_, timezone, delimiter, origin, ignore_unknown, zone)


def _kafka_address(settings: Settings) -> str:
    found = addresses(settings).kafka
    if found.endswith(":0"):
        raise NotRunning(f"Nothing ever ran on {settings.home}. Start it with `tidemark up --detach`.")
    return found


def _print(outcomes: list[ImportOutcome], output: Output) -> None:
    if output is Output.JSON:
        terminal.print_json([outcome.as_json() for outcome in outcomes])
    else:
        print_outcomes(outcomes)
