"""Make one answer of what was read of both sides: its rows, page by page, and what they are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hand_off.speed_views import ALL_KEYS, State, StateRange, totals_of
from master_dataset.cut import Cut, cut_to_json, is_below
from serving_layer.query import cursors, rows, top_keys
from serving_layer.query.budget import QueryBudget
from serving_layer.query.cursors import Cursor
from serving_layer.query.key_selection import KeySelection, select_keys
from serving_layer.query.merge import Cells, Groups, gather
from serving_layer.query.model import Period, Query
from serving_layer.query.order import BUCKET, Position
from serving_layer.query.presentation_cache import PresentationCache
from serving_layer.query.result import BatchPart, Provenance, Result, ResultRow, SpeedPart
from serving_layer.query.rows import Gathered, Presenter
from serving_layer.query.segments import segments
from serving_layer.readers.batch import OpenRun, read_errors, tiles
from serving_layer.readers.speed import SpeedSnapshot, behind
from views.states import HeadReader
from views.view import View

MOST_KEYS = 10_000
"""Keys that are looked up one by one; where filters name more, all keys are read and compared."""


class QueryPlan(NamedTuple):
    """A question, and what it needs of the speed side."""

    question: Query
    wanted: KeySelection
    cursor: Cursor | None
    ranges: tuple[Period, ...]
    rank: str | None = None
    """The answer that decides which keys are on the page: these are found first, and then read alone."""

    @property
    def stretches(self) -> list[StateRange]:
        """What is asked of the speed side."""
        view, keys, beginning = self.question.view, self.wanted.keys, self.wanted.prefix
        name = totals_of(view.hash) if self.is_total and view.keys else view.hash
        return [StateRange(name, *each, keys, beginning, self.rank is not None) for each in self.ranges]

    @property
    def is_total(self) -> bool:
        """Whether it is about all keys together."""
        return not self.question.by and not self.question.filters

    @property
    def after(self) -> Position | None:
        """The position of the last row of the page before."""
        return self.cursor.after if self.cursor is not None else None


class Snapshot(NamedTuple):
    """Both sides as they are together: a run, and what the speed side has since its cut, or why it has nothing."""

    run: OpenRun
    reading: SpeedSnapshot
    aside: Mapping[str, str] = {}
    """Views, by hash, whose speed side is not to be used, and why."""

    def of(self, asked: QueryPlan) -> Snapshot:
        """What one question is answered from: where the speed side of its view is set aside, the run alone."""
        why = self.aside.get(asked.question.view.hash)
        if why is None or self.reading.answer is None:
            return self
        return Snapshot(self.run, SpeedSnapshot(None, why, self.reading.before))

    @property
    def cut(self) -> Cut:
        """An answer holds exactly the events below it."""
        return self.run.cut if self.reading.answer is None else self.reading.answer.applied


def asked(question: Query) -> QueryPlan:
    """What a question needs."""
    keys = select_keys(question.view, question.filters, MOST_KEYS)
    cursor = cursors.read(question.cursor) if question.cursor else None
    ranges = tuple(segments((*question.windows, *(question.previous or ()))).ranges())
    return QueryPlan(question, keys, cursor, ranges, top_keys.rank_by(question, keys))


def numbers_of(asked: QueryPlan, run: OpenRun) -> top_keys.Numbers | None:
    """What the batch side has of the answer that a question ranks by; None where that cannot be compared as numbers."""
    name = asked.question.view.name
    if asked.rank is None or not asked.ranges:
        return None
    return run.sums(name, asked.rank, asked.ranges[0]) if run.has_days(name, asked.ranges) else top_keys.NOTHING


def narrowed(asked: QueryPlan, run: OpenRun, heads: Sequence[State]) -> QueryPlan:
    """The same of the keys alone that can be on the page, by the numbers of both sides; of all if these are too many.

    `heads` are the headers of all states that the speed side has for it.
    """
    view, whole = asked.question.view, asked._replace(rank=None)
    if asked.rank is None or not asked.ranges:
        return whole
    with read_errors(run):
        sums = numbers_of(asked, run)
        if sums is None:
            return whole
        speed = top_keys.added(heads, HeadReader(view.algebras, asked.rank))
        count, highest = asked.question.limit + 1, None if asked.after is None else asked.after[0]
        keys = top_keys.candidates(sums, speed, asked.wanted.prefix, count=count, highest=highest)
    return whole if keys is None else whole._replace(wanted=KeySelection(tuple(keys), b""))


def make(
    asked: QueryPlan, read: Snapshot, speed: Sequence[State], budget: QueryBudget, cache: PresentationCache
) -> Result:
    """The answer. `speed` are the states that the speed side has for this question."""
    question, run = asked.question, read.run
    presenting = Presenter(question, cache)
    page: list[ResultRow] = []
    has_more = False
    with read_errors(run):
        for part in _parts(asked):
            part = replace(part, limit=question.limit - len(page)) if page else part
            gathered = _gathered(part, asked, run, speed, budget)
            made, has_more = rows.page(rows.rows_of(part, presenting, gathered, budget), part, asked.after)
            page += rows.with_more(made, part, presenting, gathered, budget)
            if has_more:
                break
    first_run, first_cut = (asked.cursor.run, asked.cursor.applied) if asked.cursor else (run.run, read.cut)
    following = cursors.write(question, page[-1], first_run, first_cut) if has_more else None
    return Result(question.by, page, _meta(asked, read, speed), following)


# ---- what is read --------------------------------------------------------------


def _parts(asked: QueryPlan) -> Iterator[Query]:
    """The question in parts, in the order of its rows, so that not much more is read than a page needs.

    That works where rows are ordered by time first. How many rows a period has is not known unless keys are listed.
    """
    question, after, first = asked.question, asked.after, asked.question.order[0]
    if first.name != BUCKET or question.fill or len(question.periods) < 2:
        yield question
        return
    places = list(range(len(question.periods)))
    if first.descending:
        places.reverse()
    if after is not None:
        starts = [question.periods[place].start for place in places]
        places = [place for place, start in zip(places, starts, strict=True)
                  if start == after[0] or (start < after[0]) == first.descending]  # fmt: skip
    keys = asked.wanted.keys
    groups = 1 if not question.by else None if keys is None else max(len(keys), 1)
    size = 1 if groups is None else question.limit // groups + 1
    while places:
        chosen, places, size = sorted(places[:size]), places[size:], 2 * size
        if len(chosen) == len(question.periods):
            yield question
            return
        yield replace(
            question,
            periods=tuple(question.periods[place] for place in chosen),
            windows=tuple(question.windows[place] for place in chosen),
            previous=question.previous and tuple(question.previous[place] for place in chosen),
        )


def _gathered(part: Query, asked: QueryPlan, run: OpenRun, speed: Sequence[State], budget: QueryBudget) -> Gathered:
    """The packed states of both sides that (a part of) a question is about."""
    view, of = part.view, asked.wanted
    pieces = segments((*part.windows, *(part.previous or ())))
    ranges = tuple(pieces.ranges())
    if ranges != asked.ranges:
        speed = [state for state in speed if any(start <= state[0] < end for start, end in ranges)]
    index = run.index(view.name) if run.has_days(view.name, ranges) else None
    groups = Groups(view, part.by, of.matches)
    batch: Cells = {}
    ours: Cells = {}
    if asked.is_total:
        groups.known[ALL_KEYS] = ()
    if index is not None:
        found = tiles(index, pieces.stretches(index.levels), of, budget.check_time, is_total=asked.is_total)
        gather(batch, found, pieces, groups, budget)
    gather(ours, speed, pieces, groups, budget)
    return Gathered(batch, ours, pieces)


# ---- what it is made of --------------------------------------------------------


def _meta(asked: QueryPlan, read: Snapshot, speed: Sequence[State]) -> Provenance:
    question, run, reading = asked.question, read.run, read.reading
    view, cut = question.view, read.cut
    why = _why(asked, read)
    return Provenance(
        view=view.name,
        version=view.hash[:16],
        source=view.source.name,
        range=question.range,
        grain=question.grain,
        tz=question.tz,
        batch=batch_part(run, read=run.has_days(view.name, asked.ranges)),
        speed=speed_part(reading, read=bool(speed)),
        cut=cut,
        complete=why is None,
        degraded=why is not None,
        why=why,
        answers={name: exactness(view, name) for name in question.answers},
        etag=_etag(question, run, cut, why),
    )


def batch_part(run: OpenRun, *, read: bool) -> BatchPart:
    """The run, as an answer names it."""
    return BatchPart(run.run, run.cut, run.published, read)


def speed_part(reading: SpeedSnapshot, *, read: bool) -> SpeedPart | None:
    """What the speed side said, as an answer names it."""
    if reading.answer is None:
        return None
    lag = reading.answer.lag
    return SpeedPart(
        applied=reading.answer.applied, published_run=reading.answer.published, lag_events=lag and lag.events,
        lag_s=lag and lag.seconds, read=read,
    )  # fmt: skip


def etag(asked: QueryPlan, read: Snapshot) -> str:
    """The ETag of the answer that would be made of this."""
    return _etag(asked.question, read.run, read.cut, _why(asked, read))


def _why(asked: QueryPlan, read: Snapshot) -> str | None:
    """Why an answer is degraded; None: it is not."""
    if read.reading.why is not None:
        return (
            f"{read.reading.why}. This is run {read.run.run} of the batch views alone: "
            "what came after its cut is missing."
        )
    if not is_below(read.reading.before, read.cut):
        return behind(read.cut, read.reading.before)
    if asked.cursor is not None and not is_below(asked.cursor.applied, read.cut):
        return f"{behind(read.cut, asked.cursor.applied)} Begin again with the first page."
    return None


def exactness(view: View, name: str) -> dict[str, Any]:
    """What kind an answer is, whether it is exact, and if not, how far it may be off, in words."""
    stored = [view.algebras[each] for each in sorted(view.stored_for([name]))]
    errors = dict.fromkeys(algebra.error for algebra in stored if algebra.error)
    found: dict[str, Any] = {"kind": type(view.answers[name]).__name__.lower(), "exact": not errors}
    return {**found, "error": "; ".join(errors)} if errors else found


def _etag(question: Query, run: OpenRun, cut: Cut, why: str | None) -> str:
    parts = (
        question.view.hash, run.run, cut_to_json(cut), question.without_page(), question.limit, question.cursor,
        question.explain, why is not None,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
