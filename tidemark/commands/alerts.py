"""`tidemark alerts`: list and show alerts, try one, mute it for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from infra.settings import Settings
    from serving_layer.alerts.journal import Journal
    from views.alert import Alert
    from views.declarations import Declarations

app = typer.Typer(no_args_is_help=True)
MAX_PRINTED = 50
NameArgument = Annotated[str, typer.Argument(help="The name of the alert.")]


@app.command("list")
def list_alerts(output: OutputOption = Output.TABLE) -> None:
    """List every alert with its condition, its state and whether it is muted."""
    from infra import terminal
    from serving_layer.alerts.episodes import EpisodeState
    from serving_layer.alerts.notifications import iso

    _, declarations, journal = _opened()
    mutes, episodes = journal.mutes.active(), journal.episodes.all(is_open=True)
    alerts: list[dict[str, Any]] = []
    for name, alert in sorted(declarations.alerts.items()):
        own = [episode for episode in episodes if episode.alert == name]
        firing = sum(episode.state is EpisodeState.FIRING for episode in own)
        state = f"firing ({firing})" if firing else f"pending ({len(own)})" if own else "ok"
        alerts.append(
            {"name": name, "view": alert.view.name, "when": _when(alert), "by": list(alert.keys), "state": state,
             "muted_until": iso(mutes.get(name)), "doc": alert.doc}
        )  # fmt: skip
    if output is Output.JSON:
        terminal.print_json(alerts)
        return
    rows = []
    for each in alerts:
        muted = f"\nmuted until {_seconds(each['muted_until'])}" if each["muted_until"] else ""
        rows.append([each["name"], each["state"], f"{each['when']}\n{_view_and_keys(each)}{muted}"])
    _print_table(["alert", "state", "condition"], rows)


@app.command()
def show(
    name: NameArgument,
    limit: Annotated[
        int, typer.Option(min=1, envvar="TIDEMARK_CLI_LIMIT", help="How many episodes to show, newest first.")
    ] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one alert, its newest episodes, and the notifications that are not delivered yet."""
    from infra import terminal
    from serving_layer.alerts.notifications import episode_json

    _, declarations, journal = _opened()
    alert = _alert(declarations, name)
    episodes = journal.episodes.all(name, limit=limit)
    waiting = [
        {"target": each.target, "delivery": each.delivery, "tries": each.tries, "error": each.error}
        for each in journal.outbox.all()
        if each.delivery.startswith(f"{name}-")
    ]
    if output is Output.JSON:
        shown = [episode_json(episode) for episode in episodes]
        terminal.print_json({"name": name, "when": _when(alert), "episodes": shown, "waiting": waiting})
        return
    by = ", ".join(alert.keys) or "all keys together"
    typer.echo(f"{name}: {alert.doc}\n{_when(alert)} in {alert.view.name}, by {by}")
    rows = []
    for episode in episodes:
        key = dict(zip(episode.names, episode.key, strict=True))
        rows.append([str(episode.state), _times(episode_json(episode)), key, dict(episode.value or {})])
    _print_table(["state", "times", "key", "answers"], rows)
    for each in waiting:
        error = f" {each['error']}" if each["error"] else ""
        typer.echo(f"Not delivered to {each['target']} after {each['tries']} tries: {each['delivery']}{error}")


@app.command("test")
def try_out(
    name: NameArgument,
    send: Annotated[
        bool,
        typer.Option(
            "--send", envvar="TIDEMARK_CLI_SEND", help="Also send a made-up notification, state `test`, to all targets."
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Evaluate an alert now: for which keys and periods its condition is true. It does not fire."""
    from infra import terminal
    from infra.logs import configure_logging

    configure_logging("WARNING")
    settings, declarations, _ = _opened()
    alert = _alert(declarations, name)
    periods = _evaluate(settings, declarations, alert) if alert.when else []
    targets = _send(settings, alert) if send else {}
    if output is Output.JSON:
        terminal.print_json({"name": name, "periods": periods, "sent": targets})
    else:
        if alert.when:
            rows = [["yes" if each["true"] else "no", each["period"], each["key"], each["answers"]] for each in periods]
            _print_table(["true", "period", "key", "answers"], rows[:MAX_PRINTED])
            typer.echo(f"The condition is true in {sum(each['true'] for each in periods)} of {len(periods)} periods.")
        for target, error in targets.items():
            typer.echo(f"{target}: {error or 'delivered'}", err=error is not None)
    raise typer.Exit(int(any(targets.values())))


@app.command()
def mute(
    name: NameArgument,
    for_: Annotated[str, typer.Option("--for", envvar="TIDEMARK_CLI_FOR", help="How long: 30m, 2h, 1d.")] = "1h",
    output: OutputOption = Output.TABLE,
) -> None:
    """Do not notify webhooks of an alert for a while. Its episodes are still recorded and shown."""
    import time

    from infra import terminal
    from serving_layer.alerts.notifications import iso
    from views.grain import parse_length

    _, declarations, journal = _opened()
    _alert(declarations, name)
    until = time.time() + parse_length(for_)
    journal.mutes.add(name, until)
    if output is Output.JSON:
        terminal.print_json({"name": name, "muted_until": iso(until)})
    else:
        typer.echo(f"{name} is muted until {iso(until)}.")


@app.command()
def unmute(name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Notify webhooks of an alert again."""
    from infra import terminal

    _, declarations, journal = _opened()
    _alert(declarations, name)
    was_muted = journal.mutes.remove(name)
    if output is Output.JSON:
        terminal.print_json({"name": name, "was_muted": was_muted})
    else:
        typer.echo(f"{name} is no longer muted." if was_muted else f"{name} was not muted.")


# ---- evaluate and send ---------------------------------------------------------


def _evaluate(settings: Settings, declarations: Declarations, alert: Alert) -> list[dict[str, Any]]:
    """The newest periods of an alert with their answers, those where it is true first."""
    import time

    from serving_layer.alerts.episodes import named
    from serving_layer.alerts.judgements import judge
    from serving_layer.alerts.queries import QueryScope, alert_query
    from serving_layer.engine import QueryEngine
    from serving_layer.errors import ServingError
    from serving_layer.query.limits import execution_limits

    now = int(time.time())
    last = now - now % alert.step_s
    scope = QueryScope(frozenset(last - number * alert.step_s for number in range(alert.for_buckets + 1)), None)
    engine = QueryEngine(settings, declarations, execution_limits(settings))
    try:
        view = engine.served_view(alert.view.name)
        answer = engine.execute(alert_query(alert, view, scope))
    except ServingError as error:
        typer.echo(f"tidemark: {error.detail}", err=True)
        raise typer.Exit(1) from None
    finally:
        engine.close()
    judgements = judge(alert, view, alert.condition_for(view), scope, answer, now)
    periods = [
        {"key": named(alert.keys, key), "period": _iso(period), "true": judgement.is_true,
         "answers": dict(judgement.value)}
        for key, of_key in judgements.items()
        for period, judgement in sorted(of_key.items())
        if judgement.value
    ]  # fmt: skip
    return sorted(periods, key=lambda each: not each["true"])


def _send(settings: Settings, alert: Alert) -> dict[str, str | None]:
    """Send a notification with the state `test` to every target. Gives the error of each, None if it was delivered."""
    import json
    import time

    from infra.stack.addresses import addresses
    from master_dataset.errors import MasterDatasetError
    from serving_layer.alerts.output_topics import OutputRecord, alerts_topic
    from serving_layer.alerts.webhooks import NotDelivered, deliver, read_webhooks

    now = _iso(time.time())
    id_ = f"{alert.name}-test-{int(time.time())}"
    body = json.dumps(
        {"id": id_, "alert": alert.name, "view": alert.view.name, "key": dict.fromkeys(alert.keys, "test"),
         "state": "test", "pending_at": now, "fired_at": now, "resolved_at": None, "value": {}, "muted": False}
    ).encode()  # fmt: skip
    errors: dict[str, str | None] = {"kafka": None}
    try:
        record = OutputRecord(alert.name.encode(), body, f"{id_}:test")
        alerts_topic(settings, addresses(settings).kafka).send([record])
    except MasterDatasetError as error:
        errors["kafka"] = str(error)
    for hook in read_webhooks(settings.alerts_webhooks_file).values():
        if alert.webhooks is not None and hook.name not in alert.webhooks:
            continue
        target = f"webhook {hook.name}"
        errors[target] = None
        try:
            deliver(
                hook, f"{id_}:test", body, timeout_s=settings.alerts_webhooks_timeout_s,
                allow_private=settings.alerts_webhooks_private,
            )  # fmt: skip
        except NotDelivered as error:
            errors[target] = str(error)
    return errors


# ---- shared --------------------------------------------------------------------


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
        known = ", ".join(sorted(declarations.alerts)) or "none"
        raise DeclarationError(f"There is no alert {name!r}. There are: {known}.")
    return declarations.alerts[name]


def _when(alert: Alert) -> str:
    if not alert.when:
        return f"silence {alert.silence}"
    over = f" over {alert.over}" if alert.over else ""
    return f"{alert.when}{over}{f' for {alert.for_buckets} buckets' if alert.for_buckets > 1 else ''}"


def _view_and_keys(listed: dict[str, Any]) -> str:
    keys = ", ".join(listed["by"])
    return f"{listed['view']} by {keys}" if keys else f"{listed['view']}, all keys together"


def _iso(seconds: float) -> str:
    from serving_layer.alerts.notifications import iso

    return iso(seconds) or ""


def _seconds(iso_time: str) -> str:
    """`2026-03-01T00:00:03.123Z` -> `2026-03-01 00:00:03`."""
    return iso_time[:19].replace("T", " ")


def _times(episode: dict[str, Any]) -> str:
    """When it became pending, fired and was resolved, a line each."""
    states = (("pending", "pending_at"), ("fired", "fired_at"), ("resolved", "resolved_at"))
    return "\n".join(f"{word:9}{_seconds(episode[name])}" for word, name in states if episode[name])


def _print_table(columns: list[str], rows: list[list[Any]]) -> None:
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    from infra import terminal

    # The first two columns are short and stay whole; the others are folded to the width of the terminal.
    headers = [Column(name, no_wrap=number < 2, overflow="fold") for number, name in enumerate(columns)]
    table = Table(*headers, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    terminal.out.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name} {_cell(each)}" for name, each in value.items())
    return "–" if value is None else str(value)
