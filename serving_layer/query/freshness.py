"""Freshness: whether a snapshot is as fresh as queries ask for (`min_cut`, `max_staleness`), and the wait for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from master_dataset.cut import count_between, cut_to_json, is_below
from serving_layer.errors import NotYet, ServingError, Stale
from serving_layer.query.model import Freshness
from serving_layer.query.plan import QueryPlan
from serving_layer.query.snapshot import Snapshot, SourceReaders

POLL_S = 0.025


def first_unmet(plans: Sequence[QueryPlan], snapshot: Snapshot) -> ServingError | None:
    """The first condition that the snapshot does not meet, as the error to raise."""
    unmet = (_unmet(plan.query.freshness, snapshot.of(plan)) for plan in plans)
    return next((found for found in unmet if found is not None), None)


def wait_until_fresh(readers: SourceReaders, plans: Sequence[QueryPlan], snapshot: Snapshot, until: float) -> None:
    """Return when all conditions seem to be met, or at `until`. Only cuts are read meanwhile."""
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left))
        now = snapshot._replace(speed=readers.speed.read(snapshot.run.run, snapshot.run.cut, ()))
        if first_unmet(plans, now) is None:
            return


def _unmet(freshness: Freshness, snapshot: Snapshot) -> ServingError | None:
    if freshness.min_cut is not None and not is_below(freshness.min_cut, snapshot.cut):
        missing = count_between(snapshot.cut, freshness.min_cut)
        return NotYet(
            f"The views are at {cut_to_json(snapshot.cut)}; min_cut is {cut_to_json(freshness.min_cut)}. {missing} "
            "events are not applied yet. Try again, or wait longer (wait).",
            applied=cut_to_json(snapshot.cut), min_cut=cut_to_json(freshness.min_cut), missing=missing,
        )  # fmt: skip
    if freshness.max_staleness_s is not None:
        lag = snapshot.speed.answer.lag if snapshot.speed.answer is not None else None
        lag_s = None if lag is None else lag.seconds
        if lag_s is None or lag_s > freshness.max_staleness_s:
            age = "The age of the answer is unknown" if lag_s is None else f"The answer is {lag_s:.1f} s old"
            reason = f"{snapshot.speed.reason}. " if snapshot.speed.reason else ""
            return Stale(
                f"{age}; max_staleness is {freshness.max_staleness_s:g} s. {reason}Try again, wait longer (wait), or "
                "leave max_staleness out.",
                lag_s=lag_s, max_staleness_s=freshness.max_staleness_s,
            )  # fmt: skip
    return None
