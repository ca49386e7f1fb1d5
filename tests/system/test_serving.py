"""The serving layer on the whole stack: what was sent is answered at once, after a run, without Redis, and live."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from infra.home import Home, read_json
from infra.rest.access_keys import add_key
from infra.settings import Settings, child_environment
from infra.stack.ports import LOOPBACK
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from tests.conftest import Stack, assert_same, start_stack, stop_stack, wait_until
from tests.system.redis_server import free_port
from tests.unit.test_serving_openapi import mistakes
from views import in_memory
from views.declarations import declared_by
from views.in_memory import Event
from views.view import View

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
DAY = {"from": "2026-03-01", "to": "2026-03-02"}
pytestmark = pytest.mark.in_order
SENT: list[Event] = []
"""By the tests of this module, in their order: the stack is theirs together."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All layers but the scheduler."""
    running = start_stack(
        tmp_path_factory.mktemp("serving") / "home", archiver_enabled=True, speed_enabled=True, serving_enabled=True,
        archive_interval_s=1, start_timeout_s=180, spark_conf={},  # compiled, as users have it
    )  # fmt: skip
    yield running
    stop_stack(running)


def send(stack: Stack, numbers: range) -> str:
    """Page views. Returns the cut that holds them, as `min_cut` takes it."""
    made = [
        {
            "event_id": f"e{number}",
            "event_time": f"2026-03-01T{number % 24:02}:10:00Z",
            "user_id": f"u{number % 7}",
            "name": "signup" if number % 11 == 0 else "page_view",
            "properties": {"url": f"/{number % 5}", "ms": number / 10, "referrer": f"https://s{number % 3}.example/"},
        }
        for number in numbers
    ]
    with stack.client() as client:
        places = client.post("/events/web", json=made).raise_for_status().json()
    ends: dict[int, int] = {}
    for event, place in zip(made, places, strict=True):
        partition, offset = place["partition"], place["offset"]
        ends[partition] = max(ends.get(partition, 0), offset + 1)
        at = datetime.fromisoformat(str(event["event_time"]))
        SENT.append(Event(partition, offset, str(event["event_id"]), at, event))
    return ",".join(f"{partition}:{offset}" for partition, offset in ends.items())


def ask(stack: Stack, view: str = "page_hits", **parameters: str) -> dict[str, Any]:
    with stack.asking() as client:
        answer = client.get(f"/views/{view}/query", params={**DAY, **parameters})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def assert_right(stack: Stack, **parameters: str) -> list[dict[str, Any]]:
    """Every view answers what a recompute of all that was sent gives, group by group. Returns what they are made of."""
    with stack.asking() as client:
        described = client.get("/openapi.json").json()
    metas = []
    for view in declared_by(stack.settings).views_of("web"):
        answer = ask(stack, view.name, grain=view.grain, by=",".join(view.keys), limit="10000", **parameters)
        assert not answer["meta"]["degraded"], answer["meta"]
        assert_same(by_group(view, answer["rows"]), in_memory.answers(view, SENT))
        schema = {"$ref": f"#/components/schemas/{view.name}_answer"}
        assert [*mistakes(answer, schema, document=described)] == []
        metas.append(answer["meta"])
    return metas


def by_group(view: View, rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """As the reference interpreter has them."""
    return {
        (
            int(datetime.fromisoformat(row["bucket"]).timestamp()) * 1_000_000,
            tuple(row[key] for key in view.keys),
        ): {name: row[name] for name in view.answers}
        for row in rows
    }


def tidemark(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TIDEMARK, *arguments],
        env=child_environment(settings), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


# ---- right, at once and after a run --------------------------------------------


def test_what_was_sent_is_answered_at_once_and_the_same_after_a_run(whole: Stack) -> None:
    cut = send(whole, range(300))
    for meta in assert_right(whole, min_cut=cut, wait="30s"):
        assert (meta["batch"]["run"], meta["speed"]["read"]) == (0, True)
    table = table_path(whole.settings, "web")
    wait_until("the archiver", lambda: coverage.of(table).rows >= len(SENT))
    made = tidemark(whole.settings, "batch", "run", "--output", "json")
    assert made.returncode == 0, made.stderr
    wait_until("the run to be served", lambda: ask(whole)["meta"]["batch"]["run"] == 1, 30)
    for meta in assert_right(whole):
        assert (meta["batch"]["run"], meta["batch"]["read"]) == (1, True)
    cut = send(whole, range(200, 400))  # a hundred of them again
    for meta in assert_right(whole, min_cut=cut, wait="30s"):
        assert (meta["batch"]["read"], meta["speed"]["read"]) == (True, True)


def test_several_views_are_answered_at_one_cut(whole: Stack) -> None:
    send(whole, range(400, 450))
    views = ["page_hits", "page_latency", "signups", "top_pages"]
    with whole.asking() as client:
        answers = client.post("/query", json={"questions": [{"view": view, **DAY} for view in views]}).json()["answers"]
    assert [answer["meta"]["view"] for answer in answers] == views
    assert len({json.dumps(answer["meta"]["cut"]) for answer in answers}) == 1


def test_answer_is_asked_about_by_its_etag(whole: Stack) -> None:
    cut = send(whole, range(450, 460))
    ask(whole, min_cut=cut, wait="30s")
    with whole.asking() as client:
        first = client.get("/views/page_hits/query", params=DAY)
        again = client.get("/views/page_hits/query", params=DAY, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        cut = send(whole, range(460, 470))
        ask(whole, min_cut=cut, wait="30s")
        changed = client.get("/views/page_hits/query", params=DAY, headers={"If-None-Match": first.headers["etag"]})
        assert changed.status_code == 200


def test_views_say_what_they_are_and_how_fresh(whole: Stack) -> None:
    with whole.asking() as client:
        described = client.get("/openapi.json").json()
        listed = client.get("/views").json()
        assert [*mistakes(listed, {"type": "object"}, document=described)] == []
        (hits,) = [view for view in listed["views"] if view["name"] == "page_hits"]
        assert hits["freshness"]["run"] >= 1
        assert hits["freshness"]["degraded"] is False
        assert hits["freshness"]["lag_events"] is not None
        details = client.get("/views/page_hits").json()
        assert [*mistakes(details, {"$ref": "#/components/schemas/ViewDetails"}, document=described)] == []
        assert details["version"] == details["declared"]
        assert details["keys"] == {"url": "string"}
        assert details["groups"] > 0


# ---- degraded ------------------------------------------------------------------


@contextmanager
def paused(stack: Stack, service: str) -> Iterator[None]:
    process = psutil.Process(stack.service(service)["pid"])
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def test_without_redis_answers_are_degraded_and_say_so_and_are_whole_again_with_it(whole: Stack) -> None:
    before = metrics(whole.serving, whole)
    with paused(whole, "redis"):
        answer = ask(whole)
        assert (answer["meta"]["degraded"], answer["meta"]["speed"]) == (True, None)
        assert "Redis" in answer["meta"]["why"]
        assert answer["meta"]["cut"] == answer["meta"]["batch"]["cut"]
        ready = httpx.get(f"{whole.serving}/ready", timeout=30)
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "batch": "readable", "speed": "degraded"})
        assert "DEGRADED" in tidemark(whole.settings, "query", "page_hits", "--from", "2026-03-01").stdout
    wait_until("answers to be whole again", lambda: not ask(whole)["meta"]["degraded"], 60)
    assert_right(whole)
    name = 'tidemark_serving_degraded_answers_total{view="page_hits"}'
    assert metrics(whole.serving, whole)[name] > before.get(name, 0)


# ---- live ----------------------------------------------------------------------


@contextmanager
def websocket(address: str, secret: str, query: str) -> Iterator[ClientConnection]:
    import base64

    header = {"Authorization": "Basic " + base64.b64encode(f"admin:{secret}".encode()).decode()}
    url = f"{address.replace('http', 'ws')}/views/page_hits/live?{query}"
    with connect(url, additional_headers=header, open_timeout=30) as client:
        yield client


def test_live_feeds_tell_of_an_event_as_soon_as_it_is_applied(whole: Stack) -> None:
    query = "from=2026-03-01&to=2026-03-02&every=200ms"
    with (
        whole.asking() as client,
        client.stream("GET", f"/views/page_hits/live?{query}") as stream,
        websocket(whole.serving, whole.secret, query) as by_websocket,
    ):
        lines = stream.iter_lines()
        first = sse(lines)
        assert json.loads(by_websocket.recv(30))["answer"]["rows"] == first["rows"]
        send(whole, range(1002, 1006))  # no sign-up among them
        assert next_hits(lambda: sse(lines)) == first["rows"][0]["hits"] + 4
        assert next_hits(lambda: json.loads(by_websocket.recv(30))["answer"]) == first["rows"][0]["hits"] + 4


def next_hits(read: Any) -> int:
    """Of the last of the answers that tell of one sending, which may be applied in parts."""
    hits = 0
    for _ in range(4):
        hits = int(read()["rows"][0]["hits"])
        if hits >= len({event.event_id for event in SENT if event.fields["name"] == "page_view"}):
            break
    return hits


def sse(lines: Iterator[str]) -> dict[str, Any]:
    """The next answer of a stream."""
    for line in lines:
        if line.startswith("data: "):
            found: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return found
    raise AssertionError("the stream ended")


def test_websocket_without_a_key_is_refused(whole: Stack) -> None:
    with pytest.raises(InvalidStatus) as refused, websocket(whole.serving, "wrong", ""):
        pass
    assert refused.value.response.status_code == 401


# ---- the command ---------------------------------------------------------------


def test_query_command_answers_here_and_by_http_alike(whole: Stack) -> None:
    asked = ("query", "page_hits", "--from", "2026-03-01", "--to", "2026-03-02", "--by", "url", "--order", "-hits")
    answer = ask(whole, by="url", order="-hits")
    here = tidemark(whole.settings, *asked, "--output", "json")
    assert here.returncode == 0, here.stderr
    assert json.loads(here.stdout)["rows"] == answer["rows"]
    env_free = ("--url", whole.serving, "--key", f"admin:{whole.secret}")
    there = tidemark(whole.settings, *asked, "--output", "csv", *env_free)
    assert there.stdout.splitlines()[0] == "bucket,url,hits,visitors"
    assert [line.split(",")[1] for line in there.stdout.splitlines()[1:]] == [row["url"] for row in answer["rows"]]
    assert "cut " in there.stderr
    shown = tidemark(whole.settings, *asked, "--grain", "hour", "--limit", "50")
    assert "█" in shown.stdout
    assert "page_hits 2026-03-01T00:00:00Z to 2026-03-02T00:00:00Z; run " in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("no_such_view",), 2, "There is no view 'no_such_view'"),
        (("page_hits", "--grain", "tomorrow"), 2, "grain"),
        (("page_hits", "--where", "nothing=1"), 2, "nothing"),
        (("page_hits", "--url", "http://127.0.0.1:1"), 1, "does not reply"),
    ],
)
def test_query_command_says_what_is_wrong(whole: Stack, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = tidemark(whole.settings, "query", *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


# ---- metrics -------------------------------------------------------------------


def metrics(address: str, stack: Stack) -> dict[str, float]:
    text = httpx.get(f"{address}/metrics", auth=("admin", stack.secret), timeout=30).raise_for_status().text
    return {
        sample.name + "".join(f'{{{name}="{value}"}}' for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_layer_measures_what_it_does(whole: Stack) -> None:
    ask(whole, min_cut=send(whole, range(2000, 2010)), wait="30s")
    ports = read_json(Home(whole.settings.home).ports_file)
    collector, serving = metrics(whole.collector, whole), metrics(whole.serving, whole)
    assert collector['tidemark_collector_events_total{topic="web"}'] == len(SENT)
    with whole.client() as client:
        client.post("/events/web", json={"event_time": "yesterday"})
    refused = metrics(whole.collector, whole)['tidemark_collector_refused_total{kind="invalid-event"}{topic="web"}']
    assert refused == 1
    archiver = f"http://{LOOPBACK}:{ports['archiver_metrics_port']}"
    name = 'tidemark_archiver_rows_total{source="web"}'
    wait_until("all to be archived", lambda: metrics(archiver, whole)[name] == len(SENT), 30)
    assert metrics(archiver, whole)['tidemark_archiver_behind_offsets{source="web"}'] == 0
    speed = metrics(f"http://{LOOPBACK}:{ports['speed_metrics_port']}", whole)
    assert speed['tidemark_speed_behind_events{source="web"}'] == 0
    assert speed['tidemark_speed_events_total{source="web"}'] == len({event.event_id for event in SENT})
    assert speed['tidemark_speed_micro_batch_seconds_total{source="web"}'] > 0
    assert speed['tidemark_speed_states{source="web"}'] > 0
    assert serving['tidemark_serving_batch_age_seconds{source="web"}'] > 0
    assert serving['tidemark_serving_lag_events{source="web"}'] == 0
    assert serving['tidemark_serving_answer_seconds_count{outcome="answered"}{view="page_hits"}'] > 0


# ---- the process ---------------------------------------------------------------


@contextmanager
def served_by(stack: Stack, **overrides: Any) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A serving process of its own on the home of the stack."""
    settings = stack.settings.model_copy(
        update={"redis_url": stack.redis, "serving_port": free_port(), "serving_enabled": True, **overrides}
    )
    address = f"http://{LOOPBACK}:{settings.serving_port}"
    process = subprocess.Popen([sys.executable, "-P", "-m", "serving_layer"], env=child_environment(settings))
    try:
        wait_until("it to be ready", lambda: is_ready(address), 60)
        yield process, address
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_it_runs_no_jvm(whole: Stack) -> None:
    process = psutil.Process(whole.service("serving")["pid"])
    assert [child.name() for child in process.children(recursive=True)] == []
    assert not any("pyspark" in mapped.path for mapped in process.memory_maps())


def test_no_process_listens_beyond_loopback(whole: Stack) -> None:
    """docs/security.md lists the ports. Spark's are its JVM's, a child of the process that uses it."""
    for service in whole.status()["services"]:
        process = psutil.Process(service["pid"])
        for each in (process, *process.children(recursive=True)):
            listening = [c.laddr.ip for c in each.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            assert {ip.removeprefix("::ffff:") for ip in listening} <= {LOOPBACK, "::1"}, service["name"]


def test_several_processes_share_port_and_metrics_and_end_with_their_parent(whole: Stack) -> None:
    with served_by(whole, serving_workers=2) as (process, address):
        workers = wait_until("two workers", lambda: len(found := workers_of(process)) == 2 and found)
        for _ in range(40):  # each by a connection of its own: whoever is free takes it
            answer = httpx.get(f"{address}/views/page_hits/query", auth=("admin", whole.secret), timeout=30)
            assert answer.status_code == 200
        for _ in range(5):
            found = metrics(address, whole)
            assert found['tidemark_serving_answer_seconds_count{outcome="answered"}{view="page_hits"}'] == 40
            assert found["tidemark_serving_requests_in_flight"] == 0
        workers[0].kill()
        wait_until("another worker", lambda: {*workers_of(process)} - {*workers} and len(workers_of(process)) == 2, 30)
        assert metrics(address, whole)["tidemark_serving_requests_in_flight"] == 0
        workers = workers_of(process)
        process.kill()
        wait_until("the workers to end", lambda: not any(map(_is_worker, workers)), 30)


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if _is_worker(child)]


def _is_worker(child: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(child.cmdline())
    except psutil.Error:  # it has just ended
        return False


@pytest.mark.parametrize("workers", [1, 2])
def test_it_ends_at_once_although_somebody_follows_live(whole: Stack, workers: int) -> None:
    query, key = "every=200ms", ("admin", whole.secret)
    waits = {"serving_timeout_s": 300, "stop_timeout_s": 300}  # for those who follow, where it did not end them
    with (
        served_by(whole, serving_workers=workers, **waits) as (process, address),
        httpx.stream("GET", f"{address}/views/page_hits/live?{query}", auth=key, timeout=30) as stream,
        websocket(address, whole.secret, query) as by_websocket,
    ):
        lines = stream.iter_lines()
        sse(lines)
        by_websocket.recv(30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert not [line for line in lines if line.startswith("data")]
        with pytest.raises(ConnectionClosed):
            by_websocket.recv(10)


def test_keys_of_others_see_no_view_of_ours(whole: Stack) -> None:
    limited = "limited", add_key(whole.settings.home, "limited", ["query"], ["page_latency"])
    for path in ("/views/page_hits/query", "/views/page_hits", "/views/page_hits/live"):
        assert httpx.get(whole.serving + path, auth=limited, timeout=30).status_code == 403
    assert httpx.get(f"{whole.serving}/views/page_latency/query", auth=limited, timeout=30).status_code == 200
