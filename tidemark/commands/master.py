"""`tidemark master`: show, prove, repair, rebase, compact, read and replay the master dataset."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from infra.settings import Settings
    from master_dataset.cut import Cut
    from master_dataset.reading.read import RecordFilter
    from views.source import Source

app = typer.Typer(no_args_is_help=True)

SourceArgument = Annotated[str, typer.Argument(help="Name of the source.")]
SinceOption = Annotated[
    str | None, typer.Option(envvar="TIDEMARK_CLI_SINCE", help="First event time, ISO-8601.", show_default="the first")
]
UntilOption = Annotated[
    str | None,
    typer.Option(envvar="TIDEMARK_CLI_UNTIL", help="Event time to stop before, ISO-8601.", show_default="no end"),
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", envvar="TIDEMARK_CLI_FROM", help="Cut to start at, like 0:120,1:98.", show_default="zero"),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", envvar="TIDEMARK_CLI_TO", help="Cut to stop before, like 0:200,1:150.", show_default="no end"),
]


class ExportFormat(StrEnum):
    """The formats of `master read`."""

    NDJSON = "ndjson"
    PARQUET = "parquet"


@app.command()
def status(
    source: Annotated[str | None, typer.Argument(help="Name of the source; all of them if not given.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show each table's cut, rows, files, bytes, removed, lost and unproved rows, its lag, and the archiver's state."""
    from infra import terminal

    settings, sources = _declared(source)
    terminal.print_result([_status_of(settings, each) for each in sources], output)


@app.command()
def fsck(
    source: Annotated[str | None, typer.Argument(help="Name of the source; all of them if not given.")] = None,
    deep: Annotated[
        bool, typer.Option("--deep", envvar="TIDEMARK_CLI_DEEP", help="Also read every row and compare its hash.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Prove that no record is lost, duplicated or torn. Exit code 1 if one is."""
    from infra import terminal
    from master_dataset.table.checks.fsck import deep_check, quick_check
    from master_dataset.table.paths import table_path

    settings, sources = _declared(source)
    spark = _spark(settings) if deep else None
    rows, damaged = [], False
    for each in sources:
        path = table_path(settings, each.name)
        findings = deep_check(spark, path) if spark else quick_check(path)
        damaged = damaged or any(finding.is_damage for finding in findings)
        rows += [
            {"source": each.name, "trouble": str(finding.trouble), "where": finding.where, "what": finding.text}
            for finding in findings
        ]
    terminal.print_result(rows, output, "Every commit follows the one before, and every file is as it was written.")
    raise typer.Exit(1 if damaged else 0)


@app.command()
def repair(
    source: SourceArgument,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            envvar="TIDEMARK_CLI_ACCEPT_LOSS",
            help="Continue after offsets that Kafka no longer holds.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Restore from Kafka what a damaged commit or file lost, and name what cannot be restored."""
    from infra import terminal
    from infra.stack.addresses import addresses
    from master_dataset.archiver.control import without_archiver
    from master_dataset.kafka.positions import read_positions
    from master_dataset.table.checks.repair import accept_loss as accept
    from master_dataset.table.checks.repair import repair as repair_table
    from master_dataset.table.paths import table_path

    settings, (declared,) = _declared(source)
    path, bootstrap = table_path(settings, declared.name), addresses(settings).kafka
    with without_archiver(path):
        spark = _spark(settings)
        report = repair_table(spark, settings, bootstrap, declared, path)
        lost = list(report.lost)
        if accept_loss:
            lost += accept(spark, declared, path, read_positions(settings, bootstrap, declared))
    found = {
        "moved out of the table": ", ".join(report.moved) or "nothing",
        "made to agree with the ledger": ", ".join(map(str, report.agreed)) or "none",
        "commits replaced": ", ".join(map(str, report.voided)) or "none",
        "rows brought back": report.restored_rows,
        "offsets lost for good": "; ".join(map(str, lost)) or "none",
        "still damaged": "; ".join(finding.text for finding in report.remaining) or "nothing",
    }
    if output is Output.JSON:
        terminal.print_json([found])
    else:
        terminal.print_pairs(found)
    raise typer.Exit(1 if report.remaining or report.lost else 0)


@app.command()
def rebase(
    source: SourceArgument,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            envvar="TIDEMARK_CLI_ACCEPT_LOSS",
            help="Go on though the old Kafka held records that were not archived.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Go on with a topic that was made again, or that lost its newest records, under the same source.

    The new records follow all old ones; what the old Kafka held and nobody archived is recorded as lost. The speed
    views go on after the next batch run.
    """
    from infra import terminal
    from tidemark.rebase import rebase_source

    settings, (declared,) = _declared(source)
    report = rebase_source(settings, declared, lambda: _spark(settings), accept_loss=accept_loss)
    if output is Output.JSON:
        terminal.print_json(report)
    else:
        schema_ids = " ".join(report["schema_ids"]) or "unchanged"
        terminal.print_pairs({**report, "lost": "; ".join(report["lost"]) or "nothing", "schema_ids": schema_ids})


@app.command()
def compact(source: SourceArgument, output: OutputOption = Output.TABLE) -> None:
    """Rewrite many small files into few large ones, and seal old commits; the records stay the same.

    The archiver does this by itself, see the settings that begin with master_.
    """
    from infra import terminal
    from master_dataset.table.append import commit_lock
    from master_dataset.table.compaction import compact as rewrite
    from master_dataset.table.compaction import remove_replaced
    from master_dataset.table.paths import table_path
    from master_dataset.table.sealing import tidy
    from master_dataset.table.stray_files import remove_strays

    settings, (declared,) = _declared(source)
    table = table_path(settings, declared.name)
    done = rewrite(_spark(settings), table, large_bytes=settings.master_file_mb * 2**20)
    with commit_lock(table):
        tidied = tidy(table, min_commits=1)
    keep_s = settings.master_keep_replaced_hours * 3600
    more = {
        "commits_sealed": tidied.sealed,
        "log_files_removed": tidied.removed,
        "replaced_files_removed": remove_replaced(table, keep_s),
        "stray_files_removed": remove_strays(table, keep_s),
    }
    terminal.print_result([{"source": declared.name, **done._asdict(), **more}], output)


@app.command()
def retain(
    source: SourceArgument,
    days: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="TIDEMARK_CLI_DAYS",
            help="Days for which records stay, by their time in Kafka.",
            show_default="master_retention_days",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", envvar="TIDEMARK_CLI_DRY_RUN", help="Only print what would be removed.")
    ] = False,
    drop_undeclared: Annotated[
        bool,
        typer.Option(
            "--drop-undeclared",
            envvar="TIDEMARK_CLI_DROP_UNDECLARED",
            help="Let the totals of views go that are not declared any more.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", envvar="TIDEMARK_CLI_YES", help="Remove without asking, as in a script.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove old records in whole days, after saving what the views counted of them. They cannot be brought back.

    Asks first, unless --yes is given; without a terminal it needs --yes. Batch runs remove records by themselves if
    master_retention_days is set. Exit code 75: a run is active.
    """
    from batch_layer.lease import lease
    from batch_layer.retention import Retention
    from hand_off.batch_folder import BatchFolder
    from hand_off.errors import BatchError
    from infra import terminal
    from master_dataset.table.paths import table_path
    from views.declarations import declared_by

    settings, (declared,) = _declared(source)
    wanted = settings.master_retention_days if days is None else days
    if not wanted:
        raise typer.BadParameter("give --days, or set master_retention_days.")
    if not dry_run and not yes:
        _confirm_removal(declared.name, wanted)
    folder = BatchFolder.of(settings, declared.name)
    views = list(declared_by(settings).views_of(declared.name))
    with lease(folder, "master retain"):
        retention = Retention(
            _spark(settings), settings, folder, table_path(settings, declared.name), views,
            drop_undeclared=drop_undeclared,
        )  # fmt: skip
        done = retention.apply(wanted, dry_run=dry_run)
    if done.reason:
        raise BatchError(f"Nothing of source {declared.name!r} was removed: {done.reason}.")
    rows = {"would_remove" if dry_run else "removed": done.rows}
    found = {"source": done.source, "before": done.day, "cut": done.cut, **rows, "foundation": done.foundation}
    terminal.print_result([found], output)


def _confirm_removal(source: str, days: int) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: give --yes to remove records, or --dry-run.")
    question = f"Remove the records of source {source!r} that are older than {days} days? They cannot be brought back."
    typer.confirm(question, abort=True, err=True)


@app.command()
def read(
    source: SourceArgument,
    since: SinceOption = None,
    until: UntilOption = None,
    start: FromOption = None,
    end: ToOption = None,
    with_invalid: Annotated[
        bool, typer.Option("--with-invalid", envvar="TIDEMARK_CLI_WITH_INVALID", help="Invalid records too.")
    ] = False,
    file_format: Annotated[
        ExportFormat, typer.Option("--format", "-f", envvar="TIDEMARK_CLI_FORMAT", help="How to write them.")
    ] = ExportFormat.NDJSON,
    out: Annotated[
        Path | None, typer.Option(envvar="TIDEMARK_CLI_OUT", help="File to write.", show_default="standard output")
    ] = None,
) -> None:
    """Write the records of a range of times or offsets as NDJSON or Parquet."""
    from master_dataset.reading.export import write_ndjson, write_parquet
    from master_dataset.reading.read import read_records
    from master_dataset.table.checks.fsck import check_readable
    from master_dataset.table.paths import table_path

    if file_format is ExportFormat.PARQUET and out is None:
        raise typer.BadParameter("Parquet needs a file: --out records.parquet")
    settings, (declared,) = _declared(source)
    selection = _selection(since, until, start, end, with_invalid=with_invalid)
    path = table_path(settings, declared.name)
    check_readable(declared.name, path)
    batches = read_records(path, selection)
    if file_format is ExportFormat.PARQUET and out is not None:
        count = write_parquet(batches, out, path)
    elif out is None:
        count = write_ndjson(batches, sys.stdout.buffer)
    else:
        with out.open("wb") as file:
            count = write_ndjson(batches, file)
    typer.echo(f"{count:,} records", err=True)


@app.command()
def replay(
    source: SourceArgument,
    topic: Annotated[str, typer.Argument(help="Topic to send them to; it must exist.")],
    since: SinceOption = None,
    until: UntilOption = None,
    start: FromOption = None,
    end: ToOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send records from the master dataset to a topic again, byte for byte, with their keys and headers."""
    from infra import terminal
    from infra.clients.kafka import librdkafka_config
    from infra.stack.addresses import addresses
    from master_dataset.kafka.record import record_of
    from master_dataset.kafka.send import send_records
    from master_dataset.reading.read import RECORD_COLUMNS, read_records
    from master_dataset.table.checks.fsck import check_readable
    from master_dataset.table.paths import table_path

    settings, (declared,) = _declared(source)
    selection = _selection(since, until, start, end, with_invalid=True)
    path = table_path(settings, declared.name)
    check_readable(declared.name, path)
    rows = (row for batch in read_records(path, selection, RECORD_COLUMNS) for row in batch.to_pylist())
    kafka = librdkafka_config(settings, addresses(settings).kafka)
    sent = send_records(kafka, (record_of(row, topic) for row in rows))
    if output is Output.JSON:
        terminal.print_json({"topic": topic, "sent": sent})
    else:
        typer.echo(f"Sent {sent:,} records to {topic}.")


def _status_of(settings: Settings, source: Source) -> dict[str, Any]:
    from infra.stack.addresses import addresses
    from master_dataset.archiver.status import status_text
    from master_dataset.cut import count_between, cut_to_json
    from master_dataset.errors import MasterDatasetError
    from master_dataset.kafka.positions import logical_positions, read_positions
    from master_dataset.table import coverage
    from master_dataset.table.history import read_history
    from master_dataset.table.paths import table_path

    path = table_path(settings, source.name)
    history = read_history(path)
    held, files = coverage.of_history(history), history.files.live
    try:
        raw = read_positions(settings, addresses(settings).kafka, source, timeout_s=5)
        positions = logical_positions(raw, held.offset_base)
        start = {p: max(held.cut.get(p, 0), positions.earliest[p]) for p in positions.latest}
        lag: int | None = count_between(start, positions.latest)
    except MasterDatasetError:
        lag = None
    return {
        "source": source.name,
        "cut": cut_to_json(held.cut),
        "rows": held.rows,
        "removed rows": held.removed.rows,
        "commits": history.newest + 1,
        "files": len(files),
        "bytes": sum(file.size for file in files.values()),
        "lost offsets": sum(each.size for each in held.lost),
        "unproved rows": sum(held.unproved.values()),
        "behind Kafka": "unknown: no broker answers" if lag is None else lag,
        "archiver": status_text(settings, source.name),
    }


def _selection(
    since: str | None, until: str | None, start: str | None, end: str | None, *, with_invalid: bool
) -> RecordFilter:
    from master_dataset.reading.read import RecordFilter

    return RecordFilter(
        _time("--since", since), _time("--until", until), _cut("--from", start), _cut("--to", end), with_invalid
    )


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{option} is {text!r}; it should be a time like 2026-01-31T12:00:00Z.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _cut(option: str, text: str | None) -> Cut:
    try:
        pairs = [part.split(":") for part in (text or "").split(",") if part]
        return {int(partition): int(offset) for partition, offset in pairs}
    except ValueError:
        raise typer.BadParameter(
            f"{option} is {text!r}; it should be partition:offset pairs like 0:120,1:98."
        ) from None


def _declared(source: str | None) -> tuple[Settings, list[Source]]:
    from infra.settings import load_settings
    from views.declarations import declared_by

    settings = load_settings()
    found = declared_by(settings)
    return settings, [found.source(source)] if source else list(found.sources.values())


def _spark(settings: Settings) -> Any:
    from infra.home import Home
    from infra.spark.session import spark_session

    return spark_session(settings, "tidemark-master", output=Home(settings.home).log_file("master"))
