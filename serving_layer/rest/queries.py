"""Questions by REST: GET /views, /views/{name}, /views/{name}/query, and POST /query for one or several."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.rest.bodies import read_body
from infra.rest.problems import Problem
from infra.rest.responses import json_response, query_pairs
from master_dataset.errors import InvalidEvent
from master_dataset.events.strict_json import parse_json
from serving_layer.errors import NotAcceptable, ServingError
from serving_layer.query.model import Freshness
from serving_layer.query.parse import parse_query, parse_query_json
from serving_layer.query.result import Result
from serving_layer.rest import formats
from serving_layer.rest.context import Serving
from serving_layer.rest.formats import Format
from serving_layer.rest.views import described, listed

WAITING = frozenset({"min_cut", "max_staleness"})
"""Parameters that let a question wait."""
HEADERS = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization, Cookie"}
"""An answer is one key's, and may be kept as long as it is asked about each time: that is cheap, by its ETag."""
MAX_DEPTH = 16


class Written(NamedTuple):
    """An answer as it goes out. There is no body where the client has it already."""

    body: bytes | None
    media_type: str
    headers: dict[str, str]
    degraded: tuple[str, ...] = ()
    """Views whose answers lack the newest events."""


def question_routes(serving: Serving) -> list[Route]:
    """The routes. They are Starlette's own: a FastAPI route would cost each request as much again as all of ours."""

    async def query(request: Request) -> Response:
        name = request.path_params["name"]
        serving.access.view(request, name)
        with serving.metrics.timing([name]) as said:
            try:
                pairs = query_pairs(request)
                run = serving.run if WAITING.isdisjoint(dict(pairs)) else serving.run_waiting
                written = await run(
                    _answer, serving, name, pairs, request.headers.get("accept"), request.headers.get("if-none-match")
                )
            except (ServingError, Problem) as error:
                said["outcome"] = error.kind
                raise
            said["outcome"] = "not-modified" if written.body is None else "answered"
        return _response(serving, written)

    async def query_several(request: Request) -> Response:
        serving.access.views(request)  # before the body is looked at
        bodies, is_list = _questions(await _json_body(serving, request), serving.settings.serving_max_questions)
        for place, body in enumerate(bodies):
            with _at(place if is_list else None):
                serving.access.view(request, _view_of(body))
        with serving.metrics.timing([body["view"] for body in bodies]) as said:
            try:
                run = serving.run if all(WAITING.isdisjoint(body) for body in bodies) else serving.run_waiting
                written = await run(_answer_all, serving, bodies, request.headers.get("accept"), is_list=is_list)
            except (ServingError, Problem) as error:
                said["outcome"] = error.kind
                raise
            said["outcome"] = "answered"
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


def _answer(
    serving: Serving, name: str, pairs: Sequence[tuple[str, str]], accept: str | None, if_none_match: str | None
) -> Written:
    """From parameters to bytes: none of it may hold up the event loop."""
    as_format = formats.choose_format(dict(pairs).get("format"), accept)
    question = parse_query(serving.engine.served_view(name), pairs, now=time.time(), limits=serving.limits)
    if if_none_match is not None and question.freshness == Freshness(wait_s=question.freshness.wait_s):
        etag = _tag(serving.engine.etag(question) or "", as_format)  # which costs far less than an answer
        if is_known(etag, if_none_match):
            return Written(None, formats.MEDIA_TYPES[as_format], {"ETag": etag})
    return _write(serving.engine.execute(question), as_format, if_none_match)


def _answer_all(serving: Serving, bodies: Sequence[dict[str, Any]], accept: str | None, *, is_list: bool) -> Written:
    """The same for several questions, which are answered at one cut of each source."""
    now = time.time()
    questions = []
    for place, body in enumerate(bodies):
        with _at(place if is_list else None):
            questions.append(
                parse_query_json(serving.engine.served_view(body["view"]), body, now=now, limits=serving.limits)
            )
    if not is_list:
        as_format = formats.choose_format(bodies[0].get("format"), accept)
        return _write(serving.engine.execute(questions[0]), as_format)
    for place, body in enumerate(bodies):
        with _at(place):
            _only_json(body.get("format"), accept)
    answers = serving.engine.execute_all(questions)
    written = b'{"answers":[' + b",".join(map(formats.to_json, answers)) + b"]}"
    degraded = tuple(answer.meta.view for answer in answers if answer.meta.degraded)
    return Written(written, formats.MEDIA_TYPES["json"], {}, degraded)


def _only_json(asked: str | None, accept: str | None) -> None:
    """Several answers are one JSON document. Whoever wants another format asks one by one."""
    if formats.choose_format(asked, accept) != "json":
        raise NotAcceptable(
            "The answers to several questions come as JSON. For NDJSON or CSV ask each question by itself.",
            given=asked or accept, allowed=["application/json"],
        )  # fmt: skip


def _write(answer: Result, as_format: Format, if_none_match: str | None = None) -> Written:
    etag = _tag(answer.meta.etag, as_format)
    degraded = (answer.meta.view,) if answer.meta.degraded else ()
    body = None if is_known(etag, if_none_match) else formats.body(answer, as_format)
    headers = formats.meta_headers(answer.meta, answer.next) if as_format == "csv" else {}
    return Written(body, formats.MEDIA_TYPES[as_format], {**headers, "ETag": etag}, degraded)


def _tag(etag: str, as_format: Format) -> str:
    """Weak: the lag that an answer tells may differ while its rows do not. Each format has its own."""
    return f'W/"{etag}-{as_format}"'


# ---- out and in ----------------------------------------------------------------


def _response(serving: Serving, written: Written) -> Response:
    for view in written.degraded:
        serving.metrics.count_degraded(view)
    headers = {**HEADERS, **written.headers}
    if written.body is None:
        return Response(status_code=304, headers=headers)
    return Response(written.body, headers=headers, media_type=written.media_type)


def is_known(etag: str, if_none_match: str | None) -> bool:
    """Whether a client has the answer with this tag."""
    if if_none_match is None:
        return False
    named = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return "*" in named or etag.removeprefix("W/") in named


async def _json_body(serving: Serving, request: Request) -> Any:
    body = await read_body(request, serving.body_limits)
    try:
        return parse_json(body, max_depth=MAX_DEPTH)
    except InvalidEvent as error:
        raise _wrong_body(error.reason, error.where, status=400) from None


def _questions(body: Any, most: int) -> tuple[list[dict[str, Any]], bool]:
    """The questions of a body, and whether it is a list of them: {"view": ...}, or {"questions": [...]}."""
    if not isinstance(body, dict):
        raise _wrong_body('it should be a question like {"view": "NAME"}, or {"questions": [...]}')
    if "questions" not in body:
        return [body], False
    found = body["questions"]
    if others := sorted(body.keys() - {"questions"}):
        raise _wrong_body("beside the questions there is nothing else: each question has its own members", others[0])
    if not isinstance(found, list) or not 1 <= len(found) <= most:
        raise _wrong_body(f"it should be a list of 1 to {most} questions (serving_max_questions)", "questions")
    for place, question in enumerate(found):
        if not isinstance(question, dict):
            raise _wrong_body('it should be a question like {"view": "NAME"}', f"questions[{place}]")
    return found, True


def _view_of(body: dict[str, Any]) -> str:
    name = body.get("view")
    if not isinstance(name, str):
        raise _wrong_body("a question names its view, a text: GET /views lists them", "view")
    return name


def _wrong_body(reason: str, where: str = "", *, status: int = 422) -> Problem:
    place = f"The body is wrong at {where}: " if where else "The body is wrong: "
    return Problem(status, "invalid-body", f"{place}{reason}.", where=where)


@contextmanager
def _at(place: int | None) -> Iterator[None]:
    """Say in a problem which of several questions it is about."""
    try:
        yield
    except (ServingError, Problem) as error:
        if place is not None:
            error.more["question"] = place
            error.detail = f"questions[{place}]: {error.detail}"
        raise
