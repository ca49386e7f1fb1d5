"""The `tidemark` command. Results go to stdout, logs and progress to stderr; heavy imports wait inside the commands."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tidemark.commands import stack

app = typer.Typer(
    name="tidemark",
    help="One number, right and fresh: batch and real-time views that meet at exact Kafka offsets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


stack.add_commands(app)


class CommandGroup(NamedTuple):
    """A group of commands, or a single command, by its module, which is imported only when it is called.

    The module has a typer `app`, or for a single command the function `command`. Then `help` is the first paragraph of
    its docstring.
    """

    module: str
    help: str
    is_command: bool = False


GROUPS: dict[str, CommandGroup] = {
    "keys": CommandGroup("tidemark.commands.keys", "Create, list and remove the access keys of the REST interfaces."),
    "kafka-users": CommandGroup(
        "tidemark.commands.kafka_users", "Create, list and remove users of our own Kafka broker (`kafka_auth`)."
    ),
    "topics": CommandGroup(
        "tidemark.commands.topics",
        "Create the declared topics, and compare them with the broker's; create, alter and delete others.",
    ),
    "groups": CommandGroup("tidemark.commands.groups", "List, show and rewind consumer groups."),
    "produce": CommandGroup(
        "tidemark.commands.produce", "Send the lines of standard input to a topic, one record each.", is_command=True
    ),
    "consume": CommandGroup(
        "tidemark.commands.consume",
        "Print the records of a topic, or of all that match a pattern, from a chosen offset or as a group.",
        is_command=True,
    ),
    "registry": CommandGroup(
        "tidemark.commands.registry", "List, show, compare, check and register the schemas of the registry."
    ),
    "master": CommandGroup(
        "tidemark.commands.master", "Show the master dataset; prove, repair, compact, read and replay it."
    ),
    "views": CommandGroup(
        "tidemark.commands.views", "List, show and check the declared views; create one of your own."
    ),
    "batch": CommandGroup(
        "tidemark.commands.batch", "Compute the batch views; list, show, roll back, prune and repair their runs."
    ),
    "speed": CommandGroup(
        "tidemark.commands.speed", "Show how far the speed layer is and what Redis holds; rebuild the speed views."
    ),
    "query": CommandGroup(
        "tidemark.commands.query",
        "Query a view: a table, bars over time, and the provenance of the result.",
        is_command=True,
    ),
    "verify": CommandGroup(
        "tidemark.commands.verify",
        "Compare the speed views, or with --from-scratch every answer, with a recompute from events.",
        is_command=True,
    ),
    "alerts": CommandGroup("tidemark.commands.alerts", "List, show, test and mute alerts."),
    "dead": CommandGroup("tidemark.commands.dead", "List and show invalid records, and send them again."),
    "backup": CommandGroup(
        "tidemark.commands.backup",
        "Back up a home into a folder, while it runs or not. What is in an earlier backup is not copied again.",
        is_command=True,
    ),
    "restore": CommandGroup(
        "tidemark.commands.restore",
        "Restore a backup into a home that has no data, and check it. Nothing may run on the home.",
        is_command=True,
    ),
    "demo": CommandGroup(
        "tidemark.demo.demo",
        "Start everything, send events, run a batch, and compare each answer with a recompute from scratch.",
        is_command=True,
    ),
    "torture": CommandGroup(
        "tidemark.commands.torture",
        "Inject faults into an installation of its own, and compare every answer with the reference interpreter.",
        is_command=True,
    ),
    "import": CommandGroup(
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


def _command_of(group: CommandGroup) -> Callable[..., None]:
    command: Callable[..., None] = importlib.import_module(group.module).command
    return command


def _not_called(group: CommandGroup) -> Callable[..., None]:
    """A stand-in for a command that is only listed."""

    def command() -> None: ...

    command.__doc__ = group.help
    return command


def main() -> Any:
    """The program: errors that a person can fix are printed as one sentence, others with their traceback."""
    try:
        _add_groups(sys.argv[1:])
        return app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)  # the reader of our output is gone
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
