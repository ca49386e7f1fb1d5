"""`tidemark batch`: compute the batch views; list, show, roll back, prune and repair their runs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.times import readable_utc
from tidemark.commands.notes import counts_since
from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hand_off.batch_folder import BatchFolder
    from hand_off.manifests import Manifest
    from hand_off.publish_log import Entry
    from infra.settings import Settings

app = typer.Typer(no_args_is_help=True)

SourcesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--source", "-s", envvar="TIDEMARK_CLI_SOURCE", help="Only this source. May be repeated.", show_default="all"
    ),
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source",
        "-s",
        envvar="TIDEMARK_CLI_SOURCE",
        help="The source. It can be omitted if only one source has runs.",
        show_default="the only one",
    ),
]

LISTED: dict[str, Any] = {"as_is": ("run",), "optional": ("cut", "views", "kind"), "group_by": "source"}
"""How runs are listed in a narrow terminal."""


@app.command()
def run(
    sources: SourcesOption = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            envvar="TIDEMARK_CLI_FULL",
            help="Compute everything from scratch, instead of continuing from the last run.",
        ),
    ] = False,
    keep_pin: Annotated[
        bool,
        typer.Option(
            "--keep-pin",
            envvar="TIDEMARK_CLI_KEEP_PIN",
            help="Leave readers on the run that `rollback` chose; otherwise they move to the new one.",
        ),
    ] = False,
    overtake: Annotated[
        bool,
        typer.Option(
            "--overtake",
            envvar="TIDEMARK_CLI_OVERTAKE",
            help="Compute up to Kafka's end; a speed layer that is behind jumps there.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compute and publish the views of each source from the master dataset. Exit code 75: another run is active."""
    from batch_layer.failures import log_traceback, reason_of
    from batch_layer.run import run_batch
    from batch_layer.run_sources import sources_to_run, sources_with_views
    from infra import terminal
    from infra.logs import configure_logging
    from infra.settings import load_settings

    settings = load_settings()
    configure_logging(settings.log_level, form=settings.log_format)
    rows, codes = [], []
    for source in sources or sources_to_run(settings) or sources_with_views(settings):
        try:
            with terminal.run_progress(source) as report:
                made = run_batch(settings, source, full=full, unpin=not keep_pin, overtake=overtake, report=report)
        except Exception as error:  # the other sources still get their runs
            codes.append(getattr(error, "exit_code", 1))
            text = str(error)
            if not hasattr(error, "exit_code"):
                log_traceback(settings, source, error)
                text = (
                    f"The run of source {source!r} failed: {reason_of(error).rstrip('.')}. See `tidemark logs batch`."
                )
            typer.echo(f"tidemark: {text}", err=True)
        else:
            rows.append(_row_of(made))
            for view in made.views:
                if view.since is not None:
                    typer.echo(f"tidemark: {counts_since(view.name, view.since)}", err=True)
    terminal.print_result(
        rows,
        output,
        "No view is declared, so there is nothing to compute." if not codes else "",
        as_is=("run",),
        optional=("cut", "kind", "views"),
    )
    raise typer.Exit(min(codes, default=0))  # 1 before 75: a failure is worth more attention than waiting


@app.command("list")
def list_runs(sources: SourcesOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the published runs, newest first, and which of them is served."""
    from hand_off import publish_log
    from infra import terminal

    rows = []
    for folder in _folders(sources):
        served, pinned = publish_log.served(folder), publish_log.pinned(folder)
        for entry in reversed(publish_log.read(folder)[1:]):
            state = "pinned" if entry == pinned else "served" if entry == served else "published"
            rows.append(_listed(folder, entry, state))
    terminal.print_result(rows, output, "There are no runs yet. `tidemark batch run` makes one.", **LISTED)


@app.command()
def show(
    run: Annotated[int, typer.Argument(min=1, help="Number of the run.")],
    source: SourceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a run holds: its cut, its events, each view's rows, files and totals, and how long its phases took."""
    from hand_off.manifests import read_manifest
    from infra import terminal

    manifest = read_manifest(_folder(source), run)
    if output is Output.JSON:
        terminal.print_json(manifest.to_json())
        return
    terminal.print_pairs(_summary(manifest))
    if manifest.views:
        terminal.print_result([_view_row(view) for view in manifest.views], output)
    if manifest.timeline:
        terminal.print_result([dataclasses.asdict(phase) for phase in manifest.timeline], output)


@app.command()
def rollback(
    run: Annotated[int | None, typer.Argument(min=1, help="Number of the run to serve.")] = None,
    latest: Annotated[
        bool, typer.Option("--latest", envvar="TIDEMARK_CLI_LATEST", help="Serve the newest run again.")
    ] = False,
    source: SourceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Serve an older run, until `batch run` publishes the next or --latest is given. Nothing is deleted.

    If the speed view no longer continues that run, answers stand still at its cut, and the command says so.
    """
    from batch_layer.run_hand_off import HandOff, frozen_by_rollback
    from hand_off import publish_log
    from infra import terminal

    if (run is None) == (not latest):
        raise typer.BadParameter("name the run to serve, or give --latest.")
    _claim_home()
    folder = _folder(source)
    if run is not None:
        _check_whole(folder, run)
    entry = publish_log.serve(folder, run)
    row = _listed(folder, entry, "served" if run is None else "pinned")
    with HandOff.of(_settings(), folder) as hand_off:
        is_frozen = run is not None and hand_off.continues(entry) is False
    if output is Output.JSON:
        row["frozen"] = is_frozen
    terminal.print_result([row], output, **LISTED)
    if is_frozen:
        typer.echo(f"tidemark: {frozen_by_rollback(folder.source, entry.run)}", err=True)


@app.command()
def prune(
    sources: SourcesOption = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="TIDEMARK_CLI_KEEP",
            help="How many of the newest runs to keep.",
            show_default="batch_keep_runs",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", envvar="TIDEMARK_CLI_DRY_RUN", help="Only print what would be deleted.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete the data of old runs. The newest, the served one and those that the speed views need always stay.

    Exit code 75: another run is active.
    """
    from batch_layer.lease import lease
    from batch_layer.run_hand_off import HandOff
    from infra import terminal

    settings = _settings()
    _claim_home()
    rows = []
    for folder in _folders(sources):
        with lease(folder, "batch prune"), HandOff.of(settings, folder) as hand_off:
            done = hand_off.prune(settings.batch_keep_runs if keep is None else keep, dry_run=dry_run)
        rows.append(
            {
                "source": folder.source,
                "kept": ", ".join(map(str, done.kept)),
                "would go" if dry_run else "deleted": ", ".join(map(str, done.dropped)) or "none",
                "files": len(done.files),
                "bytes": done.bytes,
            }
        )
    terminal.print_result(rows, output, "There are no runs yet.")


@app.command()
def repair(
    sources: SourcesOption = None,
    newest: Annotated[
        bool,
        typer.Option(
            "--newest",
            envvar="TIDEMARK_CLI_NEWEST",
            help="Where more than one run may have been published by a damaged entry, take the newest.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Rebuild damaged entries of the publish log from their neighbours and from the manifests of the runs.

    The next run does so by itself wherever it is certain which run was published.
    """
    from hand_off import publish_log
    from infra import terminal
    from infra.logs import configure_logging

    configure_logging(_settings().log_level)
    _claim_home()
    rows = [
        {
            "source": folder.source,
            "entry": done.number,
            "run": "lost" if done.entry is None else done.entry.run,
            "taken from": done.taken_from,
        }
        for folder in _folders(sources)
        for done in publish_log.repair(folder, newest_of_several=newest)
    ]
    terminal.print_result(rows, output, "No entry of a publish log is damaged.")


# ---- what the commands share ---------------------------------------------------


def _settings() -> Settings:
    from infra.settings import load_settings

    return load_settings()


def _claim_home() -> None:
    """Refuse to change what a newer Tidemark wrote."""
    from infra.home import Home

    Home(_settings().home).claim()


def _folders(sources: Sequence[str] | None) -> list[BatchFolder]:
    """Those of the named sources, or all that have runs; found on the disk, so that no declaration is needed."""
    from hand_off.batch_folder import folders_with_runs
    from hand_off.errors import BatchError

    found = {folder.source: folder for folder in folders_with_runs(_settings())}
    for source in sources or ():
        if source not in found:
            raise BatchError(f"Source {source!r} has no runs. Sources with runs: {', '.join(found) or 'none'}.")
    return [found[source] for source in sources] if sources else list(found.values())


def _folder(source: str | None) -> BatchFolder:
    folders = _folders([source] if source else None)
    if len(folders) != 1:
        names = ", ".join(folder.source for folder in folders) or "none"
        raise typer.BadParameter(f"name the source: --source NAME. Sources with runs: {names}.")
    return folders[0]


def _check_whole(folder: BatchFolder, run: int) -> None:
    """Refuse a run that could not be served."""
    from hand_off import publish_log
    from hand_off.errors import BatchError
    from hand_off.manifests import missing_of, read_manifest

    publish_log.find(folder, run)
    missing = list(missing_of(folder, read_manifest(folder, run)))
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BatchError(
            f"Run {run} of source {folder.source!r} cannot be served: {missing[0]}{more}. "
            "Choose another run of `tidemark batch list`."
        )


def _listed(folder: BatchFolder, entry: Entry, state: str) -> dict[str, Any]:
    from hand_off.errors import BatchError
    from hand_off.manifests import read_manifest
    from master_dataset.cut import cut_to_json

    kind, rows, against = "pruned", None, ""
    if folder.manifest(entry.run).is_file():
        try:
            manifest = read_manifest(folder, entry.run)
            kind, rows, against = manifest.kind, manifest.rows, _against_speed(manifest)
        except BatchError:
            kind = "damaged"
    return {
        "source": folder.source,
        "run": entry.run,
        "cut": cut_to_json(entry.cut),
        "kind": kind,
        "views": len(entry.catalog),
        "rows": "" if rows is None else rows,
        "against speed": against,
        "when": _when(entry.at),
        "state": state,
    }


def _against_speed(manifest: Manifest) -> str:
    """How the speed views differed at the same offsets, of all views together."""
    found = [view.compared for view in manifest.views if view.compared and not view.compared["why_not"]]
    if not found:
        return "not compared"
    mismatched, excused = (sum(each[name] for each in found) for name in ("mismatched", "excused"))
    if not mismatched:
        return "equal"
    return f"{mismatched:,} differ" + (f", {excused:,} excused" if excused else "")


def _row_of(manifest: Manifest) -> dict[str, Any]:
    from master_dataset.cut import cut_to_json

    return {
        "source": manifest.source,
        "run": manifest.run,
        "cut": cut_to_json(manifest.cut),
        "kind": manifest.kind,
        "views": len(manifest.views),
        "rows": manifest.rows,
        "events": manifest.events,
        "duplicates": manifest.duplicates,
        "invalid": manifest.invalid,
        "seconds": round(manifest.finished - manifest.started, 1),
    }


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        **_row_of(manifest),
        "continues from": "nothing" if manifest.base_run is None else f"run {manifest.base_run}",
        "started": _when(manifest.started),
        "finished": _when(manifest.finished),
        "by Tidemark": manifest.app,
    }


def _view_row(view: Any) -> dict[str, Any]:
    return {
        "view": view.name,
        "definition": view.hash[:12],
        "kind": view.kind,
        "rows": view.rows,
        "files": len(view.files),
        "bytes": sum(file.bytes for file in view.files),
        "totals": ", ".join(f"{name}={total}" for name, total in view.totals.items()),
        "against speed": view.compared["in_words"] if view.compared else "not compared",
        "seconds": round(view.seconds, 1),
    }


def _when(at: float) -> str:
    return readable_utc(at).replace(" UTC", "Z")
