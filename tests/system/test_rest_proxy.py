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
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from infra.rest.access_keys import add_key
from tests.conftest import Stack
from tests.system.test_rest_proxy_v2 import ORDER, stored_bytes
from views.formats.protobuf_schema import compiled, pool_of

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
    assert [line["error_code"] for line in found] == [200, 404, 400, 400, 400, 400, 413, 200]
    assert [line["offset"] for line in found if line["error_code"] == 200] == [0, 1]
    assert [line["message"][:12] for line in found[2:5]] == ["value.type: ", "value.data: ", "valu: a reco"]
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


# ---- records with a schema ----------------------------------------------------

USER = {"type": "object", "title": "shop.User", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LINE = """syntax = "proto3"; package shop;
message Line { string sku = 1; repeated int32 sizes = 2; Place place = 3; message Place { double x = 1; } }"""
TEXTS = {"AVRO": json.dumps(ORDER), "JSONSCHEMA": json.dumps(USER), "PROTOBUF": LINE}
NAMES = {"AVRO": "shop.Order", "JSONSCHEMA": "shop.User", "PROTOBUF": "shop.Line"}
DATA = {
    "AVRO": {"id": 1, "note": {"string": "a"}, "day": 20_000},
    "JSONSCHEMA": {"name": "u"},
    "PROTOBUF": {"sku": "s", "sizes": [1, 2], "place": {"x": 0.5}},
}
TYPES = {"AVRO": "AVRO", "JSONSCHEMA": "JSON", "PROTOBUF": "PROTOBUF"}
"""Of the registry."""


@pytest.fixture(scope="module")
def registry(stack: Stack) -> Iterator[SchemaRegistryClient]:
    url, login = f"{stack.collector}/schema-registry", f"admin:{stack.secret}"
    with SchemaRegistryClient({"url": url, "basic.auth.user.info": login}) as made:
        yield made


def produce(client: httpx.Client, cluster: str, topic: str, *records: dict[str, Any]) -> list[Any]:
    content = "\n".join(json.dumps({"partition_id": 0, **record}) for record in records)
    return lines(client.post(f"/v3/clusters/{cluster}/topics/{topic}/records", content=content))


def deserialized(registry: SchemaRegistryClient, type: str, topic: str, data: bytes | None) -> Any:
    """What the stock deserializer makes of a value."""
    where = SerializationContext(topic, MessageField.VALUE)
    if type == "AVRO":
        return AvroDeserializer(registry)(data, where)
    if type == "JSONSCHEMA":
        return JSONDeserializer(None, schema_registry_client=registry)(data, where)
    message = message_factory.GetMessageClass(pool_of(compiled(LINE)).FindMessageTypeByName("shop.Line"))
    return ProtobufDeserializer(message, {"use.deprecated.format": False}, registry)(data, where)


def is_expected(type: str, found: Any) -> bool:
    if type == "AVRO":
        return (found["id"], found["note"], str(found["day"])) == (1, "a", "2024-10-04")
    if type == "JSONSCHEMA":
        return bool(found == DATA[type])
    return (found.sku, list(found.sizes), found.place.x) == ("s", [1, 2], 0.5)


@pytest.mark.parametrize("type", TEXTS)
def test_records_with_a_schema_are_read_by_the_stock_deserializers(
    stack: Stack, client: httpx.Client, registry: SchemaRegistryClient, cluster: str, topic: str, type: str
) -> None:
    """Each way to say which schema it is: its text, its id, a version, and nothing, which is the latest."""
    data, subject = DATA[type], f"{topic}-value"
    (first,) = produce(client, cluster, topic, {"value": {"type": type, "schema": TEXTS[type], "data": data}})
    known = registry.get_latest_version(subject)
    assert first["value"] == {
        "type": type, "subject": subject, "schema_id": known.schema_id, "schema_version": 1,
        "size": first["value"]["size"],
    }  # fmt: skip
    others = produce(
        client,
        cluster,
        topic,
        *(
            {"value": {**choice, "data": data}}
            for choice in (
                {"schema_id": known.schema_id},
                {"schema_version": 1},
                {},
                {"type": type, "schema": TEXTS[type], "subject": None, "schema_id": None},
                {"subject": subject},
                {"subject": subject, "schema_version": 1},
                {"subject_name_strategy": "TOPIC_NAME", "schema_id": known.schema_id},
            )
        ),
    )
    assert [each["error_code"] for each in others] == [200] * 7, others
    assert all(each["value"] == first["value"] for each in others)
    found = stored_bytes(stack, topic, 8)
    assert len({value for _, value in found}) == 1
    assert len(found[0][1] or b"") == first["value"]["size"]
    assert is_expected(type, deserialized(registry, type, topic, found[0][1]))


@pytest.mark.parametrize("type", TEXTS)
def test_the_subject_of_a_schema_is_chosen_by_name_or_by_strategy(
    stack: Stack, client: httpx.Client, registry: SchemaRegistryClient, cluster: str, topic: str, type: str
) -> None:
    text, data, own = TEXTS[type], DATA[type], f"own-{topic}"
    subjects = {
        "TOPIC_NAME": f"{topic}-key",
        "RECORD_NAME": NAMES[type],
        "TOPIC_RECORD_NAME": f"{topic}-{NAMES[type]}",
    }
    found = produce(
        client,
        cluster,
        topic,
        *({"key": {"type": type, "schema": text, "subject_name_strategy": each, "data": data}} for each in subjects),
        {"key": {"type": type, "schema": text, "subject": own, "data": data}},
    )
    assert [each["error_code"] for each in found] == [200] * 4, found
    assert [each["key"]["subject"] for each in found] == [*subjects.values(), own]
    for each in found:
        assert registry.get_latest_version(each["key"]["subject"]).schema_id == each["key"]["schema_id"]
    ids = {"schema_id": found[0]["key"]["schema_id"], "data": data}
    by_id = produce(
        client, cluster, topic, *({"key": {**ids, "subject_name_strategy": each}} for each in subjects),
        {"key": {**ids, "subject": own}}, {"key": {**ids, "subject": f"none-{topic}"}},
    )  # fmt: skip
    assert [each["error_code"] for each in by_id] == [200] * 4 + [42207]
    assert [each["key"]["subject"] for each in by_id[:4]] == [*subjects.values(), own]


def test_a_later_version_is_the_latest_and_earlier_ones_can_be_named(
    stack: Stack, client: httpx.Client, registry: SchemaRegistryClient, cluster: str, topic: str
) -> None:
    later = {**ORDER, "fields": [*ORDER["fields"], {"name": "more", "type": "string", "default": "-"}]}
    for schema in (ORDER, later):
        registry.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))
    found = produce(
        client, cluster, topic,
        {"value": {"schema_version": 1, "data": DATA["AVRO"]}},
        {"value": {"data": {**DATA["AVRO"], "more": "x"}}},
        {"value": {"schema_version": 2, "data": {**DATA["AVRO"], "more": "y"}}},
    )  # fmt: skip
    assert [each["value"]["schema_version"] for each in found] == [1, 2, 2]
    values = [deserialized(registry, "AVRO", topic, value) for _, value in stored_bytes(stack, topic, 3)]
    assert [each.get("more") for each in values] == [None, "x", "y"]


def test_null_is_a_tombstone_whatever_its_schema(
    stack: Stack, client: httpx.Client, registry: SchemaRegistryClient, cluster: str, topic: str
) -> None:
    """Data may be null, or left out."""
    registry.register_schema(f"{topic}-value", Schema('"string"', "AVRO"))
    key = {"type": "STRING", "data": "k"}
    found = produce(
        client, cluster, topic,
        {"key": key, "value": {"schema_version": 1, "data": None}}, {"key": key, "value": {"schema_version": 1}},
        {"key": key, "value": {"type": "JSONSCHEMA", "schema": "true", "subject": f"true-{topic}", "data": None}},
        {"key": key, "value": {"type": "STRING", "data": None}}, {"key": key, "value": None},
    )  # fmt: skip
    assert [each["error_code"] for each in found] == [200] * 5
    assert [each.get("value", {}).get("size") for each in found] == [0, 0, 0, 0, None]
    assert [each["key"]["size"] for each in found] == [1] * 5
    assert stored_bytes(stack, topic, 5) == [(b"k", None)] * 5


def test_what_is_wrong_with_a_schema_or_its_data_is_said_of_each_record(
    client: httpx.Client, registry: SchemaRegistryClient, cluster: str, topic: str
) -> None:
    """400: the record, 42205: the schema, 42207: the registry does not have it, or does not take it."""
    id = registry.register_schema(f"{topic}-value", Schema(json.dumps(ORDER), "AVRO"))
    raw, data = {"type": "AVRO", "schema": json.dumps(ORDER)}, DATA["AVRO"]
    cases: list[tuple[int, dict[str, Any], str]] = [
        (400, {"type": "AVRO", "data": data}, "value.type: "),
        (400, {"type": "AVRO", "schema_id": id}, "value.type: "),
        (400, {"type": "AVRO", "schema_version": 1}, "value.type: "),
        (400, {"schema": '"int"'}, "value.type: "),
        (400, {**raw, "schema_id": id}, "value.schema_id: "),
        (400, {**raw, "schema_version": 1}, "value.schema_version: "),
        (400, {"schema_id": id, "schema_version": 1}, "value.schema_version: "),
        (400, {**raw, "subject": "x", "subject_name_strategy": "TOPIC_NAME"}, "value.subject_name_strategy: "),
        (400, {**raw, "subject_name_strategy": "topic_name"}, "value.subject_name_strategy: "),
        (400, {"schema_version": 1, "subject_name_strategy": "RECORD_NAME"}, "value.subject_name_strategy: "),
        (400, {"subject_name_strategy": "TOPIC_RECORD_NAME"}, "value.subject_name_strategy: "),
        (400, {"type": "JSON", "subject": "x"}, "value.subject: "),
        (400, {"type": "STRING", "schema_id": id}, "value.schema_id: "),
        (400, {"type": "XML", "data": 1}, "value.type: "),
        (400, {"type": ["AVRO"], "data": 1}, "value.type: "),
        (400, {"schema_id": True}, "value.schema_id: "),
        (400, {"schema_version": "latest"}, "value.schema_version: "),
        (400, {**raw, "subject": ""}, "value.subject: "),
        (400, {**raw, "schema": 5}, "value.schema: "),
        (400, {**raw, "data": {"id": "x"}}, "value.data: "),
        (400, {"data": {**data, "note": "bare"}}, "value.data: "),
        (400, {"type": "JSONSCHEMA", "schema": '{"type": "integer"}', "subject": f"a-{topic}", "data": "x"}, "value.d"),
        (400, {"type": "PROTOBUF", "schema": LINE, "subject": f"b-{topic}", "data": {"sku": 1}}, "value.data: "),
        (42205, {"type": "AVRO", "schema": "{", "data": 1}, ""),
        (42205, {"type": "PROTOBUF", "schema": "message", "subject": f"c-{topic}", "data": 1}, ""),
        (42205, {"type": "PROTOBUF", "schema": "x", "subject_name_strategy": "RECORD_NAME", "data": 1}, ""),
        (42205, {"type": "AVRO", "schema": '"int"', "subject_name_strategy": "RECORD_NAME", "data": 1}, ""),
        (42205, {"type": "AVRO", "schema": "[" * 50_000, "subject_name_strategy": "RECORD_NAME", "data": 1}, ""),
        (42205, {"type": "JSONSCHEMA", "schema": "[" * 50_000, "subject": f"d-{topic}", "data": 1}, ""),
        (42207, {"schema_id": 2_000_000_000}, ""),
        (42207, {"schema_version": 9}, ""),
        (42207, {"subject": f"none-{topic}"}, ""),
        (42207, {"type": "AVRO", "schema": '"int"', "data": 1}, ""),  # BACKWARD does not allow it
    ]  # fmt: skip
    found = produce(client, cluster, topic, *({"value": value} for _, value, _ in cases))
    assert [each["error_code"] for each in found] == [code for code, _, _ in cases], found
    assert [each["message"] for each, (_, _, begin) in zip(found, cases, strict=True)
            if not each["message"].startswith(begin)] == []  # fmt: skip
    (end,) = client.post("/offsets/latest", json=[{"topic": topic, "partition": 0}]).json()
    assert end["offset"] == 0, "nothing of it is stored"


def test_a_new_schema_needs_the_scope_for_it(stack: Stack, client: httpx.Client, cluster: str, topic: str) -> None:
    secret = add_key(stack.settings.home, f"v3-{uuid.uuid4().hex[:8]}", ["produce"])
    record = {"value": {"type": "AVRO", "schema": '"int"', "data": 1}}
    with httpx.Client(base_url=stack.collector, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as producing:
        assert [each["error_code"] for each in produce(producing, cluster, topic, record)] == [403]
        assert [each["error_code"] for each in produce(client, cluster, topic, record)] == [200]
        assert [each["error_code"] for each in produce(producing, cluster, topic, record)] == [200], "it is there now"
