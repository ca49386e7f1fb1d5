"""Topics from declarations: made where missing, compared where they exist, never changed on the quiet."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import child_environment
from master_dataset.kafka.errors import TopicError
from master_dataset.kafka.groups import delete_group, describe_group, list_groups
from master_dataset.kafka.record import KafkaRecord
from master_dataset.kafka.send import send_records
from master_dataset.kafka.topics import (
    TopicPlan,
    alter_topic,
    apply_topics,
    compare_topics,
    create_topic,
    delete_records,
    delete_topic,
    describe_topic,
    follow_retention,
    plan_topics,
    read_topic_id,
)
from tests.conftest import Stack, wait_until
from views.source import Source

pytestmark = pytest.mark.usefixtures("collector_alone")


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(stack.settings, stack.kafka) as made:
        yield made


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with stack.client() as made:
        yield made


def source(**values: Any) -> Source:
    return Source(f"s_{uuid.uuid4().hex[:10]}", fields="event_id string, event_time timestamp", **values)


def test_declared_topics_are_made_as_declared(admin: KafkaAdmin) -> None:
    declared = source(partitions=4, retention_hours=12, retention_bytes=10**9)
    plans = plan_topics([declared])
    assert [difference.what for difference in compare_topics(admin, plans)] == ["existence", "existence"]
    assert apply_topics(admin, plans) == [declared.topic, declared.dead_topic]
    assert compare_topics(admin, plans) == []
    described = describe_topic(admin, declared.topic)
    assert len(described["partitions"]) == 4
    assert described["configs"]["retention.ms"] == "43200000"
    assert apply_topics(admin, plans) == []


def test_a_compacted_source_has_a_compacted_topic(admin: KafkaAdmin) -> None:
    declared = source(compacted=True, retention_hours=None)
    apply_topics(admin, plan_topics([declared]))
    configs = describe_topic(admin, declared.topic)["configs"]
    assert (configs["cleanup.policy"], configs["retention.ms"]) == ("compact", "-1")


def test_a_difference_is_reported_and_left_alone(admin: KafkaAdmin) -> None:
    declared = source(partitions=2)
    plans = plan_topics([declared])
    apply_topics(admin, plans)
    alter_topic(admin, declared.topic, 3, {"retention.ms": "1000000"})
    for _ in range(2):
        found = {(one.what, one.declared, one.found) for one in compare_topics(admin, plans)}
        assert found == {("partitions", "2", "3"), ("retention.ms", "604800000", "1000000")}
        assert apply_topics(admin, plans) == []


def test_retention_of_dead_letters_follows_the_setting(admin: KafkaAdmin) -> None:
    declared = source()
    apply_topics(admin, plan_topics([declared]))
    assert follow_retention(admin, [declared], 0) == []
    assert follow_retention(admin, [declared], 2) == [declared.dead_topic]
    assert follow_retention(admin, [declared], 2) == []
    assert describe_topic(admin, declared.dead_topic)["configs"]["retention.ms"] == "172800000"
    assert compare_topics(admin, plan_topics([declared], 2)) == []


def tidemark(stack: Stack, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidemark", *arguments],
        capture_output=True,
        text=True,
        env=child_environment(stack.settings) | environment,
        check=False,
        timeout=60,
    )


def test_the_collector_made_the_declared_topics(stack: Stack, client: httpx.Client) -> None:
    listed = {topic["topic"]: topic for topic in client.get("/topics").json()}
    assert listed["web"]["source"] == "web"
    assert listed["web"]["differences"] == []
    assert listed["web.dead"]["source"] == "web"
    assert not any(name.startswith("__") for name in listed)


def test_topics_on_the_command_line(stack: Stack, tmp_path: Path) -> None:
    assert tidemark(stack, "topics", "check").returncode == 0
    name = f"c_{uuid.uuid4().hex[:10]}"
    declaration = (
        f"from views.source import Source\ns = Source('{name}', fields='event_id string, event_time timestamp')\n"
    )
    (tmp_path / "mine.py").write_text(declaration)
    more = {"TIDEMARK_VIEWS_DIR": str(tmp_path)}
    missing = tidemark(stack, "topics", "check", "-o", "json", **more)
    assert missing.returncode == 1
    assert {one["topic"] for one in json.loads(missing.stdout)} == {name, f"{name}.dead"}
    made = tidemark(stack, "topics", "apply", "-o", "json", **more)
    assert {one["topic"] for one in json.loads(made.stdout)} == {name, f"{name}.dead"}
    assert tidemark(stack, "topics", "check", **more).stdout == "Every topic is as declared.\n"
    assert name in tidemark(stack, "topics", "list", "-o", "json").stdout


def test_keys_on_the_command_line(stack: Stack) -> None:
    made = tidemark(stack, "keys", "add", "by-hand", "--scope", "produce", "-s", "consume", "-o", "json")
    key = json.loads(made.stdout)
    assert httpx.get(f"{stack.collector}/topics", auth=("by-hand", key["secret"])).status_code == 200
    listed = tidemark(stack, "keys", "list", "-o", "json").stdout
    assert key["secret"] not in listed
    assert {"by-hand", "admin"} <= {one["name"] for one in json.loads(listed)}
    refused = tidemark(stack, "keys", "add", "by-hand", "--scope", "produce")
    assert refused.returncode == 2
    assert "already" in refused.stderr
    assert tidemark(stack, "keys", "remove", "by-hand").returncode == 0
    assert httpx.get(f"{stack.collector}/topics", auth=("by-hand", key["secret"])).status_code == 401


# ---- by REST -----------------------------------------------------------------


def test_a_topic_is_made_described_altered_and_deleted(client: httpx.Client) -> None:
    name = f"a-{uuid.uuid4().hex[:10]}"
    made = client.post("/admin/topics", json={"name": name, "partitions": 2, "retention_hours": 1.5})
    assert made.status_code == 201
    assert made.json()["configs"]["retention.ms"] == "5400000"
    assert client.post("/admin/topics", json={"name": name}).status_code == 409
    client.post(f"/produce/{name}", json={"value": 1, "partition": 1})
    described = client.get(f"/admin/topics/{name}").json()
    assert described["partitions"][1] == {"partition": 1, "earliest": 0, "latest": 1}
    change = {"partitions": 3, "retention_hours": "unlimited", "retention_bytes": 10**8, "compacted": True}
    altered = client.patch(f"/admin/topics/{name}", json=change).json()
    assert len(altered["partitions"]) == 3
    configs = altered["configs"]
    assert (configs["retention.ms"], configs["retention.bytes"], configs["cleanup.policy"]) == (
        "-1",
        "100000000",
        "compact",
    )
    only = client.patch(f"/admin/topics/{name}", json={"retention_hours": 1}).json()["configs"]
    assert (only["retention.ms"], only["retention.bytes"], only["cleanup.policy"]) == (
        "3600000",
        "100000000",
        "compact",
    )
    assert client.post(f"/produce/{name}", json={"value": 1, "key": "k", "partition": 2}).status_code == 200
    assert client.delete(f"/admin/topics/{name}").json() == {"deleted": name}
    assert client.get(f"/admin/topics/{name}").status_code == 404


def test_a_topic_that_was_deleted_behind_our_back_is_a_404(
    stack: Stack, admin: KafkaAdmin, client: httpx.Client
) -> None:
    name = f"d-{uuid.uuid4().hex[:10]}"
    client.post("/admin/topics", json={"name": name, "partitions": 1})
    assert client.post(f"/produce/{name}", json={"value": 1}).status_code == 200
    delete_topic(admin, name)
    answer = client.post(f"/produce/{name}", json={"value": 2}, timeout=60)
    assert answer.status_code in (404, 503), answer.text
    assert client.post(f"/produce/{name}", json={"value": 2}, timeout=60).status_code == 404


def test_a_record_without_key_for_a_compacted_topic_is_refused(client: httpx.Client) -> None:
    name = f"k-{uuid.uuid4().hex[:10]}"
    client.post("/admin/topics", json={"name": name, "partitions": 1, "compacted": True})
    answer = client.post(f"/produce/{name}", json={"value": 1})
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == "urn:tidemark:problem:refused-by-kafka"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/admin/topics", {}, 422),
        ("POST", "/admin/topics", [], 422),
        ("POST", "/admin/topics", {"name": "a b"}, 422),
        ("POST", "/admin/topics", {"name": "__x"}, 403),
        ("POST", "/admin/topics", {"name": ".."}, 403),
        ("POST", "/admin/topics", {"name": "x", "partitions": 0}, 422),
        ("POST", "/admin/topics", {"name": "x", "partitions": "3"}, 422),
        ("POST", "/admin/topics", {"name": "x", "retention_hours": -1}, 422),
        ("POST", "/admin/topics", {"name": "x", "retention": 1}, 422),
        ("PATCH", "/admin/topics/web", {"partitions": 1}, 422),
        ("PATCH", "/admin/topics/web", {"retention_bytes": 0}, 422),
        ("PATCH", "/admin/topics/none", {"partitions": 5}, 404),
        ("GET", "/admin/topics/none", None, 404),
        ("DELETE", "/admin/topics/none", None, 404),
        ("DELETE", "/admin/topics/web", None, 409),
        ("DELETE", "/admin/topics/web.dead", None, 409),
        ("DELETE", "/admin/topics/__consumer_offsets", None, 403),
        ("DELETE", "/admin/groups/none", None, 404),
    ],
)
def test_what_an_administrator_cannot_do_is_said(
    client: httpx.Client, method: str, path: str, body: Any, status: int
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


# ---- what two libraries must agree on ------------------------------------------


def test_kafka_python_and_librdkafka_see_the_same_topic_ids_and_offsets(stack: Stack, admin: KafkaAdmin) -> None:
    """Commits of the master dataset hold ids that librdkafka wrote. Thirty of them have a + or a / among their 22."""
    names = [f"i-{uuid.uuid4().hex[:10]}" for _ in range(30)]
    for name in names:
        create_topic(admin, TopicPlan(name, 1, {}))
    other = AdminClient({"bootstrap.servers": stack.kafka})
    described = other.describe_topics(TopicCollection(names))
    assert {name: read_topic_id(admin, name) for name in names} == {
        name: str(future.result().topic_id) for name, future in described.items()
    }
    send_records({"bootstrap.servers": stack.kafka}, [KafkaRecord(names[0], b"1")] * 3)
    assert describe_topic(admin, names[0])["partitions"] == [{"partition": 0, "earliest": 0, "latest": 3}]
    delete_records(admin, names[0], {0: 2})
    assert describe_topic(admin, names[0])["partitions"] == [{"partition": 0, "earliest": 2, "latest": 3}]
    for name in names:
        delete_topic(admin, name)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_with_its_members_and_lag(stack: Stack, admin: KafkaAdmin, protocol: str) -> None:
    topic, group = (f"g-{uuid.uuid4().hex[:10]}" for _ in range(2))
    create_topic(admin, TopicPlan(topic, 2, {}))
    send_records({"bootstrap.servers": stack.kafka}, [KafkaRecord(topic, b"1", partition=0)] * 5)
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": group, "group.protocol": protocol})
    consumer.subscribe([topic])

    def is_assigned() -> bool:
        consumer.poll(0.1)
        return len(consumer.assignment()) == 2

    wait_until("the consumer to get its partitions", is_assigned)
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    found = describe_group(admin, group)
    assert found is not None
    assert (found["state"], found["lag"]) == ("stable", 3)
    assert found["partitions"] == [{"topic": topic, "partition": 0, "committed": 2, "end": 5, "lag": 3}]
    assert [member["partitions"] for member in found["members"]] == [
        [{"topic": topic, "partition": number} for number in (0, 1)]
    ]
    with pytest.raises(TopicError, match=r"could not be deleted: .*not empty"):
        delete_group(admin, group)
    consumer.close()
    wait_until("the group to be empty", lambda: {"group": group, "state": "empty"} in list_groups(admin))
    delete_group(admin, group)
    assert describe_group(admin, group) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((None, {"retention.ms": "soon"}), "could not be altered: Invalid value soon for configuration retention.ms"),
        ((1, {}), "could not be altered: The topic .* currently has 2 partition"),
    ],
)
def test_what_the_broker_refuses_is_said_in_its_words(admin: KafkaAdmin, change: Any, reason: str) -> None:
    topic = f"r-{uuid.uuid4().hex[:10]}"
    create_topic(admin, TopicPlan(topic, 2, {}))
    with pytest.raises(TopicError, match=reason):
        alter_topic(admin, topic, *change)
    with pytest.raises(TopicError, match="could not be created: Topic name is invalid"):
        create_topic(admin, TopicPlan("a/b", 1, {}))
    with pytest.raises(TopicError, match="'gone' could not be deleted: "):
        delete_topic(admin, "gone")
    with pytest.raises(TopicError, match=r"could not be read: .*gone"):
        describe_topic(admin, "gone")
