"""`tidemark topics`: create the declared topics, and compare them with the broker's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from infra.clients.kafka_admin import KafkaAdmin
    from master_dataset.kafka.topics import TopicPlan

app = typer.Typer(no_args_is_help=True)


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


def _connect() -> tuple[KafkaAdmin, list[TopicPlan]]:
    from master_dataset.kafka.connection import connect
    from master_dataset.kafka.topics import plan_topics

    connected = connect()
    return connected.admin, plan_topics(
        connected.declarations.sources.values(), connected.settings.dead_letter_retention_days
    )
