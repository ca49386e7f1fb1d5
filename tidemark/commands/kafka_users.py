"""`tidemark kafka-users`: who may use our own broker directly, where it asks (`kafka_auth`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from infra.clients.kafka_users import KafkaUsers

app = typer.Typer(no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(help="Name of the user.")]


@app.command()
def add(
    name: NameArgument,
    produce: Annotated[
        list[str] | None,
        typer.Option(
            "--produce",
            envvar="TIDEMARK_CLI_PRODUCE",
            help="Topic that it may write; web* for all that begin with web. May be repeated.",
            show_default="none",
        ),
    ] = None,
    consume: Annotated[
        list[str] | None,
        typer.Option(
            "--consume",
            envvar="TIDEMARK_CLI_CONSUME",
            help="Topic that it may read, in consumer groups that begin with its name. May be repeated.",
            show_default="none",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a user and print its password, which is shown only now."""
    from infra import terminal
    from infra.clients.kafka import OWN_MECHANISM
    from infra.settings import load_settings
    from infra.stack.addresses import addresses

    password = _users().add(name, produce or [], consume or [])
    client = {
        "bootstrap.servers": addresses(load_settings()).kafka,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OWN_MECHANISM,
        "sasl.username": name,
        "sasl.password": password,
    }
    if output is Output.JSON:
        terminal.print_json({"name": name, "client": client})
    else:
        typer.echo("".join(f"{key}={value}\n" for key, value in client.items()) + "The password is shown only once.")


@app.command("list")
def list_users(output: OutputOption = Output.TABLE) -> None:
    """List the users, and which topics each may write and read."""
    from infra import terminal

    rows = [user._asdict() for user in _users().read()]
    terminal.print_result(rows, output, "There are no users but our own. `tidemark kafka-users add` creates one.")


@app.command()
def remove(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Remove a user: its password is refused, and its open connections have no rights left."""
    from infra import terminal

    _users().remove(name)
    if output is Output.JSON:
        terminal.print_json({"removed": name})
    else:
        typer.echo(f"Removed the user {name}.")


def _users() -> KafkaUsers:
    from infra.clients.kafka import librdkafka_config
    from infra.clients.kafka_users import KafkaUserError, KafkaUsers
    from infra.settings import load_settings
    from infra.stack.addresses import addresses
    from infra.stack.up import read_status

    settings = load_settings()
    if settings.kafka_bootstrap or not settings.kafka_auth:
        raise KafkaUserError(
            "Our own broker asks nobody for a password: kafka_auth is false."
            if not settings.kafka_bootstrap
            else "kafka_bootstrap names a cluster. Its users are made with its own tools."
        )
    if read_status(settings) is None:
        raise KafkaUserError("Nothing runs on this home. `tidemark up` starts the broker.")
    return KafkaUsers(librdkafka_config(settings, addresses(settings).kafka))
