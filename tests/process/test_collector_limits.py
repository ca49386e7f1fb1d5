"""What the collector refuses before it asks Kafka: reserved topics and headers, and topics that a key may not use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from infra.rest.access_keys import SCOPES, add_key, read_keys, rotate_key
from infra.rest.problems import Problem
from infra.settings import load_settings
from master_dataset.collector.app import create_app
from master_dataset.collector.direct_events import DirectEvents
from master_dataset.collector.kafka_rest.requests import MAX_LIMIT, MAX_VALUES
from master_dataset.collector.kafka_rest.transactions import Transactions
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.reserved import check_writable
from views.aggregates import Count
from views.catalog.web import web
from views.declarations import Declarations
from views.feed import Feed
from views.source import Source
from views.view import View

shop = Source("shop", fields="event_id string, event_time timestamp", topic="orders")
odd = Source("odd", fields="event_id string, event_time timestamp", topic="archive.dead")
hits = View("hits", source=web, grain="1h", answers={"hits": Count()})
declarations = Declarations(
    {each.name: each for each in (web, shop, odd)},
    feeds={"mine": Feed("mine", hits, topic="mine_of_hits"), "other": Feed("other", hits)},
)
RESERVED = (
    "tidemark.alerts",
    "tidemark.feed.other",
    "tidemark.anything",
    "mine_of_hits",
    "web.dead",
    "shop.dead",
    "no_longer_declared.dead",
)

Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A request to a collector that has no Kafka: whatever is refused is refused before that."""
    app = create_app(load_settings(home=tmp_path, kafka_bootstrap="127.0.0.1:1"), declarations)

    def ask_it(secret: str, method: str, path: str, **more: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            headers = {"Authorization": f"Bearer {secret}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
                return await client.request(method, path, **more)

        return asyncio.run(send())

    return ask_it


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].removeprefix("urn:tidemark:problem:")


# ---- reserved ----------------------------------------------------------------


@pytest.mark.parametrize("topic", RESERVED)
def test_no_key_writes_to_a_reserved_topic_by_any_door(ask: Ask, tmp_path: Path, topic: str) -> None:
    for secret in (
        add_key(tmp_path, "all", SCOPES),
        add_key(tmp_path, "named", ["produce"], topics=[topic, "*"], sources=["*"]),
    ):
        message = {"topic": topic, "value": "forged"}
        for method, path, body in (
            ("GET", f"/produce/{topic}/forged", None),
            ("GET", f"/produce/{topic.replace('.', '%2e')}/forged", None),
            ("POST", f"/produce/{topic}", {"value": "forged"}),
            ("GET", f"/produce/{topic}", [{"value": "forged"}]),
            ("POST", "/produce", message),
            ("GET", "/produce", [{"topic": "orders", "value": "x"}, message]),
        ):
            answer = ask(secret, method, path, content=json.dumps(body).encode() if body else None)
            assert problem(answer) == (403, "reserved-topic"), (method, path)
            assert answer.json()["topic"] == topic
            assert "no key may write here" in answer.json()["detail"]


@pytest.mark.parametrize("topic", RESERVED)
def test_no_key_writes_to_a_reserved_topic_by_rest_proxy_v2(ask: Ask, tmp_path: Path, topic: str) -> None:
    secret = add_key(tmp_path, "all", SCOPES)
    for path in (
        f"/rest-proxy/topics/{topic}",
        f"/rest-proxy/topics/{topic}/partitions/0",
        f"/rest-proxy/topics/{topic.replace('.', '%2E')}",
    ):
        for format in ("json", "avro"):
            kind = f"application/vnd.kafka.{format}.v2+json"
            records = {"records": [{"value": "Zm9yZ2Vk"}]}
            answer = ask(secret, "POST", path, content=json.dumps(records), headers={"Content-Type": kind})
            assert (answer.status_code, answer.json()["error_code"]) == (403, 403), answer.text
            assert answer.json()["type"] == "urn:tidemark:problem:reserved-topic"
            assert "no key may write here" in answer.json()["message"]


@pytest.mark.parametrize("topic", RESERVED)
def test_no_key_writes_to_a_reserved_topic_in_a_transaction(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """The transaction is one that has no producer: whatever would be sent in it fails, as a bug."""
    asked: list[str] = []

    def get(_self: Transactions, _owner: str, transaction_id: str) -> None:
        asked.append(transaction_id)

    monkeypatch.setattr(Transactions, "get", get)
    secret = add_key(tmp_path, "all", SCOPES)
    for path, body in (
        (f"/transactions/t7/produce/{topic}", {"value": "forged"}),
        (f"/transactions/t7/produce/{topic.replace('.', '%2e')}", [{"value": "forged"}]),
        ("/transactions/t7/produce", {"topic": topic, "value": "forged"}),
        ("/transactions/t7/produce", [{"topic": "orders", "value": "x"}, {"topic": topic, "value": "forged"}]),
    ):
        assert problem(ask(secret, "POST", path, json=body)) == (403, "reserved-topic"), path
    assert asked == ["t7"] * 4


def test_topics_of_kafka_stay_refused(ask: Ask, tmp_path: Path) -> None:
    secret = add_key(tmp_path, "all", SCOPES)
    assert problem(ask(secret, "GET", "/produce/__consumer_offsets/x")) == (403, "internal-topic")


@pytest.mark.parametrize(
    "topic", ["web", "orders", "archive.dead", "other", "tidemark_orders", "deadline", "web.deadly"]
)
def test_other_topics_are_not_reserved(topic: str) -> None:
    check_writable(declarations, topic)


@pytest.mark.parametrize("name", ["tidemark-version", "tidemark-", "Tidemark-Offset", "TIDEMARK-X"])
def test_reserved_headers_are_refused_by_name(ask: Ask, tmp_path: Path, name: str) -> None:
    secret = add_key(tmp_path, "all", SCOPES)
    headers = [{"key": "trace", "value": "1"}, {"key": name, "value": "1000000"}]
    message = {"topic": "web", "value": "x", "headers": headers}
    for path, body in (("/produce/web", message), ("/produce", [{"topic": "web", "value": "x"}, message])):
        answer = ask(secret, "POST", path, json=body)
        assert problem(answer) == (422, "reserved-header")
        assert answer.json()["header"] == name
        assert answer.json()["where"].endswith("headers[1]")


@pytest.mark.parametrize("path", ["/fetch", "/consume/group/instance", "/commit/group/instance"])
def test_a_body_that_is_held_while_a_request_waits_has_as_many_values_as_locations_need(
    ask: Ask, tmp_path: Path, path: str
) -> None:
    """Readers wait for up to a minute, and nothing is charged for what their bodies became."""
    secret = add_key(tmp_path, "all", SCOPES)
    body = json.dumps({"timeout": 60_000, "junk": [0] * (MAX_VALUES + 1)})
    assert problem(ask(secret, "POST", path, content=body)) == (413, "too-many-values")
    location = {"topic": "web", "partition": 2**31 - 1, "offset": 2**63 - 1}
    given = {"offsets": [location] * MAX_LIMIT, "timeout": 1}
    assert ask(secret, "POST", path, json=given).status_code != 413


# ---- limits of keys ----------------------------------------------------------

TO_ORDERS = [
    ("produce", "POST", "/events/shop", {"x": 1}),
    ("produce", "GET", "/produce/orders/x", None),
    ("produce", "POST", "/produce/orders", {"value": "x"}),
    ("produce", "POST", "/produce", [{"topic": "web", "value": "x"}, {"topic": "orders", "value": "x"}]),
    ("produce", "POST", "/dead/shop/replay?first=0", None),
    ("consume", "GET", "/dead/shop", None),
    ("consume", "GET", "/dead/shop/0", None),
    ("consume", "GET", "/fetch?topic=orders&partition=0&offset=0", None),
    ("consume", "POST", "/fetch", [{"topic": "web", "partition": 0, "offset": 0},
                                   {"topic": "orders", "partition": 0, "offset": 0}]),
    ("consume", "GET", "/offsets/latest?topic=shop.dead&partition=0", None),
    ("consume", "GET", "/consume/g/i/orders", None),
    ("consume", "POST", "/consume/g/i", {"topics": ["web", "orders"]}),
    ("consume", "GET", "/committed/g/i?topic=orders&partition=0", None),
    ("admin", "POST", "/admin/topics", {"name": "orders"}),
    ("admin", "GET", "/admin/topics/orders", None),
    ("admin", "PATCH", "/admin/topics/orders", {"partitions": 9}),
    ("admin", "DELETE", "/admin/topics/orders?force=true", None),
    ("admin", "GET", "/admin/groups", None),
]  # fmt: skip


@pytest.mark.parametrize(("scope", "method", "path", "body"), TO_ORDERS)
def test_a_key_for_one_source_uses_no_other(
    ask: Ask, tmp_path: Path, scope: str, method: str, path: str, body: Any
) -> None:
    secret = add_key(tmp_path, "web", [scope], sources=["web"])
    answer = ask(secret, method, path, json=body) if body is not None else ask(secret, method, path)
    assert problem(answer) == (403, "not-allowed")
    assert "The key 'web' is limited to the source web" in answer.json()["detail"]


def test_what_is_not_there_is_refused_like_what_is(ask: Ask, tmp_path: Path) -> None:
    """Else a limited key could find out what there is."""
    secret = add_key(tmp_path, "web", ["produce", "consume"], sources=["web"])
    for theirs, none in (("/events/shop", "/events/nope"), ("/produce/orders", "/produce/nope_t")):
        texts = [
            ask(secret, "POST", path, json={"value": "x"}).text.replace(path.rpartition("/")[2], "X")
            for path in (theirs, none)
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("limits", "is_allowed"),
    [
        ({"sources": ["shop"]}, True),
        ({"sources": ["s*"]}, True),
        ({"topics": ["orders"]}, True),
        ({"topics": ["ord?rs"]}, True),
        ({}, True),
        ({"views": ["nothing"]}, True),
        ({"sources": ["web"]}, False),
        ({"topics": ["shop"]}, False),
        ({"sources": ["web"], "topics": ["orders"]}, True),
    ],
)
def test_a_source_brings_its_topics_and_a_topic_its_source(
    tmp_path: Path, limits: dict[str, list[str]], *, is_allowed: bool
) -> None:
    add_key(tmp_path, "key", ["produce"], **limits)  # type: ignore[arg-type]
    allowed = Permissions(declarations, read_keys(tmp_path)["key"])
    assert allowed.allows_topic("orders") is is_allowed
    if is_allowed:
        assert allowed.source("shop") is shop
    else:
        with pytest.raises(Problem, match="is limited to") as refused:
            allowed.source("shop")
        assert refused.value.status == 403


def test_an_old_secret_and_an_expired_key_are_401_and_say_why(ask: Ask, tmp_path: Path) -> None:
    old = add_key(tmp_path, "web", ["produce"], sources=["web"])
    rotate_key(tmp_path, "web", 0)
    assert problem(ask(old, "GET", "/produce/orders/x")) == (401, "not-authorized")
    short = add_key(tmp_path, "short", ["produce"], sources=["web"], expires_s=-1)
    answer = ask(short, "GET", "/produce/orders/x")
    assert problem(answer) == (401, "not-authorized")
    assert "the key 'short' expired at" in answer.json()["detail"]


# ---- the short way of events -------------------------------------------------

REQUESTS: tuple[dict[str, Any], ...] = (
    {"content": b""},
    {"content": b"{"},
    {"content": b'{"a":1,"a":2}'},
    {"content": b"[1, 2]"},
    {"content": b"[]", "params": {"acks": "some"}},
    {"content": b"{}", "params": {"atomic": "perhaps"}},
    {"content": b"{}", "headers": {"Content-Encoding": "br"}},
    {"content": b"no gzip", "headers": {"Content-Encoding": "gzip"}},
    {"content": b'{"event_id": 7}\n{"event_time": "soon"}\n', "headers": {"Content-Type": "application/x-ndjson"}},
    {"content": b"{}", "headers": {"Authorization": "Bearer wrong"}},
    {"content": b'{"event_id": 7}', "headers": {"Origin": "http://elsewhere", "Authorization": "Basic YTpi"}},
    {"content": b"{" * 100},
    {"content": b"[" + b"{}," * 10_001 + b"{}]"},
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: str(request["content"][:20]))
def test_the_short_way_of_events_answers_as_the_route(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: dict[str, Any]
) -> None:
    taken = []

    async def note_and_store(self: DirectEvents, scope: Scope, receive: Receive, send: Send) -> None:
        taken.append(scope["path"] in self._sources)
        await serve(self, scope, receive, send)

    serve = DirectEvents.__call__
    monkeypatch.setattr(DirectEvents, "__call__", note_and_store)
    secret = add_key(tmp_path, "all", SCOPES)
    short = ask(secret, "POST", "/events/web", **request_)
    monkeypatch.setattr(DirectEvents, "__call__", lambda self, *rest: self._app(*rest))
    by_route = ask(secret, "POST", "/events/web", **request_)
    assert taken == [True]
    assert problem(short)[0] >= 400
    assert (short.status_code, short.headers, short.content) == (
        by_route.status_code,
        by_route.headers,
        by_route.content,
    )


def test_an_unforeseen_error_on_the_short_way_is_counted_and_answered_as_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("master_dataset.collector.events.check_writable", fail)
    secret = add_key(tmp_path, "all", SCOPES)
    app = create_app(load_settings(home=tmp_path, kafka_bootstrap="127.0.0.1:1"), declarations)

    async def send() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            return await client.post("/events/web", json={}), await client.get("/metrics")

    failed, metrics = asyncio.run(send())
    assert problem(failed) == (500, "bug")
    counted = next(line for line in metrics.text.splitlines() if 'status="500"' in line and "responses" in line)
    assert counted.endswith(" 1.0")
