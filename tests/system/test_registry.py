"""The schema registry on a real stack: stock clients unchanged, keys and their limits, other writers, compaction."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from typer.testing import CliRunner

from infra.rest.access_keys import add_key
from infra.settings import child_environment
from tests.conftest import Stack, wait_until
from tidemark.commands.registry import RegistryRefused
from tidemark.commands.registry import app as commands
from tidemark.commands.views import app as views
from torture.installation_settings import free_port
from views.declarations import load_declarations

USER = json.dumps({"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]})
USER_2 = json.dumps(
    {
        "type": "record",
        "name": "User",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string", "default": ""}],
    }
)
USER_WITH_REQUIRED = USER_2.replace(', "default": ""', "")


@pytest.fixture(scope="module")
def url(stack: Stack) -> str:
    """The address that clients are given."""
    address = f"{stack.collector}/schema-registry"
    with httpx.Client(base_url=address, auth=("admin", stack.secret), timeout=60) as client:
        wait_until("the registry", lambda: answers(client))
    return address


@pytest.fixture
def registry(stack: Stack, url: str) -> Iterator[httpx.Client]:
    """Asks the registry with the key `admin`."""
    with httpx.Client(base_url=url, auth=("admin", stack.secret), timeout=60) as client:
        yield client


@pytest.fixture
def subject() -> str:
    """A subject of its own."""
    return f"s-{uuid4().hex}-value"


@pytest.fixture
def confluent(stack: Stack, url: str) -> Iterator[SchemaRegistryClient]:
    """The client of confluent-kafka."""
    with SchemaRegistryClient({"url": url, "basic.auth.user.info": f"admin:{stack.secret}"}) as client:
        yield client


def error_of(answer: httpx.Response) -> tuple[int, int]:
    return answer.status_code, answer.json()["error_code"]


def register(registry: httpx.Client, subject: str, text: str, **more: object) -> httpx.Response:
    return registry.post(f"/subjects/{subject}/versions", json={"schema": text, **more})


def test_avro_records_of_confluents_serializer_come_back(confluent: SchemaRegistryClient) -> None:
    topic = f"t-{uuid4().hex}"
    context = SerializationContext(topic, MessageField.VALUE)
    record = {"id": 7, "name": "Ada"}
    payload = AvroSerializer(confluent, USER_2)(record, context)
    assert payload is not None
    assert AvroDeserializer(confluent)(payload, context) == record
    latest = confluent.get_latest_version(f"{topic}-value")
    assert int.from_bytes(payload[1:5]) == latest.schema_id
    strict = AvroSerializer(confluent, USER_2, conf={"auto.register.schemas": False, "normalize.schemas": True})
    assert strict(record, context) == payload


def test_versions_follow_the_level_of_their_subject(registry: httpx.Client, subject: str) -> None:
    first = register(registry, subject, USER).raise_for_status().json()
    assert register(registry, subject, json.dumps(json.loads(USER), indent=4)).json() == first
    refused = register(registry, subject, USER_WITH_REQUIRED)
    assert error_of(refused) == (409, 409)
    second = register(registry, subject, USER_2).raise_for_status().json()
    assert (first["version"], second["version"]) == (1, 2)
    assert second["id"] != first["id"]
    check = registry.post(
        f"/compatibility/subjects/{subject}/versions/latest?verbose=True", json={"schema": USER_WITH_REQUIRED}
    )
    assert check.json()["is_compatible"] is True  # its last version has the name already
    registry.put(f"/config/{subject}", json={"compatibility": "BACKWARD_TRANSITIVE"}).raise_for_status()
    check = registry.post(
        f"/compatibility/subjects/{subject}/versions?verbose=true", json={"schema": USER_WITH_REQUIRED}
    )
    assert check.json()["is_compatible"] is False
    assert "name" in check.json()["messages"][0]


def test_deleted_versions_come_back_neither_by_number_nor_by_id(registry: httpx.Client, subject: str) -> None:
    first, second = (register(registry, subject, text).json() for text in (USER, USER_2))
    assert registry.delete(f"/subjects/{subject}/versions/2").json() == 2
    assert error_of(registry.get(f"/subjects/{subject}/versions/2")) == (404, 40402)
    assert json.loads(registry.get(f"/schemas/ids/{second['id']}/schema").text) == json.loads(USER_2)
    assert error_of(registry.delete(f"/subjects/{subject}/versions/2")) == (404, 40406)
    assert registry.delete(f"/subjects/{subject}/versions/2?permanent=true").json() == 2
    assert error_of(registry.delete(f"/subjects/{subject}/versions/1?permanent=true")) == (404, 40407)
    assert registry.delete(f"/subjects/{subject}").json() == [1]
    assert error_of(registry.delete(f"/subjects/{subject}")) == (404, 40404)
    assert registry.delete(f"/subjects/{subject}?permanent=true").json() == [1]
    assert error_of(registry.get(f"/subjects/{subject}/versions")) == (404, 40401)
    again = register(registry, subject, USER.replace("User", f"User{uuid4().hex}")).json()
    assert again["id"] > second["id"] > 0
    assert first["id"] != again["id"]


def test_a_key_for_some_subjects_sees_no_others(stack: Stack, url: str, registry: httpx.Client, subject: str) -> None:
    other = f"other-{uuid4().hex}"
    register(registry, other, USER.replace("User", f"Other{uuid4().hex}")).raise_for_status()
    hidden = registry.get(f"/subjects/{other}/versions/1").json()["id"]
    secret = add_key(stack.settings.home, f"k-{uuid4().hex}", ["schema:write"], subjects=["s-*"])
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as limited:
        register(limited, subject, USER).raise_for_status()
        assert other not in limited.get("/subjects").json()
        assert limited.get(f"/subjects/{other}/versions").status_code == 403
        assert register(limited, other, USER).status_code == 403
        assert error_of(limited.get(f"/schemas/ids/{hidden}")) == (404, 40403)
        assert limited.put("/config", json={"compatibility": "NONE"}).status_code == 403
        assert limited.put(f"/mode/{subject}", json={"mode": "import"}).status_code == 403
        assert register(limited, subject, USER_2, id=2**31 - 1).status_code == 403
        limited.put(f"/mode/{subject}", json={"mode": "READWRITE"}).raise_for_status()
        reference = [{"name": "Other", "subject": other, "version": 1}]
        assert register(limited, subject, USER_2, references=reference).status_code == 403
    reading = add_key(stack.settings.home, f"k-{uuid4().hex}", ["schema:read"])
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {reading}"}, timeout=60) as reader:
        assert reader.get(f"/subjects/{subject}/versions").json() == [1]
        assert error_of(register(reader, subject, USER_2)) == (403, 403)


def test_a_wrong_secret_is_an_error_that_the_client_understands(url: str) -> None:
    with (
        SchemaRegistryClient({"url": url, "basic.auth.user.info": "admin:wrong"}) as client,
        pytest.raises(SchemaRegistryError, match="access key") as refused,
    ):
        client.get_subjects()
    assert refused.value.http_status_code == 401


# ---- writers ---------------------------------------------------------------------


@contextmanager
def replica(stack: Stack) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """Another collector of the same home and Kafka, and its process; killed at the end."""
    port = free_port()
    settings = stack.settings.model_copy(update={"collector_port": port, "kafka_bootstrap": stack.kafka})
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "master_dataset.collector"],
        env=child_environment(settings),
        stderr=subprocess.PIPE,
    )
    try:
        address = f"http://127.0.0.1:{port}/schema-registry"
        with httpx.Client(base_url=address, auth=("admin", stack.secret), timeout=60) as client:
            wait_until("the other registry", lambda: answers(client))
            yield client, process
    finally:
        process.kill()
        process.communicate()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/subjects").is_success
    except httpx.TransportError:
        return False


def test_two_registries_that_write_in_turns_and_at_once_give_no_id_twice(
    stack: Stack, registry: httpx.Client, subject: str
) -> None:
    with replica(stack) as (other, _), ThreadPoolExecutor(4) as threads:
        texts = [USER.replace("User", f"User{uuid4().hex}") for _ in range(24)]
        clients = [registry, other]

        def register_one(number: int) -> tuple[str, int]:
            text = texts[number // 2 if number % 2 else -1 - number // 2]  # each by both, in opposite orders
            answer = register(clients[number % 2], f"{subject}-{number}", text)
            return text, int(answer.raise_for_status().json()["id"])

        ids: dict[str, set[int]] = {}
        for text, schema_id in threads.map(register_one, range(2 * len(texts))):
            ids.setdefault(text, set()).add(schema_id)
        assert all(len(found) == 1 for found in ids.values()), ids
        assert len(set.union(*ids.values())) == len(texts)
        for client in clients:
            for text, (schema_id,) in ids.items():
                wait_until(
                    "the other's schemas",
                    lambda client=client, schema_id=schema_id: client.get(f"/schemas/ids/{schema_id}").is_success,
                )
                assert json.loads(client.get(f"/schemas/ids/{schema_id}/schema").text) == json.loads(text)


def test_a_registry_that_is_killed_while_it_writes_leaves_whole_schemas(
    stack: Stack, registry: httpx.Client, subject: str
) -> None:
    """What it acknowledged is there, once; what it did not may be there, and is found by whoever sends it again."""
    acknowledged: dict[int, int] = {}

    def register_one(client: httpx.Client, number: int) -> httpx.Response | None:
        """The acknowledgement; None where the registry could not tell, and the request is sent again."""
        answer = register(client, f"{subject}-{number}", USER.replace("User", f"K{number}_{subject[2:10]}"))
        return None if answer.is_server_error else answer.raise_for_status()

    def register_until_killed(client: httpx.Client) -> None:
        with suppress(httpx.TransportError):
            for number in range(10_000):
                while (answer := register_one(client, number)) is None:
                    time.sleep(0.1)
                acknowledged[number] = answer.json()["id"]

    with replica(stack) as (other, process):
        sending = threading.Thread(target=register_until_killed, args=(other,))
        sending.start()
        wait_until("some schemas", lambda: len(acknowledged) > 10)
        process.kill()
        sending.join(120)
        assert not sending.is_alive()
    last = max(acknowledged)
    for number in range(last + 3):
        answer = wait_until("a new writer", lambda number=number: register_one(registry, number))
        assert answer.json()["id"] == acknowledged.get(number, answer.json()["id"])
        assert answer.json()["version"] == 1
    assert len({*acknowledged.values()}) == len(acknowledged)


def test_the_topic_is_compacted_and_nobody_else_writes_to_it(stack: Stack) -> None:
    with stack.client() as client:
        described = client.get("/admin/topics/_schemas").raise_for_status().json()
        assert "compact" in json.dumps(described)
        refused = client.post("/produce/_schemas", json={"key": "k", "value": "v"})
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:tidemark:problem:reserved-topic")


# ---- commands --------------------------------------------------------------------


def test_commands_register_check_list_show_and_compare(
    stack: Stack, url: str, subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_CLI_KEY", f"admin:{stack.secret}")
    monkeypatch.setenv("TIDEMARK_CLI_URL", url)
    first, second, wrong = (tmp_path / f"{name}.avsc" for name in ("first", "second", "wrong"))
    first.write_text(USER)
    second.write_text(USER_2)
    wrong.write_text(USER_WITH_REQUIRED)

    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(commands, arguments)
        assert done.exit_code == code, (done.output, done.exception)
        return done.stdout

    assert run("register", subject, str(first)).startswith(f"{subject} version 1, id ")
    assert "can be registered" in run("check", subject, str(second))
    assert "name" in run("check", subject, str(wrong), code=1)
    made = json.loads(run("register", subject, str(second), "-o", "json"))
    assert made["version"] == 2
    listed = {each["subject"]: each for each in json.loads(run("list", "-o", "json"))}
    assert listed[subject] == {"subject": subject, "version": 2, "id": made["id"], "type": "AVRO"}
    assert '"name": "id"' in run("show", subject, "1")
    assert '+      "name": "name",' in run("diff", subject, "1")
    refused = CliRunner().invoke(commands, ["show", "no-such-subject"])
    assert isinstance(refused.exception, RegistryRefused)
    assert "not found" in str(refused.exception)


def test_commands_register_json_schemas_and_what_a_schema_refers_to(
    stack: Stack, url: str, registry: httpx.Client, subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_CLI_KEY", f"admin:{stack.secret}")
    monkeypatch.setenv("TIDEMARK_CLI_URL", url)
    name = "https://example.com/item?v=1"
    item, order, user = (tmp_path / f"{name}.json" for name in ("item", "order", "user"))
    item.write_text(json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer"}))
    order.write_text(json.dumps({"type": "object", "properties": {"item": {"$ref": name}}}))
    user.write_text(USER)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(commands, arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    run("register", f"item-{subject}", str(item))
    for version in ("1", "latest"):
        given = ("--reference", f"{name}=item-{subject}:{version}")
        assert "can be registered" in run("check", subject, str(order), *given)
        assert json.loads(run("register", subject, str(order), *given, "-o", "json"))["version"] == 1
    stored = registry.get(f"/subjects/{subject}/versions/1").json()
    assert (stored["schemaType"], stored["references"]) == (
        "JSON", [{"name": name, "subject": f"item-{subject}", "version": 1}],
    )  # fmt: skip
    run("register", f"user-{subject}", str(user))
    assert "schemaType" not in registry.get(f"/subjects/user-{subject}/versions/1").json(), "it is Avro"


def test_a_first_view_is_made_from_a_subject_and_what_its_schema_refers_to(
    stack: Stack, registry: httpx.Client, url: str, subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_CLI_KEY", f"admin:{stack.secret}")
    monkeypatch.setenv("TIDEMARK_CLI_URL", url)
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    made = registry.post(f"/subjects/of-{subject}/versions", json={"schema": USER_2})
    assert made.is_success, made.text
    time = {"type": "long", "logicalType": "timestamp-millis"}
    order = [("order", "string"), ("event_time", time), ("user", "User")]
    schema = {"type": "record", "name": "Order", "fields": [{"name": name, "type": type} for name, type in order]}
    references = [{"name": "User", "subject": f"of-{subject}", "version": 1}]
    made = registry.post(f"/subjects/{subject}/versions", json={"schema": json.dumps(schema), "references": references})
    assert made.is_success, made.text
    latest = [references[0] | {"version": -1}]
    same = registry.post(f"/subjects/{subject}/versions", json={"schema": json.dumps(schema), "references": latest})
    assert same.json() == made.json()

    folder = tmp_path / "mine"
    new = ["new", "orders", "--from-subject", subject, "--dir", str(folder), "--id-field", "order"]
    done = CliRunner().invoke(views, new)
    assert done.exit_code == 0, (done.output, done.exception)
    declared = load_declarations(folder, with_catalog=False)
    (source,) = declared.sources.values()
    assert (source.topic, source.format, source.id_field) == (subject.removesuffix("-value"), "avro", "order")
    assert [each.name for each in source.schema] == ["order", "event_time", "user"]
    assert [each.name for each in source.schema[2].type.fields] == ["id", "name"]
    assert list(declared.views) == ["orders"]
    missing = CliRunner().invoke(views, ["new", "more", "--from-subject", "no-such-value", "--dir", str(folder)])
    assert isinstance(missing.exception, RegistryRefused)
    assert sorted(path.name for path in folder.glob("*.*")) == ["orders.avsc", "orders.py"]
