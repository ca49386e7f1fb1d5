"""From questions to answers: read the speed side, read the batch side, merge, present, and say what it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from batch_layer.consistency.quarantine import Compared
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.speed_views import State, StateRange
from infra.clients.redis import pooled_redis_client
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.cut import count_between, cut_to_json, is_below
from serving_layer.errors import NoBatchView, NotComputedYet, NotYet, ServingError, Stale, UnknownView
from serving_layer.query.budget import ExecutionLimits, QueryBudget
from serving_layer.query.execute import QueryPlan, Snapshot, asked, batch_part, etag, make, narrowed, speed_part
from serving_layer.query.key_selection import KeySelection
from serving_layer.query.model import Freshness, Query
from serving_layer.query.presentation_cache import PresentationCache
from serving_layer.query.result import BatchPart, Result, SpeedPart
from serving_layer.query.top_keys_by_rank import Ranking, ranking_of
from serving_layer.readers.batch import BatchViewReader, OpenRun
from serving_layer.readers.speed import SpeedSnapshot, SpeedStatus, SpeedViewReader
from views.declarations import Declarations
from views.view import View

TRIES = 3
"""How often Redis may send us to another run."""
POLL_S = 0.025


@dataclass(frozen=True)
class SourceReaders:
    """Both readers of a source."""

    source: str
    batch: BatchViewReader
    speed: SpeedViewReader


class SourceStatus(NamedTuple):
    """How a source stands. `why`: why answers lack what came since the run; None: they do not."""

    batch: BatchPart
    speed: SpeedPart | None
    why: str | None


class QueryEngine:
    """Answers questions over the views of all sources. Threads share it."""

    def __init__(self, settings: Settings, declarations: Declarations, bounds: ExecutionLimits | None = None) -> None:
        self.bounds = bounds or ExecutionLimits()
        self._declarations = declarations
        self._presented = PresentationCache(self.bounds.cache_mb)
        self._client = pooled_redis_client(
            settings, addresses(settings).redis, self.bounds.speed_timeout_s, self.bounds.speed_connections
        )
        self._readers = {
            name: SourceReaders(
                name,
                BatchViewReader(settings, source, {view.name: view for view in declarations.views_of(name)}),
                SpeedViewReader(self._client, name, self.bounds),
            )
            for name, source in declarations.sources.items()
        }

    def close(self) -> None:
        """Let go of files and connections."""
        for readers in self._readers.values():
            readers.batch.close()
        self._client.close()

    # ---- what is served ----

    def served_view(self, name: str) -> View:
        """The view as it is served now, for which questions are made; what is declared may join at the next run."""
        declared = self._declarations.views.get(name)
        if declared is not None:
            with self._readers[declared.source.name].batch.current() as run:
                return run.view(name)
        found = self.undeclared_views().get(name)
        if found is None:
            raise UnknownView(f"There is no view {name!r}. There are: {', '.join(sorted(self._declarations.views))}.")
        return found

    def undeclared_views(self) -> dict[str, View]:
        """Views that a published run has and that were not declared when this process began, by name.

        They joined since, or are declared no more, until a run leaves them out.
        """
        found: dict[str, View] = {}
        for readers in self._readers.values():
            with suppress(NoBatchView), readers.batch.current() as run:
                found |= {name: run.view(name) for name in run.catalog if name not in self._declarations.views}
        return found

    def count_groups(self, name: str) -> int:
        """How many groups (buckets and keys) the batch view has that is served."""
        view = self.served_view(name)
        with self._readers[view.source.name].batch.current() as run:
            return run.index(name).groups

    def status(self, source: str) -> SourceStatus:
        """How a source stands: the run that is served, and how far the speed side is since."""
        readers = self._readers[source]
        with readers.batch.current() as run:
            reading = readers.speed.read(run.run, run.cut, ())
            return SourceStatus(batch_part(run, read=False), speed_part(reading, read=False), reading.why)

    def folder(self, source: str) -> BatchFolder:
        """Where the batch data of a source is."""
        return self._readers[source].batch.folder

    def speed_status(self, source: str) -> SpeedStatus | None:
        """The generations of a source, as Redis keeps them now; None where it does not answer."""
        return self._readers[source].speed.look()

    def last_comparison(self, view: View) -> tuple[Compared | None, str | None]:
        """The last comparison of a view's speed side with its batch side, and why it is set aside, if it is."""
        readers = self._readers[view.source.name]
        with readers.batch.current() as run:
            reading = readers.speed.read(run.run, run.cut, ())
            made = "" if reading.answer is None else reading.answer.made
            why = None if reading.answer is None else readers.batch.why_aside(view, run.run, made)
            return readers.batch.consistency.views.get(view.name), why

    # ---- answers ----

    def etag(self, question: Query) -> str | None:
        """The ETag that the answer has now; None where only the answer itself can tell. Much cheaper than that."""
        readers = self._readers[question.view.source.name]
        with ExitStack() as held:
            one = asked(question)
            run = _run_for(readers, [one], held)
            reading = readers.speed.read(run.run, run.cut, ())
            return None if reading.is_refused else etag(one, _both(readers, [one], run, reading).of(one))

    def execute(self, question: Query) -> Result:
        """The answer to one question."""
        (found,) = self.execute_all([question])
        return found

    def execute_all(self, questions: Sequence[Query]) -> list[Result]:
        """The answers to several, those of one source all at one cut."""
        found: dict[int, Result] = {}
        for readers in self._readers.values():
            places = [n for n, each in enumerate(questions) if each.view.source.name == readers.source]
            if places:
                found |= zip(places, self._answers(readers, [questions[place] for place in places]), strict=True)
        return [found[place] for place in range(len(questions))]

    def _answers(self, readers: SourceReaders, questions: Sequence[Query]) -> list[Result]:
        all_asked = [asked(question) for question in questions]
        until = time.monotonic() + max(question.freshness.wait_s for question in questions)
        tries = 0
        while True:
            tries += 1
            served = readers.batch.served
            with ExitStack() as held:
                try:
                    chosen, read = _chosen(readers, all_asked, held)
                    served, unmet = read.run.run, _first_unmet(all_asked, read)
                    if unmet is None:
                        return self._made(readers, chosen, read)
                except NoBatchView:
                    # Pruned while we read, perhaps: then there is a newer run by now.
                    if tries == TRIES or held.enter_context(readers.batch.current()).run == served:
                        raise
                    continue
                if time.monotonic() >= until:
                    raise unmet
                _wait(readers, all_asked, read, until)

    def _made(self, readers: SourceReaders, all_asked: Sequence[QueryPlan], read: Snapshot) -> list[Result]:
        deadline = time.monotonic() + self.bounds.timeout_s
        found = [
            make(each, of, speed if of is read else (), QueryBudget(self.bounds, deadline), self._presented)
            for each, speed in zip(all_asked, _speed_of(all_asked, read), strict=True)
            for of in (read.of(each),)
        ]
        readers.speed.passed(read.cut)
        return found


# ---- both readers, together ------------------------------------------------------


Stretches = Callable[[OpenRun], Sequence[StateRange]]
"""What is asked of the speed side, for a run."""


def _read(
    readers: SourceReaders, all_asked: Sequence[QueryPlan], held: ExitStack, stretches: Stretches | None = None
) -> Snapshot:
    """A run that has the views as they are asked for, and what the speed side has since its cut."""
    run = _run_for(readers, all_asked, held)
    for_run = stretches or (lambda _run: _stretches(all_asked))
    for _ in range(TRIES):
        reading = readers.speed.read(run.run, run.cut, for_run(run))
        if not reading.is_refused or reading.answer is None:
            readers.batch.goes_with(run)
            return _both(readers, all_asked, run, reading)
        why = "Redis goes with another run every time it is asked"
        if readers.batch.is_pinned:
            why = (
                f"Readers are pinned to run {run.run} by a rollback, and the speed views no longer go with it "
                "(`tidemark batch rollback --latest` sets readers free)"
            )
            break
        if not is_below(run.cut, reading.answer.applied):
            why = f"The speed views are at {cut_to_json(reading.answer.applied)}, behind run {run.run}"
            break
        try:
            run = held.enter_context(readers.batch.load(reading.answer.published))
        except NoBatchView as error:
            why = f"The speed views go with run {reading.answer.published}. {error.detail}"
            break
        if not _has(run, all_asked):
            why = f"The speed views go with run {run.run}, which has the view in another version"
            run = _run_for(readers, all_asked, held)
            break
    return Snapshot(run, SpeedSnapshot(None, why, reading.before))


def _both(readers: SourceReaders, all_asked: Iterable[QueryPlan], run: OpenRun, reading: SpeedSnapshot) -> Snapshot:
    """Both readers, and of which views the speed side is set aside: decided once for all that is made of them."""
    if reading.answer is None:
        return Snapshot(run, reading)
    made = reading.answer.made
    views = {each.question.view.hash: each.question.view for each in all_asked}
    why = {name: readers.batch.why_aside(view, run.run, made) for name, view in views.items()}
    return Snapshot(run, reading, {name: found for name, found in why.items() if found is not None})


def _chosen(
    readers: SourceReaders, all_asked: Sequence[QueryPlan], held: ExitStack
) -> tuple[Sequence[QueryPlan], Snapshot]:
    """Of questions for the first keys: which keys these are; and both readers, read at one cut."""
    if all(each.rank is None for each in all_asked):
        return all_asked, _read(readers, all_asked, held)
    if len(all_asked) == 1 and (found := _first_keys(readers, all_asked[0], held)) is not None:
        return [found[0]], found[1]
    read = _read(readers, all_asked, held)
    for _ in range(TRIES):
        heads = _speed_of(all_asked, read)
        chosen = [
            narrowed(each, read.run, states if read.of(each) is read else ())
            for each, states in zip(all_asked, heads, strict=True)
        ]
        known = read.reading.answer
        if known is None:
            return chosen, read
        again = readers.speed.read(read.run.run, read.run.cut, _stretches(chosen))
        now = None if again.is_refused else again.answer
        if now is not None and (now.applied, now.made) == (known.applied, known.made):
            return chosen, read._replace(reading=again)
        read = _read(readers, all_asked, held)
    whole = [each._replace(rank=None) for each in all_asked]  # the writer was faster each time
    return whole, _read(readers, whole, held)


def _first_keys(readers: SourceReaders, asked: QueryPlan, held: ExitStack) -> tuple[QueryPlan, Snapshot] | None:
    """The same by the ranks that both views keep, in one read of the speed side; None where these do not decide it."""
    more: list[bytes] = []
    for _ in range(TRIES):
        by_run: dict[int, Ranking] = {}
        read = _read(readers, [asked], held, partial(_ranked, asked, more, by_run))
        ranking, answer = by_run.get(read.run.run), read.reading.answer
        if ranking is None or answer is None or read.of(asked) is not read:
            return None
        keys = ranking.decided(answer.states, answer.rests[0])
        if keys is None:
            return None
        if ranking.has_whole(keys, more):
            states = [state for state in answer.states if state[1] in keys]
            reading = read.reading._replace(answer=replace(answer, ranges=(states,)))
            return asked._replace(rank=None, wanted=KeySelection(tuple(sorted(keys)), b"")), read._replace(
                reading=reading
            )
        more = list(keys)  # the states of some of them came as headers alone
    return None


def _ranked(asked: QueryPlan, more: Sequence[bytes], by_run: dict[int, Ranking], run: OpenRun) -> list[StateRange]:
    """What is asked of the speed side to rank over a run, and noted beside: how that ranks."""
    found = ranking_of(asked, run)
    if found is None:
        return []
    by_run[run.run] = found
    return [found.stretch(asked, more)]


def _stretches(all_asked: Sequence[QueryPlan]) -> list[StateRange]:
    return [stretch for each in all_asked for stretch in each.stretches]


def _speed_of(all_asked: Sequence[QueryPlan], read: Snapshot) -> list[list[State]]:
    """What the speed side gave, question by question."""
    found = iter(read.reading.answer.ranges if read.reading.answer is not None else ())
    return [list(chain.from_iterable(islice(found, len(each.ranges)))) for each in all_asked]


def _run_for(readers: SourceReaders, all_asked: Sequence[QueryPlan], held: ExitStack) -> OpenRun:
    """The run that is served; where a view was changed by it just now, the newest that has the version asked for."""
    run = held.enter_context(readers.batch.current())
    if _has(run, all_asked):
        return run
    views = {(each.question.view.name, each.question.view.hash) for each in all_asked}
    try:
        entries = publish_log.read(readers.batch.folder)
    except BatchError as error:
        raise NoBatchView(str(error)) from None
    for entry in reversed(entries):
        if entry.run < run.run and views <= entry.catalog.items():
            return held.enter_context(readers.batch.load(entry.run))
    names = ", ".join(sorted({name for name, _ in views}))
    raise NotComputedYet(
        f"No run of source {readers.source!r} has {names} as asked for: it was changed meanwhile. Ask again."
    )


def _has(run: OpenRun, all_asked: Sequence[QueryPlan]) -> bool:
    return all(run.catalog.get(each.question.view.name) == each.question.view.hash for each in all_asked)


# ---- fresh enough --------------------------------------------------------------


def _unmet(freshness: Freshness, read: Snapshot) -> ServingError | None:
    """What is asked for and not so yet."""
    if freshness.min_cut is not None and not is_below(freshness.min_cut, read.cut):
        missing = count_between(read.cut, freshness.min_cut)
        return NotYet(
            f"The views are at {cut_to_json(read.cut)}, and min_cut asks for {cut_to_json(freshness.min_cut)}: "
            f"{missing} events are not applied yet. Ask again, or wait longer (wait).",
            applied=cut_to_json(read.cut), min_cut=cut_to_json(freshness.min_cut), missing=missing,
        )  # fmt: skip
    if freshness.max_staleness_s is not None:
        lag = read.reading.answer.lag if read.reading.answer is not None else None
        if lag is None or lag.seconds is None or lag.seconds > freshness.max_staleness_s:
            how_old = "not known" if lag is None or lag.seconds is None else f"{lag.seconds:.1f} s"
            return Stale(
                f"How old the views are is {how_old}, and max_staleness asks for {freshness.max_staleness_s:g} s. "
                f"{f'{read.reading.why}. ' if read.reading.why else ''}Ask again, wait longer (wait), or take what "
                "there is without max_staleness.",
                lag_s=None if lag is None else lag.seconds, max_staleness_s=freshness.max_staleness_s,
            )  # fmt: skip
    return None


def _first_unmet(all_asked: Sequence[QueryPlan], read: Snapshot) -> ServingError | None:
    unmet = (_unmet(each.question.freshness, read.of(each)) for each in all_asked)
    return next((found for found in unmet if found is not None), None)


def _wait(readers: SourceReaders, all_asked: Sequence[QueryPlan], read: Snapshot, until: float) -> None:
    """Until it looks as if all were fresh enough, or the time is over. Only cuts are looked at meanwhile."""
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left))
        now = read._replace(reading=readers.speed.read(read.run.run, read.run.cut, ()))
        if _first_unmet(all_asked, now) is None:
            return
