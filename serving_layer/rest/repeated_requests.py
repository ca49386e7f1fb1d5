"""Answer queries that were answered before on the event loop, without the layers that a request passes otherwise.

A dashboard asks the same queries again and again. Once one was answered, it is prepared (`QueryEngine.prepare`), and
asking it again takes the check of the key, one read of Redis and the rows that this read changes. Whatever is not that
simple goes the usual way (rest/queries.py): a query that is new, large or refused, a key that is not valid, a run that
has just changed, a Redis that does not reply. Both ways give the same bytes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.clients.loop_redis import LoopRedis
from infra.rest.problems import Problem
from infra.rest.responses import query_pairs
from serving_layer.engine import HeldRun, PreparedQuery
from serving_layer.errors import ServingError
from serving_layer.query.parse import parse_range
from serving_layer.query.query_cache import has_relative_times
from serving_layer.rest import formats
from serving_layer.rest.context import Serving
from serving_layer.rest.queries import HEADERS, etag_header

PREFIX, SUFFIX = "/views/", "/query"
ENTRY_BYTES = 500
"""What an entry takes besides the prepared query."""
MAX_KEY_BYTES = 4_000
"""Longer addresses go the usual way."""

RequestKey = tuple[str, bytes, bytes]
"""Path, query string and Accept header."""


class RepeatedRequest:
    """A request that was answered. `prepared` is None until it is asked again."""

    def __init__(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        self.name, self.pairs = name, pairs
        self.is_relative = has_relative_times(pairs)
        self.prepared: PreparedQuery | None = None
        self.is_unfit = False
        """Whether it cannot be prepared, because it is large or not simple."""

    def size(self, key: RequestKey) -> int:
        """About how many bytes it takes, with its key."""
        prepared = self.prepared
        more = 0 if prepared is None else prepared.repeated.size + len(prepared.command)
        return ENTRY_BYTES + len(key[0]) + len(key[1]) + more

    def is_of_now(self, prepared: PreparedQuery) -> bool:
        """Whether relative times mean the same range as when it was prepared."""
        query = prepared.plan.query
        return not self.is_relative or parse_range(query.view, self.pairs, now=time.time()) == query.range


class RepeatedRequests:
    """ASGI middleware, for one event loop. It holds about so many megabytes at the most: those that were asked last."""

    def __init__(self, app: ASGIApp, serving: Serving, redis: LoopRedis, max_mb: float) -> None:
        self._app, self._serving, self._redis = app, serving, redis
        self._max_bytes = max_mb * 1_000_000
        self._known: OrderedDict[RequestKey, tuple[RepeatedRequest, int]] = OrderedDict()
        """With their sizes; the one that was asked last is the last."""
        self._size = 0
        self._pending = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        key = _key_of(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        known = self._find(key)
        if known is None:
            await self._app(scope, receive, self._noting(key, scope, send))
            return
        found = None if known.is_unfit else await self._answer(known, key, scope)
        if found is None:
            await self._app(scope, receive, send)
            return
        start, body = found
        await send(start)
        await send(body)

    # ---- what is known ----

    def _find(self, key: RequestKey) -> RepeatedRequest | None:
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found[0]

    def _put(self, key: RequestKey, request: RepeatedRequest) -> None:
        _, before = self._known.pop(key, (None, 0))
        size = request.size(key)
        self._known[key] = request, size
        self._size += size - before
        while self._size > self._max_bytes:
            _, (_, dropped) = self._known.popitem(last=False)
            self._size -= dropped

    def _noting(self, key: RequestKey, scope: Scope, send: Send) -> Send:
        """The same, which notes the request where it is answered."""

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_json_answer(message):
                name = key[0][len(PREFIX) : -len(SUFFIX)]
                self._put(key, RepeatedRequest(name, query_pairs(HTTPConnection(scope))))
            await send(message)

        return noted

    # ---- answers ----

    async def _answer(self, known: RepeatedRequest, key: RequestKey, scope: Scope) -> tuple[Message, Message] | None:
        """The messages of the response; None where the request goes the usual way."""
        serving = self._serving
        if not self._redis.is_connected or self._pending >= serving.settings.serving_max_queries:
            return None
        try:
            serving.access.view(HTTPConnection(scope), known.name)
        except (Problem, ServingError):
            return None
        prepared = known.prepared
        if prepared is None or not serving.engine.is_prepared(prepared) or not known.is_of_now(prepared):
            prepared = await self._prepare(known, key)
        held = None if prepared is None else serving.engine.hold_run(prepared)
        return None if prepared is None or held is None else await self._ask(prepared, held)

    async def _prepare(self, known: RepeatedRequest, key: RequestKey) -> PreparedQuery | None:
        """None where it fails: when it is executed, it says why."""
        serving = self._serving

        def prepare() -> PreparedQuery | None:
            query = serving.engine.parse(known.name, known.pairs, now=time.time(), limits=serving.limits)
            return serving.engine.prepare(query, formats.written_row)

        try:
            known.prepared = await serving.run(prepare)
        except (Problem, ServingError):
            return None
        known.is_unfit = known.prepared is None
        self._put(key, known)
        return known.prepared

    async def _ask(self, prepared: PreparedQuery, held: HeldRun) -> tuple[Message, Message] | None:
        serving, view = self._serving, prepared.plan.query.view.name
        began, outcome = serving.metrics.begin_query(), None
        self._pending += 1
        try:
            with held.run:
                if not held.can_read:
                    return None
                reply = await self._redis.send(prepared.command)
                if isinstance(reply, Exception):
                    return None
                found = serving.engine.answer_again(prepared, held, reply)
            if found is None:
                return None
            rows, meta = found
            body = formats.json_document(rows.json, None, meta)
            if len(rows.json) > serving.limits.max_answer_mb * 1_000_000:
                return None
            outcome = "answered"
        except RedisTimeout as error:
            serving.engine.record_speed_failure(held, error)  # the usual way would wait for it once more
            return None
        except (RedisError, ServingError):
            return None
        finally:
            self._pending -= 1
            serving.metrics.end_query(began, [view] if outcome else [], outcome or "")
        if meta.degraded:
            serving.metrics.count_degraded(view)
        serving.metrics.count_response(200)
        return _messages(body, etag_header(meta.etag, "json"))


def _key_of(scope: Scope) -> RequestKey | None:
    """The key of a request that may be repeated: a GET of a query, without a condition."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    path: str = scope["path"]
    if not path.startswith(PREFIX) or not path.endswith(SUFFIX):
        return None
    accept = b""
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            return None
        if name == b"accept":
            if accept:
                return None
            accept = value
    text: bytes = scope["query_string"]
    return (path, text, accept) if len(path) + len(text) + len(accept) <= MAX_KEY_BYTES else None


def _is_json_answer(message: Message) -> bool:
    return message["status"] == 200 and (b"content-type", b"application/json") in message["headers"]


FIXED_HEADERS = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in HEADERS.items()]


def _messages(body: bytes, etag: str) -> tuple[Message, Message]:
    """The response as Starlette sends it."""
    headers: list[tuple[bytes, Any]] = [
        *FIXED_HEADERS,
        (b"etag", etag.encode("latin-1")),
        (b"content-length", str(len(body)).encode("latin-1")),
        (b"content-type", b"application/json"),
    ]
    return (
        {"type": "http.response.start", "status": 200, "headers": headers},
        {"type": "http.response.body", "body": body},
    )
