"""Compute one view for a run: its files, from few events or from many, and its read index."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from pyspark.sql import DataFrame, SparkSession

from batch_layer.duplicates import Counted, all_duplicates
from batch_layer.few_events import compute_few
from batch_layer.index import Index, open_index
from batch_layer.index.builder import MAX_FILES, build
from batch_layer.index.workers import SparkWorkers
from batch_layer.progress import Report, reported
from batch_layer.recompute import Job, compute_all, compute_more
from batch_layer.timeline import Timeline
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.foundations import Foundation
from hand_off.manifests import Manifest, ViewData
from master_dataset.cut import Cut
from master_dataset.reading.read_spark import empty_records, records_between, without_duplicates
from views.on_spark.states import arrow_schema
from views.short_texts import MAX_BYTES
from views.view import View

WORTH_WORKERS = 100_000
"""So many groups are indexed by several processes; fewer are done before those have begun."""

log = structlog.get_logger()


@dataclass(frozen=True)
class ViewComputation:
    """Computes the views of a run one after the other."""

    spark: SparkSession
    folder: BatchFolder
    master: Path
    """The table of the master dataset."""
    report: Report
    failpoint: Callable[[str], None]
    timeline: Timeline
    foundation: Foundation | None = None
    """What stands for the records that retention removed, if it removed any."""

    @property
    def _start(self) -> Manifest | None:
        """What all events of a view begin with: nothing, or what stands for the removed records."""
        return None if self.foundation is None else self.foundation.manifest

    def compute(self, number: int, view: View, cut: Cut, base: Manifest | None, found: Counted) -> ViewData:
        """The view below the cut, on the disk, with its index. No manifest names its files yet.

        Where the run goes on from another, `found` is about what came since.
        """
        known = self._known(view, base) if base is not None else None
        if known is not None and found.ids is None:
            return self._indexed(number, view, replace(known, kind="continued", seconds=0.0), known)
        table = self.folder.table(view.name, view.hash)
        counted = found.records - found.invalid - found.duplicates
        is_new = base is not None and known is None
        # A view that the run before did not have needs all events, the others only the new ones.
        count = counted
        if base is not None and is_new:
            count += base.events - base.invalid - base.duplicates - self._removed_events
            known = self._known(view, self._start) if self._start is not None else None
        job = Job(self.spark, view, table, count)
        with reported(self.spark, self.report, view.name, count), self.timeline.phase(f"{view.name}: compute"):
            data = self._from_few(job, found, known) if not is_new else None
            if data is None:
                events = self._events(view, cut, base, found, is_new=is_new)
                data = compute_more(job, events, known) if known is not None else compute_all(job, events)
                self.spark.catalog.clearCache()
        if known is None and self.foundation is not None:
            data = replace(data, since=self.foundation.since)
            log.warning("counts_since", view=view.name, **self.foundation.since, reason="older records were removed")
        if base is not None and (is_new or base is self._start):
            data = replace(data, kind="full")
        self.failpoint("run.after_data")
        data = self._indexed(number, view, data, known)
        log.info("view_computed", view=view.name, kind=data.kind, events=count, rows=data.rows, seconds=data.seconds)
        return data

    @property
    def _removed_events(self) -> int:
        return 0 if self.foundation is None else self.foundation.counted

    def _from_few(self, job: Job, found: Counted, known: ViewData | None) -> ViewData | None:
        """The view from evaluated events; None where there are too many, or they touch too much."""
        if found.few is None:
            return None
        return compute_few(job, arrow_schema(empty_records(self.spark, job.view.source), job.view), found.few, known)

    def _events(self, view: View, cut: Cut, base: Manifest | None, found: Counted, *, is_new: bool) -> DataFrame:
        """The events that a view needs below the cut: all, or those since the base."""
        start, duplicates = (base.cut if base is not None else {}), found.where
        if base is not None and is_new:
            start = self._start.cut if self._start is not None else {}
            duplicates = all_duplicates(self.spark, self.folder.ids, (*base.ids, *found.folders))
        return without_duplicates(records_between(self.spark, self.master, view.source, start, cut), duplicates)

    def _known(self, view: View, base: Manifest) -> ViewData | None:
        """What the base has of a view; None where the view is new, or an older Tidemark may have kept keys too long."""
        known = next((data for data in base.views if data.hash == view.hash), None)
        if known is None or known.max_key_bytes:
            return known
        try:
            with closing(open_index(self.folder.indexes / name for name in known.index)) as index:
                reason = f"run {base.run} has keys that are too long now" if index.has_long_keys() else ""
        except BatchError as error:  # its keys are not known
            reason = str(error)
        if reason:
            log.warning("recomputing_view", view=view.name, reason=reason)
            return None
        return known

    def _indexed(self, number: int, view: View, data: ViewData, known: ViewData | None) -> ViewData:
        """The view with its read index: a new file for the days that were written, after those of the run before."""
        before = self._index_before(known)
        try:
            with self.timeline.phase(f"{view.name}: index"):
                names = self._build_index(number, view, data, known if before is not None else None, before)
            with closing(open_index(self.folder.indexes / name for name in names)) as made:
                if made.groups != data.rows:
                    raise BatchError(
                        f"View {view.name!r}: its index has {made.groups} groups, its files {data.rows}. Nothing was "
                        "published. Run again with `tidemark batch run --full`."
                    )
        finally:
            if before is not None:
                before.close()
        return replace(data, index=names, max_key_bytes=MAX_BYTES)

    def _index_before(self, known: ViewData | None) -> Index | None:
        """The index of the run before, if it can be gone on from; else all days are indexed again, from their files."""
        if known is None or not known.index:
            return None
        try:
            return open_index(self.folder.indexes / name for name in known.index)
        except BatchError as error:
            log.warning("index_rebuilt", source=self.folder.source, view=known.name, reason=str(error))
            return None

    def _build_index(
        self, number: int, view: View, data: ViewData, known: ViewData | None, before: Index | None
    ) -> tuple[str, ...]:
        """Index the days whose files the run before did not have. Returns the names of all files of the index."""
        taken_over = set(known.files) if known is not None else set()
        earlier = known.index if known is not None else ()
        table = self.folder.table(view.name, view.hash)
        days: dict[str, list[Path]] = {}
        new = [file for file in data.files if file not in taken_over]
        for file in new:
            days.setdefault(file.day, []).append(table / file.path)
        if not days:
            return earlier
        name = f"{table.name}/{number:08}.mdb"
        rows = sum(file.rows for file in new)
        is_whole = len(earlier) >= MAX_FILES
        begin = time.monotonic()
        with reported(self.spark, self.report, f"{view.name}: index", rows):
            each = map if rows < WORTH_WORKERS else SparkWorkers(self.spark.sparkContext)
            build(self.folder.indexes / name, view, days, before, is_whole=is_whole, each=each)
        self.failpoint("run.after_index")
        log.info("index_built", view=view.name, days=len(days), rows=rows, seconds=round(time.monotonic() - begin, 1))
        return (name,) if is_whole else (*earlier, name)
