"""Compute one view from the master dataset: all of it, or on from where the last run ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from batch_layer import verify_totals
from batch_layer.parquet_files import count_rows, sample_rows
from batch_layer.tables import read_files, write_files
from hand_off.errors import BatchError
from hand_off.manifests import DataFile, ViewData
from views.on_spark.merge import merged
from views.on_spark.states import COUNTED, states
from views.states import unpack
from views.view import View

SAMPLED_ROWS = 200


@dataclass(frozen=True)
class Job:
    """What there is to compute: the view, its table, and how many events there must be."""

    spark: SparkSession
    view: View
    table: Path
    events: int


def compute_all(job: Job, events: DataFrame) -> ViewData:
    """Every group of the view, from all events."""
    begin = time.monotonic()
    passing, seen = verify_totals.observed(events, job.view)
    files = write_files(job.spark, job.table, states(passing, job.view))
    expected = _counted(job, seen, events)
    _check_files(job, files, expected)
    return _view_data(job, "full", files, expected, begin)


def compute_more(job: Job, events: DataFrame, base: ViewData) -> ViewData:
    """The groups of an earlier run with the events since then. Only the days that these touch are rewritten."""
    begin = time.monotonic()
    if not job.events:  # all that came were duplicates or invalid
        return replace(base, kind="continued", seconds=0.0)
    passing, seen = verify_totals.observed(events, job.view)
    new = states(passing, job.view).persist()
    days = {str(row[0]) for row in new.select(f.to_date("bucket")).distinct().collect()}
    fresh = _counted(job, seen, events)
    rewritten = [file for file in base.files if file.day in days]
    kept = [file for file in base.files if file.day not in days]
    files: list[DataFile] = []
    if not days:
        _check_files(job, files, fresh)
    else:
        old = read_files(job.spark, job.table, rewritten, like=new)
        _check_rows(job, rewritten)
        files = write_files(job.spark, job.table, merged(old, new, job.view) if rewritten else new)
        before = verify_totals.of_files(_paths(job, rewritten), job.view) if rewritten else _none(job.view)
        _check_files(
            job, files, verify_totals.added(before, {n: v for n, v in fresh.items() if n != verify_totals.READ})
        )
    new.unpersist()
    total = verify_totals.added(
        verify_totals.from_json(base.totals), {n: v for n, v in fresh.items() if n != verify_totals.READ}
    )
    return replace(_view_data(job, "continued", [*kept, *files], total, begin), since=base.since)


def _none(view: View) -> verify_totals.Totals:
    return dict.fromkeys((verify_totals.READ, COUNTED, *verify_totals.exact_answers(view)), Decimal(0))


def _counted(job: Job, seen: Observation, events: DataFrame) -> verify_totals.Totals:
    """The totals of the events that were read: as many events as the search for duplicates has left."""
    if not job.events:
        return _none(job.view)
    found = verify_totals.of_observation(seen, job.view)
    if found is None or found[verify_totals.READ] != job.events:
        found = verify_totals.of_events(events, job.view)  # a stage that Spark did twice was counted twice
    if found[verify_totals.READ] != job.events:
        raise BatchError(
            f"View {job.view.name!r}: {found[verify_totals.READ]} events were read, the master has {job.events}."
            " Nothing was published. `tidemark master fsck --deep` looks for damage."
        )
    return found


def _check_files(job: Job, files: Collection[DataFile], expected: verify_totals.Totals) -> None:
    """Read the files back: totals as expected, no group twice, states that Python reads as Spark meant them."""
    wanted = {name: value for name, value in expected.items() if name != verify_totals.READ}
    if not files:
        verify_totals.check_equal(job.view, dict.fromkeys(wanted, Decimal(0)), wanted)
        return
    paths = _paths(job, files)
    verify_totals.check_equal(job.view, verify_totals.of_files(paths, job.view), wanted)
    _check_rows(job, files)
    for row in sample_rows(paths, ["state", *job.view.algebras], SAMPLED_ROWS):
        found = unpack(job.view.algebras, row["state"])
        for name, algebra in job.view.algebras.items():
            if isinstance(row.get(name), int) and algebra.column_value(found[name]) != row[name]:
                raise BatchError(
                    f"View {job.view.name!r}: the state of {name!r} says {algebra.column_value(found[name])}, "
                    f"its column {row[name]}. Nothing was published; please report this."
                )


def _check_rows(job: Job, files: Collection[DataFile]) -> None:
    """As many rows are read as were written."""
    written, found = sum(file.rows for file in files), count_rows(_paths(job, files))
    if found != written:
        raise BatchError(
            f"View {job.view.name!r}: {found} rows are in files that had {written}. Nothing was published. "
            "`tidemark batch run --full` recomputes them."
        )


def _paths(job: Job, files: Iterable[DataFile]) -> list[Path]:
    return [job.table / file.path for file in files]


def _view_data(job: Job, kind: str, files: list[DataFile], found: verify_totals.Totals, begin: float) -> ViewData:
    return ViewData(
        name=job.view.name,
        hash=job.view.hash,
        kind="full" if kind == "full" else "continued",
        files=tuple(sorted(files, key=lambda file: (file.day, file.path))),
        rows=sum(file.rows for file in files),
        totals=verify_totals.to_json(found),
        index=(),
        seconds=round(time.monotonic() - begin, 3),
    )
