"""Who may do what: keys and scopes on the running collector."""

from __future__ import annotations

from uuid import uuid4

import httpx
import pytest

from infra.rest.access_keys import SCOPES, add_key, remove_key, rotate_key
from tests.conftest import Stack

pytestmark = pytest.mark.usefixtures("collector_alone")

ROUTES = [
    ("POST", "/produce", {"produce"}),
    ("GET", "/produce/web", {"produce"}),
    ("GET", "/produce/nosuch/hello", {"produce"}),
    ("POST", "/events/nosuch", {"produce"}),
    ("POST", "/cloudevents/nosuch", {"produce"}),
    ("POST", "/v1/batch", {"produce"}),
    ("POST", "/segment/nosuch/v1/track", {"produce"}),
    ("POST", "/otlp/nosuch/v1/logs", {"produce"}),
    ("POST", "/logs/w3c/nosuch", {"produce"}),
    ("POST", "/batch/", {"produce"}),
    ("POST", "/capture", {"produce"}),
    ("POST", "/e/", {"produce"}),
    ("POST", "/i/v0/e/", {"produce"}),
    ("POST", "/flags/", {"produce"}),
    ("POST", "/decide", {"produce"}),
    ("POST", "/posthog/nosuch/batch/", {"produce"}),
    ("GET", "/v3/clusters", {"produce", "consume", "admin"}),
    ("GET", "/v3/clusters/nosuch", {"produce", "consume", "admin"}),
    ("POST", "/v3/clusters/nosuch/topics/web/records", {"produce"}),
    ("POST", "/transactions?timeout=0", {"produce"}),
    ("GET", "/transactions/nosuch", {"produce"}),
    ("POST", "/transactions/nosuch/produce/web", {"produce"}),
    ("POST", "/transactions/nosuch/offsets", set()),  # produce and consume together
    ("POST", "/transactions/nosuch/commit", {"produce"}),
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
    ("GET", "/rest-proxy/topics", {"produce", "consume", "admin"}),
    ("GET", "/rest-proxy/topics/nosuch", {"produce", "consume", "admin"}),
    ("GET", "/rest-proxy/topics/nosuch/partitions", {"produce", "consume", "admin"}),
    ("GET", "/rest-proxy/topics/nosuch/partitions/0", {"produce", "consume", "admin"}),
    ("GET", "/rest-proxy/topics/nosuch/partitions/0/offsets", {"produce", "consume", "admin"}),
    ("GET", "/rest-proxy/brokers", {"produce", "consume", "admin"}),
    ("POST", "/rest-proxy/topics/nosuch", {"produce"}),
    ("POST", "/rest-proxy/topics/nosuch/partitions/0", {"produce"}),
    ("POST", "/rest-proxy/consumers/g%20g", {"consume"}),
    *(
        (method, f"/rest-proxy/consumers/g/instances/nosuch{path}", {"consume"})
        for method, path in (
            ("DELETE", ""),
            *((method, "/subscription") for method in ("POST", "GET", "DELETE")),
            *((method, "/assignments") for method in ("POST", "GET")),
            *(("POST", f"/positions{end}") for end in ("", "/beginning", "/end")),
            ("GET", "/records"),
            *((method, "/offsets") for method in ("POST", "GET")),
        )
    ),
    ("POST", "/admin/groups/nosuch/rewind", {"admin"}),
    ("GET", "/schema-registry/subjects", {"schema:read", "schema:write", "admin"}),
    ("PUT", "/schema-registry/config/nosuch", {"schema:write", "admin"}),
    ("GET", "/metrics", {"metrics", "admin"}),
]


@pytest.fixture(scope="module")
def secrets(stack: Stack) -> dict[str, str]:
    return {scope: add_key(stack.settings.home, f"only-{scope.replace(':', '-')}", [scope]) for scope in SCOPES}


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


# ---- limits ------------------------------------------------------------------


def limited(stack: Stack, *scopes: str, **limits: list[str]) -> httpx.Client:
    """As a new key with these limits."""
    secret = add_key(stack.settings.home, f"limited-{uuid4().hex}", scopes, **limits)  # type: ignore[arg-type]
    return httpx.Client(base_url=stack.collector, headers={"Authorization": f"Bearer {secret}"}, timeout=60)


@pytest.fixture
def another(stack: Stack) -> str:
    """A topic that has nothing to do with `web`."""
    topic = f"another.{uuid4().hex}"
    with stack.client() as client:
        client.post("/admin/topics", json={"name": topic, "partitions": 1}).raise_for_status()
    return topic


def test_a_key_for_one_source_does_everything_with_that_and_nothing_with_others(stack: Stack, another: str) -> None:
    event = {"event_id": uuid4().hex}
    with limited(stack, "produce", "consume", "admin", sources=["web"]) as web:
        (stored,) = web.post("/events/web", json=event).raise_for_status().json()
        (sent,) = web.post("/produce/web", json={"value": "x", "headers": [{"key": "h", "value": "1"}]}).json()
        assert sent["topic"] == "web"
        location = {"topic": "web", "partition": stored["partition"], "offset": stored["offset"]}
        assert web.post("/fetch", json=location).json()[0]["offset"] == stored["offset"]
        assert {each["topic"] for each in web.get("/topics").json()} == {"web", "web.dead"}
        assert web.get("/dead/web").status_code == 200
        assert web.get("/admin/topics/web").status_code == 200
        for method, path in (
            ("GET", f"/produce/{another}/x"),
            ("GET", f"/fetch?topic={another}&partition=0&offset=0"),
            ("GET", f"/admin/topics/{another}"),
            ("DELETE", f"/admin/topics/{another}"),
        ):
            assert web.request(method, path).status_code == 403, path
    with limited(stack, "produce", topics=["another.*"]) as other:
        assert other.get(f"/produce/{another}/x").json()["offset"] == 0
        assert [each["topic"] for each in other.get("/topics").json() if each["topic"] == another] == [another]
        assert other.post("/events/web", json=event).status_code == 403


def test_a_consumer_instance_is_used_only_by_keys_for_its_topics(stack: Stack, another: str) -> None:
    """Else a key could commit, end or take over what another reads."""
    group = f"g-{uuid4().hex}"
    with (
        limited(stack, "consume", "admin", topics=[another]) as theirs,
        limited(stack, "consume", "admin", sources=["web"]) as web,
    ):
        theirs.get(f"/consume/{group}/i/{another}?timeout=100").raise_for_status()
        for path in (f"/consume/{group}/i/web", f"/commit/{group}/i", f"/delete-consumer/{group}/i"):
            refused = web.get(path)
            assert refused.status_code == 403, path
            assert another in refused.json()["detail"]
        assert group not in [each["name"] for each in web.get("/consumers").json()]
        assert group in [each["name"] for each in theirs.get("/consumers").json()]
        assert web.get(f"/admin/groups/{group}").status_code == 403
        assert theirs.get(f"/admin/groups/{group}").status_code == 200
        assert theirs.get(f"/delete-consumer/{group}/i").status_code == 200


def test_a_reserved_topic_gets_no_message_from_the_first_key(stack: Stack) -> None:
    at = {"topic": "web.dead", "partition": 0}
    forged = {"value": "x", "headers": [{"key": "tidemark-version", "value": "1000000"}]}
    with stack.client() as client:
        before = client.post("/offsets/latest", json=at).json()
        assert client.post("/produce/web.dead", json=forged).status_code == 403
        assert client.post("/produce/web", json=forged).status_code == 422
        assert client.post("/offsets/latest", json=at).json() == before


def test_both_secrets_work_while_the_grace_lasts(stack: Stack) -> None:
    name, url = f"rotated-{uuid4().hex}", f"{stack.collector}/topics"
    secrets = [add_key(stack.settings.home, name, ["produce"])]
    secrets += [rotate_key(stack.settings.home, name, 3600)]
    assert [httpx.get(url, auth=(name, secret)).status_code for secret in secrets] == [200, 200]
    secrets += [rotate_key(stack.settings.home, name, 0)]
    assert [httpx.get(url, auth=(name, secret)).status_code for secret in secrets] == [401, 401, 200]
