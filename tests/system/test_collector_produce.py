"""The produce API on a real broker, as curl and stock clients see it."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

pytestmark = pytest.mark.usefixtures("collector_alone")


@pytest.fixture(scope="module")
def client(stack: Any) -> Iterator[httpx.Client]:
    with stack.client() as made:
        yield made


@pytest.fixture
def topic(client: httpx.Client) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    assert client.post("/admin/topics", json={"name": name, "partitions": 2}).status_code == 201
    return name


def read_back(stack: Any, place: dict[str, Any]) -> Any:
    """The record at a place, read by another client than the collector's."""
    consumer = KafkaConsumer(bootstrap_servers=stack.kafka, group_id=None, enable_auto_commit=False)
    try:
        at = PythonPartition(place["topic"], place["partition"])
        consumer.assign([at])
        consumer.seek(at, place["offset"])
        found = consumer.poll(timeout_ms=10_000, max_records=1)
        return found[at][0]
    finally:
        consumer.close()


def curl(stack: Any, *arguments: str) -> Any:
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "20", "-u", f"admin:{stack.secret}", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "path", ["/produce/a%2Fb", "/produce/%3Cscript%3E%3C%2Fscript%3E", "/consume/a%2Fb", "/produce/a%2F?key=k"]
)
def test_a_slash_that_is_encoded_belongs_to_its_part_and_makes_no_second_one(client: httpx.Client, path: str) -> None:
    refused = client.get(path)
    assert refused.status_code == 400, refused.text
    assert "2 parts after /" in refused.json()["detail"]


def test_one_message_in_the_path(stack: Any, topic: str) -> None:
    place = curl(stack, f"{stack.collector}/produce/{topic}/hello%20w%C3%B6rld/%2Fa%3Fb?key=k%201")
    assert set(place) == {"topic", "partition", "offset", "timestamp"}
    record = read_back(stack, place)
    assert (record.key, record.value) == (b"k 1", "hello wörld//a?b".encode())
    assert record.timestamp == place["timestamp"]


def test_plain_curl_d_is_enough(stack: Any, topic: str) -> None:
    places = curl(stack, f"{stack.collector}/produce/{topic}", "-d", '{"key": "k", "value": "hello"}')
    assert [place["topic"] for place in places] == [topic]
    assert read_back(stack, places[0]).value == b"hello"


def test_a_body_on_get_is_read_too(stack: Any, topic: str) -> None:
    places = curl(stack, "-X", "GET", f"{stack.collector}/produce/{topic}", "-d", '[{"value": 1}, {"value": 2}]')
    assert [read_back(stack, place).value for place in places] == [b"1", b"2"]


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "multipart/form-data", ""])
def test_content_type_does_not_matter(client: httpx.Client, topic: str, content_type: str) -> None:
    answer = client.post(f"/produce/{topic}", content=b'{"value": 1}', headers={"Content-Type": content_type})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("text", b"text"),
        ("", b""),
        ("ünï\0", "ünï\0".encode()),
        ('{"a": 1}', b'{"a": 1}'),
        (1, b"1"),
        (1.50, b"1.5"),
        (True, b"true"),
        (None, b"null"),
        ([1, "a"], b'[1,"a"]'),
        ({"b": {"c": None}}, b'{"b":{"c":null}}'),
    ],
)
def test_a_string_is_stored_as_it_is_and_the_rest_as_compact_json(
    stack: Any, client: httpx.Client, topic: str, value: object, stored: bytes
) -> None:
    (place,) = client.post(f"/produce/{topic}", json={"value": value, "key": value}).json()
    record = read_back(stack, place)
    assert record.value == stored
    assert record.key == (None if value is None else stored)


def test_numbers_beyond_64_bits_keep_their_digits(stack: Any, client: httpx.Client, topic: str) -> None:
    body = b'{"value": {"n": 123456789012345678901234567890, "x": 0.1000000000000000055}}'
    (place,) = client.post(f"/produce/{topic}", content=body).json()
    assert read_back(stack, place).value == b'{"n":123456789012345678901234567890,"x":0.1000000000000000055}'


def test_partition_timestamp_key_and_headers_arrive(stack: Any, client: httpx.Client, topic: str) -> None:
    message = {
        "partition": 1,
        "timestamp": 1_700_000_000_123,
        "key": "k",
        "value": "v",
        "headers": [{"key": "trace", "value": "a"}, {"key": "trace", "value": None}, {"key": "n", "value": 5}],
    }
    (place,) = client.post(f"/produce/{topic}", json=message).json()
    assert (place["partition"], place["timestamp"]) == (1, 1_700_000_000_123)
    record = read_back(stack, place)
    assert list(record.headers) == [("trace", b"a"), ("trace", None), ("n", b"5")]
    (place,) = client.post(f"/produce/{topic}", json={"value": 1, "timestamp": "2023-11-14T22:13:20Z"}).json()
    assert place["timestamp"] == 1_700_000_000_000


def test_several_topics_in_one_array_are_answered_in_order(client: httpx.Client, topic: str) -> None:
    other = f"{topic}-2"
    client.post("/admin/topics", json={"name": other, "partitions": 1})
    wanted = [topic, other, other, topic]
    answer = client.post("/produce", json=[{"topic": name, "value": number} for number, name in enumerate(wanted)])
    assert [place["topic"] for place in answer.json()] == wanted
    assert client.post("/produce", json=[]).json() == []


def test_a_key_goes_to_the_partition_that_other_clients_choose(stack: Any, client: httpx.Client, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=stack.kafka)
    keys = [f"user-{number}" for number in range(20)]
    theirs = [producer.send(topic, b"x", key=key.encode()).get(timeout=20).partition for key in keys]
    producer.close()
    ours = client.post(f"/produce/{topic}", json=[{"key": key, "value": 1} for key in keys]).json()
    assert [place["partition"] for place in ours] == theirs


def test_stock_clients_work_beside_the_collector(stack: Any, client: httpx.Client, topic: str) -> None:
    producer = Producer({"bootstrap.servers": stack.kafka})
    producer.produce(topic, b"from confluent", partition=0)
    producer.flush()
    client.post(f"/produce/{topic}", json={"value": "from rest", "partition": 0})
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consumer.consume(2, 20)] == [b"from confluent", b"from rest"]
    consumer.close()


@pytest.mark.parametrize(("acks", "has_offset"), [("all", True), ("-1", True), ("1", True), ("0", False)])
def test_acks_are_chosen_by_the_request(client: httpx.Client, topic: str, acks: str, has_offset: bool) -> None:
    (place,) = client.post(f"/produce/{topic}?acks={acks}", json={"value": 1}).json()
    assert (place["offset"] is not None) == has_offset


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "where"),
    [
        ("/produce/no-such-topic", {"value": 1}, 404, "unknown-topic", None),
        ("/produce", {"topic": "no-such-topic", "value": 1}, 404, "unknown-topic", None),
        ("/produce/__consumer_offsets", {"value": 1}, 403, "internal-topic", None),
        ("/produce/TOPIC", {"value": 1, "partition": 2}, 404, "unknown-partition", None),
        ("/produce/TOPIC", {"value": 1, "partition": -1}, 422, "invalid-body", "partition"),
        ("/produce/TOPIC", [{"value": 1}, {"vlaue": 1}], 422, "invalid-body", "[1].vlaue"),
        ("/produce/TOPIC", [{"value": 1}, {}], 422, "invalid-body", "[1]"),
        ("/produce/TOPIC", "text", 422, "invalid-body", ""),
        ("/produce/TOPIC", [[]], 422, "invalid-body", "[0]"),
        ("/produce/TOPIC", {"value": 1, "topic": "other"}, 422, "invalid-body", "topic"),
        ("/produce", {"value": 1}, 422, "invalid-body", ""),
        ("/produce/TOPIC", {"value": 1, "timestamp": -5}, 422, "invalid-body", "timestamp"),
        ("/produce/TOPIC", {"value": 1, "timestamp": "soon"}, 422, "invalid-body", "timestamp"),
        ("/produce/TOPIC", {"value": 1, "headers": {}}, 422, "invalid-body", "headers"),
        ("/produce/TOPIC", [{"value": 1, "headers": [{"key": 1, "value": ""}]}], 422, "invalid-body", "[0].headers[0]"),
        ("/produce/TOPIC?acks=2", {"value": 1}, 400, "invalid-parameter", "acks"),
        ("/produce/TOPIC", {"value": "x" * 1_000_001}, 413, "event-too-large", "[0]"),
        ("/produce/TOPIC", [{"value": 1}] * 10_001, 413, "batch-too-large", None),
    ],
)
def test_what_cannot_be_stored_is_refused_whole(
    client: httpx.Client, topic: str, path: str, body: Any, status: int, kind: str, where: str | None
) -> None:
    answer = client.post(path.replace("TOPIC", topic), json=body)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (status, f"urn:tidemark:problem:{kind}")
    assert problem.get("where") == where
    described = client.get(f"/admin/topics/{topic}").json()
    assert all(partition["latest"] == 0 for partition in described["partitions"])


def test_a_path_that_is_not_utf8_is_refused(client: httpx.Client, topic: str) -> None:
    for path in (f"/produce/{topic}/%ff", f"/produce/{topic}/x?key=%ff"):
        assert client.get(path).status_code == 400
    assert client.get(f"/produce/{topic}/").status_code == 400


def test_a_clock_of_ours_that_is_wrong_is_no_mistake_of_who_sends(stack: Any, client: httpx.Client) -> None:
    """The topic takes no time that is a millisecond old, as if the broker's clock were ahead of the collector's."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    made = NewTopic(name, 1, config={"message.timestamp.before.max.ms": "0"})
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([made])[name].result(20)
    for messages in ([{"value": "v"}], [{"key": "k", "value": str(n)} for n in range(5)]):
        refused = refused_as_too_old(client, name, messages)
        assert refused.status_code == 503, refused.text
        assert refused.json()["type"] == "urn:tidemark:problem:clocks-differ"
        assert "clock of the collector" in refused.json()["detail"]
        assert refused.headers["Retry-After"]
    for messages in ([{"value": "v", "timestamp": 1_000}], [{"value": str(n), "timestamp": 1_000} for n in range(5)]):
        assert client.post(f"/produce/{name}", json=messages).status_code == 422, "a time that the client gave"
    mixed = [{"value": "v", "timestamp": 1_000}, {"value": "v"}]
    assert refused_as_too_old(client, name, mixed).status_code == 503, "one of them may be sent again"


def refused_as_too_old(client: httpx.Client, topic: str, messages: list[dict[str, Any]]) -> httpx.Response:
    """The answer to a try of which Kafka stored nothing.

    It does store what reaches it within the millisecond in which it was made, and then the clocks do not differ.
    """
    for _ in range(200):
        before = latest(client, topic)
        answer = client.post(f"/produce/{topic}", json=messages)
        if latest(client, topic) == before:
            return answer
    raise AssertionError(f"Kafka stored something of each of 200 tries; the last answer: {answer.text}")


def latest(client: httpx.Client, topic: str) -> int:
    described = client.get(f"/admin/topics/{topic}").json()
    return sum(partition["latest"] for partition in described["partitions"])


def test_a_record_without_a_key_is_its_sender_s_mistake_in_a_compacted_topic(client: httpx.Client) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    assert client.post("/admin/topics", json={"name": name, "partitions": 1, "compacted": True}).status_code == 201
    for messages in ([{"value": "v"}], [{"value": str(n)} for n in range(5)]):
        assert client.post(f"/produce/{name}", json=messages).status_code == 422
