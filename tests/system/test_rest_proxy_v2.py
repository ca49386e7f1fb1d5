"""REST Proxy v2 as its clients use it: the requests of its documentation, and records for stock deserializers."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from infra.rest.access_keys import add_key
from tests.conftest import Stack, wait_until
from views.formats.protobuf_schema import compiled, pool_of

pytestmark = pytest.mark.usefixtures("collector_alone")

V2 = "application/vnd.kafka.v2+json"
PATIENCE_MS = 20_000
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}


def of(format: str) -> str:
    return f"application/vnd.kafka.{format}.v2+json"


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx.Client]:
    """A client with the base URL of the proxy, as stock clients take one."""
    with httpx.Client(base_url=f"{stack.collector}/rest-proxy", auth=("admin", stack.secret), timeout=60) as made:
        yield made


@pytest.fixture
def topic(stack: Stack) -> str:
    return new_topic(stack)


def new_topic(stack: Stack, partitions: int = 1, name: str = "") -> str:
    name = name or f"v2-{uuid.uuid4().hex[:12]}"
    with stack.client() as admin:
        assert admin.post("/admin/topics", json={"name": name, "partitions": partitions}).status_code == 201
    return name


@pytest.fixture
def group(client: httpx.Client) -> Iterator[str]:
    """A group whose instances `a` and `b` are deleted at the end."""
    name = f"g-{uuid.uuid4().hex[:8]}"
    yield name
    for instance in ("a", "b"):
        client.delete(f"/consumers/{name}/instances/{instance}")


def send(client: httpx.Client, path: str, format: str, **body: Any) -> Any:
    headers = {"Content-Type": of(format), "Accept": V2}
    answer = client.post(path, content=json.dumps(body), headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == V2
    return answer.json()


def post(client: httpx.Client, url: str, body: Any = None) -> httpx.Response:
    content = None if body is None else json.dumps(body)
    return client.post(url, content=content, headers={"Content-Type": V2, "Accept": V2})


def create(client: httpx.Client, group: str, name: str = "a", **options: Any) -> str:
    given = {"name": name, "auto.offset.reset": "earliest", **options}
    answer = post(client, f"/consumers/{group}", given)
    assert answer.status_code == 200, answer.text
    assert answer.json()["instance_id"] == name
    return str(answer.json()["base_uri"])


def subscribe(client: httpx.Client, base: str, *topics: str) -> None:
    assert post(client, f"{base}/subscription", {"topics": topics}).status_code == 204


def read(client: httpx.Client, base: str, format: str, **parameters: Any) -> Any:
    asked = {"timeout": PATIENCE_MS, **parameters}
    answer = client.get(f"{base}/records", params=asked, headers={"Accept": of(format)})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == of(format)
    return answer.json()


def error(answer: httpx.Response) -> tuple[int, int]:
    assert answer.headers["content-type"] == V2
    found = answer.json()
    assert found["message"]
    return answer.status_code, found["error_code"]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def committed(client: httpx.Client, base: str, topic: str, partition: int = 0) -> int | None:
    body = json.dumps({"partitions": [{"topic": topic, "partition": partition}]})
    answer = client.request("GET", f"{base}/offsets", content=body, headers={"Content-Type": V2})
    assert answer.status_code == 200, answer.text
    return next((each["offset"] for each in answer.json()["offsets"]), None)


# ---- produce and consume ------------------------------------------------------


def test_json_goes_in_and_comes_out_as_the_documentation_says(client: httpx.Client, topic: str, group: str) -> None:
    stored = send(client, f"/topics/{topic}", "json", records=[{"value": {"foo": "bar"}}, {"key": 1, "value": [1.5]}])
    assert stored == {
        "offsets": [
            {"partition": 0, "offset": 0, "error_code": None, "error": None},
            {"partition": 0, "offset": 1, "error_code": None, "error": None},
        ],
        "key_schema_id": None,
        "value_schema_id": None,
    }
    base = create(client, group, format="json")
    subscribe(client, base, topic)
    assert client.get(f"{base}/subscription").json() == {"topics": [topic]}
    assert read(client, base, "json") == [
        {"topic": topic, "key": None, "value": {"foo": "bar"}, "partition": 0, "offset": 0},
        {"topic": topic, "key": 1, "value": [1.5], "partition": 0, "offset": 1},
    ]
    assert client.delete(base).status_code == 204
    assert error(client.get(f"{base}/records")) == (404, 40403)


def test_binary_goes_into_a_partition_and_comes_out(stack: Stack, client: httpx.Client, group: str) -> None:
    topic = new_topic(stack, 2)
    records = [{"key": encoded(b"k"), "value": encoded(b"\xff\x00")}, {"value": None}]
    stored = send(client, f"/topics/{topic}/partitions/1", "binary", records=records)
    assert [(each["partition"], each["offset"]) for each in stored["offsets"]] == [(1, 0), (1, 1)]
    base = create(client, group)
    assert post(client, f"{base}/assignments", {"partitions": [{"topic": topic, "partition": 1}]}).status_code == 204
    assert client.get(f"{base}/assignments").json() == {"partitions": [{"topic": topic, "partition": 1}]}
    found = read(client, base, "binary")
    assert [(each["key"], each["value"]) for each in found] == [(encoded(b"k"), encoded(b"\xff\x00")), (None, None)]


def test_positions_lead_back_and_forth(client: httpx.Client, topic: str, group: str) -> None:
    send(client, f"/topics/{topic}", "json", records=[{"value": number} for number in range(5)])
    base = create(client, group, format="json")
    at = {"topic": topic, "partition": 0}
    assert error(post(client, f"{base}/positions/beginning", {"partitions": [at]})) == (409, 40903)
    subscribe(client, base, topic)

    def values() -> list[int]:
        return [each["value"] for each in read(client, base, "json")]

    assert values() == [0, 1, 2, 3, 4]
    assert post(client, f"{base}/positions", {"offsets": [{**at, "offset": 3}]}).status_code == 204
    assert values() == [3, 4]
    assert post(client, f"{base}/positions/beginning", {"partitions": [at]}).status_code == 204
    assert values() == [0, 1, 2, 3, 4]
    assert post(client, f"{base}/positions", {"offsets": [{**at, "offset": 0}]}).status_code == 204
    assert post(client, f"{base}/positions/end", {"partitions": [at]}).status_code == 204
    send(client, f"/topics/{topic}", "json", records=[{"value": "new"}])
    assert values() == ["new"]


def test_an_instance_that_may_not_reset_reads_from_the_positions_that_it_is_given(
    stack: Stack, client: httpx.Client, group: str
) -> None:
    topic = new_topic(stack, partitions=3)

    def fill(partition: int, *values: int) -> None:
        send(client, f"/topics/{topic}/partitions/{partition}", "json", records=[{"value": each} for each in values])

    def position(partition: int, offset: int) -> None:
        at = {"topic": topic, "partition": partition, "offset": offset}
        answer = post(client, f"{base}/positions", {"offsets": [at]})
        assert answer.status_code == 204, answer.text

    def values() -> Iterator[tuple[int, int]]:
        """Of those partitions that have a position; of each other one it says once that it has none."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            answer = client.get(f"{base}/records", params={"timeout": 500}, headers={"Accept": of("json")})
            assert answer.status_code in (200, 416), answer.text
            if answer.status_code == 200:
                yield from ((each["partition"], each["value"]) for each in answer.json())
        pytest.fail("the records did not come")

    for partition in range(3):
        fill(partition, 0, 1, 2, 3)
    base = create(client, group, **{"format": "json", "auto.offset.reset": "none"})
    assigned = [{"topic": topic, "partition": partition} for partition in range(3)]
    assert post(client, f"{base}/assignments", {"partitions": assigned}).status_code == 204
    position(0, 1)
    assert [*islice(values(), 3)] == [(0, 1), (0, 2), (0, 3)]
    position(0, 3)
    position(1, 2)  # the partition before goes on from where it was to
    assert sorted(islice(values(), 3)) == [(0, 3), (1, 2), (1, 3)]
    fill(0, 4)
    position(2, 3)  # and these from where they were read
    assert sorted(islice(values(), 2)) == [(0, 4), (2, 3)]


def test_offsets_are_committed_by_hand_or_all(client: httpx.Client, topic: str, group: str) -> None:
    send(client, f"/topics/{topic}", "json", records=[{"value": number} for number in range(5)])
    base = create(client, group, **{"format": "json", "auto.commit.enable": "false"})
    subscribe(client, base, topic)
    assert len(read(client, base, "json")) == 5
    assert committed(client, base, topic) is None
    assert post(client, f"{base}/offsets", {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]}).is_success
    assert committed(client, base, topic) == 2, "the offset is that of the last record that was processed"
    client.delete(base)
    base = create(client, group, "b", **{"format": "json", "auto.commit.enable": "false"})
    subscribe(client, base, topic)
    assert [each["value"] for each in read(client, base, "json")] == [2, 3, 4]
    assert post(client, f"{base}/offsets").is_success
    assert committed(client, base, topic) == 5


def test_auto_commit_commits_what_was_given_before_and_at_the_end(client: httpx.Client, topic: str, group: str) -> None:
    send(client, f"/topics/{topic}", "json", records=[{"value": number} for number in range(4)])
    base = create(client, group, format="json")
    subscribe(client, base, topic)
    assert [each["value"] for each in read(client, base, "json", max_bytes=2)] == [0, 1]
    assert committed(client, base, topic) is None
    assert [each["value"] for each in read(client, base, "json", max_bytes=1)] == [2]
    assert committed(client, base, topic) == 2
    client.delete(base)
    base = create(client, group, "b", format="json")
    subscribe(client, base, topic)
    assert [each["value"] for each in read(client, base, "json")] == [3]


def test_it_waits_for_as_many_bytes_as_it_was_asked_for(client: httpx.Client, topic: str, group: str) -> None:
    send(client, f"/topics/{topic}", "json", records=[{"value": "x"}])
    base = create(client, group, **{"format": "json", "fetch.min.bytes": 100, "consumer.request.timeout.ms": "1500"})
    subscribe(client, base, topic)
    assert [each["value"] for each in read(client, base, "json", timeout=-1)] == ["x"]


def test_a_record_of_another_format_is_named_and_can_be_passed(client: httpx.Client, topic: str, group: str) -> None:
    send(client, f"/topics/{topic}", "json", records=[{"value": 0}])
    send(client, f"/topics/{topic}", "binary", records=[{"value": encoded(b"\xff")}])
    send(client, f"/topics/{topic}", "json", records=[{"value": 2}])
    base = create(client, group, format="json")
    subscribe(client, base, topic)
    assert [each["value"] for each in read(client, base, "json")] == [0]
    for _ in range(2):
        refused = client.get(f"{base}/records", params={"timeout": PATIENCE_MS})
        assert error(refused) == (422, 42206)
        assert (refused.json()["partition"], refused.json()["offset"]) == (0, 1)
    post(client, f"{base}/positions", {"offsets": [{"topic": topic, "partition": 0, "offset": 2}]})
    assert [each["value"] for each in read(client, base, "json")] == [2]


# ---- patterns -----------------------------------------------------------------


def test_a_pattern_reads_the_topics_that_match_also_later_ones(stack: Stack, client: httpx.Client, group: str) -> None:
    begin = f"p-{uuid.uuid4().hex[:8]}"
    one, other = new_topic(stack, name=f"{begin}.a"), new_topic(stack, name=f"x{begin}.a")
    for each in (one, other):
        send(client, f"/topics/{each}", "json", records=[{"value": each}])
    base = create(client, group, format="json")
    assert post(client, f"{base}/subscription", {"topic_pattern": rf"{begin}\..*"}).status_code == 204
    assert [each["value"] for each in read(client, base, "json")] == [one]
    later = new_topic(stack, name=f"{begin}.b")
    send(client, f"/topics/{later}", "json", records=[{"value": later}])
    wait_until("the new topic", lambda: later in [each["value"] for each in read(client, base, "json", timeout=500)])
    for wrong in ("(", "a)|(b", "x" * 2000):
        assert error(post(client, f"{base}/subscription", {"topic_pattern": wrong}))[0] == 400


def test_a_pattern_matches_only_topics_that_the_key_may_read(stack: Stack, client: httpx.Client, group: str) -> None:
    begin = f"k-{uuid.uuid4().hex[:8]}"
    mine, theirs = new_topic(stack, name=f"{begin}.mine"), new_topic(stack, name=f"{begin}.theirs")
    for each in (theirs, mine):
        send(client, f"/topics/{each}", "json", records=[{"value": each}])
    secret = add_key(stack.settings.home, f"v2-{begin}", ["consume"], topics=[mine])
    with httpx.Client(base_url=client.base_url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as limited:
        base = create(limited, group, format="json")
        assert post(limited, f"{base}/subscription", {"topic_pattern": ".*"}).status_code == 204
        assert limited.get(f"{base}/subscription").json() == {"topics": [mine]}
        assert [each["value"] for each in read(limited, base, "json")] == [mine]
        assert post(limited, f"{base}/subscription", {"topics": [theirs]}).status_code == 403
        assert limited.get("/topics").json() == [mine]
        assert limited.get(f"/topics/{theirs}").status_code == 403
        at = {"partitions": [{"topic": theirs, "partition": 0}]}
        assert post(limited, f"{base}/assignments", at).status_code == 403
        assert limited.post(f"/topics/{mine}", json={"records": [{"value": "eA=="}]}).status_code == 403
    full = create(client, group, "b", format="json")
    subscribe(client, full, theirs)
    with httpx.Client(base_url=client.base_url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as limited:
        for method, path in (("GET", "records"), ("POST", "offsets"), ("DELETE", "subscription"), ("GET", "offsets")):
            assert limited.request(method, f"{full}/{path}").status_code == 403, path
        assert limited.delete(full).status_code == 403


# ---- metadata and errors ------------------------------------------------------


def test_topics_partitions_and_brokers(stack: Stack, client: httpx.Client) -> None:
    topic = new_topic(stack, 2)
    send(client, f"/topics/{topic}/partitions/0", "json", records=[{"value": 1}])
    assert topic in client.get("/topics").json()
    (broker,) = client.get("/brokers").json()["brokers"]
    described = client.get(f"/topics/{topic}").json()
    replica = {"broker": broker, "leader": True, "in_sync": True}
    partitions = [{"partition": number, "leader": broker, "replicas": [replica]} for number in (0, 1)]
    assert (described["name"], described["partitions"]) == (topic, partitions)
    assert described["configs"]["cleanup.policy"] == "delete"
    assert client.get(f"/topics/{topic}/partitions").json() == partitions
    assert client.get(f"/topics/{topic}/partitions/1").json() == partitions[1]
    assert client.get(f"/topics/{topic}/partitions/0/offsets").json() == {"beginning_offset": 0, "end_offset": 1}


def test_errors_have_the_numbers_of_the_documentation(client: httpx.Client, topic: str, group: str) -> None:
    base = create(client, group, format="json")
    json_type, avro = {"Content-Type": of("json")}, {"Content-Type": of("avro")}
    one = json.dumps({"records": [{"value": 1}]})
    cases: list[tuple[int, int, httpx.Response]] = [
        (404, 40401, client.post("/topics/nosuch", content=one, headers=json_type)),
        (404, 40401, client.get("/topics/nosuch")),
        (404, 40401, post(client, f"{base}/subscription", {"topics": ["nosuch"]})),
        (404, 40402, client.post(f"/topics/{topic}/partitions/7", content=one, headers=json_type)),
        (404, 40402, client.get(f"/topics/{topic}/partitions/7")),
        (404, 40403, client.get("/consumers/nosuch/instances/none/records")),
        (404, 40403, client.delete("/consumers/nosuch/instances/none")),
        (409, 40902, post(client, f"/consumers/{group}", {"name": "a"})),
        (422, 42204, post(client, f"/consumers/{group}", {"format": "xml"})),
        (422, 42204, post(client, f"/consumers/{group}", {"auto.offset.reset": "soon"})),
        (422, 422, post(client, f"/consumers/{group}", {"formt": "json"})),
        (406, 40601, client.get(f"{base}/records", headers={"Accept": of("binary")})),
        (406, 406, client.get("/topics", headers={"Accept": "text/html"})),
        (415, 415, client.post(f"/topics/{topic}", content=one, headers={"Content-Type": "text/plain"})),
        (415, 415, client.post(f"/consumers/{group}", content=b"{}", headers={"Content-Type": "text/plain"})),
        (422, 422, client.post(f"/topics/{topic}", content=b'{"records": []}', headers=json_type)),
        (422, 422, client.post(f"/topics/{topic}", content=b'{"records": [{"valu": 1}]}', headers=json_type)),
        (422, 422, client.post(f"/topics/{topic}", content=one, headers={"Content-Type": of("binary")})),
        (400, 400, client.post(f"/topics/{topic}", content=b"{", headers=json_type)),
        (422, 42202, client.post(f"/topics/{topic}", content=one, headers=avro)),
        (422, 42201, client.post(f"/topics/{topic}", content=b'{"records": [{"key": 1}]}', headers=avro)),
        (403, 403, client.post("/topics/tidemark.alerts", content=one, headers=json_type)),
        (403, 403, client.post("/topics/__consumer_offsets", content=one, headers=json_type)),
        (409, 40903, client.get(f"{base}/records")),
    ]
    assert [(status, code) for status, code, _ in cases] == [error(answer) for _, _, answer in cases]
    subscribe(client, base, topic)
    at = {"partitions": [{"topic": topic, "partition": 0}]}
    assert error(post(client, f"{base}/assignments", at)) == (409, 40903)
    assert client.delete(f"{base}/subscription").status_code == 204
    assert post(client, f"{base}/assignments", at).status_code == 204
    assert error(post(client, f"{base}/subscription", {"topics": [topic]})) == (409, 40903)


# ---- schemas ------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(stack: Stack) -> Iterator[SchemaRegistryClient]:
    url, login = f"{stack.collector}/schema-registry", f"admin:{stack.secret}"
    with SchemaRegistryClient({"url": url, "basic.auth.user.info": login}) as made:
        yield made


def stored_bytes(stack: Stack, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values, as Kafka has them."""
    consumer = Consumer(
        {"bootstrap.servers": stack.kafka, "group.id": f"v2-{uuid.uuid4()}", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        found: list[Any] = []

        def has_all() -> bool:
            found.extend(consumer.consume(count, 0.5))
            return len(found) >= count

        wait_until("the records", has_all)
        return [(message.key(), message.value()) for message in found]
    finally:
        consumer.close()


def test_avro_is_read_by_the_stock_deserializer_and_by_v2(
    stack: Stack, client: httpx.Client, registry: SchemaRegistryClient, topic: str, group: str
) -> None:
    rows = [{"id": 1, "note": {"string": "a"}, "day": 20_000}, {"id": 2, "note": None, "day": 0}]
    records = [{"key": each["id"], "value": each} for each in rows]
    given = {"key_schema": '"int"', "value_schema": json.dumps(ORDER)}
    stored = send(client, f"/topics/{topic}", "avro", records=records, **given)
    assert stored["value_schema_id"] == registry.get_latest_version(f"{topic}-value").schema_id
    assert stored["key_schema_id"] == registry.get_latest_version(f"{topic}-key").schema_id
    again = send(
        client,
        f"/topics/{topic}",
        "avro",
        records=[{"value": rows[0]}],
        value_schema_id=stored["value_schema_id"],
    )
    assert again["value_schema_id"] == stored["value_schema_id"]
    value, key = SerializationContext(topic, MessageField.VALUE), SerializationContext(topic, MessageField.KEY)
    found = stored_bytes(stack, topic, 3)
    decode = AvroDeserializer(registry)
    assert [decode(data, key) for data, _ in found[:2]] == [1, 2]
    decoded = [decode(data, value) for _, data in found]
    assert [(each["id"], each["note"], str(each["day"])) for each in decoded] == [
        (1, "a", "2024-10-04"),
        (2, None, "1970-01-01"),
        (1, "a", "2024-10-04"),
    ]
    producer = Producer({"bootstrap.servers": stack.kafka})  # and what a stock serializer writes is read here
    encode = AvroSerializer(registry, json.dumps(ORDER))
    producer.produce(topic, encode({"id": 3, "note": "c", "day": 1}, value))
    producer.flush()
    base = create(client, group, format="avro")
    subscribe(client, base, topic)
    assert [each["value"] for each in read(client, base, "avro")] == [
        *rows, rows[0], {"id": 3, "note": {"string": "c"}, "day": 1},
    ]  # fmt: skip


def test_json_schema_is_read_by_the_stock_deserializer_and_by_v2(
    stack: Stack, client: httpx.Client, registry: SchemaRegistryClient, topic: str, group: str
) -> None:
    schema = json.dumps({"type": "object", "title": "order", "properties": {"id": {"type": "integer"}}})
    send(client, f"/topics/{topic}", "jsonschema", records=[{"value": {"id": 7}}], value_schema=schema)
    ((_, data),) = stored_bytes(stack, topic, 1)
    decode = JSONDeserializer(schema, schema_registry_client=registry)
    assert decode(data, SerializationContext(topic, MessageField.VALUE)) == {"id": 7}
    base = create(client, group, format="jsonschema")
    subscribe(client, base, topic)
    assert [each["value"] for each in read(client, base, "jsonschema")] == [{"id": 7}]


def test_protobuf_is_framed_as_confluents_and_read_by_v2(
    stack: Stack, client: httpx.Client, topic: str, group: str
) -> None:
    schema = """syntax = "proto3";
message Order { int32 id = 1; repeated string tags = 2; Line line = 3; message Line { string sku = 1; } }"""
    value = {"id": 7, "tags": ["a"], "line": {"sku": "s"}}
    stored = send(client, f"/topics/{topic}", "protobuf", records=[{"value": value}], value_schema=schema)
    ((_, data),) = stored_bytes(stack, topic, 1)
    frame = b"\x00" + stored["value_schema_id"].to_bytes(4, "big") + b"\x00"
    assert data == frame + b"\x08\x07" + b"\x12\x01a" + b"\x1a\x03\x0a\x01s"
    files = compiled(schema)
    message = message_factory.GetMessageClass(pool_of(files).FindMessageTypeByName("Order"))
    decode = ProtobufDeserializer(message, {"use.deprecated.format": False})
    decoded = decode(data, SerializationContext(topic, MessageField.VALUE))
    assert (decoded.id, list(decoded.tags), decoded.line.sku) == (7, ["a"], "s")
    base = create(client, group, format="protobuf")
    subscribe(client, base, topic)
    assert [each["value"] for each in read(client, base, "protobuf")] == [value]


def test_data_that_does_not_fit_its_schema_is_named_and_nothing_is_stored(
    stack: Stack, client: httpx.Client, topic: str
) -> None:
    good = {"id": 1, "note": None, "day": 0}
    schema = json.dumps(ORDER)
    wrong: list[Any] = [
        {"id": "x", "note": None, "day": 0}, {"id": True, "note": None, "day": 0}, {"note": None, "day": 0}, {},
        {"id": 2**40, "note": None, "day": 0}, {"id": 1, "note": "a", "day": 0}, {"id": 1, "note": {"int": 3}},
        {"id": 1, "note": {}, "day": 0}, {"id": 1.5, "note": None, "day": 0}, [], 5, "x",
    ]  # fmt: skip
    headers = {"Content-Type": of("avro")}
    for value in wrong:
        body = json.dumps({"value_schema": schema, "records": [{"value": good}, {"value": value}]})
        refused = client.post(f"/topics/{topic}", content=body, headers=headers)
        assert error(refused) == (422, 42203), value
        assert "records[1].value" in refused.json()["message"]
    for text in ("{", '{"type": "record"}', "", 5):
        body = json.dumps({"value_schema": text, "records": [{"value": good}]})
        assert error(client.post(f"/topics/{topic}", content=body, headers=headers)) == (422, 42205), text
    body = json.dumps({"value_schema_id": 2_000_000_000, "records": [{"value": good}]})
    assert error(client.post(f"/topics/{topic}", content=body, headers=headers)) == (422, 42205)
    for format, given, value in (
        ("jsonschema", '{"type": "integer"}', "x"),
        ("protobuf", 'syntax = "proto3"; message M { int32 a = 1; }', {"a": "x"}),
        ("protobuf", 'syntax = "proto3"; message M { int32 a = 1; }', [1]),
    ):
        elsewhere = new_topic(stack)
        body = json.dumps({"value_schema": given, "records": [{"value": value}]})
        refused = client.post(f"/topics/{elsewhere}", content=body, headers={"Content-Type": of(format)})
        assert error(refused) == (422, 42203), (format, value)
    assert client.get(f"/topics/{topic}/partitions/0/offsets").json()["end_offset"] == 0


def test_a_new_schema_needs_the_scope_for_it(stack: Stack, client: httpx.Client, topic: str) -> None:
    secret = add_key(stack.settings.home, f"v2-{uuid.uuid4().hex[:8]}", ["produce"])
    body = json.dumps({"value_schema": '"int"', "records": [{"value": 1}]})
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": of("avro")}
    with httpx.Client(base_url=client.base_url, headers=headers, timeout=60) as producing:
        assert error(producing.post(f"/topics/{topic}", content=body)) == (403, 403)
        assert client.post(f"/topics/{topic}", content=body, headers={"Content-Type": of("avro")}).status_code == 200
        assert producing.post(f"/topics/{topic}", content=body).status_code == 200, "it is there now"
