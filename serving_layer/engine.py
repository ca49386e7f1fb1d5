"""The query engine: all that endpoints, push, alerts and verification know of how queries are answered.

parameters  --query/parse-->    Query        what is asked, checked
--query/plan-->     QueryPlan    the keys, segments and state ranges to read
--query/execute-->  Result       both views at one cut (readers/snapshot), merged, as rows of a page
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from batch_layer.consistency.quarantine import Compared
from hand_off.batch_folder import BatchFolder
from infra.clients.redis import pooled_redis_client
from infra.settings import Settings
from infra.stack.addresses import addresses
from serving_layer.errors import NoBatchView, UnknownView
from serving_layer.query import provenance
from serving_layer.query.execute import execute
from serving_layer.query.freshness import first_unmet, wait_until_fresh
from serving_layer.query.limits import ExecutionLimits, QueryBudget
from serving_layer.query.model import Query
from serving_layer.query.page_keys import read_page_keys
from serving_layer.query.plan import QueryPlan, plan
from serving_layer.query.presentation_cache import PresentationCache
from serving_layer.query.result import BatchPart, Result, SpeedPart
from serving_layer.readers.batch import BatchViewReader
from serving_layer.readers.snapshot import MAX_TRIES, Snapshot, SourceReaders, combine, frozen_reason, run_for
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


class QueryEngine:
    """Executes queries over the views of all sources. Threads share it."""

    def __init__(self, settings: Settings, declarations: Declarations, limits: ExecutionLimits | None = None) -> None:
        self.limits = limits or ExecutionLimits()
        self._declarations = declarations
        self._cache = PresentationCache(self.limits.cache_mb)
        self._client = pooled_redis_client(
            settings, addresses(settings).redis, self.limits.speed_timeout_s, self.limits.speed_connections
        )
        self._readers = {
            name: SourceReaders(
                name,
                BatchViewReader(settings, source, {view.name: view for view in declarations.views_of(name)}),
                SpeedViewReader(self._client, name, self.limits),
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

    def etag(self, query: Query) -> str | None:
        """The ETag that the result has now, far cheaper than the result; None where only the result can tell."""
        readers = self._readers[query.view.source.name]
        plans = [plan(query)]
        with ExitStack() as held:
            run = run_for(readers, plans, held)
            speed = readers.speed.read(run.run, run.cut, ())
            if speed.is_refused:
                return None
            return provenance.etag(query, combine(readers, plans, run, speed).of(plans[0]))

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
                plans = [plan(queries[number]) for number in numbers]
                found |= zip(numbers, self._execute(readers, plans), strict=True)
        return [found[number] for number in range(len(queries))]

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
