"""The `tidemark` command. Results go to stdout, logs and progress to stderr; heavy imports wait inside the commands."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from infra.settings import Settings

app = typer.Typer(
    name="tidemark",
    help="One number, right and fresh: batch and real-time views that meet at exact Kafka offsets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", envvar="TIDEMARK_CLI_OUTPUT", help="How to print the result.")
]


@app.callback()
def _before_all(
    home: Annotated[
        Path | None,
        typer.Option(
            envvar="TIDEMARK_HOME",
            help="Folder that holds everything of one installation.",
            show_default=".tidemark",
        ),
    ] = None,
) -> None:
    if home is not None:
        os.environ["TIDEMARK_HOME"] = str(home)


@app.command()
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
        typer.echo("tidemark: everything else is up. What is broken is tried again and again.", err=True)
        raise typer.Exit(1)


@app.command()
def down() -> None:
    """Stop what `up` started on this home."""
    from infra import terminal
    from infra.stack import up

    settings = _settings()
    with terminal.live_status() as show:
        up.stop(settings, show)
    typer.echo(f"Stopped {settings.home}.")


@app.command()
def status(output: OutputOption = Output.TABLE) -> None:
    """Show what runs on this home. Exit code 0 only when everything is ready."""
    from infra import terminal
    from infra.stack import up

    settings = _settings()
    found = up.read_status(settings)
    if found is None:
        found = {"home": str(settings.home), "ready": False, "running": False, "services": []}
    else:
        found = {**found, "running": True}
    if output is Output.JSON:
        terminal.print_json(found)
    elif found["running"]:
        terminal.print_status(found)
    else:
        typer.echo(f"Nothing runs on {settings.home}. Start it with `tidemark up`.")
    raise typer.Exit(0 if found["ready"] else 1)


@app.command()
def logs(
    service: Annotated[str | None, typer.Argument(help="Which service; all of them if not given.")] = None,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=1, envvar="TIDEMARK_CLI_LINES", help="How many of the last lines."),
    ] = 50,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", envvar="TIDEMARK_CLI_FOLLOW", help="Go on as new lines arrive, until Ctrl-C."),
    ] = False,
) -> None:
    """Print the end of the logs."""
    from infra.stack.log_reader import follow_logs, print_logs

    home = _settings().home
    print_logs(home, service, lines)
    if follow:
        follow_logs(home, service)


@app.command()
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


@app.command()
def config(output: OutputOption = Output.TABLE) -> None:
    """Show every setting: its value, where that comes from, and what it is for."""
    from infra import terminal
    from infra.settings import settings_rows

    rows = settings_rows(_settings())
    if output is Output.JSON:
        terminal.print_json([row._asdict() for row in rows])
    else:
        terminal.print_settings(rows)


@app.command()
def jars(
    relock: Annotated[
        bool,
        typer.Option(
            "--relock",
            envvar="TIDEMARK_CLI_RELOCK",
            help="For developers: write jars.sha256 anew from ivy.xml.",
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
    """Fetch the jars of Kafka and Spark into the cache, or check the ones that are there; let Spark start quicker."""
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
        typer.echo("Keeping Spark's classes for quicker starts (a minute, once) ...")
    try:
        archive = make_archive(java, found)
    except JarsError as error:  # sessions start all the same, only slower
        typer.echo(f"Spark's classes are not kept for quicker starts: {error}")
    else:
        typer.echo(f"Spark's classes are kept for quicker starts in {archive}.")


@app.command()
def version(output: OutputOption = Output.TABLE) -> None:
    """Print the versions of Tidemark and of what it stands on."""
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


# ---- commands of the layers --------------------------------------------------


class Group(NamedTuple):
    """Commands that live in a layer. Its module is imported only when one of them is called.

    The module has a typer `app`; or, for a group that is one command, the function `command`.
    """

    module: str
    help: str
    is_command: bool = False


GROUPS: dict[str, Group] = {
    "keys": Group("tidemark.commands.keys", "Make, list and remove the access keys of the REST interfaces."),
    "topics": Group("tidemark.commands.topics", "Make the declared topics, and compare them with the broker's."),
    "master": Group("tidemark.commands.master", "Look at the master dataset; prove, repair, compact, read, replay it."),
    "views": Group("tidemark.commands.views", "List, show and check the declared views; begin one of your own."),
    "batch": Group("tidemark.commands.batch", "Compute the batch views; list, show, roll back and prune their runs."),
    "speed": Group(
        "tidemark.commands.speed", "Look at the speed layer: how far it is, what Redis holds; make that anew."
    ),
    "query": Group(
        "tidemark.commands.query",
        "Ask a view: a table, its course as bars, and what the answer is made of.",
        is_command=True,
    ),
    "verify": Group(
        "tidemark.commands.verify",
        "Compare what the speed side says, or every answer, with a recompute. Exit code 1: something differs.",
        is_command=True,
    ),
    "alerts": Group("tidemark.commands.alerts", "List and show alerts, try one out, mute it for a while."),
    "dead": Group("tidemark.commands.dead", "Look at invalid records, and send them again."),
    "demo": Group(
        "tidemark.demo.demo",
        "Bring everything up, send a day of events and more, and prove each answer by a recompute from scratch.",
        is_command=True,
    ),
    "torture": Group(
        "tidemark.commands.torture",
        "Hurt an installation of its own in every known way, ask it all the time, and prove each answer.",
        is_command=True,
    ),
    "import": Group(
        "tidemark.commands.import_files",
        "Send the lines of files as events into a source: NDJSON, CSV, W3C and web-server logs.",
        is_command=True,
    ),
}


def _add_groups(arguments: list[str]) -> None:
    """Register every group by its help text, and the one that is called with its commands."""
    for name, group in GROUPS.items():
        if group.is_command:
            app.command(name)(_command_of(group) if name in arguments else _not_called(group))
        elif name in arguments:
            app.add_typer(importlib.import_module(group.module).app, name=name, help=group.help)
        else:
            app.add_typer(typer.Typer(), name=name, help=group.help)


def _command_of(group: Group) -> Callable[..., None]:
    command: Callable[..., None] = importlib.import_module(group.module).command
    return command


def _not_called(group: Group) -> Callable[..., None]:
    """Stands for a command that is only listed."""

    def command() -> None: ...

    command.__doc__ = group.help
    return command


def main() -> Any:
    """The program: errors that a person can mend are printed as one sentence, others with their traceback."""
    try:
        _add_groups(sys.argv[1:])
        return app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)  # whoever read our output went away
    except OSError as error:
        if error.filename is None:
            raise
        sys.stderr.write(f"tidemark: {error.filename}: {error.strerror}.\n")
        sys.exit(1)
    except Exception as error:
        exit_code = getattr(error, "exit_code", None)  # every layer's errors have one
        if exit_code is None:
            raise
        sys.stderr.write(f"tidemark: {error}\n")
        sys.exit(exit_code)


if __name__ == "__main__":
    main()
