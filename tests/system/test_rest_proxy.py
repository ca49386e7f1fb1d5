"""REST Proxy v3 as its clients use it: one record, many, and a stream whose outcomes come back while it goes on."""

from __future__ import annotations

import base64
import http.client
import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import Stack

pytestmark = pytest.mark.usefixtures("collector_alone")

PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx.Client]:
    with stack.client(timeout_s=60) as made:
        yield made


@pytest.fixture
def topic(client: httpx.Client) -> str:
    name = f"v3-{uuid.uuid4().hex[:12]}"
    assert client.post("/admin/topics", json={"name": name, "partitions": 2}).status_code == 201
    return name


@pytest.fixture(scope="module")
def cluster(client: httpx.Client) -> str:
    (found,) = client.get("/v3/clusters").json()["data"]
    assert client.get(f"/v3/clusters/{found['cluster_id']}").json() == found
    return str(found["cluster_id"])


def lines(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def stored(client: httpx.Client, topic: str, partition: int = 0) -> list[Any]:
    at = {"topic": topic, "partition": partition, "offset": 0, "timeout": PATIENCE_MS}
    return list(client.get("/fetch", params=at).json())


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_record_of_each_type_is_stored_as_its_bytes(client: httpx.Client, cluster: str, topic: str) -> None:
    record = {
        "partition_id": 0,
        "headers": [{"name": "trace", "value": encoded(b"abc")}, {"name": "none", "value": None}],
        "key": {"type": "BINARY", "data": encoded(b"\xff\x00")},
        "value": {"type": "JSON", "data": {"n": 1.50, "ü": None}},
        "timestamp": "2026-01-31T12:00:00.250Z",
    }
    (line,) = lines(client.post(f"/v3/clusters/{cluster}/topics/{topic}/records", json=record))
    assert line == {
        "error_code": 200, "cluster_id": cluster, "topic_name": topic, "partition_id": 0, "offset": 0,
        "timestamp": "2026-01-31T12:00:00.250000Z",
        "key": {"type": "BINARY", "size": 2}, "value": {"type": "JSON", "size": len('{"n":1.5,"ü":null}'.encode())},
    }  # fmt: skip
    (found,) = stored(client, topic)
    assert (found["key_base64"], json.loads(found["value"])) == (encoded(b"\xff\x00"), {"n": 1.5, "ü": None})
    assert found["headers"] == [{"key": "trace", "value": "abc"}, {"key": "none", "value": None}]
    assert found["timestamp"] == 1_769_860_800_250


def test_records_after_one_another_are_answered_in_order(client: httpx.Client, cluster: str, topic: str) -> None:
    bodies: list[dict[str, Any]] = [
        {"partition_id": 0, "value": {"type": "STRING", "data": "first"}},
        {"partition_id": 7, "value": {"type": "STRING", "data": "no such partition"}},
        {"partition_id": 0, "value": {"type": "AVRO", "data": 1}},
        {"partition_id": 0, "value": {"type": "BINARY", "data": "*"}},
        {"partition_id": 0, "valu": 1},
        {"partition_id": 0, "headers": [{"name": "tidemark-x", "value": ""}]},
        {"partition_id": 0, "value": {"type": "STRING", "data": "x" * 2_000_000}},
        {"partition_id": 0, "key": {"type": "STRING", "data": "tombstone"}},
    ]
    content = "".join(map(json.dumps, bodies))
    found = lines(client.post(f"/v3/clusters/{cluster}/topics/{topic}/records", content=content))
    assert [line["error_code"] for line in found] == [200, 404, 422, 422, 422, 422, 413, 200]
    assert [line["offset"] for line in found if line["error_code"] == 200] == [0, 1]
    assert [line["message"][:12] for line in found[2:5]] == ["value: recor", "value.data: ", "valu: a reco"]
    assert [(each["key"], each["value"]) for each in stored(client, topic)] == [(None, "first"), ("tombstone", None)]


@pytest.mark.parametrize("tail", ["]", "5", '{"value": ', "x"])
def test_after_what_is_no_record_the_stream_ends(client: httpx.Client, cluster: str, topic: str, tail: str) -> None:
    good = json.dumps({"partition_id": 0, "value": {"type": "JSON", "data": 1}})
    found = lines(client.post(f"/v3/clusters/{cluster}/topics/{topic}/records", content=good + tail))
    assert [line["error_code"] for line in found] == [200, 400]
    assert len(stored(client, topic)) == 1


def test_a_stream_is_answered_while_it_goes_on(stack: Stack, client: httpx.Client, cluster: str, topic: str) -> None:
    where = urlsplit(stack.collector)
    basic = base64.b64encode(f"admin:{stack.secret}".encode()).decode()
    with closing(http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)) as connection:
        connection.putrequest("POST", f"/v3/clusters/{cluster}/topics/{topic}/records")
        connection.putheader("Authorization", f"Basic {basic}")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        reply = None
        for number in range(3):
            data = json.dumps({"partition_id": 0, "value": {"type": "JSON", "data": number}}).encode()
            for part in (data[:9], data[9:]):  # a record may come in pieces
                connection.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            reply = reply or connection.getresponse()
            assert json.loads(reply.readline())["offset"] == number
        connection.send(b"0\r\n\r\n")
        assert reply is not None
        assert reply.read() == b""
    assert [each["value"] for each in stored(client, topic)] == ["0", "1", "2"]


def test_what_is_refused_before_the_stream_begins(client: httpx.Client, cluster: str, topic: str) -> None:
    record = {"value": {"type": "JSON", "data": 1}}
    for path, status, kind in (
        (f"/v3/clusters/other/topics/{topic}/records", 404, "unknown-cluster"),
        (f"/v3/clusters/{cluster}/topics/nosuch/records", 404, "unknown-topic"),
        (f"/v3/clusters/{cluster}/topics/tidemark.alerts/records", 403, "reserved-topic"),
        (f"/v3/clusters/{cluster}/topics/__consumer_offsets/records", 403, "internal-topic"),
    ):
        problem = client.post(path, json=record)
        found = problem.json()
        assert (problem.status_code, found["type"]) == (status, f"urn:tidemark:problem:{kind}")
        assert (found["error_code"], found["message"]) == (status, found["detail"])
    empty = lines(client.post(f"/v3/clusters/{cluster}/topics/{topic}/records", content=b" "))
    assert [line["error_code"] for line in empty] == [400]
    packed = client.post(
        f"/v3/clusters/{cluster}/topics/{topic}/records", content=b"{}", headers={"Content-Encoding": "gzip"}
    )
    assert packed.status_code == 415


def test_keys_of_events_can_be_given(client: httpx.Client) -> None:
    """All events of a request with `?key=` share a partition; without, each is keyed by its id."""
    events = [{"event_id": f"{uuid.uuid4()}", "name": "keyed"} for _ in range(8)]
    results = client.post("/events/web", params={"key": "u-1"}, json=events).json()
    assert len({each["partition"] for each in results}) == 1
    last = results[-1]
    at = {"topic": "web", "partition": last["partition"], "offset": last["offset"], "timeout": PATIENCE_MS, "limit": 1}
    assert client.get("/fetch", params=at).json()[0]["key"] == "u-1"
    assert len({each["partition"] for each in client.post("/events/web", json=events * 3).json()}) > 1


def test_messages_without_a_key_get_that_of_the_request(client: httpx.Client, topic: str) -> None:
    messages = [{"value": "a", "partition": 0}, {"value": "b", "key": "own", "partition": 0}]
    assert client.post(f"/produce/{topic}?key=k", json=messages).status_code == 200
    assert [each["key"] for each in stored(client, topic)] == ["k", "own"]
