"""What a batch run does with the speed views: open a cut, publish, take over; and what is tidied after it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.publish_log import Entry
from hand_off.speed_views import Outcome, SpeedViews
from infra.failpoints import reach
from master_dataset.cut import Cut

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger()


@dataclass(frozen=True)
class Opening:
    """How a run got its cut.

    `open`: the speed layer's own, which goes on in a generation of its own from there. `takeover`: nobody writes, the
    cut will be the master dataset's (at least `cut`), and the speed views begin anew there. `alone`: Redis is empty or
    away, or there is no speed layer: the cut is the master dataset's, and whoever starts writing begins there.
    """

    how: str
    cut: Cut
    token: str = ""


def open_cut(speed_views: SpeedViews, run: int, catalog: Iterable[str]) -> Opening:
    """The cut of a run, before it looks at the master dataset."""
    if speed_views.living_writer() is not None:
        cut = speed_views.open(run, catalog)
        if cut is not None:
            return Opening("open", cut)
    fenced = speed_views.fence()
    return Opening("alone", {}) if fenced is None else Opening("takeover", fenced[1], fenced[0])


def publish(speed_views: SpeedViews, opening: Opening, entry: Entry) -> Outcome:
    """After the durable append: let the speed views follow."""
    if opening.how == "takeover":
        return speed_views.takeover(opening.token, entry.run, entry.cut, entry.catalog.values())
    return speed_views.publish(entry.run, entry.cut)


def tend(speed_views: SpeedViews, folder: BatchFolder, grace_s: float, now: Callable[[], float] = time.time) -> None:
    """Finish what runs left: publish the last entry of the log, retire generations nobody needs, sweep their states.

    A run that fails after it opened a generation leaves that one, which takes part in every answer from then on: it can
    go only with those before a later run that is published. So there are as many as runs failed since, and together
    they hold at most so many states of each group.
    """
    entries = publish_log.read(folder)
    newest = entries[-1]
    kept = speed_views.look()
    if kept.meta is None:
        return
    reach("tend.before_publish")
    if newest.run > kept.meta.published and speed_views.publish(newest.run, newest.cut) == Outcome.OK:
        log.info("published_later", source=folder.source, run=newest.run)
        kept = speed_views.look()
    pinned = publish_log.pinned(folder)
    published = next((entry for entry in entries if kept.meta and entry.run == kept.meta.published), None)
    if published is not None and now() - published.at > grace_s:
        needed = {published.run} | ({pinned.run} if pinned is not None else set())
        first = next((generation.gid for generation in kept.generations if generation.run in needed), "")
        reach("tend.before_retire")
        if dropped := speed_views.retire(first):
            log.info("retired", source=folder.source, generations=dropped)
    for gid in speed_views.unswept():
        reach("tend.before_sweep")
        swept = speed_views.sweep(gid)
        reach("tend.after_sweep")
        log.info("swept", source=folder.source, generation=gid, buckets=swept)
