"""Queries by REST: GET /views, /views/{name}, /views/{name}/query, and POST /query for one or several."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.rest.bodies import read_body
from infra.rest.problems import Problem
from infra.rest.responses import json_response, query_pairs
from master_dataset.errors import InvalidEvent
from serving_layer.errors import NotAcceptable, ServingError, TooLarge
from serving_layer.query.model import Freshness, Query
from serving_layer.query.parse import parse_query_json
from serving_layer.query.result import Result
from serving_layer.rest import formats
from serving_layer.rest.context import Serving, problem_of
from serving_layer.rest.formats import Format
from serving_layer.rest.views import described, listed
from views.strict_json import parse_json

WAITING = frozenset({"min_cut", "max_staleness"})
"""Parameters that may make a query wait."""
HEADERS = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization, Cookie"}
"""A response is for one key. A client may cache it and revalidate it each time, which is cheap by its ETag."""
MAX_DEPTH = 16
PARTIAL = "partial"
"""The member by which a client of several questions asks for a problem in the place of each answer that is refused."""


class EncodedResult(NamedTuple):
    """A result as it is sent. It has no body where the client has it already."""

    body: bytes | None
    media_type: str
    headers: dict[str, str]
    degraded: tuple[str, ...] = ()
    """Views whose answers are degraded."""


def query_routes(serving: Serving) -> list[Route]:
    """The routes. They are Starlette's own: a FastAPI route would double the cost of a request."""

    async def query(request: Request) -> Response:
        name = request.path_params["name"]
        serving.access.view(request, name)
        with serving.metrics.timing([name]) as labels:
            try:
                pairs = query_pairs(request)
                run = serving.run if WAITING.isdisjoint(dict(pairs)) else serving.run_waiting
                written = await run(
                    _execute, serving, name, pairs, request.headers.get("accept"), request.headers.get("if-none-match")
                )
            except (ServingError, Problem) as error:
                labels["outcome"] = error.kind
                raise
            labels["outcome"] = "not-modified" if written.body is None else "answered"
        return _response(serving, written)

    async def query_several(request: Request) -> Response:
        serving.access.views(request)  # before the body is read
        body = await _json_body(serving, request)
        bodies, is_list = _questions(body, serving.settings.serving_max_questions)
        each = _execute_each if is_list and body.get(PARTIAL) else partial(_execute_all, is_list=is_list)
        for number, body in enumerate(bodies):
            with _at(number if is_list else None):
                serving.access.view(request, _view_of(body))
        with serving.metrics.timing([body["view"] for body in bodies]) as labels:
            try:
                run = serving.run if all(WAITING.isdisjoint(body) for body in bodies) else serving.run_waiting
                written = await run(each, serving, bodies, request.headers.get("accept"))
            except (ServingError, Problem) as error:
                labels["outcome"] = error.kind
                raise
            labels["outcome"] = "answered"
        return _response(serving, written)

    async def views(request: Request) -> Response:
        seen = serving.access.views(request)
        return json_response({"views": await serving.run(listed, serving.engine, seen.values())})

    async def view(request: Request) -> Response:
        declared = serving.access.view(request, request.path_params["name"])
        return json_response(await serving.run(described, serving.engine, declared))

    return [
        Route("/views/{name}/query", query),
        Route("/query", query_several, methods=["POST"]),
        Route("/views", views),
        Route("/views/{name}", view),
    ]


# ---- in a thread ---------------------------------------------------------------


def _execute(
    serving: Serving, name: str, pairs: Sequence[tuple[str, str]], accept: str | None, if_none_match: str | None
) -> EncodedResult:
    """From parameters to bytes. This must not block the event loop."""
    as_format = formats.choose_format(dict(pairs).get("format"), accept)
    query = serving.engine.parse(name, pairs, now=time.time(), limits=serving.limits)
    if if_none_match is not None and query.freshness == Freshness(wait_s=query.freshness.wait_s):
        etag = etag_header(serving.engine.etag(query) or "", as_format)  # far cheaper than the result
        if is_known(etag, if_none_match):
            return EncodedResult(None, formats.MEDIA_TYPES[as_format], {"ETag": etag})
    return _write(serving, serving.engine.execute(query), as_format, if_none_match)


def _execute_all(
    serving: Serving, bodies: Sequence[dict[str, Any]], accept: str | None, *, is_list: bool
) -> EncodedResult:
    """The same for several queries, which are executed at one cut of each source."""
    now = time.time()
    queries = []
    for number, body in enumerate(bodies):
        with _at(number if is_list else None):
            queries.append(
                parse_query_json(serving.engine.served_view(body["view"]), body, now=now, limits=serving.limits)
            )
    if not is_list:
        as_format = formats.choose_format(bodies[0].get("format"), accept)
        return _write(serving, serving.engine.execute(queries[0]), as_format)
    for number, body in enumerate(bodies):
        with _at(number):
            _only_json(body.get("format"), accept)
    results = serving.engine.execute_all(queries)
    return _several(_encoded(results, serving.limits.max_answer_mb), results)


def _execute_each(serving: Serving, bodies: Sequence[dict[str, Any]], accept: str | None) -> EncodedResult:
    """The same where a question that is refused has its problem in its place, and the others have their answers."""
    now, queries, found = time.time(), dict[int, Query](), dict[int, Result | ServingError]()
    for number, body in enumerate(bodies):
        _only_json(body.get("format"), accept)
        try:
            view = serving.engine.served_view(body["view"])
            queries[number] = parse_query_json(view, body, now=now, limits=serving.limits)
        except ServingError as error:
            found[number] = error
    found |= zip(queries, serving.engine.execute_each([*queries.values()]), strict=True)
    written, left_mb = [], serving.limits.max_answer_mb
    for number in range(len(bodies)):
        part = _encoded_in_place(found[number], number, left_mb, serving.limits.max_answer_mb)
        left_mb -= len(part) / 1_000_000
        written.append(part)
    return _several(written, [each for each in found.values() if isinstance(each, Result)])


def _encoded_in_place(found: Result | ServingError, number: int, left_mb: float, max_mb: float) -> bytes:
    """A result as JSON, or its problem: also where it is too large, or larger than what is left."""
    try:
        with _at(number):
            if isinstance(found, ServingError):
                raise found
            body = formats.to_json(found, max_mb)
        if len(body) / 1_000_000 > left_mb:
            raise _too_large_together(number, max_mb)
    except ServingError as error:
        return b'{"problem":%b}' % problem_of(error).to_json()
    return body


def _several(written: Iterable[bytes], results: Sequence[Result]) -> EncodedResult:
    body = b'{"answers":[' + b",".join(written) + b"]}"
    degraded = tuple(result.meta.view for result in results if result.meta.degraded)
    return EncodedResult(body, formats.MEDIA_TYPES["json"], {}, degraded)


def _encoded(results: Sequence[Result], max_mb: float) -> Iterator[bytes]:
    """Each result as JSON. TooLarge where one of them, or all together, are too large."""
    left = max_mb
    for number, result in enumerate(results):
        with _at(number):
            body = formats.to_json(result, max_mb)
        left -= len(body) / 1_000_000
        if left < 0:
            raise _too_large_together(number, max_mb)
        yield body


def _too_large_together(number: int, max_mb: float) -> TooLarge:
    return TooLarge(
        f"The answers to the first {number + 1} questions are larger than {max_mb:g} MB "
        "(serving_max_answer_mb). Send them in several requests, or ask for smaller pages (limit).",
        limit="serving_max_answer_mb", parameter="questions", allowed=number,
    )  # fmt: skip


def _only_json(given: str | None, accept: str | None) -> None:
    """Several results are one JSON document. Other formats are for single queries."""
    if formats.choose_format(given, accept) != "json":
        raise NotAcceptable(
            "Several questions are answered as JSON. For NDJSON or CSV send each question by itself.",
            given=given or accept, allowed=["application/json"],
        )  # fmt: skip


def _write(serving: Serving, result: Result, as_format: Format, if_none_match: str | None = None) -> EncodedResult:
    etag = etag_header(result.meta.etag, as_format)
    degraded = (result.meta.view,) if result.meta.degraded else ()
    is_sent = not is_known(etag, if_none_match)
    body = formats.body(result, as_format, serving.limits.max_answer_mb) if is_sent else None
    headers = formats.meta_headers(result.meta, result.next) if as_format == "csv" else {}
    return EncodedResult(body, formats.MEDIA_TYPES[as_format], {**headers, "ETag": etag}, degraded)


def etag_header(etag: str, as_format: Format) -> str:
    """Weak: the lag in `meta` may differ while the rows do not. Each format has its own."""
    return f'W/"{etag}-{as_format}"'


# ---- requests and responses ----------------------------------------------------------------


def _response(serving: Serving, written: EncodedResult) -> Response:
    for view in written.degraded:
        serving.metrics.count_degraded(view)
    headers = {**HEADERS, **written.headers}
    if written.body is None:
        return Response(status_code=304, headers=headers)
    return Response(written.body, headers=headers, media_type=written.media_type)


def is_known(etag: str, if_none_match: str | None) -> bool:
    """Whether a client has the result with this tag."""
    if if_none_match is None:
        return False
    named = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return "*" in named or etag.removeprefix("W/") in named


async def _json_body(serving: Serving, request: Request) -> Any:
    body = await read_body(request, serving.body_limits, unpacking=serving.answers)
    try:
        return parse_json(body, max_depth=MAX_DEPTH)
    except InvalidEvent as error:
        raise _wrong_body(error.reason, error.where, status=400) from None


def _questions(body: Any, max_count: int) -> tuple[list[dict[str, Any]], bool]:
    """The questions of a body, and whether it is a list of them: {"view": ...}, or {"questions": [...]}."""
    if not isinstance(body, dict):
        raise _wrong_body('it should be a question like {"view": "NAME"}, or {"questions": [...]}')
    if "questions" not in body:
        return [body], False
    found = body["questions"]
    if others := sorted(body.keys() - {"questions", PARTIAL}):
        raise _wrong_body(
            f"only `questions` and `{PARTIAL}` are allowed here: each question has its own members", others[0]
        )
    if not isinstance(body.get(PARTIAL, False), bool):
        raise _wrong_body("it should be true or false", PARTIAL)
    if not isinstance(found, list) or not 1 <= len(found) <= max_count:
        raise _wrong_body(f"it should be a list of 1 to {max_count} questions (serving_max_questions)", "questions")
    for number, question in enumerate(found):
        if not isinstance(question, dict):
            raise _wrong_body('it should be a question like {"view": "NAME"}', f"questions[{number}]")
    return found, True


def _view_of(body: dict[str, Any]) -> str:
    name = body.get("view")
    if not isinstance(name, str):
        raise _wrong_body("it should be the name of a view; GET /views lists them", "view")
    return name


def _wrong_body(reason: str, where: str = "", *, status: int = 422) -> Problem:
    prefix = f"The body is invalid at {where}: " if where else "The body is invalid: "
    return Problem(status, "invalid-body", f"{prefix}{reason}.", where=where)


@contextmanager
def _at(number: int | None) -> Iterator[None]:
    """Name the question in a problem, where there are several."""
    try:
        yield
    except (ServingError, Problem) as error:
        if number is not None:
            error.more["question"] = number
            error.detail = f"questions[{number}]: {error.detail}"
        raise
