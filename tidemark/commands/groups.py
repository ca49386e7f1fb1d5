"""`tidemark groups`: the consumer groups of the Kafka of this home, and rewinding one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from kafka.admin import OffsetSpec

    from infra.clients.kafka_admin import KafkaAdmin

app = typer.Typer(no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(help="Name of the consumer group.")]
WAYS = "--to-beginning, --to-end, --to-time or --to-offset"


@app.command("list")
def list_groups(output: OutputOption = Output.TABLE) -> None:
    """List the consumer groups and their states."""
    from infra import terminal
    from master_dataset.kafka import groups

    terminal.print_result(groups.list_groups(_admin()), output, "There are no consumer groups.")


@app.command()
def show(group: GroupArgument, output: OutputOption = Output.TABLE) -> None:
    """Show a group: its members, and for each partition the committed offset, the end and the lag."""
    from infra import terminal
    from master_dataset.kafka.errors import TopicError
    from master_dataset.kafka.groups import describe_group

    found = describe_group(_admin(), group)
    if found is None:
        raise TopicError(f"There is no consumer group {group!r}. `tidemark groups list` shows those that there are.")
    if output is Output.JSON:
        terminal.print_json(found)
        return
    members = {
        "group": group,
        "state": found["state"],
        "members": len(found["members"]),
        "lag": found["lag"],
    }
    terminal.print_pairs(members)
    terminal.print_result(
        found["partitions"], output, "It has committed nothing.", as_is=("partition", "committed", "end")
    )
    holding = [
        {
            "member": member["client"],
            "host": member["host"],
            "partitions": ", ".join(f"{each['topic']}/{each['partition']}" for each in member["partitions"]) or "none",
        }
        for member in found["members"]
    ]
    terminal.print_result(holding, output)


@app.command()
def reset(
    group: GroupArgument,
    to_beginning: Annotated[
        bool, typer.Option("--to-beginning", envvar="TIDEMARK_CLI_TO_BEGINNING", help="Read everything again.")
    ] = False,
    to_end: Annotated[
        bool, typer.Option("--to-end", envvar="TIDEMARK_CLI_TO_END", help="Skip everything that is there.")
    ] = False,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            envvar="TIDEMARK_CLI_TO_TIME",
            help="Begin with the records of this time, like 2026-01-31T12:00:00Z.",
            show_default=False,
        ),
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--to-offset",
            envvar="TIDEMARK_CLI_TO_OFFSET",
            help="Begin at this offset: topic:partition:offset. May be repeated; other partitions stay as they are.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            envvar="TIDEMARK_CLI_TOPIC",
            help="Only in this topic, read before or not. May be repeated.",
            show_default="all that the group has read",
        ),
    ] = None,
    execute: Annotated[
        bool,
        typer.Option("--execute", envvar="TIDEMARK_CLI_EXECUTE", help="Do it. Without, only show what would change."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Rewind a group, or move it forward: show what would change, and with --execute change it.

    The group must have no members: they would go on from where they are.
    """
    from infra import terminal
    from master_dataset.kafka.rewind import plan_rewind, rewind

    target = _target(to_time, to_offset, to_beginning=to_beginning, to_end=to_end)
    if to_offset and topic:
        raise typer.BadParameter("--to-offset names its topics itself; leave --topic out.")
    admin = _admin()
    moves = plan_rewind(admin, group, target, topic or ())
    if execute:
        rewind(admin, group, moves)
    rows: list[dict[str, Any]] = [move._asdict() for move in moves]
    as_is = ("partition", "committed", "new")
    terminal.print_result(rows, output, f"Group {group} is there already: nothing changes.", as_is=as_is)
    if moves and not execute:
        typer.echo("Nothing was changed. Run it again with --execute.", err=True)


def _target(
    to_time: str | None, to_offset: list[str] | None, *, to_beginning: bool, to_end: bool
) -> OffsetSpec | int | dict[tuple[str, int], int]:
    from master_dataset.kafka.topics import EARLIEST, LATEST

    if sum((to_beginning, to_end, to_time is not None, bool(to_offset))) != 1:
        raise typer.BadParameter(f"give one of {WAYS}.")
    if to_time is not None:
        return _milliseconds(to_time)
    if to_offset:
        return dict(map(_location, to_offset))
    return EARLIEST if to_beginning else LATEST


def _milliseconds(text: str) -> int:
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--to-time is {text!r}; it should be a time like 2026-01-31T12:00:00Z.") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _location(text: str) -> tuple[tuple[str, int], int]:
    topic, partition, offset = [*text.rsplit(":", 2), "", ""][:3]
    if not topic or not _is_number(partition) or not _is_number(offset):
        raise typer.BadParameter(f"--to-offset is {text!r}; it should be topic:partition:offset, like web:0:120.")
    return (topic, int(partition)), int(offset)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _admin() -> KafkaAdmin:
    from master_dataset.kafka.connection import connect

    return connect().admin
