"""Doors of a running collector after a source went on with another version: they fill what that one declares."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx
import pytest

from master_dataset.table.paths import table_path
from master_dataset.table.readings import adopt
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from tests.system.test_doors import of_this_test
from torture.installation_settings import free_port
from views.declarations import declared_by
from views.source import Source

NAME = "visits"
DECLARED = f"""
from tidemark import Source

source = Source(
    "{NAME}",
    fields="event_id string, event_time timestamp, type string, event string, properties struct<amount: int>, "
           "message string, extensions map<string, string>",
)
"""
NEXT = {
    "version": 2,
    "fields": "event_id string, event_time timestamp, type string, action string, tenant string, message string, "
    "properties struct<amount: int, plan string>, extensions map<string, string>, structured_data string",
    "aliases": {"action": ("event",)},
}
COLUMNS = {
    **dict.fromkeys(("event_id", "type", "event", "message"), "string"), "event_time": "timestamp",
    "properties": {"type": "struct", "fields": [{"name": "amount", "type": "integer"}]},
    "extensions": {"type": "map", "keyType": "string", "valueType": "string"},
}  # fmt: skip


@pytest.fixture(scope="module")
def doors(bare_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("versions") / "home"
    views = home.with_name("views")
    views.mkdir()
    (views / "visits.py").write_text(DECLARED)
    running = start_stack(
        home, views_dir=views, with_examples=False, kafka_bootstrap=bare_stack.kafka, redis_url=bare_stack.redis,
        collector_port=free_port(), collector_syslog_udp_port=free_port(), collector_syslog_source=NAME,
    )  # fmt: skip
    yield running
    stop_stack(running)


@pytest.fixture(scope="module")
def client(doors: Stack) -> Iterator[httpx.Client]:
    with doors.client(timeout_s=60) as made:
        yield made


def go_on_with_the_next_version(doors: Stack, client: httpx.Client) -> None:
    """What a batch run records beside the master table, of which there is no more than its first commit."""
    source: Source = declared_by(doors.settings).source(NAME)
    table = table_path(doors.settings, NAME)
    (table / "_delta_log").mkdir(parents=True)
    fields = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
    schema = json.dumps({"fields": [{"name": "event", "type": {"type": "struct", "fields": fields}}]})
    (table / "_delta_log" / f"{0:020}.json").write_text(json.dumps({"metaData": {"schemaString": schema}}) + "\n")
    adopt(table, replace(source, **NEXT))

    def is_followed() -> bool:
        return client.post(f"/events/{NAME}", json={"tenant": 5}).status_code == 422

    wait_until("the collector to follow version 2", is_followed)


def one(client: httpx.Client, mark: str) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return of_this_test(client, NAME, mark)

    (event,) = wait_until("the event", found)
    return dict(event)


def track(client: httpx.Client, mark: str) -> httpx.Response:
    call = {"userId": mark, "event": "Upgraded", "properties": {"plan": 5, "amount": 7}}
    return client.post(f"/segment/{NAME}/v1/track", json=call)


def test_doors_fill_what_the_version_in_force_declares(doors: Stack, client: httpx.Client) -> None:
    assert track(client, before := uuid4().hex).status_code == 200
    assert one(client, before)["properties"] == {"plan": 5, "amount": 7}, "version 1 does not declare it"
    go_on_with_the_next_version(doors, client)

    answer = track(client, after := uuid4().hex)
    assert answer.status_code == 200, answer.text
    assert one(client, after)["properties"] == {"plan": "5", "amount": 7}

    extended = {"specversion": "1.0", "id": uuid4().hex, "source": "/a", "type": "t", "tenant": "acme", "other": "x"}
    headers = {"Content-Type": "application/cloudevents+json"}
    assert client.post(f"/cloudevents/{NAME}", content=json.dumps(extended), headers=headers).status_code == 200
    stored = one(client, extended["id"])
    assert (stored["tenant"], stored["extensions"]) == ("acme", {"other": "x"})

    mark, port = uuid4().hex, doors.settings.collector_syslog_udp_port
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(f'<13>1 - h app - - [a@1 b="c"] {mark}'.encode(), ("127.0.0.1", port))
    assert one(client, mark)["structured_data"] == '{"a@1.b":"c"}'
    assert client.get("/ready").json()["syslog"]["dropped"] == {}
