"""The hand-off as batch runs use it: open a cut, publish in Redis, and find the runs that speed views still need.

Redis may be empty or not reply, or there may be no speed layer. A run then uses the master dataset alone, and the next
writer of the speed views starts at its cut. The protocol itself is in `hand_off/generations.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import RedisError

from batch_layer.announcement import Announcement
from batch_layer.pruning import PrunePlan, prune
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError, RunsUnknown
from hand_off.generations import Opening, clean_up, complete, open_cut, open_fenced, publish, reads_otherwise
from hand_off.publish_log import Entry
from hand_off.speed_floor import first_run
from hand_off.speed_views import Outcome, SpeedViews
from infra.clients.redis import redis_client
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.cut import Cut, count_between, cut_to_json, is_below, join

if TYPE_CHECKING:
    from batch_layer.progress import Report  # with Spark, which commands that only look do without

LOOK_S = 0.2
MAX_LOAD_S = 120.0
"""How long a run waits for the end of an import. What is sent later, the speed layer adds, or the next run."""
DECLINED_S = 60.0
"""How long it stays known that a run does not overtake: the scheduler looks every second."""
ALONE = Opening("alone", {})

log = structlog.get_logger()


@dataclass
class HandOff:
    """Between the runs of a source and its speed views, if it has any."""

    folder: BatchFolder
    speed_views: SpeedViews | None
    wait_s: float
    grace_s: float = 60.0
    pause_s: float = 600.0
    """How long the writer may be kept waiting for a run that overtakes it."""
    announcement: Announcement | None = None
    is_switch: bool = False
    """Whether the run is by another version of the source than the speed views: none of these goes on."""

    @classmethod
    @contextmanager
    def of(cls, settings: Settings, folder: BatchFolder) -> Iterator[HandOff]:
        """By the settings."""
        where = addresses(settings)
        if not settings.speed_enabled or not where.has_redis:
            yield cls(folder, None, settings.batch_wait_s)
            return
        with redis_client(settings, where.redis, timeout_s=30) as client:
            views = SpeedViews(client, folder.source)
            ours = cls(folder, views, settings.batch_wait_s, settings.speed_grace_s, settings.overtake_pause_s)
            try:
                yield ours
            finally:
                ours.end_announcement()

    def open(
        self, run: int, catalog: Iterable[str], report: Report, kafka_end: Callable[[], Cut] | None = None
    ) -> Opening:
        """The cut of a run, or where it has to look for one. `kafka_end`: the run overtakes a writer that is behind."""
        opening = self._open(run, catalog, report, kafka_end)
        if kafka_end is not None and opening.mode != "overtake":
            self._decline()
        return opening

    def _open(self, run: int, catalog: Iterable[str], report: Report, kafka_end: Callable[[], Cut] | None) -> Opening:
        views = self.speed_views
        if views is None:
            return ALONE
        try:
            self._drop_below_floor(views)
            newest = publish_log.last(self.folder)
            if newest.run:  # what a run that was killed after its flip did not come to
                complete(views, self.folder, newest)
            if self.is_switch:
                return self._open_switch(views, kafka_end, report)
            if kafka_end is not None and (overtaking := self._begin_to_overtake(views, kafka_end, report)) is not None:
                return overtaking
            self._wait_until_after_last(views, report)
            newest = publish_log.last(self.folder)
            return open_cut(views, run, catalog, newest.cut)
        except (RedisError, OSError) as error:
            log.warning("without_speed_layer", source=self.folder.source, reason=f"Redis does not answer: {error}")
            return ALONE

    def must_switch(self, catalog: Iterable[str]) -> bool:
        """Whether the speed views compute views of another version of the source than these."""
        if self.speed_views is None:
            return False
        try:
            return reads_otherwise(self.speed_views, self.folder, catalog)
        except (RedisError, OSError):
            return False  # the run is alone then; what Redis still holds is of before, and the next one looks again

    def _open_switch(self, views: SpeedViews, kafka_end: Callable[[], Cut] | None, report: Report) -> Opening:
        """No generation may have views of two versions: one of before is not gone on with."""
        deadline = time.monotonic() + self.wait_s
        while True:
            if kafka_end is not None:
                overtaking = self._begin_to_overtake(views, kafka_end, report, always=True)
                if overtaking is not None:
                    return overtaking
            if views.reader.living_writer() is None or views.reader.snapshot().meta is None:
                return open_fenced(views)
            if time.monotonic() > deadline:
                raise BatchError(
                    f"Source {self.folder.source!r}: the speed layer cannot be moved to another version of the source "
                    "now. Nothing was published; `tidemark speed status` shows how it is."
                )
            time.sleep(LOOK_S)

    def _drop_below_floor(self, views: SpeedViews) -> None:
        """After a rebase, speed views of older runs hold records that were lost since."""
        meta = views.reader.snapshot().meta
        if meta is not None and meta.published < first_run(self.folder):
            log.warning("speed_views_dropped", source=self.folder.source, reason="the master table was rebased")
            views.runs.forget()

    def _begin_to_overtake(
        self, views: SpeedViews, kafka_end: Callable[[], Cut], report: Report, *, always: bool = False
    ) -> Opening | None:
        """None where the run is to be an ordinary one: nobody writes, nothing waits, or readers were rolled back.

        `always`: also where nothing waits.
        """
        meta = views.reader.snapshot().meta
        if meta is None or views.reader.living_writer() is None or publish_log.pinned(self.folder) is not None:
            return None
        # The announcement first: what the writer applies after it does not count for the cut.
        self.announcement = Announcement(views.runs, self.pause_s)
        self.announcement.begin()
        _wait_for_load(views, report)
        # Where the broker is too busy to answer, the end that the writer saw: an ordinary run would be of no use.
        end = join(meta.applied, kafka_end() or views.reader.kafka_end() or {})
        if always or count_between(meta.applied, end):
            return Opening("overtake", end)
        self.end_announcement()  # before we wait for the writer, which would wait for us
        return None

    def _decline(self) -> None:
        """The run is an ordinary one: the writer must not wait for it."""
        self.end_announcement()
        if self.speed_views is not None:
            with suppress(RedisError, OSError):
                self.speed_views.runs.decline(DECLINED_S)

    def end_announcement(self) -> None:
        """The writer waits for us no more."""
        if self.announcement is not None:
            self.announcement.end()
            self.announcement = None

    def publish(self, opening: Opening, entry: Entry) -> None:
        """Let the speed views follow a run that is in the publish log. What fails here is done by the next to look."""
        if self.speed_views is None:
            return
        try:
            if opening.mode == "overtake" and publish_log.pinned(self.folder) is not None:
                # Readers were rolled back meanwhile, and need their generations. `clean_up` does it after that.
                log.warning("overtake_postponed", source=self.folder.source, run=entry.run, reason="readers are pinned")
                return
            outcome = publish(self.speed_views, self.folder, opening, entry)
            write = log.info if outcome in (Outcome.OK, Outcome.ALREADY) else log.warning
            write("handed_off", source=self.folder.source, run=entry.run, mode=opening.mode, outcome=str(outcome))
            clean_up(self.speed_views, self.folder, self.grace_s)
        except (RedisError, OSError) as error:
            log.warning("hand_off_failed", source=self.folder.source, run=entry.run, reason=str(error))
        finally:
            self.end_announcement()

    def continues(self, entry: Entry) -> bool | None:
        """Whether the speed views go on from a run, so that answers of its readers hold newer events too.

        None where there is no speed layer, or nobody can tell.
        """
        if self.speed_views is None:
            return None
        try:
            kept = self.speed_views.reader.snapshot()
        except (RedisError, OSError):
            return None
        if kept.meta is None:
            return None
        cut = cut_to_json(entry.cut)
        return any(each.run == entry.run and cut_to_json(each.start) == cut for each in kept.generations)

    def prune(self, keep: int, *, dry_run: bool = False) -> PrunePlan:
        """Delete the data of old runs, none that a reader of the speed views may still ask for."""
        return prune(self.folder, keep, also=self._needed_runs(), dry_run=dry_run)

    def _needed_runs(self) -> set[int]:
        if self.speed_views is None:
            return set()
        try:
            kept = self.speed_views.reader.snapshot()
        except (RedisError, OSError) as error:
            raise RunsUnknown(
                f"Source {self.folder.source!r}: Redis does not answer ({error}), so it is not known which runs the "
                "speed views still need, and nothing was deleted. `tidemark status` shows what runs; without a speed "
                "layer set speed_enabled to false."
            ) from None
        return {generation.run for generation in kept.generations} | ({kept.meta.published} if kept.meta else set())

    def _wait_until_after_last(self, views: SpeedViews, report: Report) -> None:
        """A run may not end before the last one. After one that went without the speed layer, it has to catch up."""
        newest = publish_log.last(self.folder)
        deadline = time.monotonic() + self.wait_s
        while views.reader.living_writer() is not None and (meta := views.reader.snapshot().meta) is not None:
            if is_below(newest.cut, meta.applied) and (meta.applied or newest.run):
                return
            if time.monotonic() > deadline:
                raise BatchError(
                    f"Source {self.folder.source!r}: the speed layer is at {cut_to_json(meta.applied)} after "
                    f"{self.wait_s:g} s, before the cut {cut_to_json(newest.cut)} of run {newest.run}. "
                    f"`tidemark speed status` shows how far it is. Nothing was published."
                )
            report("waiting for the speed layer", 0, 0)
            time.sleep(LOOK_S)


def _wait_for_load(views: SpeedViews, report: Report) -> None:
    """Wait until the import that is at work has sent everything, so that the run holds all of it; for a while."""
    deadline = time.monotonic() + MAX_LOAD_S
    while time.monotonic() < deadline and (to_come := views.reader.events_to_come()) is not None:
        report("waiting for the import to end", 0, to_come)
        time.sleep(LOOK_S)


def frozen_by_rollback(source: str, run: int) -> str:
    """What a rollback to a run means that the speed views no longer continue."""
    return (
        f"Answers of source {source!r} stand still at the cut of run {run}: a rollback pins readers to it, and the "
        "speed view no longer continues it. `tidemark batch rollback --latest` or the next `tidemark batch run` ends "
        "this; scheduled runs do not."
    )
