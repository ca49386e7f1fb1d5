"""Who may do what: keys and scopes on the running collector."""

from __future__ import annotations

import httpx
import pytest

from infra.rest.access_keys import add_key, remove_key
from tests.conftest import Stack

pytestmark = pytest.mark.usefixtures("collector_alone")

ROUTES = [
    ("POST", "/produce", {"produce"}),
    ("GET", "/produce/web", {"produce"}),
    ("GET", "/produce/nosuch/hello", {"produce"}),
    ("POST", "/events/nosuch", {"produce"}),
    ("GET", "/fetch", {"consume"}),
    ("GET", "/consume/g/i/nosuch", {"consume"}),
    ("POST", "/commit/g/nosuch", {"consume"}),
    ("GET", "/committed/g/i", {"consume"}),
    ("GET", "/offsets/latest", {"consume"}),
    ("GET", "/delete-consumer/g/nosuch", {"consume"}),
    ("GET", "/consumers", {"consume", "admin"}),
    ("GET", "/topics", {"produce", "consume", "admin"}),
    ("GET", "/dead/nosuch", {"consume"}),
    ("GET", "/dead/nosuch/0", {"consume"}),
    ("POST", "/dead/nosuch/replay", {"produce"}),
    ("POST", "/admin/topics", {"admin"}),
    ("GET", "/admin/topics/nosuch", {"admin"}),
    ("PATCH", "/admin/topics/nosuch", {"admin"}),
    ("DELETE", "/admin/topics/nosuch", {"admin"}),
    ("GET", "/admin/groups", {"admin", "consume"}),
    ("DELETE", "/admin/groups/nosuch", {"admin"}),
    ("GET", "/metrics", {"metrics", "admin"}),
]


@pytest.fixture(scope="module")
def secrets(stack: Stack) -> dict[str, str]:
    return {
        scope: add_key(stack.settings.home, f"only-{scope}", [scope])
        for scope in ("produce", "consume", "query", "metrics", "admin")
    }


@pytest.mark.parametrize(("method", "path", "scopes"), ROUTES)
def test_every_route_wants_a_key_with_its_scope(
    stack: Stack, secrets: dict[str, str], method: str, path: str, scopes: set[str]
) -> None:
    url = stack.collector + path
    nobody = httpx.request(method, url)
    assert nobody.status_code == 401
    assert nobody.headers["www-authenticate"].startswith("Basic")
    assert nobody.json()["type"] == "urn:tidemark:problem:not-authorized"
    for scope, secret in secrets.items():
        status = httpx.request(method, url, headers={"Authorization": f"Bearer {secret}"}).status_code
        assert (status not in (401, 403)) == (scope in scopes), (scope, status)


def test_every_route_of_the_description_is_in_the_table(stack: Stack) -> None:
    described = httpx.get(f"{stack.collector}/openapi.json").json()
    paths = {path.split("/")[1] for path in described["paths"]}
    assert paths - {"health", "ready"} == {path.split("/")[1].split("?")[0] for _, path, _ in ROUTES}
    assert described["security"] == [{"basic": []}, {"bearer": []}]


def test_a_wrong_secret_is_refused_and_a_removed_key_too(stack: Stack) -> None:
    url = f"{stack.collector}/topics"
    assert httpx.get(url, auth=("admin", stack.secret)).status_code == 200
    assert httpx.get(url, auth=("admin", stack.secret + "x")).status_code == 401
    assert httpx.get(url, auth=("nobody", stack.secret)).status_code == 401
    secret = add_key(stack.settings.home, "short-lived", ["produce"])
    assert httpx.get(url, auth=("short-lived", secret)).status_code == 200
    remove_key(stack.settings.home, "short-lived")
    assert httpx.get(url, auth=("short-lived", secret)).status_code == 401


def test_health_needs_no_key(stack: Stack) -> None:
    for path in ("/health", "/healthz"):
        assert httpx.get(stack.collector + path).json() == {"status": "ok"}
    assert httpx.get(f"{stack.collector}/ready").json() == {"status": "ready"}


def test_a_key_is_checked_before_the_body_is_looked_at(stack: Stack) -> None:
    for method, path in (("POST", "/admin/topics"), ("POST", "/produce"), ("PATCH", "/admin/topics/web")):
        assert httpx.request(method, stack.collector + path, content=b"{").status_code == 401
