"""The query engine: all that endpoints, push, alerts and verification know of how queries are answered.

parameters  --query/parse-->    Query        what is asked, checked
--query/plan-->     QueryPlan    the keys, segments and state ranges to read
--query/execute-->  Result       both views at one cut (query/snapshot), merged, as rows of a page
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from batch_layer.consistency.quarantine import Compared
from hand_off.batch_folder import BatchFolder
from hand_off.publish_log import Entry
from infra.clients.redis import pooled_redis_client
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.cut import Cut
from serving_layer.errors import NoBatchView, ServingError, TooLarge, UnknownView
from serving_layer.query import provenance
from serving_layer.query.batch_tiles import read_named
from serving_layer.query.execute import execute
from serving_layer.query.freshness import first_unmet, wait_until_fresh
from serving_layer.query.limits import QueryBudget, QueryLimits
from serving_layer.query.model import Query
from serving_layer.query.page_keys import read_page_keys
from serving_layer.query.plan import QueryPlan
from serving_layer.query.presentation_cache import PresentationCache
from serving_layer.query.query_cache import QueryCache
from serving_layer.query.repeated_query import MAX_STATES, RepeatedQuery, WriteRow, WrittenRows, can_repeat
from serving_layer.query.result import BatchPart, Provenance, Result, SpeedPart
from serving_layer.query.snapshot import (
    MAX_TRIES,
    Snapshot,
    SourceReaders,
    combine,
    frozen_reason,
    run_for,
    state_ranges,
)
from serving_layer.readers.batch import BatchViewReader, OpenRun, read_errors
from serving_layer.readers.limits import ExecutionLimits
from serving_layer.readers.speed import SpeedStatus, SpeedViewReader, why_behind
from views.declarations import Declarations
from views.view import View


class SourceStatus(NamedTuple):
    """The run that is served, and how far the speed view is. `why`: why results are degraded; None: they are not."""

    batch: BatchPart
    speed: SpeedPart | None
    why: str | None
    is_frozen: bool = False
    """Whether a rollback pins readers to a run that the speed view no longer continues: results stand still."""


class PreparedQuery(NamedTuple):
    """A query that is cheap to ask again while one run is served."""

    plan: QueryPlan
    entry: Entry
    """Of the run."""
    repeated: RepeatedQuery
    command: bytes
    """What is sent to Redis for it."""


class HeldRun(NamedTuple):
    """A run that is read, and the highest cut of all results before."""

    readers: SourceReaders
    run: OpenRun
    highest_cut: Cut
    can_read: bool
    """Whether Redis is to be asked at all."""


class QueryEngine:
    """Executes queries over the views of all sources. Threads share it."""

    def __init__(self, settings: Settings, declarations: Declarations, limits: ExecutionLimits | None = None) -> None:
        self.limits = limits or ExecutionLimits()
        self._declarations = declarations
        self._cache = PresentationCache(self.limits.cache_mb)
        self._queries = QueryCache()
        self._client = pooled_redis_client(
            settings, addresses(settings).redis, self.limits.speed_timeout_s, self.limits.speed_connections
        )
        self._readers = {
            name: SourceReaders(
                name,
                BatchViewReader(settings, source, {view.name: view for view in declarations.views_of(name)}),
                SpeedViewReader(self._client, BatchFolder.of(settings, name), self.limits),
            )
            for name, source in declarations.sources.items()
        }

    def close(self) -> None:
        """Close files and connections."""
        for readers in self._readers.values():
            readers.batch.close()
        self._client.close()

    # ---- what is served ----

    def served_view(self, name: str) -> View:
        """The version of a view that is served now. Queries are parsed for it; a changed one joins at the next run."""
        declared = self._declarations.views.get(name)
        if declared is not None:
            with self._readers[declared.source.name].batch.current() as run:
                return run.view(name)
        found = self.undeclared_views().get(name)
        if found is None:
            raise UnknownView(f"There is no view {name!r}. There are: {', '.join(sorted(self._declarations.views))}.")
        return found

    def undeclared_views(self) -> dict[str, View]:
        """Views of a published run that were not declared when this process started, by name.

        They joined since, or are no longer declared and stay until a run leaves them out.
        """
        found: dict[str, View] = {}
        for readers in self._readers.values():
            with suppress(NoBatchView), readers.batch.current() as run:
                found |= {name: run.view(name) for name in run.catalog if name not in self._declarations.views}
        return found

    def count_groups(self, name: str) -> int:
        """How many groups (buckets and keys) the served batch view has."""
        view = self.served_view(name)
        with self._readers[view.source.name].batch.current() as run:
            return run.index(name).groups

    def since(self, name: str) -> dict[str, Any] | None:
        """The cut and day from which on the served batch view counts; None: it counts all events."""
        view = self.served_view(name)
        with self._readers[view.source.name].batch.current() as run:
            return run.since(name)

    def data_range(self, name: str) -> tuple[int, int] | None:
        """The times of a view's events, [begin, end) in seconds since 1970, to the day where a run has them."""
        view = self.served_view(name)
        readers = self._readers[view.source.name]
        with readers.batch.current() as run:
            both = run.data_range(name), readers.speed.data_range(view, run.run)
        ranges = [each for each in both if each is not None]
        return (min(begin for begin, _ in ranges), max(end for _, end in ranges)) if ranges else None

    def status(self, source: str) -> SourceStatus:
        """How far both views of a source are. One read of Redis."""
        readers = self._readers[source]
        with readers.batch.current() as run:
            speed = readers.speed.read(run.run, run.cut, ())
            if speed.is_refused and readers.batch.is_pinned:
                return SourceStatus(provenance.batch_part(run, read=False), None, frozen_reason(run), is_frozen=True)
            why = speed.reason if speed.answer is None else why_behind(speed.answer)
            return SourceStatus(provenance.batch_part(run, read=False), provenance.speed_part(speed, read=False), why)

    def folder(self, source: str) -> BatchFolder:
        """The folder with the batch data of a source."""
        return self._readers[source].batch.folder

    def speed_status(self, source: str) -> SpeedStatus | None:
        """The generations of a source as Redis holds them now; None where it does not reply."""
        return self._readers[source].speed.status()

    def last_comparison(self, view: View) -> tuple[Compared | None, str | None]:
        """The last comparison of a speed view with its batch view, and why it is quarantined, if it is."""
        readers = self._readers[view.source.name]
        with readers.batch.current() as run:
            speed = readers.speed.read(run.run, run.cut, ())
            made = "" if speed.answer is None else speed.answer.made
            reason = None if speed.answer is None else readers.batch.quarantine_reason(view, run.run, made)
            return readers.batch.consistency.views.get(view.name), reason

    # ---- queries ----

    def parse(self, name: str, pairs: Sequence[tuple[str, str]], *, now: float, limits: QueryLimits) -> Query:
        """A query for the served version of a view, from the pairs of a query string; a ServingError if it is none."""
        return self._queries.parse(self.served_view(name), pairs, now=now, limits=limits)

    def etag(self, query: Query) -> str | None:
        """The ETag that the result has now, far cheaper than the result; None where only the result can tell."""
        readers = self._readers[query.view.source.name]
        plans = [self._queries.plan(query)]
        with ExitStack() as held:
            run = run_for(readers, plans, held)
            speed = readers.speed.read(run.run, run.cut, ())
            if speed.is_refused:
                return None
            return provenance.etag(query, combine(readers, plans, run, speed).of(plans[0]))

    # ---- queries that are asked again ----

    def prepare(self, query: Query, write: WriteRow) -> PreparedQuery | None:
        """What makes the query cheap to ask again while its run is served; None where it is not that small or simple.

        `write` writes a row as the caller sends it.
        """
        planned = self._queries.plan(query)
        if not can_repeat(planned):
            return None
        readers, view = self._readers[query.view.source.name], query.view
        with readers.batch.current() as run:
            if run.catalog.get(view.name) != view.hash:
                return None
            budget = QueryBudget(self.limits, time.monotonic() + self.limits.timeout_s)
            tiles = read_named(planned, run, budget, MAX_STATES)
            if tiles is None:
                return None
            repeated = RepeatedQuery(planned, tiles, budget, self._cache, write)
            command = readers.speed.encoded_read(run.run, run.cut, state_ranges([planned]))
            return PreparedQuery(planned, run.entry, repeated, command) if repeated.is_small else None

    def is_prepared(self, prepared: PreparedQuery) -> bool:
        """Whether it was prepared for the run that is served."""
        return self._readers[prepared.plan.query.view.source.name].batch.is_served(prepared.entry)

    def hold_run(self, prepared: PreparedQuery) -> HeldRun | None:
        """The run of a prepared query, held until its `with` block ends; None where another one may be served by now.

        It never opens a run: an event loop may call it.
        """
        readers = self._readers[prepared.plan.query.view.source.name]
        run = readers.batch.hold_served(prepared.entry)
        if run is None:
            return None
        return HeldRun(readers, run, readers.speed.highest_cut, readers.speed.can_read(run.run))

    def answer_again(
        self, prepared: PreparedQuery, held: HeldRun, reply: Sequence[Any]
    ) -> tuple[WrittenRows, Provenance] | None:
        """The rows and what they are made of, from what Redis replied to the command of a prepared query.

        None where it takes more than that: `execute` then gives the answer or says what is wrong.
        """
        readers, run, plan = held.readers, held.run, prepared.plan
        try:
            speed = readers.speed.snapshot_from(reply, held.highest_cut)
        except TooLarge:
            return None
        if speed.answer is None or speed.is_refused:
            return None
        readers.batch.release_other(run)
        snapshot = combine(readers, [plan], run, speed)
        if snapshot.quarantined:
            return None
        states = speed.answer.states
        with read_errors(run):
            budget = QueryBudget(self.limits, time.monotonic() + self.limits.timeout_s)
            rows = prepared.repeated.rows(states, run, budget)
        if rows is None:
            return None
        meta = provenance.provenance(plan, snapshot, is_speed_read=bool(states), shortened_keys=rows.has_short_keys)
        readers.speed.record_cut(snapshot.cut)
        return rows, meta

    def record_speed_failure(self, held: HeldRun, error: Exception) -> None:
        """Redis did not reply to the command of a prepared query: the next results are made without it, at once."""
        held.readers.speed.record_failure(error)

    # ---- results ----

    def execute(self, query: Query) -> Result:
        """The result of one query; a ServingError where there is none."""
        (found,) = self.execute_all([query])
        return found

    def execute_all(self, queries: Sequence[Query]) -> list[Result]:
        """The results in the order of the queries; those of one source are all at one cut."""
        found: dict[int, Result] = {}
        for readers in self._readers.values():
            numbers = [number for number, query in enumerate(queries) if query.view.source.name == readers.source]
            if numbers:
                plans = [self._queries.plan(queries[number]) for number in numbers]
                found |= zip(numbers, self._execute(readers, plans), strict=True)
        return [found[number] for number in range(len(queries))]

    def execute_each(self, queries: Sequence[Query]) -> list[Result | ServingError]:
        """The results in the order of the queries, or the error of a query in its place.

        Results of one source are all at one cut, unless the queries are too large only together.
        """
        found: dict[int, Result | ServingError] = {}
        while len(found) < len(queries):
            left = [number for number in range(len(queries)) if number not in found]
            try:
                found |= zip(left, self.execute_all([queries[number] for number in left]), strict=True)
            except ServingError:
                alone = {number: self._attempt(queries[number]) for number in left}
                refused = {number: each for number, each in alone.items() if isinstance(each, ServingError)}
                found |= refused or alone
        return [found[number] for number in range(len(queries))]

    def _attempt(self, query: Query) -> Result | ServingError:
        try:
            return self.execute(query)
        except ServingError as error:
            return error

    def _execute(self, readers: SourceReaders, plans: Sequence[QueryPlan]) -> list[Result]:
        until = time.monotonic() + max(plan.query.freshness.wait_s for plan in plans)
        tries = 0
        while True:
            tries += 1
            served = readers.batch.served
            with ExitStack() as held:
                try:
                    narrowed, snapshot = read_page_keys(readers, plans, held)
                    served, unmet = snapshot.run.run, first_unmet(plans, snapshot)
                    if unmet is None:
                        return self._results(readers, narrowed, snapshot)
                except NoBatchView:
                    # The run may have been pruned while it was read. Then there is a newer one by now.
                    if tries == MAX_TRIES or held.enter_context(readers.batch.current()).run == served:
                        raise
                    continue
                if time.monotonic() >= until:
                    raise unmet
                wait_until_fresh(readers, plans, snapshot, until)

    def _results(self, readers: SourceReaders, plans: Sequence[QueryPlan], snapshot: Snapshot) -> list[Result]:
        deadline = time.monotonic() + self.limits.timeout_s
        found = [
            execute(plan, of, states if of is snapshot else (), QueryBudget(self.limits, deadline), self._cache)
            for plan, states in zip(plans, snapshot.states(plans), strict=True)
            for of in (snapshot.of(plan),)
        ]
        readers.speed.record_cut(snapshot.cut)
        return found
