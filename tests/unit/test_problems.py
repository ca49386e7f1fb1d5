"""Every error of a REST server is one shape: RFC 9457."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException

from infra.rest.problems import Problem, install_problems


def build() -> FastAPI:
    app = FastAPI()
    install_problems(app)

    @app.get("/number/{number}")
    async def number(number: int) -> int:
        return number

    @app.get("/problem")
    async def problem() -> None:
        raise Problem(429, "too-much", "Come back later.", retry_after_s=3, where="body")

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "short and stout")

    @app.get("/bug")
    async def bug() -> None:
        raise ZeroDivisionError("secret detail")

    return app


async def ask(method: str, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(build(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "detail"),
    [
        ("GET", "/nothing", 404, "no-such-path", "There is nothing at GET /nothing"),
        ("POST", "/problem", 405, "method-not-allowed", "use GET"),
        ("GET", "/number/x", 422, "invalid-request", "path.number"),
        ("GET", "/problem", 429, "too-much", "Come back later."),
        ("GET", "/teapot", 418, "refused", "short and stout"),
        ("GET", "/bug", 500, "bug", "Internal error; see the server log"),
    ],
)
def test_every_error_is_a_problem_document(method: str, path: str, status: int, kind: str, detail: str) -> None:
    import asyncio

    answer = asyncio.run(ask(method, path))
    document: dict[str, Any] = answer.json()
    assert answer.status_code == document["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["type"] == f"urn:tidemark:problem:{kind}"
    assert document["title"]
    assert detail in document["detail"]
    assert "secret" not in answer.text


def test_a_problem_carries_its_headers_and_members() -> None:
    import asyncio

    answer = asyncio.run(ask("GET", "/problem"))
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["where"] == "body"
    assert asyncio.run(ask("POST", "/problem")).headers["allow"] == "GET"
