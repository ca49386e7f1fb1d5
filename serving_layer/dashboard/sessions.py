"""Sign in and out by name and secret of a key: POST, GET and DELETE /session."""

from __future__ import annotations

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.rest.access_keys import AccessKey, AccessKeyError, KeyExpired
from infra.rest.bodies import BodyLimits, read_body
from infra.rest.problems import Problem
from infra.rest.responses import json_response
from infra.rest.sessions import is_from_our_page
from infra.times import iso_utc
from master_dataset.errors import InvalidEvent
from serving_layer.rest.access import SCOPES
from serving_layer.rest.context import Serving
from serving_layer.rest.schemas import may_read
from views.strict_json import parse_json

MAX_DEPTH = 2
MAX_BODY = 4096
"""Anybody may send one, before any key was checked: so it is small, and never unpacked."""
PATH = "/session"
NO_STORE = {"Cache-Control": "no-store"}


def session_routes(serving: Serving) -> list[Route]:
    """A session is a cookie that stands for a key: only pages of this server may use it, and no script can read it."""
    access = serving.access.keys
    sessions = access.sessions
    assert sessions is not None  # noqa: S101  the serving layer has them; said for the type checker

    body_limits = BodyLimits(MAX_BODY, serving.settings.serving_timeout_s, "a name and a secret need less")

    async def session(request: Request) -> Response:
        match request.method:
            case "POST":
                return await sign_in(request)
            case "DELETE":
                return sign_out(request)
        return who(request)

    async def sign_in(request: Request) -> Response:
        _refuse_other_pages(request)
        name, secret = _credentials(await read_body(request, body_limits))
        proof = base64.b64encode(f"{name}:{secret}".encode()).decode()
        try:
            key = access.find(f"Basic {proof}")
        except KeyExpired as expired:
            raise Problem(403, "wrong-key", f"This key is no longer valid: {expired}.") from None
        except AccessKeyError as error:
            raise Problem(503, "keys-unreadable", f"No key can be checked: {error}", retry_after_s=30) from None
        if key is None:
            raise Problem(
                403,
                "wrong-key",
                "There is no key with this name and secret. `tidemark up` showed the first key once; "
                "`tidemark keys add NAME --scope query` makes another.",
            )
        if key.scopes.isdisjoint(SCOPES):
            raise Problem(
                403,
                "missing-scope",
                f"The key {key.name!r} has the scopes {', '.join(sorted(key.scopes))}; this needs "
                f"{' or '.join(SCOPES)}.",
            )
        token, begun = sessions.begin(key)
        answer = json_response(_described(key, begun.ends))
        answer.headers.update(NO_STORE)
        answer.set_cookie(
            sessions.cookie, token, path="/", httponly=True, samesite="strict", secure=_is_encrypted(request),
            max_age=int(serving.settings.serving_session_hours * 3600),
        )  # fmt: skip
        return answer

    def who(request: Request) -> Response:
        found = access.session(request) if access.is_required else None
        if found is None:
            key = access.check(request, *SCOPES)
            return json_response(_described(key, None))
        return json_response(_described(found[1], found[0].ends))

    def sign_out(request: Request) -> Response:
        _refuse_other_pages(request)
        sessions.end(request)
        answer = Response(status_code=204, headers=NO_STORE)
        answer.delete_cookie(sessions.cookie, path="/", httponly=True, samesite="strict")
        return answer

    return [Route(PATH, session, methods=["GET", "POST", "DELETE"])]


def _described(key: AccessKey | None, ends: float | None) -> dict[str, Any]:
    """Whose session it is, for the page."""
    return {
        "key": None if key is None else key.name,
        "views": None if key is None or key.views is None else list(key.views),
        "reads_schemas": may_read(key),
        "ends": None if ends is None else iso_utc(ends),
    }


def _credentials(body: bytes) -> tuple[str, str]:
    try:
        given = parse_json(body, max_depth=MAX_DEPTH)
    except InvalidEvent as error:
        raise Problem(400, "invalid-body", f"The body is wrong: {error.reason}.", where=error.where) from None
    name, secret = (given.get("name"), given.get("secret")) if isinstance(given, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(secret, str):
        raise Problem(422, "invalid-body", 'The body is wrong: it should be {"name": "...", "secret": "..."}.')
    return name, secret


def _refuse_other_pages(request: Request) -> None:
    """Another page could sign somebody in as somebody else, or out. Programs send no Origin."""
    is_program = "origin" not in request.headers and "sec-fetch-site" not in request.headers
    if not is_program and not is_from_our_page(request):
        raise Problem(403, "other-origin", "Only the dashboard of this server may sign in or out.")


def _is_encrypted(request: Request) -> bool:
    """Whether the browser came by https, perhaps to a proxy before us."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
