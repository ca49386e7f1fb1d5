"""All layers on our own broker with `kafka_auth`: no event is missing in an answer, and no password leaks into a file.

The tests build on each other: one stack, with every service that `tidemark up` starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import read_manifest
from infra.clients.kafka import kafka_login, librdkafka_config
from infra.home import Home, write_json
from infra.settings import child_environment
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from tests.conftest import Stack, start_stack, stop_stack, wait_until

pytestmark = pytest.mark.in_order
TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
PIPELINE = Path(__file__).with_name("rest_pipeline.py")
DECLARED = """
from tidemark import Alert, Count, Feed, Source, Sum, View, Watch

web = Source("web", fields="event_id string, event_time timestamp, url string, ms double")
page_hits = View("page_hits", source=web, keys={"url": "url"}, answers={"hits": Count(), "ms": Sum("ms")})
many_hits = Alert("many_hits", page_hits, when="hits >= 60", keep="1d")
slow_page = Watch("slow_page", web, where="ms >= 30")
page_feed = Feed("page_feed", page_hits)
"""
SERVICES = {"kafka", "redis", "collector", "archiver", "scheduler", "speed", "serving", "alerts"}
YEARLY = "0 0 1 1 *"
"""When a run is due: not while the test runs."""
URLS = 5
NOW = datetime.now(UTC).replace(microsecond=0)
"""The time of every event: alerts and feeds are about recent buckets."""
SENT: Counter[str] = Counter()
"""Hits of each url, of distinct events."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("layers")
    (folder / "views").mkdir()
    (folder / "views" / "web.py").write_text(DECLARED)
    running = start_stack(
        folder / "home", kafka_auth=True, views_dir=folder / "views", with_examples=False, archiver_enabled=True,
        scheduler_enabled=True, speed_enabled=True, serving_enabled=True, alerts_enabled=True, archive_interval_s=1,
        batch_schedule=YEARLY, start_timeout_s=180,
    )  # fmt: skip
    yield running
    stop_stack(running)


def send(stack: Stack, numbers: range, known: int = 0) -> None:
    """Page views, the first `known` of which were sent before."""
    events = [
        {"event_id": f"e{number}", "event_time": NOW.isoformat(), "url": f"/{number % URLS}", "ms": number / 10}
        for number in numbers
    ]
    with stack.client() as client:
        assert len(client.post("/events/web", json=events).raise_for_status().json()) == len(events)
    SENT.update(f"/{number % URLS}" for number in numbers[known:])


def ask(stack: Stack) -> tuple[Counter[str], dict[str, Any]]:
    """Hits of each url by REST, and what the answer is made of."""
    around = {"from": (NOW - timedelta(days=1)).isoformat(), "to": (NOW + timedelta(days=1)).isoformat()}
    with stack.asking(timeout_s=120) as client:
        answer = client.get("/views/page_hits/query", params={**around, "by": "url", "grain": "day"})
    assert answer.status_code == 200, answer.text
    hits = Counter[str]()
    for row in answer.json()["rows"]:
        hits[row["url"]] += row["hits"]
    return hits, answer.json()["meta"]


def tidemark(stack: Stack, *arguments: str) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run(
        [TIDEMARK, *arguments, "--output", "json"],
        env=child_environment(stack.settings), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def served(stack: Stack) -> tuple[int, int]:
    """The run that readers see, and how many records it is made of."""
    folder = BatchFolder.of(stack.settings, "web")
    run = publish_log.served(folder).run
    return run, read_manifest(folder, run).events if run else 0


def wait_until_archived(stack: Stack, rows: int) -> None:
    table = table_path(stack.settings, "web")
    wait_until("the archiver", lambda: coverage.of(table).rows == rows, 180)


def first_records(stack: Stack, topic: str, count: int) -> list[Any]:
    """What another system reads of a topic of ours, with the user of our services."""
    consumer = Consumer({**librdkafka_config(stack.settings, stack.kafka), "group.id": "unused"})
    found: list[Any] = []

    def are_there() -> bool:
        found.extend(json.loads(message.value()) for message in consumer.consume(1000, 0.5) if not message.error())
        return len(found) >= count

    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        wait_until(f"{count} records in {topic}", are_there, 120)
    finally:
        consumer.close()
    return found


def test_answers_of_batch_and_speed_count_every_event(guarded: Stack) -> None:
    assert {service["name"] for service in guarded.status()["services"]} >= SERVICES
    send(guarded, range(300))
    wait_until("the answer to have them", lambda: ask(guarded)[0].total() >= 300, 120)
    hits, meta = ask(guarded)
    assert hits == SENT
    assert (meta["batch"]["run"], meta["speed"]["read"], meta["degraded"]) == (0, True, False)

    wait_until_archived(guarded, 300)
    assert [(each["run"], each["kind"]) for each in tidemark(guarded, "batch", "run")] == [(1, "full")]
    wait_until("the run to be served", lambda: ask(guarded)[1]["batch"]["run"] == 1)
    assert ask(guarded)[0] == SENT

    send(guarded, range(250, 400), known=50)
    wait_until("the answer to have them", lambda: ask(guarded)[0].total() >= 400, 120)
    hits, meta = ask(guarded)
    assert hits == SENT
    assert (meta["batch"]["read"], meta["speed"]["read"], meta["degraded"]) == (True, True, False)


def test_the_scheduler_makes_a_run_that_was_missed(guarded: Stack) -> None:
    wait_until_archived(guarded, 450)
    missed = {"handled": 1_700_000_000.0, "last": None, "seen": {}}
    write_json(guarded.settings.home / "schedule.json", missed)  # it was last up long ago
    tidemark(guarded, "restart", "scheduler")
    wait_until("the scheduler's run", lambda: served(guarded)[1] == 450, 300)
    wait_until("the run to be served", lambda: ask(guarded)[1]["batch"]["run"] == served(guarded)[0])
    assert ask(guarded)[0] == SENT


def test_alerts_watches_and_feeds_work(guarded: Stack) -> None:
    def firing() -> set[str]:
        with guarded.asking() as client:
            alerts = client.get("/alerts").raise_for_status().json()["alerts"]
        return {each["key"]["url"] for alert in alerts for each in alert["firing"]}

    def matched() -> int:
        with guarded.asking() as client:
            (watch,) = client.get("/watches").raise_for_status().json()["watches"]
        return int(watch["matched"])

    wait_until("the alert to fire for each url", lambda: firing() == set(SENT), 120)
    notified = first_records(guarded, "tidemark.alerts", URLS)
    assert {record["key"]["url"] for record in notified if record["state"] == "firing"} == set(SENT)
    wait_until("the watch to match the last hundred", lambda: matched() == 100, 120)
    fed: dict[str, int] = {}

    def is_the_view() -> bool:
        for record in first_records(guarded, "tidemark.feed.page_feed", URLS):
            fed[record["url"]] = record["answers"]["hits"]
        return Counter(fed) == SENT

    wait_until("the feed to be the view", is_the_view, 120)


def test_an_invalid_record_becomes_a_dead_letter(guarded: Stack) -> None:
    with guarded.client() as client:
        client.post("/produce/web", json=[{"value": "{"}]).raise_for_status()
        (letter,) = wait_until("the dead letter", lambda: client.get("/dead/web").raise_for_status().json(), 120)
    assert letter["value"] == "{"


def test_consumer_groups_and_transactions_of_rest_clients_work(guarded: Stack) -> None:
    with guarded.client(timeout_s=60) as client:
        for topic in ("in", "out"):
            client.post("/admin/topics", json={"name": topic, "partitions": 2}).raise_for_status()
        values = [f"v{number}" for number in range(20)]
        messages = [{"value": value, "partition": number % 2} for number, value in enumerate(values)]
        client.post("/produce/in", json=messages).raise_for_status()
        arguments = ("exactly-once", "in", "out", "readers", "one", "0")
        done = subprocess.run(
            [sys.executable, PIPELINE, guarded.collector, guarded.secret, *arguments],
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = Counter[str]()

        def are_there() -> bool:
            batch = client.post("/consume/others/only/out?limit=100&timeout=500").raise_for_status().json()
            found.update(record["value"] for record in batch)
            return found.total() >= len(values)

        wait_until("what the transactions wrote", are_there)
        assert found == Counter(values)
    assert "readers" in [group["group"] for group in tidemark(guarded, "groups", "list")]


def test_no_file_and_no_command_line_holds_the_password(guarded: Stack) -> None:
    home = Home(guarded.settings.home)
    password = kafka_login(guarded.settings).password
    assert password
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if password in command]
    allowed = {home.kafka_secret, home.kafka / "server.properties"}
    holders = {path for path in home.root.rglob("*") if path.is_file() and password.encode() in read(path)}
    assert holders == allowed, "both have mode 0600"
    for service in (*sorted(SERVICES - {"redis"}), "batch"):
        assert home.log_file(service).stat().st_size, f"{service} logs something that could hold it"
    logs = [path for path in home.logs.rglob("*") if path.is_file()]
    assert not [path for path in logs if b"LoginModule required" in read(path)]


def read(path: Path) -> bytes:
    """The bytes of a file, of which services may remove some meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
