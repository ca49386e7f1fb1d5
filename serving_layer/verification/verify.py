"""Verify: compare speed views, or all answers, with the reference interpreter.

`verify_speed_views` reads the speed states of each view at one moment and folds the events of the same offsets from the
master dataset. `from_scratch` queries all of history at one cut and recomputes it from every event below that cut:
`consistency_events` events at a time, those of an id together, so memory is bounded and time is not. For events that
were removed from the master dataset, their foundation stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Any
from zlib import crc32

from batch_layer.consistency import quarantine
from batch_layer.consistency.comparison import Differences, GroupLocation, closed_range, explained, log_results
from batch_layer.consistency.late_duplicates import ids_below
from batch_layer.consistency.quarantine import MAX_EXAMPLES, Compared
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.bucket_totals import totals
from hand_off.removed_events import removed_groups, removed_ids
from hand_off.speed_views import ALL_KEYS, Group, Outcome, SpeedViews, State, StateRange, totals_of
from infra.settings import Settings
from infra.times import iso_utc
from master_dataset.archiver.commit_request import ask_for_commit
from master_dataset.cut import Cut, count_between, cut_to_json, is_below
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from serving_layer.engine import QueryEngine
from serving_layer.query import order
from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Query
from serving_layer.query.parse import parse_query
from serving_layer.query.result import Result, ResultRow
from serving_layer.verification.from_scratch import Cells, are_same, cells, events_below
from views import in_memory
from views.in_memory import Event
from views.keys import pack_key
from views.source import Source
from views.states import pack
from views.view import View

MICROS = 1_000_000
ALL_TIME = [("from", "1970-01-01"), ("to", "2200-01-01")]
RECENT = [("from", "-48h"), ("to", "now")]
RECENT_S, MAX_BUCKETS = 48 * 3600, 3_000
"""Single keys are compared in each recent bucket: of so many seconds, and of so many buckets."""
POLL_S = 0.2
NEVER = 2**62
"""A run number later than all others."""
JOINS = "it joins at the next batch run"
"""Why a view that no run has is not compared: it gives no answers yet, so none can be wrong."""


# ---- speed views ------------------------------------------------------------


def verify_speed_views(
    settings: Settings, speed_views: SpeedViews, source: Source, views: Sequence[View]
) -> list[Compared]:
    """Compare the speed states of each view, as they are now, with the events of the same offsets.

    The outcome is recorded as after a batch run: wrong speed views are quarantined, correct ones are released.
    """
    folder, made, found = BatchFolder.of(settings, source.name), "", []
    for view in views:
        by, compared = _speed_view(settings, speed_views, folder, view)
        made = made or by
        if by != made:
            compared = replace(compared, why_not="the speed views were rebuilt meanwhile", mismatched=0, excused=0)
        found.append(compared)
    log_results(folder, found, quarantine.record(folder, made, found, settings.consistency_threshold))
    return found


def _speed_view(settings: Settings, speed_views: SpeedViews, folder: BatchFolder, view: View) -> tuple[str, Compared]:
    began, max_states = time.monotonic(), settings.consistency_groups
    snapshot, entries = speed_views.reader.snapshot(), publish_log.read(folder)
    is_served = view.name in entries[-1].catalog
    interval = closed_range(snapshot, entries, NEVER, snapshot.meta.applied if snapshot.meta else {})
    if isinstance(interval, str):
        return "", Compared(view.name, view.hash, 0, 0, why_not=interval if is_served else JOINS, at=time.time())
    run, start = interval.before.run, interval.before.cut
    about = Compared(view.name, view.hash, run, run, at=time.time())
    if any(view.hash not in generation.views for generation in interval.generations):
        why = f"{JOINS} in this version; the version that is served until then was not compared"
        return interval.made, replace(about, why_not=why if is_served else JOINS)
    ranges = [StateRange(view.hash), *([StateRange(totals_of(view.hash))] if view.keys else [])]
    answer = speed_views.reader.answer(run, start, ranges, max_states=max_states)
    if answer.outcome == Outcome.TOO_MANY:
        return interval.made, replace(about, why_not=f"it has more than {max_states:,} states (consistency_groups)")
    if answer.outcome != Outcome.OK or answer.made != interval.made:
        return interval.made, replace(about, why_not="the speed views changed meanwhile")
    if (count := count_between(start, answer.applied)) > settings.consistency_events:
        why = f"{count:,} events since run {run} are more than consistency_events. A batch run compares them"
        return interval.made, replace(about, why_not=why)
    if why := _not_archived(settings, view.source, answer.applied):
        return interval.made, replace(about, why_not=why)
    differences = Differences(view)
    true = _folded(settings, view, start, answer.applied)
    for is_total, states in enumerate(answer.ranges):
        _check(differences, states, true, is_total=bool(is_total))
    excused, why = explained(settings, differences, start, answer.applied)
    return interval.made, replace(
        about, groups=differences.compared, compared=differences.compared, mismatched=len(differences.places),
        excused=excused, not_explained=why, examples=differences.examples(), seconds=round(time.monotonic() - began, 3),
    )  # fmt: skip


def _folded(settings: Settings, view: View, start: Cut, end: Cut) -> dict[GroupLocation, bytes]:
    """What the events in [start, end) add to a view: those whose id is not below `start` already."""
    table = table_path(settings, view.source.name)
    counted = in_memory.counted(events_below(table, view.source, end, start))
    folder = BatchFolder.of(settings, view.source.name)
    known = set(ids_below(folder, table, view.source, start, [event.event_id for event in counted]))
    groups = in_memory.fold(view, [event for event in counted if event.event_id not in known])
    packed = {
        Group(view.hash, micros // MICROS, pack_key(key)): pack(view.algebras, state)
        for (micros, key), state in groups.items()
    }
    found = {GroupLocation(group.bucket, group.key): state for group, state in packed.items()}
    return found | {GroupLocation(group.bucket, ALL_KEYS, True): state for group, state in totals(view, packed).items()}


def _check(
    differences: Differences, states: Sequence[State], true: dict[GroupLocation, bytes], *, is_total: bool
) -> None:
    said: dict[GroupLocation, list[bytes]] = {}
    for bucket, key, state in states:
        said.setdefault(GroupLocation(bucket, key, is_total), []).append(state)
    for place in said.keys() | {place for place in true if place.is_total == is_total}:
        differences.check(place, said.get(place, []), [true[place]] if place in true else [])


# ---- from scratch --------------------------------------------------------------


def from_scratch(
    settings: Settings,
    engine: QueryEngine,
    source: Source,
    views: Sequence[View],
    report: Callable[[str], None] = lambda _what: None,
) -> list[Compared]:
    """Query the totals, keys, months and last two days of each view, at one cut, and recompute each row.

    A quarantined view has results at a cut of its own, and is recomputed at that.
    """
    queries = [query for view in views for query in _queries(view)]
    executed = list(zip(queries, engine.execute_all(queries), strict=True))
    recomputed: list[Cells] = [{} for _ in executed]
    why = ""
    for cut in _different([result.meta.cut for _, result in executed]):
        why = why or _not_archived(settings, source, cut)
        for events in _in_parts(settings, source, cut, report) if not why else ():
            _add(events, [each for each in zip(executed, recomputed, strict=True) if each[0][1].meta.cut == cut])
    if not why:
        _add_removed(settings, source, list(zip(executed, recomputed, strict=True)))
    if why:
        return [Compared(view.name, view.hash, 0, 0, why_not=why, at=time.time()) for view in views]
    return [_compared(view, executed, recomputed) for view in views]


def _different(cuts: Sequence[Cut]) -> list[Cut]:
    return [cut for place, cut in enumerate(cuts) if cut not in cuts[:place]]


def _add(events: list[Event], executed: Sequence[tuple[tuple[Query, Result], Cells]]) -> None:
    """Add some events to the recomputed rows of each query."""
    for view in {query.view.hash: query.view for (query, _), _ in executed}.values():
        groups = in_memory.fold(view, events)
        for (query, result), into in executed:
            if query.view.hash == view.hash:
                cells(query, groups, into)
                _narrow(into, query, result)


def _add_removed(settings: Settings, source: Source, executed: Sequence[tuple[tuple[Query, Result], Cells]]) -> None:
    """Add what stands for the events that were removed from the master dataset."""
    folder, table = BatchFolder.of(settings, source.name), table_path(settings, source.name)
    for view in {query.view.hash: query.view for (query, _), _ in executed}.values():
        for groups in removed_groups(folder, table, view):
            for (query, result), into in executed:
                if query.view.hash == view.hash:
                    cells(query, groups, into)
                    _narrow(into, query, result)


def _queries(view: View) -> Iterator[Query]:
    limits = QueryLimits()
    most = ("limit", str(limits.max_rows))
    given = [[*ALL_TIME, ("grain", "all")], [*ALL_TIME, ("grain", "month"), most], [*RECENT, most]]
    if view.keys:
        by = ("by", ",".join(view.keys))
        first = time.time() - min(RECENT_S, MAX_BUCKETS * view.bucket.seconds)
        recent = iso_utc(first)
        given.append([*ALL_TIME, ("grain", "all"), by, most])
        given.append([("from", recent), ("to", "now"), ("grain", view.grain), by, most])
    for each in given:
        yield parse_query(view, each, now=time.time(), limits=limits)


def _in_parts(settings: Settings, source: Source, cut: Cut, report: Callable[[str], None]) -> Iterator[list[Event]]:
    """The events below a cut, each once, in parts that fit into memory: duplicates of an id are in one part."""
    count = count_between({}, cut)
    parts = max(ceil(count / settings.consistency_events), 1)
    for part in range(parts):
        report(f"recomputing {source.name} from {count:,} events, part {part + 1} of {parts}")
        table = table_path(settings, source.name)
        chosen = [each for each in events_below(table, source, cut) if crc32(each.event_id.encode()) % parts == part]
        ids = {event.event_id for event in chosen}
        yield in_memory.counted(chosen, removed_ids(BatchFolder.of(settings, source.name), table, ids))


def _narrow(found: Cells, query: Query, result: Result) -> None:
    """Drop the recomputed rows after the last row of a page that has a next one: they are not compared.

    A row before it that is not on the page is missing there. The order is by bucket and keys, because states may be of
    some of the events only.
    """
    if result.next is None or not result.rows:
        return
    sort_key = _sort_key(query)
    last = max(sort_key(row) for row in result.rows)
    for place in [place for place in found if sort_key(ResultRow(*place, {})) > last]:
        del found[place]


def _sort_key(query: Query) -> Callable[[ResultRow], Any]:
    """The sort key of rows: bucket and keys, since these queries have no other order."""
    position, sorted_by = order.positions(query), order.sort_key(query)
    return lambda row: sorted_by(position(row))


def _compared(view: View, executed: Sequence[tuple[Query, Result]], found: Sequence[Cells]) -> Compared:
    compared, examples = 0, list[str]()
    for (query, result), states in zip(executed, found, strict=True):
        if query.view.hash != view.hash:
            continue
        ours = {(row.period, row.key): row.answers for row in result.rows}
        wrong = list(_wrong_page(query, result))
        compared, examples = compared + len(wrong), examples + wrong
        for place in ours.keys() | states.keys():
            compared += 1
            true = view.present(states[place], query.answers) if place in states else None
            if place not in ours or true is None or not are_same(view, ours[place], true):
                examples.append(f"{place[1] or 'the total'} in {place[0]}: {ours.get(place)} instead of {true}"[:300])
    return Compared(
        view.name, view.hash, 0, 0, compared, compared, len(examples), examples=tuple(examples[:MAX_EXAMPLES]),
        at=time.time(),
    )  # fmt: skip


def _wrong_page(query: Query, result: Result) -> Iterator[str]:
    """What is wrong with a page as a whole: it must be full if there is a next one, and in order."""
    if result.next is not None and len(result.rows) != query.limit:
        yield f"a page of {len(result.rows):,} rows instead of {query.limit:,}, with a next page"
    sort_key = list(map(_sort_key(query), result.rows))
    if any(not before < after for before, after in pairwise(sort_key)):
        yield "rows that are duplicated or out of order"


def _not_archived(settings: Settings, source: Source, cut: Cut) -> str:
    """Wait until the master dataset holds all events below a cut; the reason if it does not in time."""
    deadline = time.monotonic() + settings.batch_wait_s
    table = table_path(settings, source.name)
    ask_for_commit(table)
    while any(cut.values()):
        if table.is_dir() and is_below(cut, coverage.of(table).cut):
            break
        if time.monotonic() > deadline:
            return f"the master dataset does not hold {cut_to_json(cut)} after {settings.batch_wait_s:g} s"
        time.sleep(POLL_S)
    return ""
