"""Every error that a REST server of ours answers, as RFC 9457 `application/problem+json`.

    raise Problem(404, "unknown-topic", "There is no topic 'wbe'. ...")

becomes

    {"type": "urn:tidemark:problem:unknown-topic", "title": "Not Found", "status": 404, "detail": "There is no ..."}
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"

log = structlog.get_logger()


class Problem(Exception):
    """An error that the client gets to see. `more` are further members, such as `where` or `results`."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        retry_after_s: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.more = more
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    def document(self) -> dict[str, Any]:
        """The problem as RFC 9457 wants it."""
        return {
            "type": f"urn:tidemark:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }

    def to_json(self) -> bytes:
        """The document as bytes. Whatever a member holds, there is a text for it: an error must not fail."""
        return orjson.dumps(self.document(), default=str)

    def response(self) -> Response:
        """The problem as an answer."""
        return Response(self.to_json(), self.status, self.headers, MEDIA_TYPE)


def disconnected() -> Problem:
    """The client is gone before its request was complete; this only ends the request quietly."""
    return Problem(400, "disconnected", "The connection was closed before the body was complete.")


def install_problems(app: FastAPI) -> None:
    """Let `app` answer every error as a problem: ours, FastAPI's own (404, 405, 422) and the unforeseen."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)


async def _on_problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101  registered for this class; for the type checker
    return error.response()


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  as above
    request_line = f"{request.method} {_shown(request.url.path)}"
    match error.status_code:
        case 404:
            kind, detail = "no-such-path", f"There is nothing at {request_line}. /openapi.json lists what there is."
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            kind, detail = "method-not-allowed", f"{request_line} is not possible here; use {allowed}."
        case _:
            kind, detail = "refused", str(error.detail)
    return Problem(error.status_code, kind, detail, headers=error.headers).response()


async def _on_invalid_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  as above
    errors = [
        {"where": ".".join(str(part) for part in problem["loc"]), "reason": problem["msg"]}
        for problem in error.errors()
    ]
    first = errors[0] if errors else {"where": "", "reason": "it is not valid"}
    detail = f"{first['where']}: {first['reason']}"
    return Problem(422, "invalid-request", detail, where=first["where"], errors=errors).response()


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return disconnected().response()


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("bug", method=request.method, path=request.url.path, error=repr(error), exc_info=error)
    return Problem(500, "bug", "Internal error; see the server log. The request may have taken effect.").response()


def _shown(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:197]}..."
