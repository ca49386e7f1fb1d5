"""Every path that a problem document of the collector, or its page, names is one that the collector has; and its page
names every path of the collector.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Match

from infra.settings import load_settings
from master_dataset.collector.app import create_app
from views.declarations import declared_by

ROOT = Path(__file__).parents[2]
SPEAKERS = [*sorted((ROOT / "master_dataset" / "collector").rglob("*.py")), *sorted((ROOT / "infra/rest").glob("*.py"))]
PATH = re.compile(r"(?:^|(?<=[\s(`]))/[a-z][a-z0-9-]*(?:[./][a-z0-9{}_-]+)*")
"""`/topics`, `/admin/topics`, `/openapi.json`: a slash at the beginning of a word."""


@pytest.fixture(scope="module")
def app() -> FastAPI:
    settings = load_settings()
    return create_app(settings, declared_by(settings))


def has(app: FastAPI, path: str) -> bool:
    """Whether the collector answers there, or below it: `/consume` names a family. A name in braces stands for any."""
    plain = re.sub(r"\{[a-z]+\}", "x", path)
    scopes = ({"type": "http", "method": method, "path": plain} for method in ("GET", "POST", "PATCH", "DELETE"))
    if any(described.startswith(f"{path}/") for described in app.openapi()["paths"]):
        return True
    return any(route.matches(scope)[0] is Match.FULL for scope in scopes for route in app.routes)


def texts_of_errors() -> Iterator[tuple[str, str]]:
    """Each text that goes into a problem document: what `Problem(...)` and `invalid_body(...)` are called with."""
    for file in SPEAKERS:
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Problem", "invalid_body"):
                for node in ast.walk(call):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        yield file.name, node.value
        if file.name == "problems.py":  # its texts are chosen before the call
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield file.name, node.value


def test_every_path_in_a_problem_document_exists(app: FastAPI) -> None:
    named = [(file, path) for file, text in texts_of_errors() for path in PATH.findall(text)]
    assert {"/openapi.json", "/topics", "/admin/topics", "/admin/groups"} <= {path for _, path in named}
    assert [(file, path) for file, path in named if not has(app, path)] == []


PAGES = ("collector.md", "doors.md")
PARAMETER = re.compile(r"\{[^}]*\}")
POSTHOG = "/posthog/{source}"
"""Below it are the same paths as without it."""
REGISTRY = "/schema-registry"
"""Its paths are on a page of their own, below this one."""


def paths_on_the_pages(*pages: str) -> set[str]:
    """Those in the pages about the collector."""
    text = "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
    code = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {path.rstrip("/") for text in code for path in PATH.findall(text)}


def test_every_path_on_the_page_about_the_collector_exists(app: FastAPI) -> None:
    named = paths_on_the_pages("collector.md")
    assert {"/events/{source}", "/openapi.json", "/consumers"} <= named
    assert sorted(path for path in named if not has(app, path)) == []


def test_every_path_of_the_collector_is_on_its_page(app: FastAPI) -> None:
    described = app.openapi()["paths"]
    assert {"/events/{source}", "/dead/{source}/replay"} <= described.keys()
    named = {PARAMETER.sub("{}", path) for path in paths_on_the_pages(*PAGES)}
    served = {path.removeprefix(POSTHOG) for path in described if not path.startswith(REGISTRY)}
    assert sorted(path for path in served if PARAMETER.sub("{}", path) not in named) == []


def registry_paths_on_its_page() -> set[str]:
    """The first column of its table of routes, with parameters left out. `…/schema` goes on from the path before."""
    page = (ROOT / "docs" / "registry.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`(?:GET|POST|PUT|DELETE).*?) \|", page, re.MULTILINE)
    found, before = set(), ""
    for text in (text for row in rows for text in re.findall(r"`([^`]+)`", row)):
        path = text.split(" ")[-1]
        if path.startswith("…/"):
            path = before + path[1:]
        elif path.startswith("/"):
            before = path
        else:
            continue
        found.add(PARAMETER.sub("{}", path))
    return found


def test_every_path_of_the_registry_is_on_its_page(app: FastAPI) -> None:
    served = {path.removeprefix(REGISTRY) for path in app.openapi()["paths"] if path.startswith(f"{REGISTRY}/")}
    assert len(served) > 20
    assert registry_paths_on_its_page() == {PARAMETER.sub("{}", path) for path in served if path != "/"}


def test_an_unknown_path_is_answered_with_one_that_exists(app: FastAPI) -> None:
    async def ask(path: str) -> dict[str, Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            found: dict[str, Any] = (await client.get(path)).json()
            return found

    problem = asyncio.run(ask("/docs"))
    assert problem["status"] == 404
    (path,) = PATH.findall(problem["detail"].split(". ", 1)[1])
    assert asyncio.run(ask(path))["info"]["title"] == "Tidemark collector"
