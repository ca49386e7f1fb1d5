"""`tidemark restore`: a backup becomes a home again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.commands.options import Output, OutputOption


def command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of the backups.")],
    backup: Annotated[
        int | None,
        typer.Option(min=1, envvar="TIDEMARK_CLI_BACKUP", help="Number of the backup.", show_default="the newest"),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Restore a backup into a home that has no data, and check it. Nothing may run on the home.

    A restore that was cut off is completed by the same command.
    """
    from infra import terminal
    from infra.settings import load_settings
    from tidemark.backup.restore import restore

    settings = load_settings()
    done = restore(settings, source, backup)
    if output is Output.JSON:
        row = {"backup": done.manifest.number, "files": len(done.manifest.files), "kept": done.kept}
        terminal.print_json({**row, "sources": done.manifest.sources, "advice": done.advice})
        return
    typer.echo(f"Restored backup {done.manifest.number} into {settings.home}: {len(done.manifest.files)} files.")
    for name in done.kept:
        typer.echo(f"{name} was there already and stayed as it was.")
    for sentence in done.advice:
        typer.echo(sentence)
