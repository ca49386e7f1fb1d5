"""Page keys: for a ranked plan, find which keys are on the page before their states are read.

The ranks that both views keep decide it in one read of the speed view (top_keys_by_rank.py). Where they do not, the
headers of all states do (top_keys.py), and then the states of these keys are read at the same cut. Where the headers
are too many for one call, their numbers are read in parts and kept, so that the next query reads only what has changed
(readers/followed.py). Where these are too many as well, or the writer is faster, all states are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from hand_off.speed_views import State, StateRange
from master_dataset.cut import Cut
from serving_layer.errors import TooLarge
from serving_layer.query import top_keys
from serving_layer.query.plan import QueryPlan
from serving_layer.query.snapshot import MAX_TRIES, Snapshot, SourceReaders, state_ranges, take_snapshot
from serving_layer.query.top_keys_by_rank import Ranking, batch_numbers, ranking_of
from serving_layer.readers.batch import OpenRun, read_errors
from serving_layer.readers.followed import Following
from views.states import HeadReader, head_of

DEEPER = 30
"""How many times as many keys of each bucket are read where their ranks do not decide."""
MAX_DEEPENED = 4
"""In so many buckets: each key that one of them names is looked up in all."""


def read_page_keys(
    readers: SourceReaders, plans: Sequence[QueryPlan], held: ExitStack
) -> tuple[Sequence[QueryPlan], Snapshot]:
    """The plans, narrowed to the keys of their pages where they are ranked; and a snapshot with their states."""
    if all(plan.rank is None for plan in plans):
        return plans, take_snapshot(readers, plans, held)
    if len(plans) == 1:
        found = _by_numbers(readers, plans[0], held, only_followed=True) or _by_rank(readers, plans[0], held)
        if found is not None:
            return [found[0]], found[1]
    try:
        return _by_heads(readers, plans, held)
    except TooLarge:
        pass
    if len(plans) == 1 and (found := _by_numbers(readers, plans[0], held)) is not None:
        return [found[0]], found[1]
    return _by_states(readers, plans, held)


def _by_heads(
    readers: SourceReaders, plans: Sequence[QueryPlan], held: ExitStack
) -> tuple[Sequence[QueryPlan], Snapshot]:
    """By the headers of all states. TooLarge where these are too many for one call."""
    snapshot = take_snapshot(readers, plans, held, in_parts=False)
    for _ in range(MAX_TRIES):
        narrowed = [
            narrow(plan, snapshot.run, heads if snapshot.of(plan) is snapshot else ())
            for plan, heads in zip(plans, snapshot.states(plans), strict=True)
        ]
        known = snapshot.speed.answer
        if known is None:
            return narrowed, snapshot
        again = readers.speed.read(snapshot.run.run, snapshot.run.cut, state_ranges(narrowed))
        now = None if again.is_refused else again.answer
        if now is not None and (now.applied, now.made) == (known.applied, known.made):
            return narrowed, snapshot._replace(speed=again)
        snapshot = take_snapshot(readers, plans, held, in_parts=False)
    return _by_states(readers, plans, held)  # the writer was faster each time


class _Chosen(NamedTuple):
    """The plan for the keys of a page, and which speed views they were chosen by."""

    plan: QueryPlan
    cut: Cut
    made: str


def _by_numbers(
    readers: SourceReaders, plan: QueryPlan, held: ExitStack, *, only_followed: bool = False
) -> tuple[QueryPlan, Snapshot] | None:
    """By the numbers of all keys, which the reader keeps and brings up to date; None where it cannot.

    `only_followed`: only where it keeps those of this period already, because they were too many the last time.
    """
    if plan.rank is None or len(plan.ranges) != 1:
        return None
    what, period, served = Following(plan.query.view, plan.rank), plan.ranges[0], readers.batch.served
    if only_followed and not (served is not None and readers.speed.followed.follows(served, what, period)):
        return None
    for _ in range(MAX_TRIES):
        by_run: dict[int, _Chosen] = {}
        try:
            ranges = partial(_chosen_ranges, readers, plan, what, by_run)
            snapshot = take_snapshot(readers, [plan], held, ranges, in_parts=False)
        except TooLarge:
            return None
        chosen, answer = by_run.get(snapshot.run.run), snapshot.speed.answer
        if chosen is None or answer is None or snapshot.of(plan) is not snapshot:
            return None
        if (answer.applied, answer.made) == (chosen.cut, chosen.made):
            return chosen.plan, snapshot
    return None  # the writer was faster each time


def _chosen_ranges(
    readers: SourceReaders, plan: QueryPlan, what: Following, by_run: dict[int, _Chosen], run: OpenRun
) -> list[StateRange]:
    """What is read of the speed view for the keys that its numbers choose over a run, which are put into `by_run`."""
    with read_errors(run):
        found = readers.speed.choose(run.run, run.cut, what, plan.ranges[0], partial(_narrowed, plan, run))
    if found is None:
        return []
    by_run[run.run] = _Chosen(found.chosen, found.applied, found.made)
    return found.chosen.state_ranges


def _by_states(
    readers: SourceReaders, plans: Sequence[QueryPlan], held: ExitStack
) -> tuple[Sequence[QueryPlan], Snapshot]:
    """By all states, of which those of the pages are kept."""
    snapshot = take_snapshot(readers, [plan.of_all_keys() for plan in plans], held)
    answer = snapshot.speed.answer
    narrowed, ranges = [], []
    for plan, states in zip(plans, snapshot.states(plans), strict=True):
        heads = [(bucket, key, head_of(state)) for bucket, key, state in states]
        page = narrow(plan, snapshot.run, heads if snapshot.of(plan) is snapshot else ())
        keys, chosen = page.selection.keys, frozenset(page.selection.keys or ())
        kept = states if keys is None else [state for state in states if state[1] in chosen]
        narrowed.append(page)
        ranges += [kept, *[[] for _ in plan.ranges[1:]]][: len(plan.ranges)]
    if answer is None:
        return narrowed, snapshot
    return narrowed, snapshot._replace(speed=snapshot.speed._replace(answer=replace(answer, ranges=tuple(ranges))))


def narrow(plan: QueryPlan, run: OpenRun, heads: Sequence[State]) -> QueryPlan:
    """The plan for the keys that can be on the page, by the numbers of both views; for all where these are too many.

    `heads` are the headers of all states that the speed view has for it.
    """
    if plan.rank is None or not plan.ranges:
        return plan.of_all_keys()
    with read_errors(run):
        return _narrowed(plan, run, top_keys.added(heads, HeadReader(plan.query.view.algebras, plan.rank)))


def _narrowed(plan: QueryPlan, run: OpenRun, speed: Mapping[bytes, int]) -> QueryPlan:
    """The same by the numbers of the speed view, by key."""
    numbers = batch_numbers(plan, run)
    if numbers is None:
        return plan.of_all_keys()
    count, highest = plan.query.limit + 1, None if plan.after is None else plan.after[0]
    by_key = top_keys.breaks_ties_by_key(plan.query)
    keys = top_keys.candidates(numbers, speed, plan.selection.prefix, count=count, highest=highest, by_key=by_key)
    return plan.of_all_keys() if keys is None else plan.of_keys(keys)


def _by_rank(readers: SourceReaders, plan: QueryPlan, held: ExitStack) -> tuple[QueryPlan, Snapshot] | None:
    """By the ranks that both views keep, in one read of the speed view; None where these do not decide it."""
    more: list[bytes] = []
    deeper = 1
    for _ in range(MAX_TRIES + 1):
        by_run: dict[int, Ranking] = {}
        try:
            ranges = partial(_ranked_ranges, plan, more, deeper, by_run)
            snapshot = take_snapshot(readers, [plan], held, ranges, in_parts=False)
        except TooLarge:
            return None
        ranking, answer = by_run.get(snapshot.run.run), snapshot.speed.answer
        if ranking is None or answer is None or answer.rests[0] < 0 or snapshot.of(plan) is not snapshot:
            return None
        keys = ranking.decided(answer.states, answer.rests[0], answer.lasts[0])
        if keys is None:
            if not 0 < len(answer.lasts[0]) <= MAX_DEEPENED:
                return None  # all keys of the speed view were read, or all headers are cheaper
            deeper *= DEEPER
        elif ranking.has_whole(keys, more):
            states = [state for state in answer.states if state[1] in keys]
            speed = snapshot.speed._replace(answer=replace(answer, ranges=(states,)))
            return plan.of_keys(keys), snapshot._replace(speed=speed)
        else:
            more = list(keys)  # the states of some of them came as headers alone
    return None


def _ranked_ranges(
    plan: QueryPlan, more: Sequence[bytes], deeper: int, by_run: dict[int, Ranking], run: OpenRun
) -> list[StateRange]:
    """What is read of the speed view to rank over a run. The ranking itself is put into `by_run`."""
    found = ranking_of(plan, run)
    if found is None:
        return []
    by_run[run.run] = found
    return [found.state_range(plan, more, deeper)]
