"""Live queries: GET /views/{name}/live pushes the answer to a query whenever it changes.

One channel runs each different query, as often as its subscribers asked for, and publishes the answer when it is a
different one. Where only the cuts advanced and every row is the same, it publishes once per heartbeat. A new
subscriber receives the newest answer at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import structlog
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute

from infra.rest.problems import Problem
from infra.rest.responses import query_pairs
from infra.threads import Threads
from serving_layer.errors import BadParameter, ServingError
from serving_layer.push import connection as push_connection
from serving_layer.push.mailbox import NEWEST_ONLY, Mailbox, Message
from serving_layer.push.registry import Channel, Registry, Subscription, too_many_live
from serving_layer.push.routes import push_routes
from serving_layer.query.model import Query
from serving_layer.query.parse import parse_query
from serving_layer.query.times import parse_duration
from serving_layer.rest import formats
from serving_layer.rest.context import Serving, problem_of

DEFAULT_INTERVAL = "1s"
MAX_INTERVAL_S = 3600.0
THREADS = 2
NOT_LIVE = ("cursor", "wait", "min_cut")
"""Parameters that make sense for a single answer only."""

log = structlog.get_logger()


class LiveQuery(NamedTuple):
    """A query that is run again and again. Relative times in it advance with the clock."""

    view: str
    parameters: tuple[tuple[str, str], ...]
    interval_s: float


class QueryOutcome(NamedTuple):
    """What one run of a live query gave: an answer or a problem, as the message to publish."""

    message: Message
    identity: tuple[str, str]
    """Equal outcomes are published once: the tag of an answer, the kind of a problem."""
    content: bytes = b""
    """A digest of an answer without its cuts."""


class QueryChannel(Channel):
    """The subscribers of one live query, and its newest outcome."""

    policy = NEWEST_ONLY

    def __init__(
        self, query: LiveQuery, run: Callable[[LiveQuery, str | None], Awaitable[QueryOutcome | None]]
    ) -> None:
        super().__init__()
        self._query, self._run = query, run
        self._newest: QueryOutcome | None = None
        self._published_at = 0.0

    def welcome(self, mailbox: Mailbox) -> None:
        """Give a new subscriber the newest answer. It replaces the last one: there is nothing to resume."""
        mailbox.resume_after = None
        if self._newest is not None:
            mailbox.put(self._newest.message)

    async def follow(self) -> None:
        """Run the query at its interval."""
        while True:
            started = time.monotonic()
            outcome = await self._run(self._query, self._newest.message.id if self._newest is not None else None)
            if outcome is not None:
                self._take(outcome)
            await asyncio.sleep(max(self._query.interval_s - (time.monotonic() - started), 0))

    def _take(self, outcome: QueryOutcome) -> None:
        """Publish an outcome if it is news."""
        before, self._newest = self._newest, outcome
        if before is not None:
            if before.identity == outcome.identity:
                return
            only_cuts_moved = before.content == outcome.content != b""
            if only_cuts_moved and time.monotonic() - self._published_at < push_connection.HEARTBEAT_S:
                return
        self._published_at = time.monotonic()
        self.publish(outcome.message)


class LiveQueries:
    """Runs the live queries of this process, in threads of their own."""

    def __init__(self, serving: Serving, registry: Registry) -> None:
        self._serving, self._registry = serving, registry
        self.threads = Threads("live", THREADS)
        self._validations: dict[LiveQuery, asyncio.Future[Query]] = {}

    def routes(self) -> list[BaseRoute]:
        """The live endpoint of every view."""
        return push_routes(self._registry, "/views/{name}/live", self.subscribe)

    def close(self) -> None:
        """Let the threads end."""
        self.threads.close()

    async def subscribe(self, connection: HTTPConnection) -> Subscription:
        """The live query of a request, validated: mistakes raise the same errors as in `/query`."""
        name = connection.path_params["name"]
        self._serving.access.view(connection, name)
        query = self._parse(name, query_pairs(connection))
        if query not in self._registry.channels:  # a query that others follow is valid
            await self._validate(query)
        return Subscription(
            query, partial(self._open, query), partial(self._check_access, connection, name), waits_for_first=True
        )

    def _parse(self, view: str, pairs: list[tuple[str, str]]) -> LiveQuery:
        intervals = [value for key, value in pairs if key == "every"]
        if len(intervals) > 1:
            raise BadParameter("every", intervals[1], "every is given twice. Give it once.")
        parameters = tuple(pair for pair in pairs if pair[0] != "every")
        for key, value in parameters:
            if key in NOT_LIVE or (key == "format" and value != "json"):
                raise BadParameter(
                    key, value, f"{key} is not allowed in a live query: each answer is JSON, and the newest."
                )
        if any(key == "max_staleness" for key, _ in parameters):
            parameters += (("wait", "0s"),)  # it runs again at the next interval instead of waiting
        return LiveQuery(view, parameters, self._interval_s(intervals[0] if intervals else DEFAULT_INTERVAL))

    def _interval_s(self, given: str) -> float:
        interval_s, minimum_s = parse_duration("every", given).seconds, self._serving.settings.serving_live_every_s
        if not minimum_s <= interval_s <= MAX_INTERVAL_S:
            allowed = f"{minimum_s:g}s to {MAX_INTERVAL_S:g}s"
            raise BadParameter(
                "every", given, f"every is {given!r}; it must be {allowed} (serving_live_every_s).", allowed
            )
        return interval_s

    async def _validate(self, query: LiveQuery) -> None:
        """Validate a query once for all connections that send it at the same time."""
        validation = self._validations.get(query)
        if validation is None:
            validation = self._validations[query] = asyncio.ensure_future(self._serving.run(self._parse_query, query))
            validation.add_done_callback(lambda _done: self._validations.pop(query, None))
        await asyncio.shield(validation)

    def _open(self, query: LiveQuery) -> QueryChannel:
        maximum = self._serving.settings.serving_live_questions
        if sum(isinstance(channel, QueryChannel) for channel in self._registry.channels.values()) >= maximum:
            raise too_many_live(f"{maximum} different live queries", "serving_live_questions")
        return QueryChannel(query, self._run)

    def _check_access(self, connection: HTTPConnection, view: str) -> Callable[[str], bool]:
        self._serving.access.view(connection, view)
        return lambda _name: True

    async def _run(self, query: LiveQuery, known_tag: str | None) -> QueryOutcome | None:
        """The outcome now; None if it is the answer that has this tag."""
        try:
            return await self.threads.run(self._answer, query, known_tag)
        except ServingError as error:
            return _problem_outcome(problem_of(error))
        except Exception as error:  # the next run may succeed; until then the subscribers see the problem
            log.exception("live_query_failed", view=query.view, error=repr(error))
            return _problem_outcome(Problem(500, "bug", "Internal error; see the server log."))

    def _parse_query(self, query: LiveQuery) -> Query:
        view = self._serving.engine.served_view(query.view)
        return parse_query(view, query.parameters, now=time.time(), limits=self._serving.limits)

    def _answer(self, query: LiveQuery, known_tag: str | None) -> QueryOutcome | None:
        parsed = self._parse_query(query)
        # A tag does not tell how old an answer is: with max_staleness only execution shows that.
        is_tag_enough = parsed.freshness.max_staleness_s is None
        if known_tag and is_tag_enough and self._serving.engine.etag(parsed) == known_tag:
            return None
        answer = self._serving.engine.execute(parsed)
        tag = answer.meta.etag
        if tag == known_tag:
            return None
        document = formats.document(answer)
        written = formats.to_json(answer, self._serving.limits.max_answer_mb).decode()
        message = Message("answer", written, tag)
        return QueryOutcome(message, ("answer", tag), _content_digest(document))


def _content_digest(document: dict[str, Any]) -> bytes:
    """A digest of an answer without how far the speed view is."""
    meta = document["meta"]
    origin = (meta["version"], meta["batch"]["run"], meta["complete"], meta["degraded"], meta["why"])
    return hashlib.blake2b(formats.dumps([document["rows"], document["next"], origin]), digest_size=16).digest()


def _problem_outcome(problem: Problem) -> QueryOutcome:
    return QueryOutcome(Message("problem", problem.to_json().decode(), problem=problem), ("problem", problem.kind))
