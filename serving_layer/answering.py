"""From questions to answers: read the speed side, read the batch side, merge, present, and say what it is made of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from batch_layer import publish_log
from batch_layer.errors import BatchError
from infra.local_stack import addresses
from infra.redis_clients import pooled_redis_client
from infra.settings import Settings
from master_dataset.cut import count_between, cut_to_json, is_below
from serving_layer.answer import Answer, BatchPart, SpeedPart
from serving_layer.batch_side import BatchSide, OpenRun
from serving_layer.bounds import Bounds, Budget
from serving_layer.errors import NoBatchSide, NotComputedYet, NotYet, ServingError, Stale, UnknownView
from serving_layer.making import Asked, Read, asked, batch_part, etag, make, narrowed, speed_part
from serving_layer.presented import PresentedCache
from serving_layer.question import Freshness, Question
from serving_layer.speed_side import Reading, SpeedSide
from speed_layer.speed_views import State, Stretch
from views.declarations import Declarations
from views.view import View

TRIES = 3
"""How often Redis may send us to another run."""
POLL_S = 0.025


@dataclass(frozen=True)
class Sides:
    """Both sides of a source."""

    source: str
    batch: BatchSide
    speed: SpeedSide


class Standing(NamedTuple):
    """How a source stands. `why`: why answers lack what came since the run; None: they do not."""

    batch: BatchPart
    speed: SpeedPart | None
    why: str | None


class Answering:
    """Answers questions over the views of all sources. Threads share it."""

    def __init__(self, settings: Settings, declarations: Declarations, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._declarations = declarations
        self._presented = PresentedCache(self.bounds.cache_mb)
        self._client = pooled_redis_client(
            settings, addresses(settings).redis, self.bounds.speed_timeout_s, self.bounds.speed_connections
        )
        self._sides = {
            name: Sides(
                name,
                BatchSide(settings, source, {view.name: view for view in declarations.views_of(name)}),
                SpeedSide(self._client, name, self.bounds),
            )
            for name, source in declarations.sources.items()
        }

    def close(self) -> None:
        """Let go of files and connections."""
        for sides in self._sides.values():
            sides.batch.close()
        self._client.close()

    # ---- what is served ----

    def latest(self, name: str) -> View:
        """The view as it is served now, for which questions are made; what is declared may join at the next run."""
        declared = self._declarations.views.get(name)
        if declared is not None:
            with self._sides[declared.source.name].batch.current() as run:
                return run.view(name)
        found = self.undeclared().get(name)
        if found is None:
            raise UnknownView(f"There is no view {name!r}. There are: {', '.join(sorted(self._declarations.views))}.")
        return found

    def undeclared(self) -> dict[str, View]:
        """Views that a published run has and that were not declared when this process began, by name.

        They joined since, or are declared no more, until a run leaves them out.
        """
        found: dict[str, View] = {}
        for sides in self._sides.values():
            with suppress(NoBatchSide), sides.batch.current() as run:
                found |= {name: run.view(name) for name in run.catalog if name not in self._declarations.views}
        return found

    def groups(self, name: str) -> int:
        """How many groups (buckets and keys) the batch view has that is served."""
        view = self.latest(name)
        with self._sides[view.source.name].batch.current() as run:
            return run.index(name).groups

    def standing(self, source: str) -> Standing:
        """How a source stands: the run that is served, and how far the speed side is since."""
        sides = self._sides[source]
        with sides.batch.current() as run:
            reading = sides.speed.read(run.run, run.cut, ())
            return Standing(batch_part(run, read=False), speed_part(reading, read=False), reading.why)

    # ---- answers ----

    def etag(self, question: Question) -> str | None:
        """The ETag that the answer has now; None where only the answer itself can tell. Much cheaper than that."""
        sides = self._sides[question.view.source.name]
        with ExitStack() as held:
            one = asked(question)
            run = _run_for(sides, [one], held)
            reading = sides.speed.read(run.run, run.cut, ())
            return None if reading.is_refused else etag(one, Read(run, reading))

    def answer(self, question: Question) -> Answer:
        """The answer to one question."""
        (found,) = self.answer_all([question])
        return found

    def answer_all(self, questions: Sequence[Question]) -> list[Answer]:
        """The answers to several, those of one source all at one cut."""
        found: dict[int, Answer] = {}
        for sides in self._sides.values():
            places = [n for n, each in enumerate(questions) if each.view.source.name == sides.source]
            if places:
                found |= zip(places, self._answers(sides, [questions[place] for place in places]), strict=True)
        return [found[place] for place in range(len(questions))]

    def _answers(self, sides: Sides, questions: Sequence[Question]) -> list[Answer]:
        all_asked = [asked(question) for question in questions]
        until = time.monotonic() + max(question.freshness.wait_s for question in questions)
        tries = 0
        while True:
            tries += 1
            with ExitStack() as held:
                read = _read(sides, all_asked, held)
                unmet = _first_unmet(questions, read)
                if unmet is None:
                    try:
                        chosen, read = _chosen(sides, all_asked, read, held)
                        unmet = _first_unmet(questions, read)
                        if unmet is None:
                            return self._made(sides, chosen, read)
                    except NoBatchSide:
                        # Pruned while we read, perhaps: then there is a newer run by now.
                        if tries == TRIES or held.enter_context(sides.batch.current()).run == read.run.run:
                            raise
                elif time.monotonic() >= until:
                    raise unmet
                else:
                    _wait(sides, questions, read, until)

    def _made(self, sides: Sides, all_asked: Sequence[Asked], read: Read) -> list[Answer]:
        deadline = time.monotonic() + self.bounds.timeout_s
        found = [
            make(each, read, speed, Budget(self.bounds, deadline), self._presented)
            for each, speed in zip(all_asked, _speed_of(all_asked, read), strict=True)
        ]
        sides.speed.passed(read.cut)
        return found


# ---- both sides, together ------------------------------------------------------


def _read(sides: Sides, all_asked: Sequence[Asked], held: ExitStack) -> Read:
    """A run that has the views as they are asked for, and what the speed side has since its cut."""
    run = _run_for(sides, all_asked, held)
    for _ in range(TRIES):
        reading = sides.speed.read(run.run, run.cut, _stretches(all_asked))
        if not reading.is_refused or reading.answer is None:
            return Read(run, reading)
        why = "Redis goes with another run every time it is asked"
        if sides.batch.is_pinned:
            why = (
                f"Readers are pinned to run {run.run} by a rollback, and the speed views no longer go with it "
                "(`tidemark batch rollback --latest` sets readers free)"
            )
            break
        if not is_below(run.cut, reading.answer.applied):
            why = f"The speed views are at {cut_to_json(reading.answer.applied)}, behind run {run.run}"
            break
        try:
            run = held.enter_context(sides.batch.load(reading.answer.published))
        except NoBatchSide as error:
            why = f"The speed views go with run {reading.answer.published}. {error.detail}"
            break
        if not _has(run, all_asked):
            why = f"The speed views go with run {run.run}, which has the view in another version"
            run = _run_for(sides, all_asked, held)
            break
    return Read(run, Reading(None, why, reading.before))


def _chosen(sides: Sides, all_asked: Sequence[Asked], read: Read, held: ExitStack) -> tuple[Sequence[Asked], Read]:
    """Of questions for the first keys: which keys these can be, and then their states, both at the same cut."""
    if all(each.rank is None for each in all_asked):
        return all_asked, read
    for _ in range(TRIES):
        heads = _speed_of(all_asked, read)
        chosen = [narrowed(each, read.run, states) for each, states in zip(all_asked, heads, strict=True)]
        known = read.reading.answer
        if known is None:
            return chosen, read
        again = sides.speed.read(read.run.run, read.run.cut, _stretches(chosen))
        if again.answer is not None and not again.is_refused and again.answer.applied == known.applied:
            return chosen, Read(read.run, again)
        read = _read(sides, all_asked, held)
    whole = [each._replace(rank=None) for each in all_asked]  # the writer was faster each time
    return whole, _read(sides, whole, held)


def _stretches(all_asked: Sequence[Asked]) -> list[Stretch]:
    return [stretch for each in all_asked for stretch in each.stretches]


def _speed_of(all_asked: Sequence[Asked], read: Read) -> list[list[State]]:
    """What the speed side gave, question by question."""
    found = iter(read.reading.answer.stretches if read.reading.answer is not None else ())
    return [list(chain.from_iterable(islice(found, len(each.ranges)))) for each in all_asked]


def _run_for(sides: Sides, all_asked: Sequence[Asked], held: ExitStack) -> OpenRun:
    """The run that is served; where a view was changed by it just now, the newest that has the version asked for."""
    run = held.enter_context(sides.batch.current())
    if _has(run, all_asked):
        return run
    views = {each.question.view.name: each.question.view.hash for each in all_asked}
    try:
        entries = publish_log.read(sides.batch.folder)
    except BatchError as error:
        raise NoBatchSide(str(error)) from None
    for entry in reversed(entries):
        if entry.run < run.run and views.items() <= entry.catalog.items():
            return held.enter_context(sides.batch.load(entry.run))
    raise NotComputedYet(
        f"No run of source {sides.source!r} has {', '.join(sorted(views))} as asked for: it was changed meanwhile. "
        "Ask again."
    )


def _has(run: OpenRun, all_asked: Sequence[Asked]) -> bool:
    return all(run.catalog.get(each.question.view.name) == each.question.view.hash for each in all_asked)


# ---- fresh enough --------------------------------------------------------------


def _unmet(freshness: Freshness, read: Read) -> ServingError | None:
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


def _first_unmet(questions: Sequence[Question], read: Read) -> ServingError | None:
    return next((found for each in questions if (found := _unmet(each.freshness, read)) is not None), None)


def _wait(sides: Sides, questions: Sequence[Question], read: Read, until: float) -> None:
    """Until it looks as if all were fresh enough, or the time is over. Only cuts are looked at meanwhile."""
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left))
        now = Read(read.run, sides.speed.read(read.run.run, read.run.cut, ()))
        if _first_unmet(questions, now) is None:
            return
