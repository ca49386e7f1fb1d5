"""Events of a declared source through the collector: validated, one result each, on a real broker."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.usefixtures("collector_alone")


@pytest.fixture(scope="module")
def client(stack: Any) -> Iterator[httpx.Client]:
    with stack.client() as made:
        yield made


def ends(client: httpx.Client, topic: str = "web") -> int:
    """How many records a topic ever got."""
    return sum(partition["latest"] for partition in client.get(f"/admin/topics/{topic}").json()["partitions"])


def fetch(client: httpx.Client, place: dict[str, Any]) -> dict[str, Any]:
    found = client.post("/fetch", json={name: place[name] for name in ("topic", "partition", "offset")} | {"limit": 1})
    return dict(found.json()[0])


def test_one_event_is_stored_with_its_id_as_key(client: httpx.Client) -> None:
    event = {"event_id": f"e-{uuid.uuid4()}", "event_time": "2026-01-01T00:00:00Z", "name": "view", "extra": {"a": 1}}
    (place,) = client.post("/events/web", json=event).json()
    assert place["event_id"] == event["event_id"]
    record = fetch(client, place)
    assert json.loads(record["value"]) == event
    assert record["key"] == event["event_id"]


def test_an_event_without_id_gets_one(client: httpx.Client) -> None:
    for event in ({"name": "view"}, {"event_id": None, "name": "view"}):
        (place,) = client.post("/events/web", json=event).json()
        stored = json.loads(fetch(client, place)["value"])
        assert stored == {"event_id": place["event_id"], "name": "view"}
        assert uuid.UUID(place["event_id"]).version == 7


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["array", "ndjson", "ndjson by its content type", "pretty array"])
def test_many_events_are_answered_in_order(client: httpx.Client, form: str, packed: bool) -> None:
    events = [{"event_id": f"e-{uuid.uuid4()}", "name": f"n{number}"} for number in range(50)]
    headers = {"Content-Type": "application/x-ndjson"} if "type" in form else {}
    match form:
        case "array":
            body = json.dumps(events).encode()
        case "pretty array":
            body = json.dumps(events, indent=2).encode()
        case _:
            body = b"\n".join(json.dumps(event).encode() for event in events) + b"\r\n\n"
    if packed:
        body, headers["Content-Encoding"] = gzip.compress(body, mtime=0), "gzip"
    answer = client.post("/events/web", content=body, headers=headers)
    assert answer.status_code == 200
    assert [place["event_id"] for place in answer.json()] == [event["event_id"] for event in events]
    assert json.loads(fetch(client, answer.json()[17])["value"]) == events[17]


def test_a_pretty_printed_event_is_one_event(client: httpx.Client) -> None:
    body = json.dumps({"event_id": "pretty", "properties": {"url": "/"}}, indent=2)
    assert len(client.post("/events/web", content=body).json()) == 1


def test_invalid_events_do_not_hold_up_the_valid_ones(client: httpx.Client) -> None:
    before = ends(client)
    events = [{"event_id": "a"}, {"name": 5}, 3, {"event_id": "b", "properties": {"ms": "slow"}}, {"event_id": "c"}]
    answer = client.post("/events/web", json=events)
    assert answer.status_code == 207
    results = answer.json()
    assert [result.get("event_id") for result in results] == ["a", None, None, None, "c"]
    assert [result["error"]["where"] for result in results if "error" in result] == ["name", "", "properties.ms"]
    assert ends(client) == before + 2


def test_a_bad_line_of_ndjson_is_named(client: httpx.Client) -> None:
    before = ends(client)
    answer = client.post(
        "/events/web", content=b'{"event_id":"l1"}\n{"event_id":\n\n{"event_id":"l4","event_id":"x"}\n{}'
    )
    assert answer.status_code == 207
    errors = [result.get("error", {}).get("where") for result in answer.json()]
    assert errors[0] is errors[3] is None
    assert errors[1].startswith("line 2")
    assert errors[2].startswith("line 4")
    assert ends(client) == before + 2


@pytest.mark.parametrize(
    ("query", "events"), [("?atomic=true", [{"event_id": "a"}, {"name": 5}]), ("", [{"name": 5}, 7]), ("", {"name": 5})]
)
def test_nothing_is_stored_when_all_or_nothing_cannot_be_all(client: httpx.Client, query: str, events: Any) -> None:
    before = ends(client)
    answer = client.post(f"/events/web{query}", json=events)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["where"] == "name"
    assert len(answer.json()["results"]) == (len(events) if isinstance(events, list) else 1)
    assert ends(client) == before


def test_atomic_stores_all_when_all_are_valid(client: httpx.Client) -> None:
    before = ends(client)
    assert client.post("/events/web?atomic=true", json=[{}, {}, {}]).status_code == 200
    assert ends(client) == before + 3


def bomb(size: int) -> bytes:
    return gzip.compress(b'{"name":"' + b"a" * size + b'"}', mtime=0)


@pytest.mark.parametrize(
    ("body", "headers", "status", "kind"),
    [
        (b"", {}, 400, "invalid-body"),
        (b"{", {}, 400, "invalid-body"),
        (b'{"a":NaN}', {}, 400, "invalid-body"),
        (b'{"a":"\xff"}', {}, 400, "invalid-body"),
        (rb'{"a":"\ud800"}', {}, 400, "invalid-body"),
        (b'{"a":1,"a":2}', {}, 400, "invalid-body"),
        (b"[" * 100_000, {}, 400, "invalid-body"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, {}, 400, "invalid-body"),
        (b"[{}" + b",{}" * 10_000 + b"]", {}, 413, "batch-too-large"),
        (b'{"name":"' + b"x" * 1_000_000 + b'"}', {}, 422, "invalid-event"),
        (b" " * 17_000_000, {}, 413, "body-too-large"),
        (bomb(200_000_000), {"Content-Encoding": "gzip"}, 413, "body-too-large"),
        (b"not gzip", {"Content-Encoding": "gzip"}, 400, "not-gzip"),
        (gzip.compress(b'{"name":"a"}', mtime=0)[:-9], {"Content-Encoding": "gzip"}, 400, "not-gzip"),
        (gzip.compress(b'{"name":"a"}', mtime=0) + b"rest", {"Content-Encoding": "gzip"}, 400, "not-gzip"),
        (gzip.compress(b"", mtime=0) * 750_000, {"Content-Encoding": "gzip"}, 400, "not-gzip"),
        (b"[" + b"{}," * 5_000_000 + b"{}]", {}, 413, "too-many-values"),
        (b"", {"Content-Encoding": "gzip"}, 400, "invalid-body"),
        (b"{}", {"Content-Encoding": "br"}, 415, "unknown-encoding"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_body_is_a_problem_and_nothing_is_stored(
    client: httpx.Client, body: bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    before = ends(client)
    answer = client.post("/events/web", content=body, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:tidemark:problem:{kind}")
    assert answer.json()["detail"]
    assert ends(client) == before


def test_a_chunked_body_has_the_same_limit(client: httpx.Client) -> None:
    before = ends(client)
    chunks = (b" " * 1_000_000 for _ in range(18))
    answer = client.post("/events/web", content=chunks)
    assert answer.status_code == 413
    assert ends(client) == before


def test_an_unknown_source_names_the_known_ones(client: httpx.Client) -> None:
    answer = client.post("/events/wbe", json={})
    assert answer.status_code == 404
    assert "There are: web" in answer.json()["detail"]
    assert client.get("/events/web").status_code == 405


def test_a_retry_with_the_same_id_has_the_same_key(client: httpx.Client) -> None:
    event = {"event_id": f"retry-{uuid.uuid4()}"}
    first, second = (client.post("/events/web", json=event).json()[0] for _ in range(2))
    assert first["partition"] == second["partition"]  # so that whoever counts ids finds both in one place
    assert first["event_id"] == second["event_id"]
