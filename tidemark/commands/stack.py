"""`tidemark up`, `down`, `status`, `logs`, `doctor`, `config`, `jars` and `version`: run an installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from infra.settings import Settings


def add_commands(app: typer.Typer) -> None:
    """Register them, in the order of `--help`."""
    for command in (up, down, status, logs, doctor, config, jars, version):
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
) -> None:
    """Start Kafka, Redis and the layers' processes; keep them running, here or detached."""
    from infra import terminal
    from infra.stack import up

    settings = _settings()
    with terminal.jar_progress() as progress:
        up.check_and_fetch(settings, progress)
    if (secret := up.first_access_key(settings)) is not None:
        terminal.print_first_key(secret)
    for sentence in _changed_sources(settings):
        typer.echo(f"tidemark: {sentence}", err=True)
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


def down() -> None:
    """Stop what `up` started on this home."""
    from infra import terminal
    from infra.stack import up

    settings = _settings()
    with terminal.live_status() as show:
        up.stop(settings, show)
    typer.echo(f"Stopped {settings.home}.")


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
) -> None:
    """Print the end of the logs."""
    from infra.stack.log_reader import follow_logs, print_logs

    home = _settings().home
    print_logs(home, service, lines)
    if follow:
        follow_logs(home, service)


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
) -> None:
    """Fetch the jars of Kafka and Spark into the cache, or check them; archive Spark's classes for quicker starts."""
    from infra import terminal
    from infra.errors import JarsError
    from infra.java.class_archive import find_archive, make_archive
    from infra.java.find import find_java
    from infra.java.jars import fetch_jars, write_lock

    settings = _settings()
    java = find_java(settings.java_home)
    if relock:
        typer.echo(f"Locked {write_lock(java, settings.jars_dir, settings.ivy_settings)} jars.")
        return
    with terminal.jar_progress() as progress:
        found = fetch_jars(java, settings.jars_dir, settings.ivy_settings, progress)
    if for_spark:
        typer.echo(",".join(map(str, found.spark)))
        return
    typer.echo(f"All jars are in {found.folder}, every hash right.")
    if not find_archive(java, found):
        typer.echo("Archiving Spark's classes for quicker starts (a minute, once) ...")
    try:
        archive = make_archive(java, found)
    except JarsError as error:  # sessions start all the same, only slower
        typer.echo(f"Spark's classes are not archived for quicker starts: {error}")
    else:
        typer.echo(f"Spark's classes are archived for quicker starts in {archive}.")


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
    from master_dataset.table.fields import changed_sources
    from views.declarations import declared_by

    if not (settings.master_dir or settings.home / "master").is_dir():
        return []
    try:
        declared = declared_by(settings)
    except Exception:  # the processes that need them say what is wrong with them
        return []
    return list(changed_sources(settings, declared.sources.values()).values())
