"""`tidemark keys`: who may use the REST interfaces of this home, for what, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from pathlib import Path

    from infra.rest.access_keys import AccessKey

app = typer.Typer(no_args_is_help=True)


NameArgument = Annotated[str, typer.Argument(help="Name of the key.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the key. It is the user name in HTTP basic authentication.")],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            "-s",
            envvar="TIDEMARK_CLI_SCOPE",
            help="What it may do: produce, consume, query, metrics, admin, schema:read, schema:write. May be repeated.",
        ),
    ],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            envvar="TIDEMARK_CLI_SOURCE",
            help="Limit it to this source, with its topic, dead letters and views. A pattern such as 'shop_*'. "
            "May be repeated.",
            show_default="all",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            envvar="TIDEMARK_CLI_TOPIC",
            help="Limit it to this topic, besides those of --source. A pattern. May be repeated.",
            show_default="all",
        ),
    ] = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            "--view",
            envvar="TIDEMARK_CLI_VIEW",
            help="Limit the scope query to this view. A pattern such as 'page_*'. May be repeated.",
            show_default="all",
        ),
    ] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            "--subject",
            envvar="TIDEMARK_CLI_SUBJECT",
            help="Limit the scopes of schemas to this subject. A pattern such as 'web-*'. May be repeated.",
            show_default="those of its sources and topics",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", envvar="TIDEMARK_CLI_EXPIRES", help="How long it is valid: 90d, 12h.", show_default="for ever"
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a key and print its secret, which is shown only now."""
    from infra.rest.access_keys import add_key
    from infra.settings import load_settings

    home = load_settings().home
    secret = add_key(
        home,
        name,
        scope,
        view or None,
        sources=source or None,
        topics=topic or None,
        subjects=subject or None,
        expires_s=_expiry_s(expires),
    )
    _print_secret(home, name, secret, output)


@app.command()
def rotate(
    name: NameArgument,
    grace: Annotated[
        str, typer.Option("--grace", envvar="TIDEMARK_CLI_GRACE", help="How long the old secret stays valid: 1d, 0s.")
    ] = "1d",
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            envvar="TIDEMARK_CLI_EXPIRES",
            help="How long the key is valid from now on.",
            show_default="as before",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a key a new secret and print it. The old one works until the grace ends; one before that ends now."""
    from infra.rest.access_keys import rotate_key
    from infra.settings import load_settings

    home = load_settings().home
    secret = rotate_key(home, name, _duration_s("--grace", grace), _expiry_s(expires))
    _print_secret(home, name, secret, output)


@app.command("list")
def list_keys(output: OutputOption = Output.TABLE) -> None:
    """List the keys with their limits and times, without their secrets."""
    from infra import terminal
    from infra.rest.access_keys import read_keys
    from infra.settings import load_settings

    rows = [_described(key) for key in read_keys(load_settings().home).values()]
    if output is Output.TABLE:
        rows = [{name: _cell(name, value) for name, value in row.items()} for row in rows]
    terminal.print_result(rows, output, "There are no keys. `tidemark keys add` creates one.")


@app.command()
def remove(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Remove a key; requests with it are refused at once."""
    from infra import terminal
    from infra.rest.access_keys import remove_key
    from infra.settings import load_settings

    remove_key(load_settings().home, name)
    if output is Output.JSON:
        terminal.print_json({"removed": name})
    else:
        typer.echo(f"Removed the key {name}.")


ALL, NEVER = "all", "never"
LIMITS = ("sources", "topics", "views", "subjects")


def _described(key: AccessKey) -> dict[str, Any]:
    """A key as it is listed. `old_secret_until`: when the secret before the last rotation becomes invalid."""
    from infra.rest.access_keys import SCOPES
    from infra.times import iso_utc

    def time_of(seconds: float | None) -> str | None:
        return None if seconds is None else iso_utc(seconds)

    limits = {name: getattr(key.limits, name) for name in LIMITS}
    return {
        "name": key.name,
        "scopes": sorted(key.scopes, key=SCOPES.index),
        **{name: None if patterns is None else list(patterns) for name, patterns in limits.items()},
        "created": iso_utc(key.created),
        "expires": time_of(key.expires),
        "rotated": time_of(key.rotated),
        "old_secret_until": time_of(key.old_secret.ends if key.old_secret else None),
    }


def _cell(name: str, value: Any) -> Any:
    if value is not None:
        return value
    return ALL if name in LIMITS else NEVER if name in ("expires", "rotated") else ""


def _print_secret(home: Path, name: str, secret: str, output: Output) -> None:
    from infra import terminal
    from infra.rest.access_keys import read_keys

    described = _described(read_keys(home)[name])
    if output is Output.JSON:
        terminal.print_json({"name": name, "secret": secret, **described})
        return
    shown = {
        "name": name,
        "secret": secret,
        **{each: described[each] for each in LIMITS if described[each] is not None},
    }
    shown |= {each: described[each] for each in ("expires", "old_secret_until") if described[each] is not None}
    width = max(map(len, shown)) + 2
    for label, value in shown.items():
        text = ", ".join(value) if isinstance(value, list) else value
        typer.echo(f"{label.replace('_', ' '):{width}}{text}")
    typer.echo(f"The secret is shown only once. Use it as: curl -u {name}:SECRET")


def _expiry_s(text: str | None) -> int | None:
    from infra.rest.access_keys import AccessKeyError

    seconds = None if text is None else _duration_s("--expires", text)
    if seconds == 0:
        raise AccessKeyError(
            f"--expires is {text!r}; a key is valid for longer than that. `tidemark keys remove` ends one."
        )
    return seconds


def _duration_s(option: str, text: str) -> int:
    from infra.rest.access_keys import AccessKeyError
    from infra.times import parse_duration

    seconds = parse_duration(text)
    if seconds is None:
        raise AccessKeyError(f"{option} is {text!r}; write a duration such as 90d, 12h or 30m, at most 100 years.")
    return seconds
