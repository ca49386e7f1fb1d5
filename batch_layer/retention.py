"""Retention: save what the views counted of old records, and then remove the records from the master dataset.

    published run -> cut of whole days -> foundation: states of each view, hashes and digests of ids, on the disk
    -> the master table names the foundation and drops the records, in one commit -> older foundations forgotten

A crash before the commit leaves files that nothing names; after it, an older foundation that the next removal forgets.
The data files of the records are deleted by the archiver's upkeep, like those that a compaction replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession

from batch_layer import duplicates
from batch_layer.duplicates import all_duplicates, merge_digests, merge_ids, write, write_digests, write_hashes
from batch_layer.failures import reason_of
from batch_layer.master_snapshot import made_of
from batch_layer.parquet_files import rows_of_folders
from batch_layer.progress import Report, quiet, reported
from batch_layer.recompute import Job, compute_all, compute_more
from hand_off import publish_log
from hand_off.batch_folder import DIGESTS, DUPLICATES, HASHES, BatchFolder
from hand_off.errors import BatchError
from hand_off.foundations import (
    Foundation,
    check_foundation,
    checksums_of,
    forget_others,
    foundation_of,
    write_foundation,
)
from hand_off.manifests import Manifest, ViewData, missing_of, read_manifest
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.cut import cut_to_json
from master_dataset.reading.read_spark import between, records_between, without_duplicates
from master_dataset.table import coverage
from master_dataset.table.checks.fsck import refuse_damage
from master_dataset.table.retention import Removal, plan_removal, remove
from views.short_texts import MAX_BYTES
from views.view import View

DAY_S = 86_400.0
Failpoint = Callable[[str], None]

log = structlog.get_logger()


@dataclass(frozen=True)
class Retained:
    """What was removed, or would be."""

    source: str
    day: str
    """Records that were in Kafka before this day (UTC) are old."""
    cut: dict[str, int]
    rows: int
    foundation: str = ""
    """Empty where nothing was removed."""
    reason: str = ""
    """Why nothing can be removed now."""

    def to_json(self) -> dict[str, Any]:
        """As a command prints it."""
        return vars(self)


def first_kept_day(settings: Settings, days: float, run_started: float, now: float) -> date:
    """The first day (UTC) whose records stay.

    The speed layer may have to load the ids of its horizon again, from the last run back, so these stay in any case.
    """
    keep_s = max(days * DAY_S, settings.speed_dedup_horizon_s)
    return datetime.fromtimestamp(min(now, run_started) - keep_s, UTC).date()


@dataclass
class Retention:
    """The retention of one source. The caller holds the lease of its batch folder."""

    spark: SparkSession
    settings: Settings
    folder: BatchFolder
    table: Path
    views: list[View]
    report: Report = quiet
    failpoint: Failpoint = reach
    drop_undeclared: bool = False
    """Whether the totals of views that are not declared any more may go with the records."""

    def apply(self, days: float, *, dry_run: bool = False, now: float | None = None) -> Retained:
        """Remove what is older than so many days, as far as the newest run has counted it."""
        newest = publish_log.last(self.folder)
        why = "no run is published yet" if not newest.run else self._why_not(newest.run)
        if why:
            return Retained(self.folder.source, "", {}, 0, reason=why)
        run = read_manifest(self.folder, newest.run)
        refuse_damage(self.folder.source, self.table)
        at = time.time() if now is None else now
        day = first_kept_day(self.settings, days, run.started, at)
        removal = plan_removal(self.spark, self.table, day, run.cut)
        done = Retained(self.folder.source, str(day), cut_to_json(removal.cut), removal.promised.rows)
        if removal.is_empty or dry_run:
            return done
        # Step 1. What stands for the records. A crash leaves files that nothing names, which pruning removes.
        foundation = self._found(run, removal)
        self.failpoint("retain.after_foundation")
        # Step 2. From this commit on, runs that compute everything continue from the foundation.
        remove(self.spark, self.table, removal, foundation.name)
        self.failpoint("retain.after_commit")
        # Step 3. The foundation before is in the new one.
        forget_others(self.folder, foundation.name)
        log.info("removed_old_records", **{**vars(done), "foundation": foundation.name})
        return replace(done, foundation=foundation.name)

    def apply_after_run(self) -> None:
        """By the setting. The run is published in any case: what fails here is tried again after the next run."""
        try:
            done = self.apply(self.settings.master_retention_days)
        except Exception as error:  # a full disk, say, or Spark: the run is published all the same
            log.warning("retention_failed", source=self.folder.source, reason=reason_of(error))
            return
        if done.reason:
            log.warning("retention_skipped", source=done.source, reason=done.reason)

    def _why_not(self, run: int) -> str:
        """Why nothing may be removed now: somebody may need the records to compute everything again."""
        if publish_log.pinned(self.folder) is not None:
            return "readers were rolled back to an older run"
        try:
            manifest = read_manifest(self.folder, run)
        except BatchError as error:
            return str(error)
        if missing := list(missing_of(self.folder, manifest)):
            return f"run {run} is not whole: {missing[0]}"
        if manifest.master != made_of(coverage.of(self.table)):
            return "the master dataset was repaired since the last run"
        hashes = {view.hash for view in self.views}
        if unknown := hashes - {data.hash for data in manifest.views}:
            names = ", ".join(sorted(view.name for view in self.views if view.hash in unknown))
            return f"no run has computed {names} yet"
        return self._undeclared(manifest)

    def _undeclared(self, manifest: Manifest) -> str:
        """Totals of a view that is not declared would go with the records: it may be away by mistake."""
        before = foundation_of(self.folder, coverage.of(self.table).removed)
        known = {data.name for each in (manifest, before and before.manifest) if each for data in each.views}
        away = sorted(known - {view.name for view in self.views})
        if not away or (self.views and self.drop_undeclared):
            return ""
        return (
            f"{', '.join(away)} would lose totals and is not declared; declare it again, or let its totals go: "
            "`tidemark master retain --drop-undeclared`"
        )

    def _found(self, run: Manifest, removal: Removal) -> Foundation:
        """Compute and write the foundation: of the records removed so far, and of those that go now."""
        before = foundation_of(self.folder, coverage.of(self.table).removed)
        if before is not None:
            check_foundation(self.folder, before)
        number = publish_log.next_run(self.folder)
        name, ids = f"{number:08}", self.folder.ids
        twice = all_duplicates(self.spark, ids, run.ids)
        rows = records_between(self.spark, self.table, self.views[0].source, removal.start, removal.cut)
        events = without_duplicates(rows, twice)
        with reported(self.spark, self.report, "saving ids of old records", removal.promised.rows):
            records, invalid = write_hashes(rows, ids / name / HASHES)
            again = self._write_duplicates(twice, removal, ids / name / DUPLICATES)
            write_digests(events, ids / name / DIGESTS)
        counted = records - invalid - again
        found = rows_of_folders([ids / name / DIGESTS])
        if (records, found) != (removal.promised.rows, counted):
            raise BatchError(
                f"Source {self.folder.source!r}: {records} old records were read of {removal.promised.rows}, and "
                f"{found} ids saved of {counted}. Nothing was removed. `tidemark master fsck --deep` looks for damage."
            )
        base = before.manifest if before is not None else None
        made = Manifest(
            run=number,
            source=self.folder.source,
            cut=dict(removal.cut),
            base_run=None,
            started=time.time(),
            finished=time.time(),
            events=records + (base.events if base is not None else 0),
            duplicates=again + (base.duplicates if base is not None else 0),
            invalid=invalid + (base.invalid if base is not None else 0),
            views=tuple(self._compute(view, run, base, events, counted) for view in self.views),
            ids=(*(base.ids if base is not None else ()), name),
            master=run.master,
        )
        digests = (*(before.digests if before is not None else ()), name)
        if len(made.ids) > duplicates.MAX_FOLDERS:
            merged = f"{name}-merged"
            hashes = made.events - made.invalid
            made = replace(made, ids=(merge_ids(self.spark, ids, made.ids, merged, hashes, made.duplicates),))
            digests = (merge_digests(self.spark, ids, digests, merged),)
        foundation = Foundation(name, made, removal.day, digests)
        foundation = replace(foundation, checksums=checksums_of(self.folder, foundation))
        write_foundation(self.folder, foundation)
        return foundation

    def _write_duplicates(self, twice: DataFrame | None, removal: Removal, folder: Path) -> int:
        if twice is not None:
            write(twice.where(between(removal.start, removal.cut)), folder)
        return rows_of_folders([folder]) if twice is not None else 0

    def _compute(self, view: View, run: Manifest, base: Manifest | None, events: DataFrame, counted: int) -> ViewData:
        """The states of one view over all removed records. A view that is newer than the last removal counts since."""
        known = next((data for data in base.views if data.hash == view.hash), None) if base is not None else None
        job = Job(self.spark, view, self.folder.table(view.name, view.hash), counted)
        with reported(self.spark, self.report, f"{view.name}: old records", counted):
            data = compute_more(job, events, known) if known is not None else compute_all(job, events)
        self.spark.catalog.clearCache()
        since = next(each.since for each in run.views if each.hash == view.hash)
        return replace(data, since=since, max_key_bytes=MAX_BYTES)
