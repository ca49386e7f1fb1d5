"""The surface as an attacker meets it: every route without a right key, secrets, injected texts, fuzzed requests.

A soak sends 10,000 requests to each group of routes, FUZZ_REQUESTS another number; the gate sends fewer. FUZZ_SEED
chooses other requests.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import httpx
import psutil
import pytest
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from hand_off.lag import KafkaEnd
from hand_off.speed_views import Outcome, SpeedViews
from infra.clients.redis import redis_client
from infra.home import Home
from infra.rest.access_keys import SCOPES, add_key, keys_file
from infra.settings import child_environment, load_settings
from master_dataset.collector.app import create_app as create_collector
from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import Evaluation, Transitions, open_journal
from serving_layer.alerts.notifications import notification_body
from serving_layer.alerts.tables.positions import FollowerPosition
from serving_layer.app import create_app as create_serving
from serving_layer.dashboard.files import read_files
from serving_layer.push.live_queries import NOT_LIVE
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from tests.serving_data import Place, Writer, end_of
from tests.system import fuzzed_doors, fuzzed_kafka
from tests.system.fuzzed_parts import (
    Credential,
    Request,
    basic,
    browser_headers,
    choose,
    is_foreign,
    make_credentials,
    with_packed_body,
)  # fmt: skip
from tests.tiers import times
from views.catalog.page_hits import page_hits
from views.catalog.page_latency import page_latency
from views.catalog.signups import signups
from views.catalog.top_pages import top_pages
from views.catalog.web import web
from views.declarations import declared_by
from views.in_memory import Event
from views.sample_events import generate
from views.view import View

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
FUZZED = int(os.environ.get("FUZZ_REQUESTS", times(150, 10_000)))
LIMITED_FUZZED = max(20, FUZZED // 5)
SEED = os.environ.get("FUZZ_SEED", "")
"""Other requests than usual."""
THREADS = 4
OPEN = {"/health", "/healthz", "/ready"}
"""What needs no key: it says nothing of anybody's data."""
OPEN_SERVING = {*OPEN, "/", "/docs", "/dashboard/{path:path}", "/session"}
"""The dashboard's files are the same for everybody; to sign in is to prove a key."""
OPEN_COLLECTOR = {*OPEN, "/openapi.json"}
"""The collector's description names no source and no topic."""
READING_SCHEMAS, WRITING_SCHEMAS = {"schema:read", "schema:write", "admin"}, {"schema:write", "admin"}
ALLOWED: dict[str, dict[str, set[str]]] = {
    "collector": {
        "/produce": {"produce"},
        "/produce/{topic}": {"produce"},
        "/produce/{topic}/{message:path}": {"produce"},
        "/events/{source}": {"produce"},
        "/cloudevents/{source}": {"produce"},
        "/v1/{call}": {"produce"},
        "/segment/{source}/v1/{call}": {"produce"},
        "/v1/logs": {"produce"},
        "/otlp/{source}/v1/logs": {"produce"},
        "/logs/w3c/{source}": {"produce"},
        **{
            f"{prefix}{path}{end}": {"produce"}
            for prefix in ("", "/posthog/{source}")
            for path in ("/batch", "/capture", "/e", "/i/v0/e", "/flags", "/decide")
            for end in ("", "/")
        },
        "/v3/clusters": {"produce", "consume", "admin"},
        "/v3/clusters/{cluster_id}": {"produce", "consume", "admin"},
        "/v3/clusters/{cluster_id}/topics/{topic}/records": {"produce"},
        "/transactions": {"produce"},
        "/transactions/{transaction}": {"produce"},
        "/transactions/{transaction}/produce": {"produce"},
        "/transactions/{transaction}/produce/{topic}": {"produce"},
        "/transactions/{transaction}/offsets": set(),  # produce and consume together
        "/transactions/{transaction}/commit": {"produce"},
        "/transactions/{transaction}/abort": {"produce"},
        "/fetch": {"consume"},
        "/offsets/{at}": {"consume"},
        "/consume/{group}/{instance}": {"consume"},
        "/consume/{group}/{instance}/{topic}": {"consume"},
        "/commit/{group}/{instance}": {"consume"},
        "/committed/{group}/{instance}": {"consume"},
        "/delete-consumer/{group}/{instance}": {"consume"},
        "/consumers": {"consume", "admin"},
        "/dead/{source}": {"consume"},
        "/dead/{source}/{number}": {"consume"},
        "/dead/{source}/replay": {"produce"},
        "/topics": {"produce", "consume", "admin"},
        "/admin/topics": {"admin"},
        "/admin/topics/{topic}": {"admin"},
        "/admin/groups": {"admin", "consume"},
        "/admin/groups/{group}": {"admin"},
        "GET /admin/groups/{group}": {"admin", "consume"},
        "/admin/groups/{group}/rewind": {"admin"},
        "/rest-proxy/topics": {"produce", "consume", "admin"},
        "/rest-proxy/topics/{topic}": {"produce", "consume", "admin"},
        "POST /rest-proxy/topics/{topic}": {"produce"},
        "/rest-proxy/topics/{topic}/partitions": {"produce", "consume", "admin"},
        "/rest-proxy/topics/{topic}/partitions/{partition}": {"produce", "consume", "admin"},
        "POST /rest-proxy/topics/{topic}/partitions/{partition}": {"produce"},
        "/rest-proxy/topics/{topic}/partitions/{partition}/offsets": {"produce", "consume", "admin"},
        "/rest-proxy/brokers": {"produce", "consume", "admin"},
        "/rest-proxy/consumers/{group}": {"consume"},
        **{
            f"/rest-proxy/consumers/{{group}}/instances/{{instance}}{path}": {"consume"}
            for path in (
                "",
                "/subscription",
                "/assignments",
                "/positions",
                "/positions/beginning",
                "/positions/end",
                "/records",
                "/offsets",
            )
        },
        "/schema-registry": READING_SCHEMAS,
        "/schema-registry/": READING_SCHEMAS,
        "/schema-registry/contexts": READING_SCHEMAS,
        "/schema-registry/schemas/types": READING_SCHEMAS,
        "/schema-registry/schemas": READING_SCHEMAS,
        "/schema-registry/schemas/ids/{id}": READING_SCHEMAS,
        "/schema-registry/schemas/ids/{id}/schema": READING_SCHEMAS,
        "/schema-registry/schemas/ids/{id}/subjects": READING_SCHEMAS,
        "/schema-registry/schemas/ids/{id}/versions": READING_SCHEMAS,
        "/schema-registry/schemas/guids/{guid}": READING_SCHEMAS,
        "/schema-registry/schemas/guids/{guid}/ids": READING_SCHEMAS,
        "/schema-registry/subjects": READING_SCHEMAS,
        "/schema-registry/subjects/{subject}": READING_SCHEMAS,
        "/schema-registry/subjects/{subject}/versions": READING_SCHEMAS,
        "/schema-registry/subjects/{subject}/versions/{version}": READING_SCHEMAS,
        "/schema-registry/subjects/{subject}/versions/{version}/schema": READING_SCHEMAS,
        "/schema-registry/subjects/{subject}/versions/{version}/referencedby": READING_SCHEMAS,
        "/schema-registry/compatibility/subjects/{subject}/versions": READING_SCHEMAS,
        "/schema-registry/compatibility/subjects/{subject}/versions/{version}": READING_SCHEMAS,
        "/schema-registry/config": READING_SCHEMAS,
        "/schema-registry/config/{subject}": READING_SCHEMAS,
        "/schema-registry/mode": READING_SCHEMAS,
        "/schema-registry/mode/{subject}": READING_SCHEMAS,
        "/schema-registry/{rest:path}": READING_SCHEMAS,
        "DELETE /schema-registry/subjects/{subject}": WRITING_SCHEMAS,
        "POST /schema-registry/subjects/{subject}/versions": WRITING_SCHEMAS,
        "DELETE /schema-registry/subjects/{subject}/versions/{version}": WRITING_SCHEMAS,
        "PUT /schema-registry/config": WRITING_SCHEMAS,
        "DELETE /schema-registry/config": WRITING_SCHEMAS,
        "PUT /schema-registry/config/{subject}": WRITING_SCHEMAS,
        "DELETE /schema-registry/config/{subject}": WRITING_SCHEMAS,
        "PUT /schema-registry/mode": WRITING_SCHEMAS,
        "DELETE /schema-registry/mode": WRITING_SCHEMAS,
        "PUT /schema-registry/mode/{subject}": WRITING_SCHEMAS,
        "DELETE /schema-registry/mode/{subject}": WRITING_SCHEMAS,
        "/metrics": {"metrics", "admin"},
    },
    "serving": {
        "/views": {"query", "admin"},
        "/views/{name}": {"query", "admin"},
        "/views/{name}/query": {"query", "admin"},
        "/views/{name}/live": {"query", "admin"},
        "/query": {"query", "admin"},
        "/sources": {"query", "admin"},
        "/sources/{name}": {"query", "admin"},
        "/schemas": READING_SCHEMAS,
        "/schemas/{subject:path}": READING_SCHEMAS,
        "/alerts": {"query", "admin"},
        "/alerts/history": {"query", "admin"},
        "/alerts/live": {"query", "admin"},
        "/watches": {"query", "admin"},
        "/watches/{name}/live": {"query", "admin"},
        "/openapi.json": {"query", "admin"},
        "/metrics": {"metrics", "admin"},
    },
}
"""Which scopes each route asks for, or one method of it. A route that is not here fails a test."""


def opened(server: str) -> set[str]:
    """The routes that need no key."""
    return OPEN_COLLECTOR if server == "collector" else OPEN_SERVING


class Asked(NamedTuple):
    """One request that a route is tried with."""

    server: str
    template: str
    method: str

    @property
    def path(self) -> str:
        filled = {"topic": "sec-none", "source": "none", "name": "page_hits", "at": "latest", "number": "0"}
        return re.sub(r"{(\w+)[^}]*}", lambda found: filled.get(found[1], "x"), self.template)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Collector and serving layer; of the events half are in a run, half in speed states. Two alerts have fired."""
    running = start_stack(
        tmp_path_factory.mktemp("security") / "home", serving_enabled=True, serving_max_wait_s=0.2,
        collector_max_consumers=20, serving_redis_timeout_s=10,  # a busy machine is no reason to be degraded
        examples=",".join(("web", *fuzzed_doors.SOURCES)),
    )  # fmt: skip
    try:
        fill(running)
        wait_until("both sides to be served", lambda: is_served(running))
        yield running
    finally:
        stop_stack(running)


FIRED = tuple(
    Episode(f"{alert}-1-0", alert, view, names, key, EpisodeState.FIRING, 0, 0, 1.0, 2.0, None, {})
    for alert, view, names, key in (
        ("fewer_hits", "page_hits", ("url",), ("/of-page-hits",)),
        ("slow_page", "page_latency", ("url",), ("/of-page-latency",)),
    )
)
"""Of two views; that of `page_hits` is told first."""


def fill(stack: Stack) -> None:
    """A run of every view, speed states since, and a journal of alerts."""
    place = Place(stack.settings.home, declared_by(stack.settings).views_of("web"))
    place.begin()
    with redis_client(stack.settings, stack.redis) as client:
        fill_both_sides(place, SpeedViews(client, "web"))
    journal = open_journal(stack.settings)
    bodies = tuple((each, notification_body(each, is_muted=False)) for each in FIRED)
    journal.commit(Evaluation("web", FollowerPosition({}, 1.0), 1.0, changed=FIRED, transitions=Transitions(bodies)))
    journal.close()
    fuzzed_kafka.prepare(stack)


def fill_both_sides(place: Place, speed_views: SpeedViews) -> None:
    """As they are after a batch run at half of the events, and when all of them are applied."""
    events = visits()
    end = end_of(events)
    writer = Writer(speed_views, place)
    writer.apply(events, {partition: offset // 2 for partition, offset in end.items()})
    cut = writer.open(1)
    place.publish(1, cut, events)
    assert speed_views.runs.publish(1, cut) == Outcome.OK
    writer.apply(events, end)
    assert speed_views.writer(writer.token).heartbeat(DAY_S, KafkaEnd(end, 0.0, end, 0.0)) == Outcome.OK


def visits() -> list[Event]:
    """Some hundred events of the last hours, with copies and nulls, and the texts of attackers among their keys."""
    return [visit(record.event) for record in generate(web, VISITS, 1, views=VIEWS)]


def visit(event: Event) -> Event:
    """The same for all copies of an event."""
    chance = random.Random(event.event_id)  # noqa: S311  repeatable, not secret
    at = SINCE + timedelta(seconds=chance.randrange(HOURS * 3600))
    properties = {
        **(event.fields.get("properties") or {}),
        "url": chance.choice([None, *URLS]),
        "ms": chance.choice(MS),
    }
    name = chance.choice(["page_view", "page_view", "request", "signup"])
    made = {**event.fields, "event_time": at, "name": name, "properties": properties}
    return replace(event, event_time=at, fields=made)


def is_served(stack: Stack) -> bool:
    """Whether answers are made of the run and of the speed states."""
    with stack.asking() as client:
        meta = client.get("/views/page_hits/query").raise_for_status().json()["meta"]
    return bool(meta["batch"]["read"] and meta["speed"] and meta["speed"]["read"] and not meta["degraded"])


@pytest.fixture(scope="module")
def secrets(attacked: Stack) -> dict[str, str]:
    return {scope: add_key(attacked.settings.home, f"only-{scope.replace(':', '-')}", [scope]) for scope in SCOPES}


@pytest.fixture(scope="module")
def routes(attacked: Stack) -> dict[str, list[BaseRoute]]:
    """All that the apps have, as they are made for this stack."""
    declared = declared_by(attacked.settings)
    collector, serving = create_collector(attacked.settings, declared), create_serving(attacked.settings, declared)
    return {"collector": list(_flat(collector.routes)), "serving": list(_flat(serving.routes))}


def _flat(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """With those of included routers, which FastAPI keeps as they were."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from _flat(included.routes)


def asked_of(routes: dict[str, list[BaseRoute]]) -> list[Asked]:
    """Every guarded route with every method."""
    return [
        Asked(server, route.path, method)
        for server, ours in routes.items()
        for route in ours
        if isinstance(route, Route) and route.path not in opened(server)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def address(stack: Stack, server: str) -> str:
    return stack.collector if server == "collector" else stack.serving


def status_of(stack: Stack, asked: Asked, **headers: str) -> tuple[int, str]:
    """Status and body; of an endless answer just the beginning."""
    with httpx.stream(asked.method, address(stack, asked.server) + asked.path, headers=headers, timeout=30) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, ""
        return answer.status_code, answer.read().decode()


# ---- keys ----------------------------------------------------------------------


def test_no_route_is_forgotten(routes: dict[str, list[BaseRoute]]) -> None:
    """A new route stands in the table of scopes, or among those that need no key."""
    for server, ours in routes.items():
        paths = {getattr(route, "path", repr(route)) for route in ours}
        assert paths - opened(server) == {name.rpartition(" ")[2] for name in ALLOWED[server]}
        assert all(isinstance(route, Route | WebSocketRoute) for route in ours), "nothing is mounted beside"


def test_every_route_refuses_who_has_no_key_or_the_wrong_scope(
    attacked: Stack, routes: dict[str, list[BaseRoute]], secrets: dict[str, str]
) -> None:
    tried = Counter[str]()
    for asked in asked_of(routes):
        nobody = (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic " + "A" * 5000},
            {"Authorization": ""},
        )
        for headers in nobody:
            status, body = status_of(attacked, asked, **headers)
            assert status == 401, (asked, headers)
            assert json.loads(body)["type"] == "urn:tidemark:problem:not-authorized"
            assert "page_hits" not in body.replace(asked.path, ""), "what there is is for those with a key"
            tried["no key"] += 1
        for scope, secret in secrets.items():
            status, body = status_of(attacked, asked, Authorization=f"Bearer {secret}")
            table = ALLOWED[asked.server]
            is_allowed = scope in table.get(f"{asked.method} {asked.template}", table[asked.template])
            assert (status not in (401, 403)) == is_allowed, (asked, scope, status, body)
            tried["scope"] += 1
    assert tried["no key"] > 100
    url = attacked.serving.replace("http", "ws") + "/views/page_hits/live"
    wrong = [None, "wrong", *(secret for scope, secret in secrets.items() if scope not in ("query", "admin"))]
    for given in wrong:
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers):
            pass
        assert refused.value.response.status_code in (401, 403)


def test_view_of_another_key_is_like_one_that_is_not_there(attacked: Stack) -> None:
    secret = add_key(attacked.settings.home, "signups-only", ["query"], views=["signups"])
    client = httpx.Client(base_url=attacked.serving, headers={"Authorization": f"Bearer {secret}"}, timeout=30)
    with client:
        assert [view["name"] for view in client.get("/views").json()["views"]] == ["signups"]
        for ending in ("", "/query", "/live", "/query?by=url&having=hits%20%3E%201"):
            theirs, none = (client.get(f"/views/{name}{ending}") for name in ("page_hits", "page_hats"))
            assert theirs.status_code == none.status_code == 403
            assert theirs.text.replace("page_hits", "X") == none.text.replace("page_hats", "X")
        several = client.post("/query", json={"questions": [{"view": "signups"}, {"view": "page_hits"}]})
        assert several.status_code >= 400
        assert "rows" not in several.json()
        described = client.get("/openapi.json").text
        assert "signups" in described
        assert not any(name in described for name in ("page_hits", "page_latency", "top_pages"))
        url = attacked.serving.replace("http", "ws") + "/views/page_hits/live"
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=dict(client.headers)):
            pass
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("seen", ["signups", "page_latency"])
def test_key_for_one_view_is_told_nothing_of_others_by_sources_alerts_and_watches(attacked: Stack, seen: str) -> None:
    """It sees the source of its view, of the runs its view alone, the alerts on it; and no watch that it does not name.

    Events are more than answers: a watch has to be among the names of the key itself.
    """
    declared = declared_by(attacked.settings)
    alerts = [alert.name for alert in declared.alerts.values() if alert.view.name == seen]
    others = {*declared.views, *declared.alerts, *declared.watches, "of-page-hits"} - {seen, *alerts}
    others |= {"of-page-latency"} if seen != "page_latency" else set()
    secret = add_key(attacked.settings.home, f"{seen}-alone", ["query"], views=[seen])
    with httpx.Client(base_url=attacked.serving, headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:
        paths = ("/sources", "/sources/web", "/alerts", "/alerts/history", "/watches")
        texts = {path: client.get(path).raise_for_status().text for path in paths}
        for path, text in texts.items():
            assert not [name for name in others if name in text], path
        answers = {path: json.loads(text) for path, text in texts.items()}
        assert [each["name"] for each in answers["/sources"]["sources"]] == ["web"]
        assert answers["/sources/web"]["views"] == [seen]
        assert [[view["name"] for view in run["views"]] for run in answers["/sources/web"]["runs"]] == [[seen]]
        assert [each["name"] for each in answers["/alerts"]["alerts"]] == alerts
        assert [each["alert"] for each in answers["/alerts/history"]["episodes"]] == alerts
        assert answers["/watches"] == {"watches": []}
        theirs, none = (client.get(f"/watches/{name}/live") for name in ("server_errors", "server_arrows"))
        assert theirs.status_code == none.status_code == 403
        assert theirs.text.replace("server_errors", "X") == none.text.replace("server_arrows", "X")
        url = attacked.serving.replace("http", "ws") + "/watches/server_errors/live"
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=dict(client.headers)):
            pass
        assert refused.value.response.status_code == 403


def test_alerts_of_another_view_are_not_pushed(attacked: Stack) -> None:
    """Both have fired, the other one first: who is told of the second was not told of the first."""
    secret = add_key(attacked.settings.home, "latency-live", ["query"], views=["page_latency"])
    headers = {"Authorization": f"Bearer {secret}", "Last-Event-ID": "0"}
    heard: list[str] = []
    with httpx.stream("GET", f"{attacked.serving}/alerts/live", headers=headers, timeout=30) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            heard.append(line)
            if "slow_page" in line:
                break
    assert "of-page-latency" in heard[-1]
    assert not any(name in line for name in ("page_hits", "fewer_hits", "of-page-hits") for line in heard)


def test_key_without_any_view_that_is_there_sees_no_source_and_one_that_names_a_watch_sees_that(
    attacked: Stack,
) -> None:
    nothing = add_key(attacked.settings.home, "of-nothing", ["query"], views=["no_such_view"])
    with httpx.Client(base_url=attacked.serving, headers={"Authorization": f"Bearer {nothing}"}, timeout=30) as client:
        assert client.get("/sources").json()["sources"] == client.get("/views").json()["views"] == []
        assert client.get("/alerts").json() == {"alerts": []}
        assert client.get("/alerts/history").json() == {"episodes": []}
        theirs, none = (client.get(f"/sources/{name}") for name in ("web", "wob"))
        assert theirs.status_code == none.status_code == 403
        assert theirs.text.replace("web", "X") == none.text.replace("wob", "X")
    watching = add_key(attacked.settings.home, "watching", ["query"], views=["signups", "server_errors"])
    with httpx.Client(base_url=attacked.serving, headers={"Authorization": f"Bearer {watching}"}, timeout=30) as client:
        assert [each["name"] for each in client.get("/watches").json()["watches"]] == ["server_errors"]


# ---- injection -----------------------------------------------------------------

TEXTS = [
    "'", '"', "`", "\\", "\0", "\r\nX-Injected: 1", "\u202e", "\ud800", "%", "%00", "{}", "{0.__class__}",
    "${jndi:ldap://x}",
    "' OR '1'='1", "1; DROP TABLE web; --", "1) UNION SELECT * FROM secrets", "*/", "a\nSET x 1\r\nFLUSHALL\r\n",
    "../../../../etc/passwd", "..%2f..%2faccess_keys.json", "/etc/passwd", "file:///etc/passwd", "C:\\x", ".", "..", "",
    "__import__('os').system('id')", "().__class__.__bases__", "java_method('java.lang.System', 'exit', 1)",
    "reflect('java.lang.Runtime', 'getRuntime')", "(select 1)", "hits > hits > hits", "hits in (select 1)",
    "(" * 20_000 + ")" * 20_000, "not " * 5_000 + "true", "hits > 1" + " and hits > 1" * 3_000, "9" * 5_000, "1e999999",
    "<script>alert(1)</script>", "a" * 20_000, "é" * 3_000, "NaN", "-9223372036854775809", "true", "null", "[[]]",
    "return redis.call('FLUSHALL')", "tidemark:{web}:epoch", "$(id)", "|id", "; id", "web\nINFO forged_line",
]  # fmt: skip
VISITS, HOURS, DAY_S = 400, 20, 24 * 3600
SINCE = datetime.now(UTC) - timedelta(hours=HOURS)
"""Less than a day ago: who names no range asks about all of it."""
URLS = [*(text for text in TEXTS if len(text) <= 5_000 and text != "\ud800"), "/", "/docs/a", "/docs/b", "=1+1", "-7"]
MS = [0.0, 0.1, 99.5, 100.0, 850.0, 1e300, -1.0, None]
VIEWS = (page_hits, page_latency, signups, top_pages)
PARAMETERS = (
    "from", "to", "grain", "tz", "by", "answers", "order", "limit", "cursor", "having", "window", "compare", "fill",
    "url", "url.prefix", "url.not", "format", "min_cut", "max_staleness", "wait", "explain", "every",
)  # fmt: skip
TELLTALE = re.compile(r"Traceback|File \"|site-packages|pyspark|root:x|\.py\b|/(?:home|tmp|root|usr)/|py4j|org\.apache")
"""What no answer to a client may say: how it is made inside, or where it lies."""


def as_text(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def check_answer(status: int, content_type: str, body: str, about: Any) -> None:
    assert status < 500, (status, body[:300], about)
    if status >= 400:
        assert content_type == "application/problem+json", (status, content_type, about)
        assert not TELLTALE.search(body), (body[:500], about)


def test_injected_texts_are_values_or_refused_everywhere(attacked: Stack) -> None:
    auth = ("admin", attacked.secret)
    with (
        httpx.Client(base_url=attacked.serving, auth=auth, timeout=60) as asking,
        httpx.Client(base_url=attacked.collector, auth=auth, timeout=60) as client,
    ):
        before = asking.get("/views").json()["views"]
        for text in TEXTS:
            written = as_text(text)
            short = written[:6000] if len(written) > 6000 else written
            for path in (f"/views/{short}", f"/views/{short}/query", f"/views/page_hits/query?{short}=1"):
                answer = asking.get(path)
                check_answer(answer.status_code, answer.headers["content-type"], _text(answer), (path[:80], text[:40]))
            for name in PARAMETERS:
                answer = asking.get(f"/views/page_hits/query?{name}={written[:60_000]}")
                check_answer(
                    answer.status_code, answer.headers.get("content-type", ""), _text(answer), (name, text[:40])
                )
                assert "x-injected" not in answer.headers
            for body in _bodies(text):
                answer = asking.post("/query", content=body)
                check_answer(answer.status_code, answer.headers["content-type"], _text(answer), body[:80])
            for method, path in (
                ("POST", f"/events/{short}"), ("GET", f"/fetch?topic={short}&timeout=0"), ("GET", f"/dead/{short}"),
                ("GET", f"/admin/topics/{short}"), ("GET", f"/admin/groups/{short}"), ("POST", f"/produce/{short}"),
                ("GET", f"/consume/{short}/x/{short}?timeout=0"), ("GET", f"/offsets/{short}?topic={short}"),
                ("GET", f"/committed/{short}/{short}"), ("DELETE", f"/admin/groups/{short}"),
            ):  # fmt: skip
                answer = client.request(method, path)
                check_answer(
                    answer.status_code, answer.headers.get("content-type", ""), _text(answer), (method, path[:80])
                )
            answer = client.post("/admin/topics", content=_dumps({"name": text, "partitions": 1}))
            check_answer(answer.status_code, answer.headers["content-type"], _text(answer), text[:80])
        assert asking.get("/views").json()["views"][0]["name"] == before[0]["name"], "it still answers"
        assert client.get("/ready").status_code == 200


def _text(answer: httpx.Response) -> str:
    return answer.content.decode(errors="replace")


def _dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


def _bodies(text: str) -> Iterator[bytes]:
    for name in ("view", "having", "tz", "cursor", "by", "from"):
        yield _dumps({"questions": [{"view": "page_hits", name: text}]})
    yield _dumps({"questions": [{"view": "page_hits", "filters": {"url": text}}]})
    yield _dumps({"view": "page_hits", text: text})


# ---- fuzz ----------------------------------------------------------------------

Maker = Callable[[random.Random], Request]


def _odd(chance: random.Random) -> str:
    match chance.randrange(6):
        case 0:
            return as_text(chance.choice(TEXTS))[:300]
        case 1:
            return "".join(f"%{byte:02x}" for byte in chance.randbytes(chance.randrange(1, 12)))
        case 2:
            return str(chance.choice([0, -1, 1, 2**31, 2**63, 2**64, 1.5, 1e308]))
        case 3:
            return chance.choice(
                ["page_hits", "web", "latest", "earliest", "hour", "url", "-hits", "hits", "-1h", "all"]
            )
        case 4:
            return as_text("".join(chr(chance.randrange(1, 0x2FFF)) for _ in range(chance.randrange(1, 9))))
    return ",".join(chance.choice(["a", "1", "url", "hits", "0:1", ""]) for _ in range(chance.randrange(4)))


def _json(chance: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: None, lambda: True, lambda: chance.randrange(-(2**65), 2**65), lambda: chance.uniform(-1e300, 1e300),
        lambda: chance.choice(TEXTS)[:200], lambda: chance.choice(["page_hits", "web", "hits", "url", "-1h", "now"]),
    ]  # fmt: skip
    if depth < 4:
        kinds += [
            lambda: [_json(chance, depth + 1) for _ in range(chance.randrange(4))],
            lambda: {chance.choice(NAMES): _json(chance, depth + 1) for _ in range(chance.randrange(5))},
        ] * 2
    return chance.choice(kinds)()


NAMES = [
    *PARAMETERS, "view", "questions", "filters", "value", "key", "topic", "topics", "partition", "offset", "name",
    "event_id", "event_time", "properties", "records", "messages", "headers", "timestamp", "numbers", "",
]  # fmt: skip


def _body(chance: random.Random) -> bytes:
    whole = _dumps(_json(chance))
    match chance.randrange(4):
        case 0:
            return whole[: chance.randrange(len(whole) + 1)]
        case 1:
            return chance.randbytes(chance.randrange(100))
    return whole


READING = ("limit", "topic", "partition", "offset", "group")
"""Of the collector, where who reads is kept waiting for as long as he says."""


def _query(chance: random.Random, names: tuple[str, ...]) -> str:
    given = [f"{chance.choice(names)}={_odd(chance)}" for _ in range(chance.randrange(4))]
    return "&".join([*given, "timeout=0"] if names is READING else given)


def _headers(chance: random.Random) -> dict[str, str]:
    if chance.random() < 0.7:
        return {}
    return {chance.choice(HEADERS): chance.choice(HEADER_VALUES)}


HEADERS = [
    "Accept", "Content-Type", "Content-Encoding", "If-None-Match", "Kafka-Auto-Offset-Reset", "Range", "Last-Event-ID",
    "Origin", "Sec-Fetch-Site", "Cookie", "X-Forwarded-Proto",
]  # fmt: skip
HEADER_VALUES = [
    "", "*/*", "text/csv", "application/json", "gzip", '"x"', "W/", "none", "a" * 3000, "é", "0", "1-1", "9" * 5000,
    "https://elsewhere", "tidemark_session=x", "-",
]  # fmt: skip


# ---- questions that can be answered, and are spoiled now and then ----

SPOILED = 0.25
GRAINS = {3600: ("all", "hour", "3h", "day"), DAY_S: ("all", "day", "week")}
WINDOWS = {"hour": "3h", "3h": "6h", "day": "2d", "week": "14d"}
NUMBERS: dict[str, list[str]] = {
    "page_hits": ["hits", "visitors"], "page_latency": ["requests", "slow", "slow_share"],
    "signups": ["visitors", "signups", "conversion", "first_signup"], "top_pages": ["hits"],
}  # fmt: skip
"""By what rows of a view can be sorted."""
HAVINGS = {
    "page_hits": ("hits > 0", "hits >= 2 or visitors > 1", "visitors is not null"),
    "page_latency": ("requests > 0", "p95_ms > 90 or slow_share < 0.5", "not (slow > requests)"),
    "signups": ("visitors >= 0", "conversion is null or conversion <= 1"),
    "top_pages": ("hits between 1 and 1000",),
}


def _fitting(chance: random.Random, left_out: Iterable[str] = ()) -> dict[str, Any]:
    """A question in JSON that fits a view and its events, with some of all the parameters that there are."""
    view = chance.choice(VIEWS)
    grain = chance.choice(GRAINS[view.bucket.seconds])
    by = [*view.keys] if chance.random() < 0.7 else []
    possible = {**_when(chance, grain), **_what(chance, view, by), **_how(chance)}
    taken = {name: value for name, value in possible.items() if value and chance.random() < 0.3}
    return {"view": view.name, "grain": grain, "by": by} | {
        name: value for name, value in taken.items() if name not in left_out
    }


def _when(chance: random.Random, grain: str) -> dict[str, Any]:
    hours = chance.randrange(HOURS - 1)
    start, end = (SINCE + timedelta(hours=each) for each in (hours, chance.randrange(hours + 1, HOURS + 1)))
    return {
        "from": chance.choice([start.isoformat(), f"{start.timestamp() * 1000:.0f}", f"-{HOURS - hours}h", "-2d"]),
        "to": chance.choice([end.isoformat(), "now"]),
        "tz": chance.choice(["UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kolkata"]),
        "window": WINDOWS.get(grain),
        "compare": "previous_period",
        "fill": "zero",
    }


def _what(chance: random.Random, view: View, by: list[str]) -> dict[str, Any]:
    numbers = NUMBERS[view.name]
    others = [name for name in view.answers if name not in numbers]
    return {
        "answers": [*numbers, *chance.sample(others, chance.randrange(len(others) + 1))],
        "order": [chance.choice(["", "-"]) + chance.choice(["bucket", *by, *numbers, *numbers])],
        "having": chance.choice(HAVINGS[view.name]),
        "quantiles": [0.1, 0.999] if view is page_latency else None,
        "filters": {"url": _filter(chance)} if "url" in view.keys else None,
    }


def _filter(chance: random.Random) -> dict[str, Any]:
    """On the key of most views, with values that it has."""
    some = chance.sample(URLS, chance.randrange(1, 9))
    return chance.choice([{"is": some}, {"not": some}, {"prefix": [some[0][:1]]}, {"null": chance.random() < 0.5}])


def _how(chance: random.Random) -> dict[str, Any]:
    return {
        "limit": chance.choice([1, 2, 5, 1000]),
        "explain": True,
        "format": chance.choice(["json", "ndjson", "csv"]),
        "min_cut": {"0": 1},
        "max_staleness": "2d",
        "wait": "100ms",
    }


def _pairs(question: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The same as a query string has it."""
    for name, value in question.items():
        if name == "filters":
            yield from _filter_pairs(value)
        elif name != "view":
            yield name, ",".join(map(str, value)) if isinstance(value, list) else _written(value)


def _filter_pairs(filters: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for key, conditions in filters.items():
        for kind, values in conditions.items():
            for value in values if isinstance(values, list) else [values]:
                yield key if kind == "is" else f"{key}.{kind}", _written(value)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _asking(ending: str, question_of: Callable[[random.Random], dict[str, Any]]) -> Maker:
    """A question of a view by GET; now and then one of its parameters is another, with an odd value."""

    def make(chance: random.Random) -> Request:
        question = question_of(chance)
        given = [f"{name}={as_text(value)}" for name, value in _pairs(question)]
        if chance.random() < SPOILED:
            given[chance.randrange(len(given))] = f"{chance.choice(PARAMETERS)}={_odd(chance)}"
        return "GET", f"/views/{question['view']}/{ending}?{'&'.join(given)}", None, _headers(chance)

    return make


def _fitting_live(chance: random.Random) -> dict[str, Any]:
    return _fitting(chance, (*NOT_LIVE, "format"))


def _posting(question_of: Callable[[random.Random], dict[str, Any]]) -> Maker:
    """The same by POST, one or several; only one alone may ask for another format than JSON."""

    def make(chance: random.Random) -> Request:
        asked = [question_of(chance) for _ in range(chance.randrange(1, 4))]
        if chance.random() < SPOILED:
            asked[0] |= {chance.choice(PARAMETERS): _json(chance, 2)}
        if len(asked) == 1:
            return "POST", "/query", _dumps(asked[0]), _headers(chance)
        several = [{name: each[name] for name in each if name != "format"} for each in asked]
        return "POST", "/query", _dumps({"questions": several}), _headers(chance)

    return make


def _page_of(pages: list[dict[str, Any]]) -> Callable[[random.Random], dict[str, Any]]:
    """The second page of an answer, as long as it likes; now and then somebody had his hands on the cursor."""

    def question(chance: random.Random) -> dict[str, Any]:
        found = {**chance.choice(pages), "limit": chance.choice([1, 2, 5, 1000])}
        return found | ({"cursor": _forged(chance, found["cursor"])} if chance.random() < SPOILED else {})

    return question


def _forged(chance: random.Random, cursor: str) -> str:
    """A cursor with one part of it, or one value of its position, that is another."""
    parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    among = chance.choice([parts, parts[-1]])
    among[chance.randrange(len(among))] = _json(chance, 2)
    return base64.urlsafe_b64encode(_dumps(parts)).rstrip(b"=").decode()


def _of(method: str, template: str, names: tuple[str, ...] = READING) -> Maker:
    def make(chance: random.Random) -> Request:
        path = re.sub(r"{\w+}", lambda _found: _odd(chance) or "x", template)
        body = _body(chance) if method in ("POST", "PATCH", "PUT") else None
        return method, f"{path}?{_query(chance, names)}", body, _headers(chance)

    return make


def _by_websocket(make: Maker) -> Maker:
    """The same as the handshake of a WebSocket; who is let in is answered 101."""

    def upgraded(chance: random.Random) -> Request:
        method, path, body, headers = make(chance)
        return method, path, body, {**headers, **HANDSHAKE}

    return upgraded


def _coming_back(template: str) -> Maker:
    """To what is pushed, with an id that it is said to have told last."""

    def make(chance: random.Random) -> Request:
        method, path, body, _ = _of("GET", template, PARAMETERS)(chance)
        return method, path.partition("?")[0], body, {"Last-Event-ID": chance.choice(HEADER_VALUES)}

    return make


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
}


def _signing_in(chance: random.Random) -> Request:
    """A body of the right shape: names and secrets that nobody has."""
    given = {"name": chance.choice(["admin", *TEXTS])[:500], "secret": chance.choice(TEXTS)[:500]}
    return "POST", "/session", _dumps(given), _headers(chance)


def _forging(chance: random.Random) -> Request:
    """What only Tidemark writes: dead letters, alerts, feeds, and the headers of dead letters."""
    topic = chance.choice(["web.dead", "tidemark.alerts", "tidemark.feed.x", "web", "any.dead", "__consumer_offsets"])
    names = [chance.choice(["tidemark-version", "Tidemark-Reason", "trace", "tidemark-too-large"]) for _ in range(3)]
    headers = [{"key": name, "value": chance.choice(["1", "9" * 30, "x", "-1"])} for name in names]
    message = {"topic": topic, "value": "forged", "headers": headers}
    if chance.random() < 0.5:
        return "POST", "/produce", _dumps(chance.choice([message, [{"topic": "web", "value": "x"}, message]])), {}
    return "POST", f"/produce/{topic}", _dumps({"value": "forged", "headers": headers}), {}


def _out_of_the_dashboard(chance: random.Random) -> Request:
    """Upwards, in every spelling, to files that are there."""
    steps = "".join(chance.choice(UPWARDS) for _ in range(chance.randrange(1, 9)))
    return "GET", f"/dashboard/{chance.choice(['', 'app/', '/'])}{steps}{chance.choice(AIMS)}", None, _headers(chance)


UPWARDS = (
    "../",
    "..%2f",
    "%2e%2e/",
    "%2e%2e%2f",
    "..%5c",
    "..\\",
    "....//",
    "..;/",
    "%252e%252e%252f",
    "/",
    "./",
    "%00",
)
AIMS = ("etc/passwd", "access_keys.json", "files.py", "app.py", "index.html", "static/index.html", "", "%00.js")


def _several(chance: random.Random) -> Request:
    """Questions of the right shape, with odd values here and there."""
    asked = [
        {"view": "page_hits", **{chance.choice(PARAMETERS): _json(chance, 2) for _ in range(chance.randrange(3))}}
        for _ in range(chance.randrange(1, 4))
    ]
    return "POST", "/query", _dumps({"questions": asked} if chance.random() < 0.9 else asked[0]), {}


POSTHOG = tuple(
    f"{path}{end}" for path in ("/batch", "/capture", "/e", "/i/v0/e", "/flags", "/decide") for end in ("", "/")
)
DOORS = (
    "/v1/logs", "/v1/batch", "/v1/{x}", "/segment/{s}/v1/{x}", "/otlp/{s}/v1/logs", "/logs/w3c/web", "/logs/w3c/{s}",
    "/segment/web/v1/track", "/posthog/web/batch/", "/cloudevents/web", "/cloudevents/{s}",
)  # fmt: skip
OF_DOORS = ("application/json", "application/x-protobuf", "application/cloudevents+json",
            "application/cloudevents-batch+json", "text/plain")  # fmt: skip


def _by_door(path: str) -> Maker:
    """With the Content-Types and the headers of other protocols; now and then with a key in the body."""

    def make(chance: random.Random) -> Request:
        method, path_, body, headers = _of("POST", path, ("origin", "id_scope"))(chance)
        headers = {**headers, "Content-Type": chance.choice(OF_DOORS)}
        if chance.random() < 0.3:
            headers |= {f"ce-{name}": chance.choice(["1.0", "%ff", "x", '"'])
                        for name in ("specversion", "id", "source", "type", "x")}  # fmt: skip
        if chance.random() < 0.2:
            body = _dumps({chance.choice(["api_key", "writeKey", "token"]): chance.choice(TEXTS), "batch": [{}]})
        return method, path_, body, headers

    return make


V2_INSTANCE = "/consumers/{g}/instances/{i}"
REST_PROXY_V2 = [
    ("GET", "/topics"), ("GET", "/brokers"),
    *((method, f"/topics/{{t}}{path}") for path in ("", "/partitions/{p}") for method in ("GET", "POST")),
    ("GET", "/topics/{t}/partitions"), ("GET", "/topics/{t}/partitions/{p}/offsets"), ("POST", "/consumers/{g}"),
    ("DELETE", V2_INSTANCE), *((each, f"{V2_INSTANCE}/subscription") for each in ("GET", "POST", "DELETE")),
    *((each, f"{V2_INSTANCE}/{path}") for path in ("assignments", "offsets") for each in ("GET", "POST")),
    *(("POST", f"{V2_INSTANCE}/positions{path}") for path in ("", "/beginning", "/end")),
    ("GET", f"{V2_INSTANCE}/records"),
]  # fmt: skip

GROUPS: dict[str, list[Maker]] = {
    "collector doors": [_by_door(path) for path in (*DOORS, *POSTHOG, *(f"/posthog/{{s}}{path}" for path in POSTHOG))]
    + [
        each(_json)
        for each in (
            fuzzed_doors.cloudevents, fuzzed_doors.segment, fuzzed_doors.posthog, fuzzed_doors.otlp, fuzzed_doors.w3c,
        )
    ] * 12,
    "collector produce": [
        _of("POST", "/produce"), _of("GET", "/produce"), _of("POST", "/produce/{t}"), _of("GET", "/produce/{t}"),
        _of("GET", "/produce/{t}/{v}"), _forging,
    ],
    "collector events": [_of("POST", "/events/web"), _of("POST", "/events/{s}")],
    "collector read": [
        _of("GET", "/fetch"), _of("POST", "/fetch"), _of("GET", "/offsets/{at}"), _of("POST", "/offsets/latest"),
    ],
    "collector consume": [
        _of("GET", "/consume/{g}/{i}"), _of("POST", "/consume/{g}/{i}"), _of("GET", "/consume/{g}/{i}/{t}"),
        _of("POST", "/consume/{g}/{i}/{t}"), _of("GET", "/commit/{g}/{i}"), _of("POST", "/commit/{g}/{i}"),
        _of("GET", "/committed/{g}/{i}"), _of("POST", "/committed/{g}/{i}"), _of("GET", "/delete-consumer/{g}/{i}"),
        _of("POST", "/delete-consumer/{g}/{i}"), _of("DELETE", "/delete-consumer/{g}/{i}"), _of("GET", "/consumers"),
    ],
    "collector rest proxy": [
        _of("GET", "/v3/clusters"), _of("GET", "/v3/clusters/{c}"), _of("POST", "/v3/clusters/{c}/topics/{t}/records"),
    ],
    "collector rest proxy v2": [
        *(_of(method, f"/rest-proxy{path}") for method, path in REST_PROXY_V2),
        *[fuzzed_kafka.v2_produce(_json)] * 20, *[fuzzed_kafka.v2_consume(_json)] * 40,
        *[fuzzed_kafka.v2_metadata(_json)] * 10,
    ],
    "collector transactions": [
        _of("POST", "/transactions"), _of("GET", "/transactions/{x}"), _of("POST", "/transactions/{x}/produce"),
        _of("POST", "/transactions/{x}/produce/{t}"), _of("POST", "/transactions/{x}/offsets"),
        _of("POST", "/transactions/{x}/commit"), _of("POST", "/transactions/{x}/abort"),
    ],
    "collector dead letters": [_of("GET", "/dead/{s}"), _of("GET", "/dead/web/{n}"), _of("POST", "/dead/{s}/replay")],
    "collector admin": [
        _of("GET", "/admin/topics/{t}"), _of("POST", "/admin/topics"), _of("PATCH", "/admin/topics/nosuch{t}"),
        _of("DELETE", "/admin/topics/nosuch{t}"), _of("GET", "/admin/groups/{g}"), _of("GET", "/topics"),
        _of("DELETE", "/admin/groups/nosuch{g}"), _of("GET", "/admin/groups"), _of("POST", "/admin/groups/{g}/rewind"),
        *[fuzzed_kafka.rewinding(_json)] * 3,
    ],
    "collector schemas": [
        _of("GET", "/schema-registry"), _of("GET", "/schema-registry/"), _of("GET", "/schema-registry/contexts"),
        _of("GET", "/schema-registry/schemas/types"), _of("GET", "/schema-registry/schemas"),
        _of("GET", "/schema-registry/schemas/ids/{i}"), _of("GET", "/schema-registry/schemas/ids/{i}/schema"),
        _of("GET", "/schema-registry/schemas/ids/{i}/subjects"),
        _of("GET", "/schema-registry/schemas/ids/{i}/versions"), _of("GET", "/schema-registry/schemas/guids/{g}"),
        _of("GET", "/schema-registry/schemas/guids/{g}/ids"), _of("GET", "/schema-registry/subjects"),
        _of("GET", "/schema-registry/subjects/{s}/versions"),
        _of("GET", "/schema-registry/subjects/{s}/versions/{v}"),
        _of("GET", "/schema-registry/subjects/{s}/versions/{v}/schema"),
        _of("GET", "/schema-registry/subjects/{s}/versions/{v}/referencedby"), _of("GET", "/schema-registry/config"),
        _of("GET", "/schema-registry/config/{s}"), _of("GET", "/schema-registry/mode"),
        _of("GET", "/schema-registry/mode/{s}"), _of("GET", "/schema-registry/{x}"),
        _of("POST", "/schema-registry/subjects/{s}"), _of("POST", "/schema-registry/subjects/{s}/versions"),
        _of("POST", "/schema-registry/compatibility/subjects/{s}/versions"),
        _of("POST", "/schema-registry/compatibility/subjects/{s}/versions/{v}"), _of("POST", "/schema-registry/{x}"),
        _of("PUT", "/schema-registry/config"), _of("PUT", "/schema-registry/config/{s}"),
        _of("PUT", "/schema-registry/mode/{s}"), _of("PUT", "/schema-registry/mode"),
        _of("PUT", "/schema-registry/{x}"), _of("DELETE", "/schema-registry/subjects/{s}"),
        _of("DELETE", "/schema-registry/subjects/{s}/versions/{v}"), _of("DELETE", "/schema-registry/config"),
        _of("DELETE", "/schema-registry/config/{s}"), _of("DELETE", "/schema-registry/mode"),
        _of("DELETE", "/schema-registry/mode/{s}"), _of("DELETE", "/schema-registry/{x}"),
        *[fuzzed_kafka.registering(_json)] * 40,
    ],
    "collector description": [
        _of("GET", "/openapi.json"), _of("GET", "/metrics"), _of("GET", "/health"), _of("GET", "/healthz"),
        _of("GET", "/ready"), _of("POST", "/{x}"),
    ],
    "serving query": [
        _of("GET", "/views/page_hits/query", PARAMETERS), _of("GET", "/views/{v}/query", PARAMETERS),
        _asking("query", _fitting), _asking("query", _fitting),
    ],
    "serving several": [_of("POST", "/query", PARAMETERS), _several, _posting(_fitting), _posting(_fitting)],
    "serving live": [
        _of("GET", "/views/page_hits/live", PARAMETERS), _of("GET", "/views/{v}/live", PARAMETERS),
        _asking("live", _fitting_live), _asking("live", _fitting_live),
    ],
    "serving alerts and watches": [
        _of("GET", "/alerts", PARAMETERS), _of("GET", "/alerts/history", ("limit",)),
        _of("GET", "/alerts/history", PARAMETERS), _of("GET", "/alerts/live", PARAMETERS),
        _of("GET", "/watches", PARAMETERS), _of("GET", "/watches/{w}/live", PARAMETERS),
        _of("GET", "/watches/server_errors/live", PARAMETERS), _coming_back("/alerts/live"),
        _coming_back("/watches/server_errors/live"),
    ],
    "serving by WebSocket": [
        _by_websocket(_of("GET", path, PARAMETERS))
        for path in (
            "/views/page_hits/live", "/views/{v}/live", "/alerts/live", "/watches/server_errors/live",
            "/watches/{w}/live", "/{x}",
        )
    ]
    + [_by_websocket(_coming_back("/alerts/live")), _by_websocket(_coming_back("/watches/server_errors/live"))]
    + [_by_websocket(_asking("live", _fitting_live))] * 4,
    "serving dashboard": [
        _of("GET", "/", PARAMETERS), _of("GET", "/docs", PARAMETERS), _of("GET", "/dashboard/{p}", PARAMETERS),
        _of("GET", "/session", PARAMETERS), _of("POST", "/session", PARAMETERS), _signing_in,
        _of("DELETE", "/session", PARAMETERS), _out_of_the_dashboard,
    ],
    "serving description": [
        _of("GET", "/views", PARAMETERS), _of("GET", "/views/{v}", PARAMETERS), _of("GET", "/openapi.json", PARAMETERS),
        _of("GET", "/sources", PARAMETERS), _of("GET", "/sources/web", PARAMETERS),
        _of("GET", "/sources/{s}", PARAMETERS), _of("GET", "/metrics", PARAMETERS), _of("GET", "/health", PARAMETERS),
        _of("GET", "/ready", PARAMETERS), _of("POST", "/{x}", PARAMETERS),
    ],
    "serving schemas": [
        _of("GET", "/schemas", ("version", "compared")), _of("GET", "/schemas/{s}", ("version", "compared")),
        fuzzed_kafka.schema_pages(_json), fuzzed_kafka.schema_pages(_json),
    ],
}  # fmt: skip
PAGING: dict[str, Callable[[list[dict[str, Any]]], Maker]] = {
    "serving query": lambda pages: _asking("query", _page_of(pages)),
    "serving several": lambda pages: _posting(_page_of(pages)),
}
"""Of these groups one request more is made: for a page after one that was given."""
KNOWING: dict[str, Callable[[Stack], Maker]] = {
    "collector rest proxy": lambda stack: fuzzed_kafka.v3_produce(stack, _json),
    "collector transactions": lambda stack: fuzzed_kafka.OpenTransactions(stack, _json),
}
"""Of these groups half of the requests name what only the stack knows: its cluster, transactions that are open."""
LIVE_ROWS = {"from", "to", "tz", "by", "order", "limit", "having", "window", "compare", "fill", "explain", "answers"}
ONE_ROWS = {*LIVE_ROWS, "cursor", "format", "min_cut", "max_staleness"}
WITH_ROWS = {
    "serving query": ONE_ROWS,
    "serving several": ONE_ROWS,
    "serving live": LIVE_ROWS,
    "serving by WebSocket": LIVE_ROWS,
}
"""Groups of which many requests are answered with rows, and parameters that are each among these."""
ROWS = re.compile(rb'"rows":\[\{|\A\{"bucket"|\Abucket[^\n]*\n.', re.DOTALL)
"""In JSON, NDJSON and CSV: a row."""
ENOUGH = 0.1
"""So large a part of the requests of such a group has rows at least."""
EXCUSED = {"stale"}
"""What is asked for by name (max_staleness), and is not so: nobody looks any more how far Kafka is."""
TOLD = re.compile(rb"event: problem\ndata: (.*)\n")
FAILED_LINE = re.compile(rb'"error_code":5\d\d[,}]')
"""Of REST Proxy v3, which has answered 200 when it comes to a record."""
MOST_READ = 65_536


def routed(routes: Iterable[BaseRoute], request: Request) -> tuple[str, str] | None:
    """The path and the method of the route that would get a request; of a WebSocket the method is its own."""
    method, path, _, headers = request
    kind = "websocket" if "Upgrade" in headers else "http"
    asked = {"type": kind, "method": method, "path": unquote(path.partition("?")[0]), "headers": [], "root_path": ""}
    for route in routes:
        if isinstance(route, Route | WebSocketRoute) and route.matches(asked)[0] is Match.FULL:
            return route.path, method if isinstance(route, Route) else "websocket"
    return None


def test_every_route_is_fuzzed_with_every_method(routes: dict[str, list[BaseRoute]]) -> None:
    """As the router itself takes what the makers make: a new route fails until a group reaches it."""
    for server, ours in routes.items():
        there = {
            (route.path, method)
            for route in ours
            if isinstance(route, Route | WebSocketRoute)
            for method in ((route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"websocket"})
        }
        reached = {
            routed(ours, make(random.Random(seed)))  # noqa: S311  repeatable, not secret
            for group, makers in GROUPS.items()
            if group.startswith(f"{server} ")
            for make in makers
            for seed in range(50)
        }
        assert there - reached == set(), server


def read_some(answer: http.client.HTTPResponse, path: str) -> tuple[int, bytes]:
    """Status and body; of an endless answer how it begins, and the status of a problem that it begins with."""
    is_view = path.startswith("/views/")
    if answer.status == 101:
        return answer.status, read_frame(answer.fp) if is_view else b""
    if not answer.getheader("content-type", "").startswith("text/event-stream"):
        return answer.status, answer.read()
    # First comes how soon to come back; after that what a view answers now, and of alerts and watches what happens.
    said = b""
    while said.count(b"\n\n") < (2 if is_view else 1) and (more := answer.read1(MOST_READ)):
        said += more
    problem = TOLD.search(said)
    return (int(json.loads(problem[1])["status"]), problem[1]) if problem else (answer.status, said)


def read_frame(of: BinaryIO) -> bytes:
    """What a WebSocket says first."""
    length = of.read(2)[1]
    wide = {126: 2, 127: 8}.get(length)
    return of.read(int.from_bytes(of.read(wide)) if wide else length)


def is_excused(said: bytes, request: Request) -> bool:
    _, path, body, _ = request
    try:
        is_known = str(json.loads(said)["type"]).rpartition(":")[2] in EXCUSED
    except (ValueError, LookupError, TypeError):
        return False
    return is_known and b"max_staleness" in path.encode() + (body or b"")


class Heard(NamedTuple):
    """What a request was answered. `wrong`: what it should not have said, or nothing."""

    status: int
    named: frozenset[str]
    has_rows: bool
    wrong: tuple[Any, ...]


def named_in(request: Request) -> frozenset[str]:
    """Which parameters a request has."""
    _, path, body, _ = request
    query = [each.partition("=")[0] for each in path.partition("?")[2].split("&")]
    return frozenset(name for name in PARAMETERS if name in query or f'"{name}":'.encode() in (body or b""))


def varied(chance: random.Random, request: Request, netloc: str) -> Request:
    """The request, sometimes with a packed body, sometimes with what browsers add. A handshake gets no body."""
    if chance.random() < (0.3 if request[2] is not None else 0.05) and "Upgrade" not in request[3]:
        request = with_packed_body(chance, request)
    method, path, body, headers = request
    return method, path, body, {**headers, **browser_headers(chance, netloc)} if chance.random() < 0.2 else headers


def heard(
    netloc: str, request: Request, key: Credential, *, is_open: bool = False, hidden: Iterable[bytes] = ()
) -> Heard:
    """Send one request with a key, and look at what comes back.

    `is_open`: the route needs no key. `hidden`: what no answer to this key may say.
    """
    method, path, body, headers = request
    sent = {name: value.encode() for name, value in {**headers, **key.headers}.items()}
    with closing(http.client.HTTPConnection(netloc, timeout=60)) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # it was refused before all of the body was there
            connection.request(method, path, body, sent)
        try:
            answer = connection.getresponse()
            status, said = read_some(answer, path)
        except TimeoutError:
            return Heard(0, named_in(request), has_rows=False, wrong=("was not answered", request))
    whole = str(answer.getheaders()).encode() + said
    told = {key.secret, key.headers.get("Authorization", "").partition(" ")[2]} if key.secret else set()
    is_change = method not in ("GET", "HEAD")
    reasons = {
        "failed": (status >= 500 and not is_excused(said, request)) or FAILED_LINE.search(said) is not None,
        "tells how it is made": status >= 400 and TELLTALE.search(said.decode(errors="replace")) is not None,
        "tells the secret": any(each and each.encode() in whole for each in told),
        "tells of others": status < 400 and any(each in said for each in hidden),
        "needs no key": status < 400 and key.is_valid is False and not is_open,
        "refuses a valid key": status == 401 and key.is_valid is True and not is_open,
        "changed by a page of others": status < 400
        and is_change
        and key.is_sent_by_browsers
        and is_foreign(headers, netloc),
    }
    wrong = [reason for reason, is_so in reasons.items() if is_so]
    has_rows = status < 300 and ROWS.search(said) is not None
    return Heard(status, named_in(request), has_rows, (wrong, status, request, key, said[:500]) if wrong else ())


@pytest.fixture(scope="module")
def pages(attacked: Stack) -> list[dict[str, Any]]:
    """Questions that were answered with more than a page, each with the cursor of the next one."""
    chance = random.Random("pages")  # noqa: S311  repeatable, not secret
    found = []
    with attacked.asking() as client:
        for _ in range(100):
            question = {**_fitting(chance, ["format"]), "limit": chance.choice([1, 2, 5])}
            answer = client.post("/query", content=_dumps(question))
            if answer.status_code == 200 and answer.json()["next"]:
                found.append({**question, "cursor": answer.json()["next"]})
    assert len(found) > 20
    return found


@pytest.fixture(scope="module")
def credentials(attacked: Stack) -> list[Credential]:
    return make_credentials(attacked)


@pytest.mark.parametrize("group", GROUPS)
def test_fuzzed_requests_are_answered_or_refused(
    attacked: Stack,
    pages: list[dict[str, Any]],
    credentials: list[Credential],
    routes: dict[str, list[BaseRoute]],
    group: str,
) -> None:
    """With packed bodies, headers of browsers and credentials of every kind among their parts."""
    chance, server = random.Random(f"{group}{SEED}"), group.partition(" ")[0]  # noqa: S311  repeatable, not secret
    netloc, admin = urlsplit(address(attacked, server)).netloc, basic("admin", "admin", attacked.secret)
    makers = [*GROUPS[group], *([PAGING[group](pages)] if group in PAGING else [])]
    makers += [KNOWING[group](attacked)] * len(makers) if group in KNOWING else []

    def ask(seed: float) -> tuple[Credential, Heard]:
        dice = random.Random(seed)  # noqa: S311  likewise
        request, key = varied(dice, dice.choice(makers)(dice), netloc), choose(dice, admin, credentials)
        route = routed(routes[server], request)
        is_open = route is None or route[0] in opened(server)
        return key, heard(netloc, request, key, is_open=is_open)

    with ThreadPoolExecutor(THREADS) as threads:
        answered = [*threads.map(ask, [chance.random() for _ in range(FUZZED)])]
    answers = [answer for _, answer in answered]
    seen = Counter(each.status for each in answers)
    wrong = [each.wrong for each in answers if each.wrong]
    rows = [each for each in answers if each.has_rows and group in WITH_ROWS]
    print(f"{group}: {FUZZED} requests, {dict(sorted(seen.items()))}, with rows: {len(rows)}")
    for kind in sorted({key.kind for key, _ in answered}):
        print(f"  {kind}: {dict(sorted(Counter(each.status for key, each in answered if key.kind == kind).items()))}")
    assert wrong == [], (len(wrong), wrong[:3])
    assert seen.keys() - {401, 404, 405}, f"nobody looked at what was asked: {seen}"
    if group in WITH_ROWS:
        assert len(rows) >= ENOUGH * FUZZED, "hardly a question was about something that is there"
        missing = WITH_ROWS[group].difference(*(each.named for each in rows))
        assert not missing or FUZZED < 150, f"no rows where these were asked for: {missing}"
    assert httpx.get(f"{address(attacked, server)}/health").status_code == 200


LIMITED = {
    "nothing": {"sources": ["none_such"], "topics": ["none_*"], "views": ["none_*"]},
    "one topic": {"topics": ["any.thing"]},
}
"""Keys that are limited to what is not there."""
MAKES_CONSUMER = re.compile(r"/rest-proxy/consumers/[^/]*")
"""Its answer repeats the names that the request gives, whatever they are."""
OF_OTHERS = (b"page_hits", b"page_latency", b"top_pages", b"signups", b"server_errors", b'"web"', b'"rows":[{')


def hidden_from(request: Request) -> tuple[bytes, ...]:
    """What the answer to a request with a limited key may not say."""
    method, path, _, _ = request
    is_echo = method == "POST" and MAKES_CONSUMER.fullmatch(path.partition("?")[0])
    return () if is_echo else OF_OTHERS


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "serving dashboard"])
@pytest.mark.parametrize("limits", LIMITED)
def test_fuzzed_requests_with_a_limited_key_read_and_write_nothing_of_others(
    attacked: Stack, limits: str, group: str
) -> None:
    """Whatever is asked by whatever door, in whatever order: a limited key gets nothing that others have."""
    chance, name = random.Random(f"{limits} {group}"), f"limited-{limits}-{group}".replace(" ", "-")  # noqa: S311
    scopes = [scope for scope in SCOPES if scope not in ("metrics", "admin")]  # those measure and manage everything
    secret = add_key(attacked.settings.home, name, scopes, **LIMITED[limits])  # type: ignore[arg-type]
    netloc = urlsplit(address(attacked, group.partition(" ")[0])).netloc
    asked = [varied(chance, chance.choice(GROUPS[group])(chance), netloc) for _ in range(LIMITED_FUZZED)]
    with ThreadPoolExecutor(THREADS) as threads:
        key = basic(limits, name, secret)
        answers = [*threads.map(lambda request: heard(netloc, request, key, hidden=hidden_from(request)), asked)]
    wrong = [each.wrong for each in answers if each.wrong]
    assert wrong == [], (len(wrong), wrong[:3])
    if group == "collector produce":
        assert [status for status in Counter(each.status for each in answers) if status < 400] == []


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"/views/page_hits/live?url={'a' * 9_000}", {}, 414),
        ("/views/page_hits/live", {"X-Long": "a" * 9_000}, 431),
        ("/views/page_hits/live", {f"X-{number}": "a" for number in range(200)}, 431),
    ],
    ids=["address", "header", "headers"],
)
def test_handshake_that_is_too_long_is_refused_and_not_kept_waiting(
    attacked: Stack, path: str, headers: dict[str, str], status: int
) -> None:
    with closing(http.client.HTTPConnection(urlsplit(attacked.serving).netloc, timeout=30)) as connection:
        connection.request("GET", path, headers={**HANDSHAKE, **headers})
        answer = connection.getresponse()
        assert answer.status == status
        assert answer.read()


def test_dashboard_gives_its_own_files_and_no_others(attacked: Stack) -> None:
    """However the way out of its folder is spelled; sent as it is, where other clients would tidy it up."""
    own = {file.plain for file in read_files().values()}
    steps = [*(step * count for step in UPWARDS for count in (1, 2, 3, 12)), "/", "//", ""]
    given = {0: 0, 1: 0}
    for path in [*(f"{step}{aim}" for step in steps for aim in AIMS), *read_files()]:
        connection = http.client.HTTPConnection(urlsplit(attacked.serving).netloc, timeout=60)
        connection.request("GET", f"/dashboard/{path}")
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        given[answer.status == 200] += 1
        assert (said in own) if answer.status == 200 else (400 <= answer.status < 500), (path, answer.status, said[:99])
    assert given[1] >= len(read_files())
    assert given[0] > 100


# ---- secrets: last, when everything above is in the logs ------------------------


def test_secrets_are_in_no_log_process_list_file_or_description(attacked: Stack, secrets: dict[str, str]) -> None:
    hidden = [attacked.secret, *secrets.values(), *(base64.b64encode(f"admin:{attacked.secret}".encode()).decode(),)]
    for path in attacked.settings.home.rglob("*"):
        if path.is_file() and path.stat().st_size < 50_000_000:
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in hidden), path
    supervisor = psutil.Process(attacked.status()["pid"])
    family = [supervisor, *supervisor.children(recursive=True)]
    assert len(family) >= 4
    for process in family:
        lines = [" ".join(process.cmdline()), *(f"{name}={value}" for name, value in process.environ().items())]
        assert not any(secret in line for secret in hidden for line in lines), process
    for answer in (httpx.get(f"{attacked.collector}/openapi.json"), httpx.get(f"{attacked.collector}/ready")):
        assert not any(secret in answer.text for secret in hidden)
    assert keys_file(attacked.settings.home).stat().st_mode & 0o077 == 0, "only its user reads the hashes"


SAMPLE_S = 0.02
PATIENCE_S = 300


@pytest.mark.parametrize(
    ("arguments", "child"),
    [
        (["config"], ""), (["config", "-o", "json"], ""), (["speed", "status"], ""), (["doctor"], ""),
        (["topics", "diff"], ""), (["query", "page_hits"], ""), (["master", "repair", "web"], "java"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else given,
)  # fmt: skip
def test_passwords_of_others_are_in_no_output_error_or_command_line(
    tmp_path: Path, arguments: list[str], child: str
) -> None:
    """Of a Kafka and a Redis that do not answer, which is when most is said of them. `child`: what it has to start."""
    password = "s3cr3t-of-others"
    settings = load_settings(home=tmp_path / "home")
    Home(settings.home).prepare()
    environment = {
        **os.environ,
        **child_environment(settings),
        "TIDEMARK_KAFKA_BOOTSTRAP": "127.0.0.1:1", "TIDEMARK_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "TIDEMARK_KAFKA_USERNAME": "u", "TIDEMARK_KAFKA_PASSWORD": password,
        "TIDEMARK_REDIS_URL": "redis://127.0.0.1:1/0", "TIDEMARK_REDIS_PASSWORD": password,
    }  # fmt: skip
    seen: set[tuple[int, str]] = set()
    said = tmp_path / "said"  # a pipe that nobody empties meanwhile would hold it up
    with (
        said.open("wb") as into,
        subprocess.Popen([TIDEMARK, *arguments], env=environment, stdout=into, stderr=subprocess.STDOUT) as started,
    ):
        deadline = time.monotonic() + PATIENCE_S
        while started.poll() is None and time.monotonic() < deadline:
            seen |= _family(started.pid)
            time.sleep(SAMPLE_S)
        is_over = started.poll() is not None
        started.kill()
    text = said.read_text(errors="replace")
    assert is_over, f"{arguments} goes on after {PATIENCE_S} s: {text}"
    assert password not in text
    assert [line for pid, line in seen if pid == started.pid and arguments[0] in line], "it was looked at"
    children = {line for pid, line in seen if pid != started.pid}
    assert not child or any(child in line for line in children), (children, text)
    assert not [line for _, line in seen if password in line]


def _family(pid: int) -> set[tuple[int, str]]:
    """The command lines of a process and of all below it, by their ids; those that end meanwhile are left out."""
    found: set[tuple[int, str]] = set()
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                found.add((each.pid, " ".join(each.cmdline())))
    return found
