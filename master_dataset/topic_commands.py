"""`tidemark topics`: make the declared topics, and compare them with the broker's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from infra.cli import Output, OutputOption

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from master_dataset.topics import TopicPlan

app = typer.Typer(no_args_is_help=True)


@app.command()
def apply(output: OutputOption = Output.TABLE) -> None:
    """Make the topics of the declared sources that do not exist yet. Existing ones are not changed."""
    from master_dataset.topics import apply_topics

    admin, plans = _connect()
    made = apply_topics(admin, plans)
    _print([{"topic": topic, "result": "made"} for topic in made], output, "All declared topics exist.")


@app.command()
def check(output: OutputOption = Output.TABLE) -> None:
    """Compare the declared sources with the broker's topics. Exit code 1 where they differ."""
    from master_dataset.topics import compare_topics

    admin, plans = _connect()
    differences = compare_topics(admin, plans)
    _print([vars(difference) for difference in differences], output, "Every topic is as declared.")
    raise typer.Exit(1 if differences else 0)


@app.command("list")
def list_topics(output: OutputOption = Output.TABLE) -> None:
    """List the broker's topics."""
    from master_dataset.topics import existing_topics

    admin, _plans = _connect()
    found = existing_topics(admin)
    rows = [{"topic": name, "partitions": count} for name, count in sorted(found.items()) if not name.startswith("__")]
    _print(rows, output, "There are no topics.")


def _connect() -> tuple[AdminClient, list[TopicPlan]]:
    from confluent_kafka.admin import AdminClient

    from infra.local_stack import addresses
    from infra.settings import load_settings
    from master_dataset.topics import librdkafka_config, plan_topics
    from views.declarations import declared_by

    settings = load_settings()
    declarations = declared_by(settings)
    admin = AdminClient(librdkafka_config(settings, addresses(settings).kafka))
    return admin, plan_topics(declarations.sources.values())


def _print(rows: list[dict[str, Any]], output: Output, if_empty: str) -> None:
    from rich.table import Table

    from infra import terminal

    if output is Output.JSON:
        terminal.print_json(rows)
    elif not rows:
        typer.echo(if_empty)
    else:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        terminal.out.print(table)
