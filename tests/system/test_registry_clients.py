"""Stock clients of schema registries against ours, unchanged: they register, serialize and read back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.type import money_pb2
from httpx import BasicAuth
from schema_registry.client import SchemaRegistryClient as OtherClient
from schema_registry.client.schema import AvroSchema, JsonSchema
from schema_registry.serializers import AvroMessageSerializer

from tests.conftest import Stack, wait_until

CLIENTS = Path(__file__).parents[1] / "clients"
RECORD = {"id": 7, "name": "Ada Lovelace"}


@pytest.fixture(scope="module")
def url(stack: Stack) -> str:
    """The address that clients are given."""
    address = f"{stack.collector}/schema-registry"
    with httpx.Client(base_url=address, auth=("admin", stack.secret), timeout=60) as client:

        def answers() -> bool:
            try:
                return client.get("/subjects").is_success
            except httpx.TransportError:
                return False

        wait_until("the registry", answers)
    return address


@pytest.fixture
def confluent(stack: Stack, url: str) -> Iterator[SchemaRegistryClient]:
    """The client of confluent-kafka."""
    with SchemaRegistryClient({"url": url, "basic.auth.user.info": f"admin:{stack.secret}"}) as client:
        yield client


@pytest.fixture
def context() -> SerializationContext:
    """A topic of its own."""
    return SerializationContext(f"t-{uuid4().hex}", MessageField.VALUE, [])


def user_schema(name: str) -> str:
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    return json.dumps({"type": "record", "name": name, "fields": fields})


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"normalize.schemas": True},
        {"auto.register.schemas": False},
        {"auto.register.schemas": False, "use.latest.version": True},
        {"schema.id.serializer": header_schema_id_serializer},
    ],
    ids=["defaults", "normalized", "registered before", "latest version", "id in a header"],
)
def test_avro_records_come_back(
    confluent: SchemaRegistryClient, context: SerializationContext, conf: dict[str, Any]
) -> None:
    text = user_schema(f"User{uuid4().hex}")
    confluent.register_schema(f"{context.topic}-value", ConfluentSchema(text, "AVRO"))
    payload = AvroSerializer(confluent, text, conf=conf)(RECORD, context)
    assert AvroDeserializer(confluent)(payload, context) == RECORD


def test_json_records_come_back(confluent: SchemaRegistryClient, context: SerializationContext) -> None:
    properties = {"id": {"type": "integer"}, "name": {"type": "string"}}
    text = json.dumps({"title": f"User{uuid4().hex}", "type": "object", "properties": properties})
    payload = JSONSerializer(text, confluent)(RECORD, context)
    assert JSONDeserializer(None, schema_registry_client=confluent)(payload, context) == RECORD


def test_avro_records_with_a_referenced_type_come_back(
    confluent: SchemaRegistryClient, context: SerializationContext
) -> None:
    name = f"User{uuid4().hex}"
    confluent.register_schema(name, ConfluentSchema(user_schema(name), "AVRO"))
    order = {"type": "record", "name": "Order", "fields": [{"name": "user", "type": name}]}
    schema = ConfluentSchema(json.dumps(order), "AVRO", [SchemaReference(name, name, 1)])
    payload = AvroSerializer(confluent, schema)({"user": RECORD}, context)
    assert AvroDeserializer(confluent)(payload, context) == {"user": RECORD}


def user_message() -> Any:
    """A Protobuf message class of its own, whose file imports another one."""
    package = f"p{uuid4().hex}"
    base = descriptor_pb2.FileDescriptorProto(name=f"{package}/base.proto", package=package, syntax="proto3")
    base.message_type.add(name="Name").field.add(name="name", number=1, type=9, label=1)
    user = descriptor_pb2.FileDescriptorProto(name=f"{package}/user.proto", package=package, syntax="proto3")
    user.dependency.append(base.name)
    user.message_type.add(name="First").field.add(name="x", number=1, type=5, label=1)
    fields = user.message_type.add(name="User").field
    fields.add(name="id", number=1, type=3, label=1)
    fields.add(name="name", number=2, type=11, label=1, type_name=f".{package}.Name")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(base)
    pool.Add(user)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.User"))


def test_protobuf_records_with_an_import_come_back(
    confluent: SchemaRegistryClient, context: SerializationContext
) -> None:
    message = user_message()
    sent = message(id=7, name={"name": "Ada"})
    conf = {"use.deprecated.format": False}
    payload = ProtobufSerializer(message, confluent, conf)(sent, context)
    assert ProtobufDeserializer(message, conf, confluent)(payload, context) == sent
    registered = confluent.get_latest_version(f"{context.topic}-value")
    assert registered.schema.schema_str.startswith("syntax")
    assert [each.name for each in registered.schema.references] == [message.DESCRIPTOR.file.dependencies[0].name]


def test_protobuf_records_with_a_common_type_come_back(
    confluent: SchemaRegistryClient, context: SerializationContext
) -> None:
    """The serializer registers no reference to google/type/money.proto."""
    package = f"p{uuid4().hex}"
    price = descriptor_pb2.FileDescriptorProto(name=f"{package}/price.proto", package=package, syntax="proto3")
    price.dependency.append("google/type/money.proto")
    price.message_type.add(name="Price").field.add(name="x", number=1, type=11, label=1, type_name=".google.type.Money")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(money_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(price)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Price"))
    sent = message(x={"currency_code": "EUR", "units": 7})
    conf = {"use.deprecated.format": False}
    payload = ProtobufSerializer(message, confluent, conf)(sent, context)
    assert ProtobufDeserializer(message, conf, confluent)(payload, context) == sent
    assert not confluent.get_latest_version(f"{context.topic}-value").schema.references


def test_the_other_python_client_registers_and_reads(stack: Stack, url: str) -> None:
    client = OtherClient(url, auth=BasicAuth("admin", stack.secret))
    subject = f"o-{uuid4().hex}"
    schema = AvroSchema(user_schema(f"User{uuid4().hex}"))
    schema_id = client.register(subject, schema)
    found = client.get_schema(subject)
    assert found is not None
    assert (found.schema_id, found.version) == (schema_id, 1)
    assert client.check_version(subject, schema).version == 1
    assert client.test_compatibility(subject, AvroSchema('"int"')) is False
    assert client.update_compatibility("FULL", subject) is True
    assert client.get_compatibility(subject) == "FULL"
    serializer = AvroMessageSerializer(client)
    assert serializer.decode_message(serializer.encode_record_with_schema(subject, schema, RECORD)) == RECORD
    assert client.register(f"{subject}-json", JsonSchema('{"type": "object"}')) > 0
    assert subject in client.get_subjects()
    assert client.delete_version(subject, 1) == 1
    assert subject not in client.get_subjects()


@pytest.mark.soak
def test_the_client_of_kafkajs_registers_and_reads(stack: Stack, url: str, tmp_path: Path) -> None:
    folder = shutil.copytree(CLIENTS / "node", tmp_path / "node")
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, check=True, timeout=300)
    found = json.loads(run("node", "client.mjs", url, stack.secret, f"n-{uuid4().hex}", folder=folder))
    assert found.keys() == {"AVRO", "JSON", "PROTOBUF"}
    for each in found.values():
        assert each["id"] == each["latest"] == each["looked_up"]
        assert each["record"] == 7


@pytest.mark.soak
def test_the_client_of_franz_go_registers_checks_and_deletes(stack: Stack, url: str) -> None:
    found = json.loads(run("go", "run", ".", url, stack.secret, f"g-{uuid4().hex}", folder=CLIENTS / "go"))
    assert found == {
        "versions": [1, 2],
        "same_id": True,
        "compatible": False,
        "level": "FULL",
        "types": 3,
        "deleted": [[1, 2], [1, 2]],
        "listed": True,
        "refused": True,
    }


def run(*command: str, folder: Path) -> str:
    """What a program prints, which has to succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
