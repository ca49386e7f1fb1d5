"""`tidemark produce`: send the lines of standard input to a topic."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from master_dataset.kafka.record import KafkaRecord
    from tidemark.topic_lines import InvalidLine


def command(
    topic: Annotated[str, typer.Argument(help="Topic to send to; it must exist.")],
    key: Annotated[
        str | None,
        typer.Option(envvar="TIDEMARK_CLI_KEY", help="The key of every record that has none.", show_default="no key"),
    ] = None,
    key_separator: Annotated[
        str,
        typer.Option(
            "--key-separator",
            envvar="TIDEMARK_CLI_KEY_SEPARATOR",
            help="What stands between key and value in each line, such as ':'.",
            show_default="lines have no keys",
        ),
    ] = "",
    ndjson: Annotated[
        bool,
        typer.Option(
            "--ndjson",
            envvar="TIDEMARK_CLI_NDJSON",
            help="Each line is a message like those of POST /produce: value, key, headers, partition, timestamp.",
        ),
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            envvar="TIDEMARK_CLI_HEADER",
            help="A header of every record: name=value. May be repeated.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(min=0, envvar="TIDEMARK_CLI_PARTITION", help="Partition to send to.", show_default="by the key"),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send the lines of standard input to a topic, one record each.

    A line that cannot be sent ends it; the lines before it are stored. Lines are not checked against the fields of a
    source: `tidemark import` does that.
    """
    from infra import terminal
    from master_dataset.collector.reserved import check_writable
    from master_dataset.errors import MasterDatasetError
    from master_dataset.kafka.connection import connect
    from master_dataset.kafka.errors import TopicError
    from master_dataset.kafka.record import ANY_PARTITION
    from master_dataset.kafka.send import send_records
    from master_dataset.kafka.topics import existing_topics
    from tidemark.topic_lines import InvalidLine, LineFormat, records_of_lines

    if ndjson and key_separator:
        raise typer.BadParameter("--ndjson lines name their keys themselves; leave --key-separator out.")
    headers = tuple(map(_header, header or ()))
    connection = connect()
    _refuse(check_writable, connection.declarations, topic)
    count = existing_topics(connection.admin).get(topic)
    if count is None:
        raise TopicError(f"There is no topic {topic!r}. `tidemark topics create {topic}` creates it.")
    if partition is not None and partition >= count:
        raise TopicError(f"Topic {topic!r} has the partitions 0 to {count - 1}, not {partition}.")
    form = LineFormat(
        topic,
        None if key is None else key.encode(),
        key_separator.encode(),
        headers,
        ANY_PARTITION if partition is None else partition,
        ndjson,
    )
    wrong: list[InvalidLine] = []
    records = _until_wrong(records_of_lines(sys.stdin.buffer, form), wrong, InvalidLine)
    sent = send_records(connection.kafka, records)
    if wrong:
        raise MasterDatasetError(f"{wrong[0]} The lines before it are stored: {sent:,} records.")
    if output is Output.JSON:
        terminal.print_json({"topic": topic, "sent": sent})
    else:
        typer.echo(f"Sent {sent:,} records to {topic}.")


def _until_wrong(
    records: Iterable[KafkaRecord], wrong: list[InvalidLine], kind: type[InvalidLine]
) -> Iterator[KafkaRecord]:
    """The records before the first wrong line, which is noted: those before it have to be acknowledged first."""
    try:
        yield from records
    except kind as error:
        wrong.append(error)


def _header(text: str) -> tuple[str, bytes | None]:
    from master_dataset.collector.reserved import check_header

    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"--header is {text!r}; it should be name=value.")
    _refuse(check_header, name, "--header")
    return name, value.encode()


def _refuse(check: Callable[..., None], *arguments: object) -> None:
    """A check of the collector, whose problem is this command's error."""
    from infra.rest.problems import Problem
    from master_dataset.errors import MasterDatasetError

    try:
        check(*arguments)
    except Problem as problem:
        raise MasterDatasetError(problem.detail) from None
