"""`tidemark backup`: everything of a home that cannot be recomputed, in a folder elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.commands.options import Output, OutputOption


def command(
    destination: Annotated[
        Path,
        typer.Argument(metavar="DEST", help="Folder of the backups, on another disk. It is made if it is missing."),
    ],
    keep: Annotated[
        int | None,
        typer.Option(min=1, envvar="TIDEMARK_CLI_KEEP", help="Keep so many of the newest backups.", show_default="all"),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Back up a home into a folder, while it runs or not. What is in an earlier backup is not copied again.

    Exit code 75: another backup into this folder is active.
    """
    from infra import terminal
    from infra.settings import load_settings
    from tidemark.backup.backup import back_up

    done = back_up(load_settings(), destination, keep)
    row = {
        "backup": done.manifest.number,
        "files": len(done.manifest.files),
        "bytes": done.manifest.bytes,
        "new_bytes": done.new_bytes,
        "removed": ", ".join(map(str, done.removed)) or "none",
    }
    if output is Output.JSON:
        terminal.print_json({**row, "removed": done.removed, "sources": done.manifest.sources, "notes": done.notes})
    else:
        terminal.print_result([row], output)
        for sentence in done.notes:
            typer.echo(sentence, err=True)
