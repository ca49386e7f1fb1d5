"""Schema ids outlive Kafka: a restored home begins with the schemas of its backup, and gives no id again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from infra.clients.kafka import librdkafka_config
from infra.home import Home
from infra.rest.access_keys import add_key
from master_dataset.registry.saved_records import put_back, read_topic, restored_file, to_lines
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from tidemark.backup.backup import back_up
from tidemark.backup.restore import restore
from torture.installation_settings import free_port

NAMES = ("First", "Second", "Third")
PORTS = ("kafka_port", "kafka_controller_port", "collector_port", "supervisor_metrics_port")


def schema(name: str) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}]})


@contextmanager
def running(home: Path) -> Iterator[tuple[Stack, httpx.Client]]:
    """Kafka and the collector of a home, and a client of its registry."""
    overrides: dict[str, Any] = {name: free_port() for name in PORTS} | {"redis_url": "redis://127.0.0.1:1/0"}
    stack = start_stack(home, **overrides)
    try:
        secret = add_key(home, f"test-{uuid4().hex}", ["admin"])
        url = f"{stack.collector}/schema-registry"
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
            wait_until("the registry", lambda: client.get("/subjects").is_success)
            yield stack, client
    finally:
        stop_stack(stack)


def register(client: httpx.Client, name: str, subject: str = "") -> dict[str, Any]:
    answer = client.post(f"/subjects/{subject or name}-value/versions", json={"schema": schema(name)})
    return dict(answer.raise_for_status().json())


def known(client: httpx.Client) -> dict[str, Any]:
    """Everything that clients can ask of the registry."""
    subjects = client.get("/subjects?deleted=true").json()
    versions = {each: client.get(f"/subjects/{each}/versions?deleted=true").json() for each in subjects}
    return {
        "schemas": client.get("/schemas?deleted=true").json(),
        "versions": versions,
        "levels": {each: client.get(f"/config/{each}?defaultToGlobal=true").json() for each in subjects},
    }


def lose_kafka(home: Path) -> None:
    shutil.rmtree(Home(home).kafka)


def test_schemas_keep_their_ids_when_kafka_is_lost_and_another_gets_a_new_one(tmp_path: Path) -> None:
    home, backups = tmp_path / "home", tmp_path / "backups"
    with running(home) as (stack, client):
        ids = [register(client, name)["id"] for name in NAMES]
        assert len({*ids}) == len(NAMES)
        client.put("/config/First-value", json={"compatibility": "FULL"}).raise_for_status()
        assert client.delete("/subjects/Second-value").json() == [1]
        gone = register(client, "Gone")["id"]
        for query in ("", "?permanent=true"):
            client.delete(f"/subjects/Gone-value{query}").raise_for_status()
        before = known(client)
        assert back_up(stack.settings, backups).notes == []
        assert back_up(stack.settings, backups).new_bytes < 10_000, "what is the same is not stored again"
    lose_kafka(home)
    advice = restore(stack.settings, backups).advice
    assert any("under their ids" in each for each in advice)
    with running(home) as (stack, client):
        assert known(client) == before
        assert [register(client, name)["id"] for name in ("First", "Third")] == [ids[0], ids[2]]
        assert register(client, "Second", "again")["id"] == ids[1]
        assert register(client, "Fourth")["id"] == gone + 1, "also the id of what was deleted is not given again"
        # What a crash after the records left is completed, and changes nothing.
        path, config = restored_file(stack.settings), librdkafka_config(stack.settings, stack.kafka)
        assert not path.exists()
        now, records = known(client), read_topic(config)
        path.write_bytes(to_lines(records))
        put_back(config, path)
        assert not path.exists()
        assert read_topic(config) == records
        assert known(client) == now
