"""`tidemark up`, `down`, `restart`, `status`, `logs`, `doctor`, `config`, `jars` and others: run an installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.settings import Settings


def add_commands(app: typer.Typer) -> None:
    """Register them, in the order of `--help`."""
    for command in (up, down, restart, status, logs, doctor, config, jars, systemd_unit):
        app.command()(command)
    for command in (prometheus_config, prometheus_rules, version):
        app.command()(command)


def up(
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            envvar="TIDEMARK_CLI_DETACH",
            help="Return when everything is ready; keep it running.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start Kafka, Redis and the layers' processes; keep them running, here or detached.

    With --output json each status is a line, detached only the last; `first_key` is a new home's first access key.
    """
    from infra import terminal
    from infra.stack import up

    settings = _settings()
    with terminal.jar_progress() as progress:
        up.check_and_fetch(settings, progress)
    secret = up.first_access_key(settings)
    for sentence in _changed_sources(settings):
        typer.echo(f"tidemark: {sentence}", err=True)
    if output is Output.JSON:
        key = {} if secret is None else {"first_key": {"name": "admin", "secret": secret}}
        if detach:
            status = up.start_detached(settings, lambda _status: None)
            terminal.print_json({**status, **key})
        else:
            up.supervise(settings, lambda status: terminal.print_json_line({**status, **key}))
            return
    else:
        if secret is not None:
            terminal.print_first_key(secret)
        with terminal.live_status() as show:
            if detach:
                status = up.start_detached(settings, show)
            else:
                up.supervise(settings, show)
                return
    broken = [service for service in status["services"] if service["state"] != "ready" or service["message"]]
    for service in broken:
        what = "runs, but" if service["state"] == "ready" else "does not run:"
        typer.echo(f"tidemark: {service['name']} {what} {service['message']}", err=True)
    if broken:
        typer.echo("tidemark: everything else is up. What failed is retried.", err=True)
        raise typer.Exit(1)


def down(output: OutputOption = Output.TABLE) -> None:
    """Stop what `up` started on this home."""
    from infra import terminal
    from infra.stack import up

    settings = _settings()
    if output is Output.JSON:
        up.stop(settings, lambda _status: None)
        terminal.print_json({"home": str(settings.home), "running": False})
        return
    with terminal.live_status() as show:
        up.stop(settings, show)
    typer.echo(f"Stopped {settings.home}.")


def restart(
    service: Annotated[str, typer.Argument(help="Which service, as `tidemark status` names it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Restart one service of the running stack, and wait until it is ready. The others keep running."""
    from infra import terminal
    from infra.stack import restart_requests, up

    settings = _settings()

    def ask(show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        return restart_requests.restart(settings, service, lambda: up.read_status(settings), show)

    if output is Output.JSON:
        terminal.print_json(ask(lambda _status: None))
        return
    with terminal.live_status() as show:
        line = ask(show)
    typer.echo(f"Restarted {service} (process {line['pid']}).")


def status(output: OutputOption = Output.TABLE) -> None:
    """Show what runs on this home, which runs failed, and what a rollback holds back. Exit code 0 only when everything
    is ready.
    """
    from infra import terminal
    from infra.stack import up
    from tidemark.commands.notes import notes

    settings = _settings()
    found = up.read_status(settings)
    if found is None:
        found = {"home": str(settings.home), "ready": False, "running": False, "services": []}
    else:
        services = [{**each, "memory_mb": terminal.memory_mb(each["pid"])} for each in found["services"]]
        found = {**found, "running": True, "services": services}
    found["notes"] = notes(settings, "\n".join(each["message"] for each in found["services"]))
    if output is Output.JSON:
        terminal.print_json(found)
    else:
        if found["running"]:
            terminal.print_status(found)
        else:
            typer.echo(f"Nothing runs on {settings.home}. Start it with `tidemark up`.")
        for note in found["notes"]:
            typer.echo(note)
    raise typer.Exit(0 if found["ready"] else 1)


def logs(
    service: Annotated[str | None, typer.Argument(help="Which service; all of them if not given.")] = None,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=1, envvar="TIDEMARK_CLI_LINES", help="How many of the last lines."),
    ] = 50,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", envvar="TIDEMARK_CLI_FOLLOW", help="Print new lines as they arrive, until Ctrl-C."
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the end of the logs. With --output json each line is an object with `service` and `line`."""
    from infra.stack.log_reader import follow_logs, print_logs

    home, as_json = _settings().home, output is Output.JSON
    print_logs(home, service, lines, as_json=as_json)
    if follow:
        follow_logs(home, service, as_json=as_json)


def doctor(output: OutputOption = Output.TABLE) -> None:
    """Check the machine and this home; print the fix beside each failure."""
    from infra import terminal
    from infra.stack.doctor import Verdict, examine

    findings = list(examine(_settings()))
    if output is Output.JSON:
        terminal.print_json([finding._asdict() for finding in findings])
    else:
        terminal.print_findings(findings)
    raise typer.Exit(1 if any(finding.verdict is Verdict.FAILED for finding in findings) else 0)


def config(output: OutputOption = Output.TABLE) -> None:
    """Show every setting: its value, where that comes from, and what it is for."""
    from infra import terminal
    from infra.settings import settings_rows

    rows = settings_rows(_settings())
    if output is Output.JSON:
        terminal.print_json([row._asdict() for row in rows])
    else:
        terminal.print_settings(rows)


def jars(
    relock: Annotated[
        bool,
        typer.Option(
            "--relock",
            envvar="TIDEMARK_CLI_RELOCK",
            help="For developers: write jars.sha256 again from ivy.xml.",
        ),
    ] = False,
    for_spark: Annotated[
        bool,
        typer.Option(
            "--for-spark",
            envvar="TIDEMARK_CLI_FOR_SPARK",
            help="Print those that Spark needs, separated by commas, as `spark-submit --jars` takes them.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Fetch the jars of Kafka and Spark into the cache, or check them; archive Spark's classes for quicker starts."""
    from infra import terminal
    from infra.errors import JarsError
    from infra.java.class_archive import find_archive, make_archive
    from infra.java.find import find_java
    from infra.java.jars import fetch_jars, write_lock

    settings = _settings()
    java = find_java(settings.java_home)
    as_json = output is Output.JSON
    if relock:
        locked = write_lock(java, settings.jars_dir, settings.ivy_settings)
        terminal.print_json({"locked": locked}) if as_json else typer.echo(f"Locked {locked} jars.")
        return
    with terminal.jar_progress() as progress:
        found = fetch_jars(java, settings.jars_dir, settings.ivy_settings, progress)
    if for_spark:
        spark = list(map(str, found.spark))
        terminal.print_json(spark) if as_json else typer.echo(",".join(spark))
        return
    if not as_json:
        typer.echo(f"All jars are in {found.folder}, every hash right.")
        if not find_archive(java, found):
            typer.echo("Archiving Spark's classes for quicker starts (a minute, once) ...")
    archive, problem = None, ""
    try:
        archive = make_archive(java, found)
    except JarsError as error:  # sessions start all the same, only slower
        problem = str(error)
    if as_json:
        made = None if archive is None else str(archive)
        terminal.print_json({"folder": str(found.folder), "class_archive": made, "problem": problem})
    elif archive is None:
        typer.echo(f"Spark's classes are not archived for quicker starts: {problem}")
    else:
        typer.echo(f"Spark's classes are archived for quicker starts in {archive}.")


def systemd_unit(output: OutputOption = Output.TABLE) -> None:
    """Print a systemd unit that runs this home as a service, for the user who calls this.

    For example: tidemark systemd-unit | sudo tee /etc/systemd/system/tidemark.service
    """
    from infra import terminal
    from infra.stack.systemd_unit import unit_text, unit_warnings

    settings = _settings()
    for warning in unit_warnings(settings):
        typer.echo(f"tidemark: {warning}", err=True)
    text = unit_text(settings)
    terminal.print_json({"name": "tidemark.service", "text": text}) if output is Output.JSON else typer.echo(
        text, nl=False
    )


def prometheus_config(output: OutputOption = Output.TABLE) -> None:
    """Print a configuration for a Prometheus that watches this home: where to scrape, with the ports of the home.

    For example: tidemark prometheus-config > prometheus.yml
    """
    from infra import terminal
    from infra.prometheus.configuration import configuration_text, unknown_ports

    settings = _settings()
    if unknown := unknown_ports(settings):
        typer.echo(
            f"tidemark: the home {str(settings.home)!r} has not chosen {', '.join(unknown)} yet; the usual ports are "
            "printed. Run `tidemark up --detach` once, then this command again.",
            err=True,
        )
    text = configuration_text(settings)
    terminal.print_json({"name": "prometheus.yml", "text": text}) if output is Output.JSON else typer.echo(
        text, nl=False
    )


def prometheus_rules(output: OutputOption = Output.TABLE) -> None:
    """Print alerting rules for Prometheus: what an operator should know of, and what to do then.

    For example: tidemark prometheus-rules > tidemark.rules.yml
    """
    from infra import terminal
    from infra.prometheus.configuration import RULES_FILE, rules_text

    text = rules_text()
    terminal.print_json({"name": RULES_FILE, "text": text}) if output is Output.JSON else typer.echo(text, nl=False)


def version(output: OutputOption = Output.TABLE) -> None:
    """Print the versions of Tidemark and of its dependencies."""
    from infra import terminal
    from infra.version import versions

    found = versions()
    if output is Output.JSON:
        terminal.print_json(found)
    else:
        typer.echo("\n".join(f"{name} {number}" for name, number in found.items()))


def _settings() -> Settings:
    from infra.settings import load_settings

    return load_settings()


def _changed_sources(settings: Settings) -> list[str]:
    """Which sources declare other fields than their master tables have: said before the archiver refuses them."""
    from master_dataset.table.readings import changed_sources
    from views.declarations import declared_by

    if not (settings.master_dir or settings.home / "master").is_dir():
        return []
    try:
        declared = declared_by(settings)
    except Exception:  # the processes that need them say what is wrong with them
        return []
    return list(changed_sources(settings, declared.sources.values()).values())
