"""`tidemark alerts`: list and show alerts, try one out, mute it for a while."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from infra.settings import Settings
    from serving_layer.alerts.journal import Journal
    from views.alert import Alert
    from views.declarations import Declarations

app = typer.Typer(no_args_is_help=True)


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", envvar="TIDEMARK_CLI_OUTPUT", help="How to print the result.")
]
NameArgument = Annotated[str, typer.Argument(help="Which alert.")]


@app.command("list")
def list_alerts(output: OutputOption = Output.TABLE) -> None:
    """Every alert: what it is about, how it stands, whether it is muted."""
    from infra import terminal
    from serving_layer.alerts.episodes import State
    from serving_layer.alerts.payloads import iso

    _, declarations, journal = _opened()
    mutes, open_ = journal.mutes(), journal.episodes(is_open=True)
    found = []
    for name, alert in sorted(declarations.alerts.items()):
        ours = [episode for episode in open_ if episode.alert == name]
        firing = sum(episode.state is State.FIRING for episode in ours)
        state = f"firing ({firing})" if firing else f"pending ({len(ours)})" if ours else "ok"
        found.append(
            {"name": name, "view": alert.view.name, "when": _when(alert), "by": list(alert.keys), "state": state,
             "muted_until": iso(mutes.get(name)), "doc": alert.doc}
        )  # fmt: skip
    if output is Output.JSON:
        terminal.print_json(found)
    else:
        _print_table(
            ["name", "view", "when", "by", "state", "muted until"], [[*list(each.values())[:6]] for each in found]
        )


@app.command()
def show(
    name: NameArgument,
    limit: Annotated[
        int, typer.Option(min=1, envvar="TIDEMARK_CLI_LIMIT", help="How many of its newest episodes.")
    ] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """One alert with its newest episodes, and what of them is still to be told."""
    from infra import terminal
    from serving_layer.alerts.payloads import described

    _, declarations, journal = _opened()
    alert = _alert(declarations, name)
    episodes = [described(episode) for episode in journal.episodes(name, limit=limit)]
    waiting = [
        {"target": each.target, "delivery": each.delivery, "tries": each.tries, "error": each.error}
        for each in journal.outbox()
        if each.delivery.startswith(f"{name}-")
    ]
    if output is Output.JSON:
        terminal.print_json({"name": name, "when": _when(alert), "episodes": episodes, "waiting": waiting})
        return
    typer.echo(
        f"{name}: {alert.doc}\n{_when(alert)} of {alert.view.name}, by {', '.join(alert.keys) or 'all together'}"
    )
    columns = ["key", "state", "from", "fired_at", "resolved_at", "value"]
    _print_table(columns, [[each[column] for column in columns] for each in episodes])
    for each in waiting:
        typer.echo(
            f"not told yet: {each['delivery']} to {each['target']}, tried {each['tries']} times. {each['error']}"
        )


@app.command("test")
def try_out(
    name: NameArgument,
    send: Annotated[
        bool,
        typer.Option("--send", envvar="TIDEMARK_CLI_SEND", help="Also tell every way a made-up episode, state `test`."),
    ] = False,
) -> None:
    """Look at an alert now: which keys are so in the newest periods. Nothing fires by this."""
    import time

    from infra.logs import configure_logging
    from serving_layer.alerts import questions
    from serving_layer.engine import QueryEngine
    from serving_layer.errors import ServingError
    from serving_layer.query.limits import execution_limits

    configure_logging("WARNING")
    settings, declarations, _ = _opened()
    alert = _alert(declarations, name)
    if alert.when:
        now = int(time.time())
        last = now - now % alert.step_s
        periods = frozenset(last - number * alert.step_s for number in range(alert.for_buckets + 1))
        engine = QueryEngine(settings, declarations, execution_limits(settings))
        try:
            view = engine.served_view(alert.view.name)
            wanted = questions.Wanted(periods, None)
            answer = engine.execute(questions.alert_question(alert, view, wanted))
        except ServingError as error:
            typer.echo(f"tidemark: {error.detail}", err=True)
            raise typer.Exit(1) from None
        finally:
            engine.close()
        judged = questions.judged(alert, view, alert.condition_for(view), wanted, answer, now)
        rows = [
            [dict(zip(alert.keys, key, strict=True)), _at(period), "yes" if found.is_true else "no", dict(found.value)]
            for key, of_key in judged.items()
            for period, found in sorted(of_key.items())
            if found.value
        ]
        rows.sort(key=lambda row: row[2] == "no")
        _print_table(["key", "period", "is so", "answers"], rows[:50])
        typer.echo(f"{sum(row[2] == 'yes' for row in rows)} of {len(rows)} are so.")
    if send:
        _send(settings, alert)


@app.command()
def mute(
    name: NameArgument,
    for_: Annotated[str, typer.Option("--for", envvar="TIDEMARK_CLI_FOR", help="How long: 30m, 2h, 1d.")] = "1h",
) -> None:
    """Tell no webhook of an alert for a while. Its episodes are kept and shown as ever."""
    import time

    from serving_layer.alerts.payloads import iso
    from views.grain import parse_length

    _, declarations, journal = _opened()
    _alert(declarations, name)
    until = time.time() + parse_length(for_)
    journal.mute(name, until)
    typer.echo(f"{name} is muted until {iso(until)}.")


@app.command()
def unmute(name: NameArgument) -> None:
    """Tell webhooks of it again."""
    _, declarations, journal = _opened()
    _alert(declarations, name)
    typer.echo(f"{name} is told again." if journal.unmute(name) else f"{name} was not muted.")


# ---- what they share -----------------------------------------------------------


def _opened() -> tuple[Settings, Declarations, Journal]:
    from infra.home import Home
    from infra.settings import load_settings
    from serving_layer.alerts.journal import open_journal
    from views.declarations import declared_by

    settings = load_settings()
    declarations = declared_by(settings)
    Home(settings.home).prepare()
    return settings, declarations, open_journal(settings)


def _alert(declarations: Declarations, name: str) -> Alert:
    from views.errors import DeclarationError

    if name not in declarations.alerts:
        there = ", ".join(sorted(declarations.alerts)) or "none"
        raise DeclarationError(f"There is no alert {name!r}. There are: {there}.")
    return declarations.alerts[name]


def _when(alert: Alert) -> str:
    if not alert.when:
        return f"silence {alert.silence}"
    over = f" over {alert.over}" if alert.over else ""
    return f"{alert.when}{over}{f' for {alert.for_buckets} buckets' if alert.for_buckets > 1 else ''}"


def _send(settings: Settings, alert: Alert) -> None:
    import json
    import time

    from infra.stack.addresses import addresses
    from master_dataset.errors import MasterDatasetError
    from serving_layer.alerts.couriers import alerts_topic
    from serving_layer.alerts.webhooks import NotDelivered, deliver, read_webhooks

    now = _at(time.time())
    id_ = f"{alert.name}-test-{int(time.time())}"
    body = json.dumps(
        {"id": id_, "alert": alert.name, "view": alert.view.name, "key": dict.fromkeys(alert.keys, "test"),
         "state": "test", "pending_at": now, "fired_at": now, "resolved_at": None, "value": {}, "muted": False}
    ).encode()  # fmt: skip
    failed = False
    try:
        alerts_topic(settings, addresses(settings).kafka).send([(alert.name.encode(), body, f"{id_}:test")])
        typer.echo("kafka: told")
    except MasterDatasetError as error:
        failed = True
        typer.echo(f"kafka: {error}", err=True)
    for hook in read_webhooks(settings.alerts_webhooks_file).values():
        if alert.webhooks is not None and hook.name not in alert.webhooks:
            continue
        try:
            deliver(
                hook, f"{id_}:test", body, timeout_s=settings.alerts_webhooks_timeout_s,
                allow_private=settings.alerts_webhooks_private,
            )  # fmt: skip
            typer.echo(f"webhook {hook.name}: told")
        except NotDelivered as error:
            failed = True
            typer.echo(f"webhook {hook.name}: {error}", err=True)
    raise typer.Exit(int(failed))


def _at(seconds: float) -> str:
    from serving_layer.alerts.payloads import iso

    return iso(seconds) or ""


def _print_table(columns: list[str], rows: list[list[Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from infra import terminal

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    terminal.out.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_cell(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "–" if value is None else str(value)
