"""Execute: from a plan and a snapshot of both views to a result: read, merge, present, order, cut into a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hand_off.speed_views import ALL_KEYS, State
from serving_layer.query import cursors, page_by_key, provenance, rows
from serving_layer.query.limits import QueryBudget
from serving_layer.query.merge import Cells, KeyGroups, gather
from serving_layer.query.plan import PlanPart, QueryPlan, parts
from serving_layer.query.presentation_cache import PresentationCache
from serving_layer.query.result import Result, ResultRow
from serving_layer.query.rows import PackedStates, Presenter
from serving_layer.query.snapshot import Snapshot
from serving_layer.readers.batch import OpenRun, read_errors, tiles


def execute(
    plan: QueryPlan, snapshot: Snapshot, speed: Sequence[State], budget: QueryBudget, cache: PresentationCache
) -> Result:
    """The result of a plan. `speed` are the states that the snapshot of the speed view has for it."""
    query, run = plan.query, snapshot.run
    presenter = Presenter(query, cache)
    page: list[ResultRow] = []
    has_more = False
    with read_errors(run):
        for part in parts(plan):
            of = replace(part.query, limit=query.limit - len(page)) if page else part.query
            packed = _read(plan, part, run, speed, budget)
            found, has_more = rows.page(rows.rows_of(of, presenter, packed, budget), of, plan.after)
            page += rows.with_comparisons(found, of, presenter, packed, budget)
            if has_more:
                break
    first_run, first_cut = (query.cursor.run, query.cursor.applied) if query.cursor else (run.run, snapshot.cut)
    following = cursors.write(query, page[-1], first_run, first_cut) if has_more else None
    meta = provenance.provenance(
        plan, snapshot, is_speed_read=bool(speed), shortened_keys=provenance.has_short_keys(page)
    )
    return Result(query.by, page, meta, following)


def _read(plan: QueryPlan, part: PlanPart, run: OpenRun, speed: Sequence[State], budget: QueryBudget) -> PackedStates:
    """The packed states of both views for a part of a plan."""
    view = part.query.view
    if part.ranges != plan.ranges:
        speed = [state for state in speed if any(start <= state[0] < end for start, end in part.ranges)]
    groups = KeyGroups(view, part.query.by, plan.selection.matches)
    if plan.is_total:
        groups.known[ALL_KEYS] = ()
    from_batch: Cells = {}
    from_speed: Cells = {}
    found: Iterable[State] = ()
    if run.has_days(view.name, part.ranges):
        index = run.index(view.name)
        tile_ranges = part.segments.tile_ranges(index.levels)
        found = tiles(index, tile_ranges, plan.selection, budget.check_time, is_total=plan.is_total)
    after = page_by_key.last_key(part.query) if page_by_key.is_by_key(part.query) else None
    if after is not None and plan.selection.keys is None and not run.has_long_keys(view.name):
        found, speed = page_by_key.first_states(found, speed, after, part.query.limit + 1)
    gather(from_batch, found, part.segments, groups, budget)
    gather(from_speed, speed, part.segments, groups, budget)
    return PackedStates(from_batch, from_speed, part.segments)
