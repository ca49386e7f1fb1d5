"""`tidemark topics`: the topics of the declared sources, and any other of the Kafka of this home."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from infra.clients.kafka_admin import KafkaAdmin
    from master_dataset.kafka.connection import KafkaConnection
    from master_dataset.kafka.topics import TopicPlan

app = typer.Typer(no_args_is_help=True)

UNLIMITED = "unlimited"
TopicArgument = Annotated[str, typer.Argument(help="Name of the topic.")]
HoursOption = Annotated[
    str | None,
    typer.Option(
        "--retention-hours",
        envvar="TIDEMARK_CLI_RETENTION_HOURS",
        help="How long records are kept: hours, or unlimited.",
        show_default=False,
    ),
]
BytesOption = Annotated[
    str | None,
    typer.Option(
        "--retention-bytes",
        envvar="TIDEMARK_CLI_RETENTION_BYTES",
        help="How many bytes a partition keeps, or unlimited.",
        show_default=False,
    ),
]


@app.command()
def apply(output: OutputOption = Output.TABLE) -> None:
    """Create the missing topics of the declared sources. Existing ones are not changed."""
    from infra import terminal
    from master_dataset.kafka.topics import apply_topics

    admin, plans = _connect()
    made = apply_topics(admin, plans)
    terminal.print_result([{"topic": topic, "result": "made"} for topic in made], output, "All declared topics exist.")


@app.command()
def check(output: OutputOption = Output.TABLE) -> None:
    """Compare the declared sources with the broker's topics. Exit code 1 where they differ."""
    from infra import terminal
    from master_dataset.kafka.topics import compare_topics

    admin, plans = _connect()
    differences = compare_topics(admin, plans)
    terminal.print_result([vars(difference) for difference in differences], output, "Every topic is as declared.")
    raise typer.Exit(1 if differences else 0)


@app.command("list")
def list_topics(output: OutputOption = Output.TABLE) -> None:
    """List the broker's topics."""
    from infra import terminal
    from master_dataset.kafka.topics import existing_topics

    admin, _plans = _connect()
    found = existing_topics(admin)
    rows = [{"topic": name, "partitions": count} for name, count in sorted(found.items()) if not name.startswith("__")]
    terminal.print_result(rows, output, "There are no topics.")


@app.command()
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option(min=1, max=10_000, envvar="TIDEMARK_CLI_PARTITIONS", help="How many partitions.")
    ] = 3,
    retention_hours: HoursOption = "168",
    retention_bytes: BytesOption = UNLIMITED,
    compacted: Annotated[
        bool,
        typer.Option("--compacted", envvar="TIDEMARK_CLI_COMPACTED", help="Keep the last record of each key instead."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic. Those of declared sources are created by `tidemark topics apply`."""
    from master_dataset.kafka.errors import TopicError
    from master_dataset.kafka.topics import TopicPlan, create_topic, topic_configs
    from views.source import TOPIC

    connection = _connection()
    if not TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise typer.BadParameter(f"{topic!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 240.")
    _check_own(connection, topic)
    if source := connection.declarations.source_of_topic(topic):
        raise TopicError(
            f"Topic {topic!r} belongs to the source {source.name!r}, whose declaration says how it should be. Create "
            "it with `tidemark topics apply`."
        )
    hours, size = _hours(retention_hours), _bytes(retention_bytes)
    plan = TopicPlan(topic, partitions, topic_configs(hours, size, compacted=compacted))
    if not create_topic(connection.admin, plan):
        raise TopicError(f"There is a topic {topic!r} already. `tidemark topics alter {topic}` changes it.")
    _print_topic(connection.admin, topic, output)


@app.command()
def alter(
    topic: TopicArgument,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            envvar="TIDEMARK_CLI_PARTITIONS",
            help="More than now; there is no way back, and keys move to other partitions.",
            show_default=False,
        ),
    ] = None,
    retention_hours: HoursOption = None,
    retention_bytes: BytesOption = None,
    compacted: Annotated[
        bool | None,
        typer.Option(
            "--compacted/--not-compacted",
            envvar="TIDEMARK_CLI_COMPACTED",
            help="Keep the last record of each key, or all for a time.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a topic more partitions, or another retention. What is not given stays."""
    from master_dataset.kafka.errors import TopicError
    from master_dataset.kafka.topics import alter_topic, topic_configs

    connection = _connection()
    count = _partitions(connection, topic)
    if connection.declarations.source_of_topic(topic):
        typer.echo(f"The declaration does not change: `tidemark topics check` compares {topic} with it.", err=True)
    if partitions is not None and partitions < count:
        raise TopicError(f"Topic {topic!r} has {count} partitions; Kafka cannot reduce them. Create a new topic.")
    whole = topic_configs(_hours(retention_hours), _bytes(retention_bytes), compacted=bool(compacted))
    given = {"retention.ms": retention_hours, "retention.bytes": retention_bytes, "cleanup.policy": compacted}
    configs = {name: whole[name] for name, value in given.items() if value is not None}
    more = None if partitions == count else partitions
    if more is None and not configs and partitions is None:
        raise typer.BadParameter(
            "nothing is to change: give --partitions, --retention-hours, --retention-bytes or --compacted."
        )
    alter_topic(connection.admin, topic, more, configs)
    _print_topic(connection.admin, topic, output)


@app.command()
def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", envvar="TIDEMARK_CLI_YES", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a topic and its records. For a topic of a declared source it says what that means, and asks."""
    from infra import terminal
    from master_dataset.kafka.topics import delete_topic, describe_topic

    connection = _connection()
    _partitions(connection, topic)
    _check_own(connection, topic)
    found = describe_topic(connection.admin, topic)["partitions"]
    records = sum(each["latest"] - each["earliest"] for each in found)
    if not yes:
        _confirm_deletion(f"{_loss(connection, topic)}Delete topic {topic!r} with its {records:,} offsets?")
    delete_topic(connection.admin, topic)
    if output is Output.JSON:
        terminal.print_json({"deleted": topic})
    else:
        typer.echo(f"Deleted topic {topic}.")


def _loss(connection: KafkaConnection, topic: str) -> str:
    """What is lost with a topic of a source."""
    source = connection.declarations.source_of_topic(topic)
    if source is None:
        return ""
    if topic == source.dead_topic:
        return f"It holds the dead letters of source {source.name!r}, which are not sent again. "
    return (
        f"It is the topic of source {source.name!r}: records that are not archived yet are lost, and the archiver "
        f"refuses the source until `tidemark master rebase {source.name}`. "
    )


def _confirm_deletion(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"nobody can be asked here: give --yes. The question is: {question}")
    typer.confirm(question, abort=True, err=True)


def _check_own(connection: KafkaConnection, topic: str) -> None:
    """Refuse a topic of Kafka's or Tidemark's own; a dead-letter topic of a declared source is its source's."""
    from master_dataset.collector.reserved import KAFKAS_PREFIX, what_it_holds
    from master_dataset.kafka.errors import TopicError

    if topic.startswith(KAFKAS_PREFIX):
        raise TopicError(f"{topic!r} is one of Kafka's own topics, or a name that Kafka reserves.")
    holds = "" if connection.declarations.source_of_topic(topic) else what_it_holds(connection.declarations, topic)
    if holds:
        raise TopicError(f"The topic {topic!r} is reserved: it holds {holds}, which Tidemark alone writes.")


def _partitions(connection: KafkaConnection, topic: str) -> int:
    """How many partitions a topic has, which may not be one of Kafka's own."""
    from master_dataset.collector.reserved import KAFKAS_PREFIX
    from master_dataset.kafka.errors import TopicError
    from master_dataset.kafka.topics import existing_topics

    if topic.startswith(KAFKAS_PREFIX):
        raise TopicError(f"{topic!r} is one of Kafka's own topics.")
    count = existing_topics(connection.admin).get(topic)
    if count is None:
        raise TopicError(f"There is no topic {topic!r}. `tidemark topics list` shows those that there are.")
    return count


def _hours(text: str | None) -> float | None:
    if text is None or text == UNLIMITED:
        return None
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < 2**40:
        raise typer.BadParameter(f"--retention-hours is {text!r}; it should be a number of hours, or {UNLIMITED}.")
    return hours


def _bytes(text: str | None) -> int | None:
    if text is None or text == UNLIMITED:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
        raise typer.BadParameter(f"--retention-bytes is {text!r}; it should be a number of bytes, or {UNLIMITED}.")
    return int(text)


def _print_topic(admin: KafkaAdmin, topic: str, output: Output) -> None:
    from infra import terminal
    from master_dataset.kafka.topics import describe_topic

    found: dict[str, Any] = describe_topic(admin, topic)
    if output is Output.JSON:
        terminal.print_json(found)
    else:
        terminal.print_pairs({"topic": topic, "partitions": len(found["partitions"]), **found["configs"]})


def _connection() -> KafkaConnection:
    from master_dataset.kafka.connection import connect

    return connect()


def _connect() -> tuple[KafkaAdmin, list[TopicPlan]]:
    from master_dataset.kafka.topics import plan_topics

    connected = _connection()
    return connected.admin, plan_topics(
        connected.declarations.sources.values(), connected.settings.dead_letter_retention_days
    )
