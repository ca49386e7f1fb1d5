"""`tidemark dead`: list and show invalid records, and send them again once the cause is fixed."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from master_dataset.dead_letters.later_readings import LaterReadings
    from master_dataset.dead_letters.letters import DeadLetter
    from views.source import Source

app = typer.Typer(no_args_is_help=True)

SourceArgument = Annotated[str, typer.Argument(help="Name of the source.")]


@app.command("list")
def list_letters(
    source: SourceArgument,
    limit: Annotated[int, typer.Option(min=1, envvar="TIDEMARK_CLI_LIMIT", help="How many of the newest.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the newest invalid records of a source: the location of each, and why it is invalid."""
    from infra import terminal
    from master_dataset.dead_letters.letters import newest_first

    config, declared, readings = _connect(source)
    rows = [_summary(letter, readings) for letter in islice(newest_first(config, declared), limit)]
    location = ("number", "partition", "offset")
    terminal.print_result(rows, output, f"{source} has no invalid records.", as_is=location)


@app.command()
def show(
    source: SourceArgument,
    number: Annotated[int, typer.Argument(min=0, help="Number of the dead letter, as `list` prints it.")],
    output: OutputOption = Output.JSON,
) -> None:
    """Show one invalid record whole: its key, headers and value."""
    from infra import terminal

    config, declared, readings = _connect(source)
    found = readings.described(_one(config, declared, number))
    if output is Output.JSON:
        terminal.print_json(found)
    else:
        terminal.print_pairs(found)


@app.command()
def replay(
    source: SourceArgument,
    first: Annotated[int, typer.Argument(min=0, help="First dead letter to send again.")],
    last: Annotated[int | None, typer.Argument(min=0, help="Last one; only the first if not given.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send invalid records to the source's topic again, as they were, for instance after its fields were fixed."""
    from infra import terminal
    from master_dataset.dead_letters.letters import read_letters
    from master_dataset.dead_letters.letters import replay as send_again

    config, declared, readings = _connect(source)
    _one(config, declared, first)
    end = (first if last is None else last) + 1
    letters = list(read_letters(config, declared, first, end))
    readings.check_replay(letters)
    sent = send_again(config, declared, letters)
    if output is Output.JSON:
        terminal.print_json({"topic": declared.topic, "sent": sent})
    else:
        typer.echo(f"Sent {sent:,} records to {declared.topic} again.")


def _one(config: dict[str, Any], source: Source, number: int) -> DeadLetter:
    from master_dataset.dead_letters.letters import read_letters, watermarks
    from master_dataset.errors import MasterDatasetError

    start, end = watermarks(config, source)
    if not start <= number < end:
        there = f"There are {start} to {end - 1}." if end > start else "There are none."
        raise MasterDatasetError(f"Source {source.name!r} has no dead letter {number}. {there}")
    letter = next(iter(read_letters(config, source, number, number + 1)), None)
    if letter is None:
        raise MasterDatasetError(
            f"Source {source.name!r} has no dead letter {number}: a transaction ends there, or it was compacted. "
            f"`tidemark dead list {source.name}` shows those that there are."
        )
    return letter


def _summary(letter: DeadLetter, readings: LaterReadings) -> dict[str, Any]:
    since = readings.counts_since(letter)
    value = letter.value or b""
    shown = value[:60].decode("utf-8", errors="backslashreplace")
    return {
        "number": letter.number,
        "partition": letter.partition,
        "offset": letter.offset,
        "reason": letter.reason if since is None else f"{letter.reason} (counts since version {since})",
        "value": shown if letter.left_out_bytes is None else f"{letter.left_out_bytes:,} bytes, too large",
    }


def _connect(name: str) -> tuple[dict[str, Any], Source, LaterReadings]:
    from master_dataset.dead_letters.later_readings import LaterReadings
    from master_dataset.kafka.connection import connect
    from master_dataset.table.paths import table_path

    connected = connect()
    source = connected.declarations.source(name)
    return connected.kafka, source, LaterReadings(table_path(connected.settings, name), source)
