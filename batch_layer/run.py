"""A run: recompute every view of a source below a cut, verify, and publish by one entry in the publish log.

    number -> cut, from the speed layer -> master dataset holds it -> duplicates -> views, verified, with read indexes
    -> comparison with the speed views -> manifest
    -> publish log (the flip) -> speed layer -> Delta tables of other engines

A run that is killed anywhere before the flip leaves files that no reader looks at; `tidemark batch prune` removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import structlog
from pyspark.sql import SparkSession

from batch_layer import duplicates, few_events, upstream
from batch_layer.consistency.comparison import Comparison
from batch_layer.consistency.quarantine import to_json
from batch_layer.deadline import deadline
from batch_layer.delta_log import exposed_run
from batch_layer.duplicates import Counted, find_duplicates, merge_ids
from batch_layer.failures import noted, reason_of, run_log
from batch_layer.lease import lease
from batch_layer.master_snapshot import MasterSnapshot
from batch_layer.progress import Report, quiet, reported
from batch_layer.retention import Retention
from batch_layer.run_hand_off import ALONE, HandOff
from batch_layer.tables import expose
from batch_layer.timeline import Timeline
from batch_layer.view_computation import ViewComputation
from hand_off import definitions, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.entries import entry_of
from hand_off.errors import BatchError, TablesBehind
from hand_off.foundations import Foundation, check_foundation, foundation_of
from hand_off.manifests import Manifest, ViewData, missing_of, read_manifest, write_manifest
from infra.failpoints import reach
from infra.settings import Settings
from infra.spark.session import spark_session
from master_dataset.cut import Cut, count_between, cut_to_json, is_below
from master_dataset.table.paths import table_path
from master_dataset.table.readings import adopt, check_reading
from views.columns import Columns
from views.declarations import declared_by
from views.view import View

log = structlog.get_logger()
Failpoint = Callable[[str], None]


class Computed(NamedTuple):
    """What a run has before it is published."""

    base: Manifest | None
    """What it went on from."""
    found: Counted
    views: tuple[ViewData, ...]
    ids: tuple[str, ...]


def run_batch(
    settings: Settings,
    source: str,
    *,
    full: bool = False,
    unpin: bool = True,
    overtake: bool = False,
    report: Report = quiet,
    spark: SparkSession | None = None,
    failpoint: Failpoint = reach,
    timeline: Timeline | None = None,
) -> Manifest:
    """Compute and publish all views of a source; `full` never goes on from an earlier run. Returns the manifest.

    `overtake`: where the speed layer is behind, the run ends where Kafka ends now, and the speed layer jumps there.
    `timeline` collects the phases of the run, also those after the manifest.

    LeaseHeld where another run of the source is at work; BatchError where the master dataset or the result is not as
    it must be: nothing is published then.
    """
    declarations = declared_by(settings)
    declared = declarations.source(source)
    views = list(declarations.views_of(source))
    if not views:
        raise BatchError(f"Source {source!r} has no views. Declare one: `tidemark views new NAME` writes a beginning.")
    folder = BatchFolder.of(settings, source)
    limit_s = settings.batch_deadline_s
    with (
        lease(folder, f"batch run of {source}"),
        noted(folder),
        deadline(source, limit_s, report) as report,
        HandOff.of(settings, folder) as hand_off,
    ):
        timeline = timeline or Timeline()
        with timeline.phase("master"):
            table = table_path(settings, source)
            if check_reading(table, declared):
                _check_no_rollback(folder, declared.version)
            adopt(table, declared)
            master = MasterSnapshot(declared.name, table, lambda: upstream.refusal(settings, source))
            report("checking the master dataset", 0, 0)
            master.wait_for_first(lambda: upstream.has_records(settings, declared), settings.batch_wait_s, report)
            master.check()
        with timeline.phase("Spark"):
            session = spark or spark_session(
                settings,
                f"tidemark batch {source}",
                output=run_log(settings),
                is_short_lived=not overtake and few_events.are_few_expected(folder, views, master.held.cut, full=full),
            )
        timeline.count_jobs_of(session)
        comparison = Comparison(settings, folder, hand_off.speed_views)
        for view in views:
            definitions.keep(folder, view)
        is_switch = hand_off.is_switch = hand_off.must_switch([view.hash for view in views])
        if is_switch:
            _check_no_rollback(folder, declared.version)
        end = partial(upstream.kafka_end, settings, declared) if overtake or is_switch else None
        run = _Run(session, folder, master, hand_off, comparison, views, report, failpoint, timeline, end)
        if is_switch:  # the long part, while the speed layer goes on; then what came since, while it waits
            run.prepare(full=full)
            run.timeline = Timeline(timeline.jobs)
        manifest = run.go(full=full and not is_switch, unpin=unpin)
        if run.has_adopted:  # at the cut of a run that failed: what came since is in this one
            run.timeline = Timeline(timeline.jobs)
            manifest = run.go(full=False, unpin=unpin)
        try:
            with timeline.phase("prune"):  # not of the run before: other engines may just be reading it
                freed = hand_off.prune(max(settings.batch_keep_runs, 2))
            failpoint("run.after_prune")
            log.info("pruned", source=source, files=len(freed.files), bytes=freed.bytes)
        except BatchError as error:  # the run is published all the same, and the next one prunes
            log.warning("prune_skipped", source=source, reason=str(error))
        if settings.master_retention_days:
            Retention(session, settings, folder, table, views, report, failpoint).apply_after_run()
        if run.behind:
            raise TablesBehind(
                f"Run {manifest.run} of source {source!r} is published, but the Delta tables that other engines read "
                f"could not be brought to it: {run.behind} Answers are not affected. The next run tries again."
            )
        return manifest


def _check_no_rollback(folder: BatchFolder, version: int) -> None:
    if (pinned := publish_log.pinned(folder)) is not None:
        raise BatchError(
            f"Source {folder.source!r}: version {version} cannot begin while readers are rolled back to run "
            f"{pinned.run}, which is of another version. `tidemark batch rollback --latest --source {folder.source}` "
            "ends that."
        )


@dataclass
class _Run:
    spark: SparkSession
    folder: BatchFolder
    master: MasterSnapshot
    hand_off: HandOff
    comparison: Comparison
    views: list[View]
    report: Report
    failpoint: Failpoint
    timeline: Timeline
    kafka_end: Callable[[], Cut] | None = None
    """Of a run that overtakes a speed layer that is behind."""
    has_adopted: bool = False
    """Whether the last run went on with the generation, and so with the cut, of one that failed."""
    behind: str = ""
    """Why the tables of other engines are not at the last run."""
    foundation: Foundation | None = None
    """What stands for the records that retention removed, if it removed any."""
    prepared: Manifest | None = None
    """What was computed for a switch, and never published: the run goes on from it."""

    @property
    def _start(self) -> Manifest | None:
        """What a run begins with that computes everything: nothing, or what stands for the removed records."""
        return None if self.foundation is None else self.foundation.manifest

    def prepare(self, *, full: bool) -> None:
        """Compute everything that the master dataset holds now, for nobody to read: answers stay what they are.

        A crash within leaves files that no entry of the publish log names.
        """
        started = time.time()
        number = publish_log.next_run(self.folder)
        with self.timeline.phase("master"):
            cut = self.master.wait_for(ALONE, self.hand_off.wait_s, self.report)
        self._check_order(number, cut)
        self._find_foundation(number, cut)
        log.info("switch_prepared", source=self.folder.source, run=number, cut=cut_to_json(cut))
        base = (None if full else self._base(cut)) or self._start  # a run of this version, if its switch did not end
        base, found, computed, ids = self._compute(number, cut, base)
        manifest = replace(self._manifest(number, cut, base, found, computed, ids, started), is_prepared=True)
        write_manifest(self.folder, manifest)
        self.failpoint("run.after_prepare")
        self.prepared = manifest

    def go(self, *, full: bool, unpin: bool) -> Manifest:
        started = time.time()
        # Step 1. The number and the cut: where the speed layer is, or where the master dataset ends if nobody writes.
        for view in self.views:
            definitions.keep(self.folder, view)
        publish_log.begin(self.folder, self._catalog(), started)
        self._finish_last()
        number = publish_log.next_run(self.folder)
        with self.timeline.phase("cut"):
            opening = self.hand_off.open(number, self._catalog().values(), self.report, self.kafka_end)
            self.has_adopted = opening.is_adopted
            self.failpoint("run.after_open")
            cut = self.master.wait_for(opening, self.hand_off.wait_s, self.report)
        self._check_order(number, cut)
        self._find_foundation(number, cut)
        base = (None if full else self._base(cut)) or self._start
        log.info(
            "run_started",
            source=self.folder.source,
            run=number,
            how=opening.mode,
            cut=cut_to_json(cut),
            base=base and base.run,
            foundation=self.foundation and self.foundation.name,
        )
        self.failpoint("run.after_number")
        base, found, computed, ids = self._compute(number, cut, base)
        self.failpoint("run.after_views")
        # Step 4. What the speed view had said of the same offsets. Before the flip: a view whose speed view is wrong is
        # quarantined before readers go to this run, and no run is published without it. A crash leaves what is true.
        with self.timeline.phase("comparison"):
            computed = self._compared(number, cut, computed)
        self.failpoint("run.after_comparison")
        # Step 5. What belongs to the run, on the disk before anything can point to it.
        manifest = replace(
            self._manifest(number, cut, base, found, computed, ids, started),
            unpin=unpin,
            timeline=tuple(self.timeline.phases),
        )
        with self.timeline.phase("manifest"):
            write_manifest(self.folder, manifest)
        self.failpoint("run.before_publish")
        # Step 6. The flip. Before it, readers see the run before; after it, this one.
        with self.timeline.phase("publish"):
            entry = publish_log.append(self.folder, entry_of(manifest), unpin=unpin)
        self.failpoint("run.after_publish")
        # Step 7. The speed layer. A crash before leaves it on the run before, still right; the next to look does it.
        with self.timeline.phase("speed layer"):
            self.hand_off.publish(opening, entry)
        self.failpoint("run.after_hand_off")
        # Step 8. Other engines. A crash before or within leaves them on the run before; the next run brings them up.
        with self.timeline.phase("expose"):
            self.behind = self._try_to_expose(manifest)
        self.failpoint("run.after_expose")
        log.info(
            "published",
            source=self.folder.source,
            run=number,
            cut=cut_to_json(cut),
            events=manifest.events,
            duplicates=manifest.duplicates,
            rows=manifest.rows,
            seconds=round(manifest.finished - started, 1),
        )
        return manifest

    def _compute(self, number: int, cut: Cut, base: Manifest | None) -> Computed:
        # Step 2. Which events are duplicates. A crash leaves hashes of ids that no manifest names.
        with self.timeline.phase("duplicates"):
            base, found = self._find_duplicates(number, cut, base)
            ids = self._ids(number, base, found)
        with self.timeline.phase("records"):
            start, events = (base.cut, base.events) if base is not None else ({}, 0)
            self.master.check_records(self.spark, start, cut, events + found.records, found.everywhere)
        self.failpoint("run.after_duplicates")
        # Step 3. The views: files that no manifest names yet, each read back and compared with the events.
        views = ViewComputation(
            self.spark, self.folder, self.master.table, self.report, self.failpoint, self.timeline, self.foundation
        )
        return Computed(base, found, tuple(views.compute(number, view, cut, base, found) for view in self.views), ids)

    def _catalog(self) -> dict[str, str]:
        return {view.name: view.hash for view in self.views}

    def _finish_last(self) -> None:
        """What a run that was killed after its flip did not come to. Mostly it did: that is seen without Spark."""
        newest = publish_log.last(self.folder)
        manifest = None
        if newest.run:
            try:
                manifest = read_manifest(self.folder, newest.run)
                tables = [self.folder.table(data.name, data.hash) for data in manifest.views]
                is_behind = any(exposed_run(table) != newest.run for table in tables)
            except BatchError:  # a log that cannot be read is replaced
                is_behind = manifest is not None
            if is_behind and manifest is not None:
                self._try_to_expose(manifest)

    def _find_foundation(self, number: int, cut: Cut) -> None:
        self.foundation = foundation_of(self.folder, self.master.held.removed)
        if self.foundation is not None and not is_below(self.foundation.manifest.cut, cut):
            raise BatchError(
                f"Source {self.folder.source!r}: run {number} would end at {cut_to_json(cut)}, but all records below "
                f"{cut_to_json(self.foundation.manifest.cut)} were removed. The batch data or Redis is older than the "
                "master dataset: restore them from the same backup. Nothing was published."
            )

    def _check_order(self, number: int, cut: Cut) -> None:
        newest = publish_log.last(self.folder)
        if not is_below(newest.cut, cut):
            raise BatchError(
                f"Source {self.folder.source!r}: run {number} would end at {cut_to_json(cut)}, before the cut "
                f"{cut_to_json(newest.cut)} of the published run {newest.run}, so it is not begun. The speed layer "
                f"is behind (`tidemark speed status`), or the master dataset was restored from an older backup or lost "
                f"its end: `tidemark master fsck {self.folder.source}` checks it."
            )

    def _base(self, cut: Cut) -> Manifest | None:
        """The published run to go on from, if there is one and everything of it is still there.

        While readers are pinned to an older run there is none: somebody does not trust the newest.
        """
        if self.prepared is not None and self.prepared.master == self.master.made_of:
            return self.prepared
        newest = publish_log.last(self.folder)
        if publish_log.pinned(self.folder) is not None:
            log.warning("recomputing_all", source=self.folder.source, reason="readers were rolled back to an older run")
            return None
        if not newest.run or not is_below(newest.cut, cut):
            return None
        if self.foundation is not None and not is_below(self.foundation.manifest.cut, newest.cut):
            log.warning("recomputing_all", source=self.folder.source, reason="records after the last run were removed")
            return None
        try:
            base = read_manifest(self.folder, newest.run)
        except BatchError as error:
            log.warning("recomputing_all", source=self.folder.source, reason=str(error))
            return None
        if base.master != self.master.made_of:
            log.warning(
                "recomputing_all", source=self.folder.source, reason="the master dataset was repaired or rebuilt"
            )
            return None
        if self._is_of_other_version(base):
            log.warning("recomputing_all", source=self.folder.source, reason="the source has another version")
            return None
        if missing := list(missing_of(self.folder, base)):
            log.warning("recomputing_all", source=self.folder.source, reason="; ".join(missing[:3]))
            return None
        return base

    def _is_of_other_version(self, base: Manifest) -> bool:
        """Whether it counted events as another version of the source reads them."""
        versions = {definitions.version_of(self.folder, data.hash) for data in base.views}
        return bool(versions - {None, *(view.source.version for view in self.views)})

    def _find_duplicates(self, number: int, cut: Cut, base: Manifest | None) -> tuple[Manifest | None, Counted]:
        start: Cut = base.cut if base is not None else {}
        earlier = base.ids if base is not None else ()
        removed = self.foundation.digests if self.foundation is not None else ()
        if base is not None and base is self._start and self.foundation is not None:
            check_foundation(self.folder, self.foundation)
        if base is not None and not count_between(start, cut):
            return base, Counted(0, 0, 0, None, None)
        with reported(self.spark, self.report, "looking for duplicates", count_between(start, cut)):
            known = base.events - base.invalid if base is not None else 0
            is_few = count_between(start, cut) <= few_events.MAX_EVENTS
            columns = Columns(tuple(self.views)) if is_few else None
            found = find_duplicates(
                self.spark,
                self.master.table,
                self.views[0].source,
                start,
                cut,
                self.folder.ids,
                number,
                earlier,
                known,
                columns,
                removed,
            )
        if found.why_all and base is not None and base is self._start:
            raise BatchError(f"Source {self.folder.source!r}: {found.why_all}. Nothing was published.")
        if found.why_all:
            log.warning("recomputing_all", source=self.folder.source, reason=found.why_all)
            return self._find_duplicates(number, cut, self._start)
        return base, found

    def _ids(self, number: int, base: Manifest | None, found: Counted) -> tuple[str, ...]:
        """The folders with the hashes of all events below the cut: those of the base and the new one, or all as one."""
        names = (*(base.ids if base is not None else ()), *found.folders)
        if base is None or len(names) <= duplicates.MAX_FOLDERS:
            return names
        hashes = base.events - base.invalid + found.records - found.invalid
        with reported(self.spark, self.report, "merging hashes of ids", hashes):
            name = f"{number:08}-merged"
            return (merge_ids(self.spark, self.folder.ids, names, name, hashes, base.duplicates + found.duplicates),)

    def _compared(self, number: int, cut: Cut, computed: tuple[ViewData, ...]) -> tuple[ViewData, ...]:
        """The views, each with what the comparison with the speed view found."""
        self.report("comparing with the speed view", 0, 0)
        views = [(view, data.index) for view, data in zip(self.views, computed, strict=True)]
        found = self.comparison.of_run(number, cut, views)
        return tuple(replace(data, compared=to_json(each)) for data, each in zip(computed, found, strict=True))

    def _manifest(
        self,
        number: int,
        cut: Cut,
        base: Manifest | None,
        found: Counted,
        views: tuple[ViewData, ...],
        ids: tuple[str, ...],
        started: float,
    ) -> Manifest:
        made = Manifest(
            run=number,
            source=self.folder.source,
            cut=cut,
            base_run=None,
            started=started,
            finished=time.time(),
            events=found.records,
            duplicates=found.duplicates,
            invalid=found.invalid,
            views=views,
            ids=ids,
            master=self.master.made_of,
        )
        if base is None:
            return made
        return replace(
            made,
            base_run=None if base is self._start else base.run,
            events=base.events + made.events,
            duplicates=base.duplicates + made.duplicates,
            invalid=base.invalid + made.invalid,
        )

    def _try_to_expose(self, manifest: Manifest) -> str:
        """Bring the tables of other engines to a published run. Returns why that failed: it stops nothing else."""
        try:
            self._expose(manifest)
        except Exception as error:
            reason = reason_of(error)
            log.warning("expose_failed", source=self.folder.source, run=manifest.run, reason=reason)
            return reason
        return ""

    def _expose(self, manifest: Manifest) -> None:
        if publish_log.last(self.folder).run != manifest.run:  # a newer one was published while we slept
            return
        for data in manifest.views:
            expose(self.spark, self.folder.table(data.name, data.hash), data, manifest.run)
