"""`tidemark keys`: who may use the REST interfaces of this home."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.commands.options import Output, OutputOption

app = typer.Typer(no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the key. It is the user name in HTTP basic authentication.")],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            "-s",
            envvar="TIDEMARK_CLI_SCOPE",
            help="What it may do: produce, consume, query, metrics, admin. May be repeated.",
        ),
    ],
    view: Annotated[
        list[str] | None,
        typer.Option(
            "--view",
            envvar="TIDEMARK_CLI_VIEW",
            help="Limit the scope query to this view. May be repeated.",
            show_default="all",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a key and print its secret, which is shown only now."""
    from infra import terminal
    from infra.rest.access_keys import add_key
    from infra.settings import load_settings

    secret = add_key(load_settings().home, name, scope, view)
    if output is Output.JSON:
        terminal.print_json({"name": name, "secret": secret, "scopes": scope})
    else:
        typer.echo(f"name    {name}\nsecret  {secret}\nThe secret is shown only once. Use it as: curl -u {name}:SECRET")


@app.command("list")
def list_keys(output: OutputOption = Output.TABLE) -> None:
    """List the keys, without their secrets."""
    from infra import terminal
    from infra.rest.access_keys import SCOPES, read_keys
    from infra.settings import load_settings

    rows = [
        {
            "name": key.name,
            "scopes": sorted(key.scopes, key=SCOPES.index),
            "views": list(key.views) if key.views is not None else None,
            "created": key.created,
        }
        for key in read_keys(load_settings().home).values()
    ]
    if output is Output.TABLE:
        rows = [{**row, "views": "all" if row["views"] is None else row["views"]} for row in rows]
    terminal.print_result(rows, output, "There are no keys. `tidemark keys add` creates one.")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Name of the key.")], output: OutputOption = Output.TABLE) -> None:
    """Remove a key; requests with it are refused at once."""
    from infra import terminal
    from infra.rest.access_keys import remove_key
    from infra.settings import load_settings

    remove_key(load_settings().home, name)
    if output is Output.JSON:
        terminal.print_json({"removed": name})
    else:
        typer.echo(f"Removed the key {name}.")
