"""How a batch run and the speed views meet: open a cut, publish or take over, and clean up afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from hand_off import definitions, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.log_follower import LogFollower
from hand_off.publish_log import Entry
from hand_off.speed_floor import first_run
from hand_off.speed_views import Generation, Outcome, SpeedViews
from infra.failpoints import reach
from master_dataset.cut import Cut, is_below

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_UNPUBLISHED = 8
"""Generations of runs that were not published, beyond which a run adopts the newest of them."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Opening:
    """How a run got its cut.

    `open`: it is what the speed layer has applied, and the writer goes on from there in a new generation. `takeover`:
    nobody writes, the cut will be the master dataset's (at least `cut`), and the speed views start again there.
    `overtake`: the writer is far behind; the cut will be the master dataset's (at least `cut`), and the writer, which
    lives, goes on there. `alone`: Redis is empty or away, or there is no speed layer: the cut is the master dataset's,
    and the next writer starts there.
    """

    mode: str
    cut: Cut
    token: str = ""
    is_adopted: bool = False
    """Of `open`: the generation and its cut are those of a run that failed before."""


def open_cut(speed_views: SpeedViews, run: int, catalog: Iterable[str], least: Cut | None = None) -> Opening:
    """The cut of a run, before it reads the master dataset. `least` is that of the last published run.

    Runs that fail leave their generations. Where those are many, a run adopts the newest: else runs that fail night
    after night would fill Redis, and each answer would read all of them. One that begins before `least` is not
    adopted: after a run that went without the speed layer, its run could not be published.
    """
    views = list(catalog)
    if speed_views.reader.living_writer() is not None:
        kept = speed_views.reader.snapshot().generations
        if kept and is_below(least or {}, kept[-1].start):
            adopted = speed_views.runs.adopt(run, views, MAX_UNPUBLISHED)
            if adopted is not None:
                return Opening("open", adopted, is_adopted=True)
        cut = speed_views.runs.open(run, views)
        if cut is not None:
            return Opening("open", cut)
    return open_fenced(speed_views)


def open_fenced(speed_views: SpeedViews) -> Opening:
    """The cut of a run where nobody writes the speed views, or nobody will go on with what they are."""
    fenced = speed_views.runs.fence()
    return Opening("alone", {}) if fenced is None else Opening("takeover", fenced[1], fenced[0])


def publish(speed_views: SpeedViews, folder: BatchFolder, opening: Opening, entry: Entry) -> Outcome:
    """After the durable append: let the speed views follow."""
    if opening.mode == "overtake":
        return _overtake(speed_views, folder, entry)
    if opening.mode == "takeover":
        catalog = list(entry.catalog.values())
        seen_by = _seen_by(speed_views, folder, catalog)
        return speed_views.runs.takeover(opening.token, entry.run, entry.cut, catalog, seen_by=seen_by)
    return speed_views.runs.publish(entry.run, entry.cut)


def _overtake(speed_views: SpeedViews, folder: BatchFolder, entry: Entry) -> Outcome:
    catalog = list(entry.catalog.values())
    seen_by = _seen_by(speed_views, folder, catalog)
    return speed_views.runs.overtake(entry.run, entry.cut, catalog, seen_by=seen_by)


def _seen_by(speed_views: SpeedViews, folder: BatchFolder, catalog: Iterable[str]) -> str:
    """The newest generation, if its seen ids are right for these views too; empty: they are not, or there is none.

    Redis may lose what it has between this look and the script, which therefore compares: a writer may begin again
    from the run before, by another version of the source.
    """
    kept = speed_views.reader.snapshot().generations
    return kept[-1].gid if kept and not _are_of_several_versions(kept, folder, catalog) else ""


def reads_otherwise(speed_views: SpeedViews, folder: BatchFolder, catalog: Iterable[str]) -> bool:
    """Whether these views are of another version of the source than some that the speed views compute now."""
    return _are_of_several_versions(speed_views.reader.snapshot().generations, folder, catalog)


def _are_of_several_versions(generations: Iterable[Generation], folder: BatchFolder, catalog: Iterable[str]) -> bool:
    kept = {view for generation in generations for view in generation.views}
    versions = {definitions.version_of(folder, each) for each in {*catalog, *kept}}
    return len(versions - {None}) > 1


def complete(speed_views: SpeedViews, folder: BatchFolder, newest: Entry) -> Outcome:
    """Complete the hand-off of the last entry of the log, whose run may have ended after its append.

    Where its generation is there, the run is published. Else the speed views jump to its cut, as in an overtake, unless
    they are past it. Readers that were rolled back keep their generations.
    """
    meta = speed_views.reader.snapshot().meta
    if meta is not None and meta.published < first_run(folder):  # of before a rebase: lost records may be in them
        log.warning("speed_views_dropped", source=folder.source, reason="the master table was rebased")
        speed_views.runs.forget()
        return Outcome.NO_META
    outcome = speed_views.runs.publish(newest.run, newest.cut)
    if outcome != Outcome.NO_GENERATION or publish_log.pinned(folder) is not None:
        return outcome
    reach("clean_up.before_overtake")
    outcome = _overtake(speed_views, folder, newest)
    if outcome == Outcome.OK:
        log.info("overtaken_late", source=folder.source, run=newest.run)
    return outcome


def clean_up(
    speed_views: SpeedViews,
    folder: BatchFolder,
    grace_s: float,
    now: Callable[[], float] = time.time,
    entries: LogFollower | None = None,
) -> None:
    """Finish what runs left: publish the last entry of the log, retire generations nobody needs, sweep their states.

    A run that fails after it opened a generation leaves that generation, which takes part in every answer. It goes
    with the generations before the next run that is published. Until then there are at most MAX_UNPUBLISHED such
    generations, and one more for each time that views were changed; each group has at most one state in each of them.

    A process that cleans up again and again passes its `entries`, so that it does not read the whole log each time.
    """
    entries = entries or LogFollower(folder)
    newest = entries.newest()
    snapshot = speed_views.reader.snapshot()
    if snapshot.meta is None:
        return
    reach("clean_up.before_publish")
    if newest.run > snapshot.meta.published and complete(speed_views, folder, newest) == Outcome.OK:
        log.info("published_late", source=folder.source, run=newest.run)
        snapshot = speed_views.reader.snapshot()
    pinned = entries.pinned()
    published = entries.find(snapshot.meta.published) if snapshot.meta else None
    if published is not None and now() - published.at > grace_s:
        needed = {published.run} | ({pinned.run} if pinned is not None else set())
        first = next((generation.gid for generation in snapshot.generations if generation.run in needed), "")
        reach("clean_up.before_retire")
        if dropped := speed_views.runs.retire(first):
            log.info("retired", source=folder.source, generations=dropped)
    for gid in speed_views.runs.unswept():
        reach("clean_up.before_sweep")
        swept = speed_views.runs.sweep(gid)
        reach("clean_up.after_sweep")
        log.info("swept", source=folder.source, generation=gid, buckets=swept)
