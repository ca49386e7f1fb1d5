"""Snapshot: both views of a source at one cut, a published run and what the speed view holds since that run's cut.

Redis names the run that its speed view continues. Where that is not the run at hand, the reader goes to that run and
reads again, so no event is in both views and none is in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from hand_off import publish_log
from hand_off.errors import BatchError
from hand_off.speed_views import State, StateRange
from master_dataset.cut import Cut, cut_to_json, is_below
from serving_layer.errors import NoBatchView, NotComputedYet
from serving_layer.query.plan import QueryPlan
from serving_layer.readers.batch import BatchViewReader, OpenRun
from serving_layer.readers.speed import SpeedSnapshot, SpeedViewReader

MAX_TRIES = 3
"""How often Redis may send a reader to another run."""

StateRanges = Callable[[OpenRun], Sequence[StateRange]]
"""What is read of the speed view, for a run."""


@dataclass(frozen=True)
class SourceReaders:
    """The readers of a source: its batch views and its speed views."""

    source: str
    batch: BatchViewReader
    speed: SpeedViewReader


class Snapshot(NamedTuple):
    """A run, and what the speed view holds since its cut, or the reason why it holds nothing."""

    run: OpenRun
    speed: SpeedSnapshot
    quarantined: Mapping[str, str] = {}
    """Views, by hash, whose speed view is not used, and the reason."""

    def of(self, plan: QueryPlan) -> Snapshot:
        """What one plan is executed on: where the speed view is quarantined, the run alone."""
        reason = self.quarantined.get(plan.query.view.hash)
        if reason is None or self.speed.answer is None:
            return self
        return Snapshot(self.run, SpeedSnapshot(None, reason, self.speed.highest_cut))

    @property
    def cut(self) -> Cut:
        """A result holds exactly the events below it."""
        return self.run.cut if self.speed.answer is None else self.speed.answer.applied

    def states(self, plans: Sequence[QueryPlan]) -> list[list[State]]:
        """What the speed view gave, plan by plan."""
        found = iter(self.speed.answer.ranges if self.speed.answer is not None else ())
        return [list(chain.from_iterable(islice(found, len(plan.ranges)))) for plan in plans]


def state_ranges(plans: Sequence[QueryPlan]) -> list[StateRange]:
    """What is read of the speed views for some plans, in their order."""
    return [each for plan in plans for each in plan.state_ranges]


def take_snapshot(
    readers: SourceReaders,
    plans: Sequence[QueryPlan],
    held: ExitStack,
    ranges: StateRanges | None = None,
    *,
    in_parts: bool = True,
) -> Snapshot:
    """Both views at one cut, with the versions that the plans are for. `held` lets go of the run.

    TooLarge where there are too many states, even `in_parts`.
    """
    run = run_for(readers, plans, held)
    ranges_of = ranges or (lambda _run: state_ranges(plans))
    for _ in range(MAX_TRIES):
        speed = readers.speed.read(run.run, run.cut, ranges_of(run), in_parts=in_parts)
        if not speed.is_refused or speed.answer is None:
            readers.batch.release_other(run)
            return combine(readers, plans, run, speed)
        reason = "Redis names another run each time it is read"
        if readers.batch.is_pinned:
            reason = frozen_reason(run)
            break
        if not is_below(run.cut, speed.answer.applied):
            reason = f"The speed view is at {cut_to_json(speed.answer.applied)}, behind run {run.run}"
            break
        try:
            run = held.enter_context(readers.batch.load(speed.answer.published))
        except NoBatchView as error:
            reason = f"The speed view continues run {speed.answer.published}. {error.detail}"
            break
        if not _has_versions(run, plans):
            reason = f"The speed view continues run {run.run}, which has another version of the view"
            run = run_for(readers, plans, held)
            break
    return Snapshot(run, SpeedSnapshot(None, reason, speed.highest_cut))


def frozen_reason(run: OpenRun) -> str:
    """Why answers stand still while a rollback pins readers to a run that the speed view no longer continues."""
    return (
        f"Readers are pinned to run {run.run} by a rollback, and the speed view no longer continues that run "
        "(`tidemark batch rollback --latest` unpins them)"
    )


def combine(readers: SourceReaders, plans: Iterable[QueryPlan], run: OpenRun, speed: SpeedSnapshot) -> Snapshot:
    """The snapshot, with the views whose speed view is quarantined: decided once for all results made of it."""
    if speed.answer is None:
        return Snapshot(run, speed)
    made = speed.answer.made
    views = {plan.query.view.hash: plan.query.view for plan in plans}
    reasons = {name: readers.batch.quarantine_reason(view, run.run, made) for name, view in views.items()}
    return Snapshot(run, speed, {name: reason for name, reason in reasons.items() if reason is not None})


def run_for(readers: SourceReaders, plans: Sequence[QueryPlan], held: ExitStack) -> OpenRun:
    """The run that is served. Where it has just changed a view, the newest run with the version of the plans."""
    run = held.enter_context(readers.batch.current())
    if _has_versions(run, plans):
        return run
    views = {(plan.query.view.name, plan.query.view.hash) for plan in plans}
    try:
        entries = publish_log.read(readers.batch.folder)
    except BatchError as error:
        raise NoBatchView(str(error)) from None
    for entry in reversed(entries):
        if entry.run < run.run and views <= entry.catalog.items():
            return held.enter_context(readers.batch.load(entry.run))
    names = ", ".join(sorted({name for name, _ in views}))
    raise NotComputedYet(
        f"No run of source {readers.source!r} has this version of {names}: the view has just changed. Try again."
    )


def _has_versions(run: OpenRun, plans: Sequence[QueryPlan]) -> bool:
    return all(run.catalog.get(plan.query.view.name) == plan.query.view.hash for plan in plans)
