"""Provenance: what a result is made of (run, cut, lag), whether something is missing, and how exact its answers are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from master_dataset.cut import Cut, cut_to_json, is_below
from serving_layer.query.model import Query
from serving_layer.query.plan import QueryPlan
from serving_layer.query.result import BatchPart, Provenance, ResultRow, SpeedPart
from serving_layer.query.snapshot import Snapshot
from serving_layer.readers.batch import OpenRun
from serving_layer.readers.speed import SpeedSnapshot, behind, why_behind
from views.short_texts import is_short_form
from views.view import View

MAX_KNOWN = 1_000
_known_exactness: dict[tuple[str, tuple[str, ...]], dict[str, dict[str, Any]]] = {}
"""By version of a view and answers, which decide it."""


def provenance(plan: QueryPlan, snapshot: Snapshot, *, is_speed_read: bool, shortened_keys: bool) -> Provenance:
    """What the result of a plan on a snapshot is made of. `is_speed_read`: whether the speed view had states for it.

    `shortened_keys`: whether a row has a key that is the short form of a long text.
    """
    query, run = plan.query, snapshot.run
    view, cut = query.view, snapshot.cut
    reason = _degraded_reason(query, snapshot)
    return Provenance(
        view=view.name,
        version=view.hash[:16],
        source=view.source.name,
        range=query.range,
        grain=query.grain,
        tz=query.tz,
        batch=batch_part(run, read=run.has_days(view.name, plan.ranges)),
        speed=speed_part(snapshot.speed, read=is_speed_read),
        cut=cut,
        complete=reason is None,
        degraded=reason is not None,
        why=reason,
        answers=_exactness_of(view, query.answers),
        etag=_etag(query, run, cut, is_degraded=reason is not None),
        since=run.since(view.name),
        shortened_keys=shortened_keys or any(each.long_texts for each in query.filters),
    )


def has_short_keys(rows: Iterable[ResultRow]) -> bool:
    """Whether a key of these rows is the short form of a long text."""
    return any(is_short_form(value) for row in rows for value in row.key)


def batch_part(run: OpenRun, *, read: bool) -> BatchPart:
    """The run of a result. `read`: whether its range needed it."""
    return BatchPart(run.run, run.cut, run.published, read)


def speed_part(speed: SpeedSnapshot, *, read: bool) -> SpeedPart | None:
    """The speed view of a result; None where it was not used. `read`: whether its range needed it."""
    if speed.answer is None:
        return None
    lag = speed.answer.lag
    return SpeedPart(
        applied=speed.answer.applied, published_run=speed.answer.published, lag_events=lag and lag.events,
        lag_s=lag and lag.seconds, read=read,
    )  # fmt: skip


def etag(query: Query, snapshot: Snapshot) -> str:
    """The ETag of the result that this snapshot would give."""
    is_degraded = _degraded_reason(query, snapshot) is not None
    return _etag(query, snapshot.run, snapshot.cut, is_degraded=is_degraded)


def _etag(query: Query, run: OpenRun, cut: Cut, *, is_degraded: bool) -> str:
    parts = (
        query.view.hash, run.run, cut_to_json(cut), query.without_page(), *query.page(), is_degraded,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _degraded_reason(query: Query, snapshot: Snapshot) -> str | None:
    """Why a result is degraded; None where it is complete."""
    speed, cut = snapshot.speed, snapshot.cut
    if speed.reason is not None:
        return (
            f"{speed.reason}. This is run {snapshot.run.run} of the batch view alone: events after its cut are missing."
        )
    if not is_below(speed.highest_cut, cut):
        return behind(cut, speed.highest_cut)
    if query.cursor is not None and not is_below(query.cursor.applied, cut):
        return f"{behind(cut, query.cursor.applied)} Begin again with the first page."
    return None if speed.answer is None else why_behind(speed.answer)


def _exactness_of(view: View, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The exactness of each of these answers. Many results share it, and nobody changes it."""
    key = (view.hash, names)
    found = _known_exactness.get(key)
    if found is None:
        if len(_known_exactness) >= MAX_KNOWN:
            _known_exactness.clear()
        found = _known_exactness[key] = {name: exactness(view, name) for name in names}
    return found


def exactness(view: View, name: str) -> dict[str, Any]:
    """What kind an answer is, whether it is exact, and if not, how far it may be off, in words."""
    stored = [view.algebras[each] for each in sorted(view.stored_for([name]))]
    errors = dict.fromkeys(algebra.error for algebra in stored if algebra.error)
    found: dict[str, Any] = {"kind": type(view.answers[name]).__name__.lower(), "exact": not errors}
    return {**found, "error": "; ".join(errors)} if errors else found
