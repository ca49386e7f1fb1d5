"""Verify on demand: what the speed side says now, and what answers say, against the reference interpreter.

`speed_side` takes the speed states of each view at one moment, and folds the events of the same offsets from the master
dataset. `from_scratch` asks questions over all of history at one cut, and recomputes them from every event below it: as
many events at a time as `consistency_events` says, those of an id together, so memory is bounded and time is not.
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
from batch_layer.consistency.comparison import Differences, Place, closed_range, explained, tell
from batch_layer.consistency.late_duplicates import ids_below
from batch_layer.consistency.quarantine import MAX_EXAMPLES, Compared
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.bucket_totals import totals
from hand_off.speed_views import ALL_KEYS, Group, Outcome, SpeedViews, State, StateRange, totals_of
from infra.settings import Settings
from infra.times import iso_utc
from master_dataset.cut import Cut, count_between, cut_to_json, is_below
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from serving_layer.engine import QueryEngine
from serving_layer.query import order
from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Query
from serving_layer.query.parse import parse_query
from serving_layer.query.result import Result, ResultRow
from serving_layer.verification.from_scratch import Cells, cells, events_below, is_same
from views import in_memory
from views.in_memory import Event
from views.keys import pack_key
from views.source import Source
from views.states import pack
from views.view import View

MICROS = 1_000_000
ALL_TIME = [("from", "1970-01-01"), ("to", "2200-01-01")]
LATELY = [("from", "-48h"), ("to", "now")]
LATELY_S, MOST_BUCKETS = 48 * 3600, 3_000
"""Single keys are looked at in each bucket of late: of so long, and of so many buckets."""
LOOK_S = 0.2
NEVER = 2**62
"""A run that is later than all."""
JOINS = "it joins at the next batch run"
"""Why a view is not compared that no run has: nobody is told anything of it, so nothing of it can be wrong."""


# ---- the speed side ------------------------------------------------------------


def speed_side(settings: Settings, speed_views: SpeedViews, source: Source, views: Sequence[View]) -> list[Compared]:
    """Compare the speed states of each view, as they are now, with the events of the same offsets.

    What is found is remembered as after a batch run: views that are wrong are set aside, those found right come back.
    """
    folder, made, found = BatchFolder.of(settings, source.name), "", []
    for view in views:
        by, compared = _speed_view(settings, speed_views, folder, view)
        made = made or by
        if by != made:
            compared = replace(compared, why_not="the speed views were made anew meanwhile", mismatched=0, excused=0)
        found.append(compared)
    tell(folder, found, quarantine.record(folder, made, found, settings.consistency_threshold))
    return found


def _speed_view(settings: Settings, speed_views: SpeedViews, folder: BatchFolder, view: View) -> tuple[str, Compared]:
    began, most = time.monotonic(), settings.consistency_groups
    kept, entries = speed_views.reader.snapshot(), publish_log.read(folder)
    is_served = view.name in entries[-1].catalog
    stretch = closed_range(kept, entries, NEVER, kept.meta.applied if kept.meta else {})
    if isinstance(stretch, str):
        return "", Compared(view.name, view.hash, 0, 0, why_not=stretch if is_served else JOINS, at=time.time())
    run, start = stretch.before.run, stretch.before.cut
    about = Compared(view.name, view.hash, run, run, at=time.time())
    if any(view.hash not in generation.views for generation in stretch.generations):
        why = f"{JOINS} in this version; what is answered until then was not looked at"
        return stretch.made, replace(about, why_not=why if is_served else JOINS)
    asked = [StateRange(view.hash), *([StateRange(totals_of(view.hash))] if view.keys else [])]
    said = speed_views.reader.answer(run, start, asked, max_states=most)
    if said.outcome == Outcome.TOO_MANY:
        return stretch.made, replace(about, why_not=f"it has more than {most:,} states (consistency_groups)")
    if said.outcome != Outcome.OK or said.made != stretch.made:
        return stretch.made, replace(about, why_not="the speed views changed meanwhile")
    if (count := count_between(start, said.applied)) > settings.consistency_events:
        why = f"{count:,} events came since run {run}, more than consistency_events. A batch run compares them"
        return stretch.made, replace(about, why_not=why)
    if why := _not_archived(settings, view.source, said.applied):
        return stretch.made, replace(about, why_not=why)
    differences = Differences(view)
    true = _folded(settings, view, start, said.applied)
    for is_total, states in enumerate(said.ranges):
        _check(differences, states, true, is_total=bool(is_total))
    excused, why = explained(settings, differences, start, said.applied)
    return stretch.made, replace(
        about, groups=differences.compared, compared=differences.compared, mismatched=len(differences.places),
        excused=excused, not_explained=why, examples=differences.examples(), seconds=round(time.monotonic() - began, 3),
    )  # fmt: skip


def _folded(settings: Settings, view: View, start: Cut, end: Cut) -> dict[Place, bytes]:
    """What the events in [start, end) add to a view: those whose id is not below `start` already."""
    table = table_path(settings, view.source.name)
    counted = in_memory.counted(events_below(table, end, start))
    known = set(ids_below(table, start, [event.event_id for event in counted]))
    groups = in_memory.fold(view, [event for event in counted if event.event_id not in known])
    packed = {
        Group(view.hash, micros // MICROS, pack_key(key)): pack(view.algebras, state)
        for (micros, key), state in groups.items()
    }
    found = {Place(group.bucket, group.key): state for group, state in packed.items()}
    return found | {Place(group.bucket, ALL_KEYS, True): state for group, state in totals(view, packed).items()}


def _check(differences: Differences, states: Sequence[State], true: dict[Place, bytes], *, is_total: bool) -> None:
    said: dict[Place, list[bytes]] = {}
    for bucket, key, state in states:
        said.setdefault(Place(bucket, key, is_total), []).append(state)
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
    """Ask for the totals, keys, months and last two days of each view, at one cut, and recompute each row.

    Of a view that is set aside the answers are at a cut of their own, and recomputed at that.
    """
    questions = [question for view in views for question in _questions(view)]
    asked = list(zip(questions, engine.execute_all(questions), strict=True))
    recomputed: list[Cells] = [{} for _ in asked]
    why = ""
    for cut in _different([answer.meta.cut for _, answer in asked]):
        why = why or _not_archived(settings, source, cut)
        for events in _in_parts(settings, source, cut, report) if not why else ():
            _add(events, [each for each in zip(asked, recomputed, strict=True) if each[0][1].meta.cut == cut])
    if why:
        return [Compared(view.name, view.hash, 0, 0, why_not=why, at=time.time()) for view in views]
    return [_compared(view, asked, recomputed) for view in views]


def _different(cuts: Sequence[Cut]) -> list[Cut]:
    return [cut for place, cut in enumerate(cuts) if cut not in cuts[:place]]


def _add(events: list[Event], asked: Sequence[tuple[tuple[Query, Result], Cells]]) -> None:
    """What some events add to what each question asks for."""
    for view in {question.view.hash: question.view for (question, _), _ in asked}.values():
        groups = in_memory.fold(view, events)
        for (question, answer), into in asked:
            if question.view.hash == view.hash:
                cells(question, groups, into)
                _narrow(into, question, answer)


def _questions(view: View) -> Iterator[Query]:
    limits = QueryLimits()
    most = ("limit", str(limits.max_rows))
    given = [[*ALL_TIME, ("grain", "all")], [*ALL_TIME, ("grain", "month"), most], [*LATELY, most]]
    if view.keys:
        by = ("by", ",".join(view.keys))
        first = time.time() - min(LATELY_S, MOST_BUCKETS * view.bucket.seconds)
        recent = iso_utc(first)
        given.append([*ALL_TIME, ("grain", "all"), by, most])
        given.append([("from", recent), ("to", "now"), ("grain", view.grain), by, most])
    for each in given:
        yield parse_query(view, each, now=time.time(), limits=limits)


def _in_parts(settings: Settings, source: Source, cut: Cut, report: Callable[[str], None]) -> Iterator[list[Event]]:
    """The events below a cut, each once, in parts that fit into memory: all copies of an id are in one part."""
    count = count_between({}, cut)
    parts = max(ceil(count / settings.consistency_events), 1)
    for part in range(parts):
        report(f"recomputing {source.name} from {count:,} events, part {part + 1} of {parts}")
        below = events_below(table_path(settings, source.name), cut)
        yield in_memory.counted(event for event in below if crc32(event.event_id.encode()) % parts == part)


def _narrow(found: Cells, question: Query, answer: Result) -> None:
    """Of an answer that is one page of more, what comes after its last row is not looked at, and need not be kept.

    What comes before and is not in the page is missing there. The order is that of places: states may be of some of
    the events.
    """
    if answer.next is None or not answer.rows:
        return
    stands = _standing(question)
    last = max(stands(row) for row in answer.rows)
    for place in [place for place in found if stands(ResultRow(*place, {})) > last]:
        del found[place]


def _standing(question: Query) -> Callable[[ResultRow], Any]:
    """What rows are sorted by: bucket and keys, since our questions ask for no other order."""
    position, sorted_by = order.positions(question), order.sort_key(question)
    return lambda row: sorted_by(position(row))


def _compared(view: View, asked: Sequence[tuple[Query, Result]], found: Sequence[Cells]) -> Compared:
    compared, examples = 0, list[str]()
    for (question, answer), states in zip(asked, found, strict=True):
        if question.view.hash != view.hash:
            continue
        ours = {(row.period, row.key): row.answers for row in answer.rows}
        wrong = list(_wrong_page(question, answer))
        compared, examples = compared + len(wrong), examples + wrong
        for place in ours.keys() | states.keys():
            compared += 1
            true = view.present(states[place], question.answers) if place in states else None
            if place not in ours or true is None or not is_same(ours[place], true):
                examples.append(f"{place[1] or 'the total'} in {place[0]}: {ours.get(place)} instead of {true}"[:300])
    return Compared(
        view.name, view.hash, 0, 0, compared, compared, len(examples), examples=tuple(examples[:MAX_EXAMPLES]),
        at=time.time(),
    )  # fmt: skip


def _wrong_page(question: Query, answer: Result) -> Iterator[str]:
    """What is wrong with a page, whatever its rows say: it is full where there are more, and in order."""
    if answer.next is not None and len(answer.rows) != question.limit:
        yield f"a page of {len(answer.rows):,} rows instead of {question.limit:,}, and another after it"
    stands = list(map(_standing(question), answer.rows))
    if any(not before < after for before, after in pairwise(stands)):
        yield "rows that are twice, or not in order"


def _not_archived(settings: Settings, source: Source, cut: Cut) -> str:
    """Wait until the master dataset holds all below a cut; why not, if it does not come to that."""
    deadline = time.monotonic() + settings.batch_wait_s
    table = table_path(settings, source.name)
    while any(cut.values()):
        if table.is_dir() and is_below(cut, coverage.of(table).cut):
            break
        if time.monotonic() > deadline:
            return f"the master dataset does not hold {cut_to_json(cut)} after {settings.batch_wait_s:g} s"
        time.sleep(LOOK_S)
    return ""
