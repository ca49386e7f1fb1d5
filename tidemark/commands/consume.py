"""`tidemark consume`: print the records of a topic."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from confluent_kafka import Message

    from infra.clients.kafka_admin import KafkaAdmin


class Isolation(StrEnum):
    """Which records of transactions are read."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


def command(
    topic: Annotated[str | None, typer.Argument(help="Topic to read.", show_default=False)] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            envvar="TIDEMARK_CLI_PATTERN",
            help="Read all topics whose whole name this regular expression (RE2) matches, also those created later.",
            show_default=False,
        ),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            envvar="TIDEMARK_CLI_FROM_BEGINNING",
            help="Begin with the oldest record; with --group, if the group has committed nothing.",
        ),
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option(min=0, envvar="TIDEMARK_CLI_OFFSET", help="Kafka's offset to begin at.", show_default="the end"),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, envvar="TIDEMARK_CLI_PARTITION", help="Read it alone.", show_default="all")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            envvar="TIDEMARK_CLI_GROUP",
            help="Read as a member of this consumer group, and commit what was printed.",
            show_default="none, nothing is committed",
        ),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, envvar="TIDEMARK_CLI_MAX", help="End after so many records.", show_default="no end"
        ),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", envvar="TIDEMARK_CLI_UNTIL_END", help="End when all that is there was read.")
    ] = False,
    isolation: Annotated[
        Isolation,
        typer.Option(
            envvar="TIDEMARK_CLI_ISOLATION", help="Whether records of open and aborted transactions are read."
        ),
    ] = Isolation.COMMITTED,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the records of a topic, or of all that match a pattern, from a chosen offset or as a group.

    One line each: partition, offset, time, key and value, with --pattern the topic in front; with --output json an
    object a line. Ctrl-C ends it.
    """
    from infra import terminal
    from master_dataset.collector.kafka_rest.records import as_json
    from master_dataset.kafka.connection import connect
    from master_dataset.kafka.tail import Reading, read_as_group, read_from

    if group is not None and (offset is not None or partition is not None):
        raise typer.BadParameter("a group begins where it committed; --offset and --partition go without --group.")
    if offset is not None and from_beginning:
        raise typer.BadParameter("give --offset or --from-beginning.")
    if offset is not None and partition is None:
        raise typer.BadParameter("an offset belongs to a partition; give --partition, too.")
    if (topic is None) == (pattern is None):
        raise typer.BadParameter("name a topic, or give --pattern.")
    if pattern is not None and partition is not None:
        raise typer.BadParameter("--partition is of one topic; it goes without --pattern.")
    connection = connect()
    print_line = _print if pattern is None else _print_with_topic
    print_record = terminal.print_json_line if output is Output.JSON else print_line

    def show(message: Message) -> None:
        print_record(as_json(message))

    def look() -> tuple[str, ...]:
        return (str(topic),) if pattern is None else _matching(connection.admin, pattern)

    def begin_of(name: str) -> dict[tuple[str, int], int]:
        return _begin(connection.admin, name, partition, offset, from_beginning=from_beginning)

    def from_oldest(name: str) -> dict[tuple[str, int], int]:
        return _begin(connection.admin, name, None, None, from_beginning=True)

    topics = look()
    begin = {location: at for name in topics for location, at in begin_of(name).items()}
    reading = Reading(
        topics, isolation, until_end=until_end, max_records=max_records, look=None if pattern is None else look
    )
    if group is None:
        read_from(connection.kafka, reading, begin, show, from_oldest)
    else:
        read_as_group(connection.kafka, reading, group, show, from_beginning=from_beginning)


def _matching(admin: KafkaAdmin, pattern: str) -> tuple[str, ...]:
    from master_dataset.collector.reserved import KAFKAS_PREFIX
    from master_dataset.kafka.topic_patterns import PatternError, matching_names
    from master_dataset.kafka.topics import existing_topics

    try:
        return matching_names(pattern, [name for name in existing_topics(admin) if not name.startswith(KAFKAS_PREFIX)])
    except PatternError as error:
        raise typer.BadParameter(
            f"{pattern[:100]!r} is no regular expression of RE2, such as 'shop-.*': {error}."
        ) from None


def _begin(
    admin: KafkaAdmin, topic: str, partition: int | None, offset: int | None, *, from_beginning: bool
) -> dict[tuple[str, int], int]:
    """Where to begin in each partition that is read; TopicError for what does not exist."""
    from master_dataset.kafka.errors import TopicError
    from master_dataset.kafka.topics import EARLIEST, LATEST, existing_topics, read_offsets

    count = existing_topics(admin).get(topic)
    if count is None:
        raise TopicError(f"There is no topic {topic!r}. `tidemark topics list` shows those that there are.")
    if partition is not None and partition >= count:
        raise TopicError(f"Topic {topic!r} has the partitions 0 to {count - 1}, not {partition}.")
    locations = [(topic, number) for number in (range(count) if partition is None else [partition])]
    first, end = (read_offsets(admin, locations, at) for at in (EARLIEST, LATEST))
    if offset is None:
        return dict(first if from_beginning else end)
    (location,) = locations
    if not first[location] <= offset <= end[location]:
        raise TopicError(
            f"Topic {topic!r}, partition {partition} has the offsets {first[location]} to {end[location]} (where the "
            f"next record comes); {offset} is not among them."
        )
    return {location: offset}


def _print(record: dict[str, Any]) -> None:
    from infra.times import iso_utc

    key, value = (_shown(record, name) for name in ("key", "value"))
    time = iso_utc(record["timestamp"] / 1000)
    typer.echo(f"{record['partition']}\t{record['offset']}\t{time}\t{key}\t{value}")


def _print_with_topic(record: dict[str, Any]) -> None:
    typer.echo(f"{record['topic']}\t", nl=False)
    _print(record)


def _shown(record: dict[str, Any], name: str) -> str:
    """A text on one line, without the control characters that would change a terminal; bytes in base64."""
    if f"{name}_base64" in record:
        return f"base64:{record[f'{name}_base64']}"
    text = record[name]
    if text is None:
        return "null" if name == "value" else "-"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
