"""The broker slow, dead or gone: bounded answers that say what is known, and recovery without help."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.conftest import Stack, start_stack, stop_stack, wait_until

ACK_TIMEOUT_S = 2.0
BOUND_S = 15.0
"""More than any answer may take, with a machine that is busy with other things."""
BACK_S = 240.0
"""The same for a broker that was killed: its JVM starts again, and the producer connects again."""


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose collector waits only briefly and holds only a little."""
    home: Path = tmp_path_factory.mktemp("faults") / "home"
    running = start_stack(
        home, collector_ack_timeout_s=ACK_TIMEOUT_S, collector_buffer_mb=0.1, collector_max_consumers=1
    )
    yield running
    stop_stack(running)


@pytest.fixture
def client(victim: Stack) -> Iterator[httpx.Client]:
    with victim.client(timeout_s=60) as made:
        yield made


def ends(client: httpx.Client) -> int:
    return sum(partition["latest"] for partition in client.get("/admin/topics/web").json()["partitions"])


def assert_unknown(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    if "results" in answer.json():
        assert "unknown" in answer.json()["detail"]
        assert "same event id" in answer.json()["detail"]


def recovered(client: httpx.Client) -> bool:
    return client.post("/events/web", json={"event_id": f"after-{uuid.uuid4()}"}).status_code == 200


def test_a_stopped_broker_is_a_bounded_503_and_a_full_buffer_a_429(victim: Stack, client: httpx.Client) -> None:
    wait_until("the collector to work", lambda: recovered(client))
    pid = victim.service("kafka")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        answer = client.post("/events/web", json=[{"event_id": "s1"}, {"name": 5}, {"event_id": "s2"}])
        assert time.monotonic() - began < BOUND_S
        assert_unknown(answer)
        results = answer.json()["results"]
        assert [result["error"]["status"] for result in results] == [503, 422, 503]
        assert [result.get("event_id") for result in results] == ["s1", None, "s2"]
        # Ten requests of 40 KB do not fit into 100 KB: the later ones are sent away at once.
        with ThreadPoolExecutor(10) as threads:
            large = {"name": "x" * 40_000}
            answers = list(threads.map(lambda _: client.post("/events/web", json=large), range(10)))
        assert {answer.status_code for answer in answers} == {429, 503}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) > 0
        assert "Nothing was stored" in refused.json()["detail"]
        assert httpx.get(f"{victim.collector}/healthz", timeout=30).status_code == 200
        assert httpx.get(f"{victim.collector}/ready", timeout=30).status_code == 503
        assert client.get("/topics").status_code == 503
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until("the collector to work again", lambda: recovered(client))


def test_a_killed_broker_is_a_503_until_it_is_back(victim: Stack, client: httpx.Client) -> None:
    wait_until("the collector to work", lambda: recovered(client))
    before = ends(client)
    pid = victim.service("kafka")["pid"]
    os.kill(pid, signal.SIGKILL)
    accepted = 0
    statuses = []
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        began = time.monotonic()
        answer = client.post("/events/web", json=[{"event_id": f"k-{uuid.uuid4()}"} for _ in range(5)])
        assert time.monotonic() - began < BOUND_S
        statuses.append(answer.status_code)
        if answer.status_code == 200:
            accepted += 5
            if len(statuses) > 1 and 503 in statuses:
                break
        else:
            assert_unknown(answer)
    assert statuses[-1] == 200, statuses
    wait_until("a broker with another process", lambda: victim.service("kafka")["state"] == "ready", BACK_S)
    stored = wait_until("offsets to be readable", lambda: ends(client), BACK_S)
    # Every acknowledged event is there; those of unknown outcome may be.
    assert before + accepted <= stored <= before + 5 * len(statuses)


def test_the_number_of_consumer_instances_is_bounded(client: httpx.Client) -> None:
    wait_until("the collector to work", lambda: recovered(client))
    assert client.get("/consume/g/one/web?timeout=0").status_code == 200
    answer = client.get("/consume/g/two/web?timeout=0")
    assert answer.status_code == 429
    assert "collector_max_consumers" in answer.json()["detail"]
    client.get("/delete-consumer/g/one")
    assert client.get("/consume/g/two/web?timeout=0").status_code == 200
    client.get("/delete-consumer/g/two")


def test_a_transaction_that_a_killed_collector_left_open_is_ended_by_its_name(
    victim: Stack, client: httpx.Client
) -> None:
    """Whoever begins again under the name does not wait for Kafka's time limit, and nobody sees what was left."""
    wait_until("the collector to work", lambda: recovered(client))
    topic = f"tx-{uuid.uuid4().hex[:8]}"
    assert client.post("/admin/topics", json={"name": topic, "partitions": 1}).status_code == 201

    def begin() -> str | None:
        answer = client.post("/transactions", json={"name": "worker"})
        assert answer.status_code in (201, 503), answer.text  # Kafka may take its time to end what was left open
        return f"/transactions/{answer.json()['transaction']}" if answer.status_code == 201 else None

    def put(value: str) -> str:
        path = str(wait_until("a transaction to begin", begin, BACK_S))
        assert client.post(f"{path}/produce/{topic}", json={"value": value}).status_code == 200
        return path

    left = put("left open")
    os.kill(victim.service("collector")["pid"], signal.SIGKILL)

    def is_back() -> bool:
        with suppress(httpx.TransportError):
            return recovered(client)
        return False

    wait_until("the collector to be back", is_back, BACK_S)
    assert client.get(left).status_code == 404
    assert client.post(f"{put('kept')}/commit").status_code == 200
    at = {"topic": topic, "partition": 0, "offset": 0, "timeout": 20_000}
    assert [record["value"] for record in client.get("/fetch", params=at).json()] == ["kept"]
