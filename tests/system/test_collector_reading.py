"""Reading topics back through the collector: any offset again, and consumer groups."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from master_dataset.collector.app import MAX_FETCHES
from tests.conftest import wait_until

pytestmark = pytest.mark.usefixtures("collector_alone")

PATIENCE_MS = 20_000
"""For records that are there: whoever asks gets them as soon as a broker that is busy gives them."""


@pytest.fixture(scope="module")
def client(stack: Any) -> Iterator[httpx.Client]:
    with stack.client(timeout_s=60) as made:
        yield made


@pytest.fixture
def topic(client: httpx.Client) -> str:
    """A topic with m0 to m9 in partition 0, their timestamps 1,000,000,000,000 + 1000 each."""
    name = f"r-{uuid.uuid4().hex[:12]}"
    hours = {"retention_hours": "unlimited"}
    assert client.post("/admin/topics", json={"name": name, "partitions": 2, **hours}).status_code == 201
    messages = [
        {"value": f"m{n}", "partition": 0, "timestamp": 1_000_000_000_000 + 1000 * n, "key": f"k{n}"} for n in range(10)
    ]
    assert client.post(f"/produce/{name}", json=messages).status_code == 200
    return name


def values(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [record["value"] for record in answer.json()]


def test_any_offset_can_be_read_again(client: httpx.Client, topic: str) -> None:
    for _ in range(2):
        place = {"topic": topic, "partition": 0, "offset": 3}
        answer = client.get("/fetch", params={**place, "limit": 2, "timeout": PATIENCE_MS})
        assert values(answer) == ["m3", "m4"]
    record = answer.json()[0]
    assert record == {
        "topic": topic,
        "partition": 0,
        "offset": 3,
        "timestamp": 1_000_000_003_000,
        "key": "k3",
        "value": "m3",
        "headers": [],
    }


def test_several_partitions_are_fetched_at_once(client: httpx.Client, topic: str) -> None:
    client.post(f"/produce/{topic}", json={"value": "other", "partition": 1})
    places = [{"topic": topic, "partition": 0, "offset": 8}, {"topic": topic, "partition": 1, "offset": 0}]
    for body in (places, {"topicPartitionOffsets": places, "timeout": PATIENCE_MS}):
        assert sorted(values(client.post(f"/fetch?timeout={PATIENCE_MS}", json=body))) == ["m8", "m9", "other"]


def test_nothing_new_is_an_empty_answer_after_the_timeout(client: httpx.Client, topic: str) -> None:
    at_end = {"topic": topic, "partition": 0, "offset": 10, "timeout": 200}
    assert values(client.post("/fetch", json=at_end)) == []


def test_bytes_that_are_no_text_come_as_base64(stack: Any, client: httpx.Client, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=stack.kafka)
    producer.send(topic, b"\xff\x00", key=b"\xfe", partition=1, headers=[("h", b"\xfd")]).get(timeout=20)
    producer.send(topic, None, key=b"gone", partition=1).get(timeout=20)
    producer.close()
    place = {"topic": topic, "partition": 1, "offset": 0}
    first, second = client.post("/fetch", json={**place, "timeout": PATIENCE_MS}).json()
    assert (first["value_base64"], first["key_base64"], first["headers"]) == (
        "/wA=",
        "/g==",
        [{"key": "h", "value_base64": "/Q=="}],
    )
    assert (second["key"], second["value"]) == ("gone", None)


def test_offsets_by_time(client: httpx.Client, topic: str) -> None:
    def at(when: str, partition: int = 0) -> int:
        answer = client.get(f"/offsets/{when}", params={"topic": topic, "partition": partition})
        return int(answer.json()[0]["offset"])

    assert (at("earliest"), at("latest"), at("latest", 1)) == (0, 10, 0)
    assert (at("1000000004000"), at("1000000004001")) == (4, 5)
    assert at("2001-09-09T01:46:41Z") == 1
    assert at("2100-01-01T00:00:00Z") == 10
    both = [{"topic": topic, "partition": number} for number in (0, 1)]
    assert [one["offset"] for one in client.post("/offsets/latest", json=both).json()] == [10, 0]


def test_a_group_reads_on_where_it_committed(stack: Any, client: httpx.Client, topic: str) -> None:
    group = f"g-{topic}"
    reset = {"Kafka-Auto-Offset-Reset": "earliest"}
    one, two = (f"/consume/{group}/{name}/{topic}?timeout={PATIENCE_MS}" for name in ("one", "two"))
    assert values(client.get(f"{one}&limit=4", headers=reset)) == ["m0", "m1", "m2", "m3"]
    assert client.get(f"/committed/{group}/one", params={"topic": topic, "partition": 0}).json()[0]["offset"] is None
    committed = client.post(f"/commit/{group}/one").json()
    assert committed == [{"topic": topic, "partition": 0, "offset": 4}]
    assert values(client.get(f"{one}&limit=3")) == ["m4", "m5", "m6"]
    listed = next(one for one in client.get("/consumers").json() if one["name"] == group)
    assert listed["instances"][0]["name"] == "one"
    assert client.get(f"/delete-consumer/{group}/one").status_code == 200
    # What was read but not committed is read again by the next instance, and by any other client of the group.
    assert values(client.get(f"{two}&limit=1", headers=reset)) == ["m4"]
    client.delete(f"/delete-consumer/{group}/two")
    consumer = KafkaConsumer(bootstrap_servers=stack.kafka, group_id=group, enable_auto_commit=False)
    assert consumer.committed(PythonPartition(topic, 0)) == 4
    consumer.close()


def test_a_pattern_reads_the_topics_that_match_also_later_ones(client: httpx.Client, topic: str) -> None:
    path, body = f"/consume/g-{topic}/one", {"topic_pattern": rf"{topic}(-.*)?", "timeout": PATIENCE_MS, "limit": 10}
    other, later = f"x{topic}", f"{topic}-later"
    for name in (other, later):
        nothing = client.post(f"/consume/g-{name}/one", json={"topic_pattern": name, "timeout": 100})
        assert values(nothing) == [], "a pattern that matches nothing yet"
        assert client.post("/admin/topics", json={"name": name, "partitions": 1}).status_code == 201
        if name == other:
            assert client.post(f"/produce/{other}", json={"value": "other"}).status_code == 200
            assert values(client.post(path, json=body)) == [f"m{n}" for n in range(10)]
    assert client.post(f"/produce/{later}", json={"value": "new"}).status_code == 200
    short, auto = {**body, "timeout": 500}, {"Kafka-Enable-Auto-Commit": "true"}
    seen: list[str] = []

    def sees_new() -> bool:
        seen.extend(values(client.post(path, json=short, headers=auto)))
        return "new" in seen

    wait_until("the topic that was made later", sees_new)
    assert seen == ["new"], "what was committed is not read again"
    query = f"{path}?topic_pattern={later}&timeout=100"
    assert values(client.get(query, headers=auto)) == [], (
        "in the query, too; what the call before gave is committed first"
    )
    for wrong in ({"topic_pattern": "("}, {"topic_pattern": 5}, {"topic_pattern": "a", "topics": ["a"]}):
        assert client.post(path, json=wrong).status_code == 400
    for name in (topic, other, later):
        client.get(f"/delete-consumer/g-{name}/one")


def test_an_offset_can_be_committed_by_hand(client: httpx.Client, topic: str) -> None:
    group = f"g-{topic}"
    path = f"/consume/{group}/one/{topic}?timeout={PATIENCE_MS}"
    assert values(client.get(f"{path}&limit=10"))
    client.post(f"/commit/{group}/one", json=[{"topic": topic, "partition": 0, "offset": 2}])
    client.get(f"/delete-consumer/{group}/one")
    assert values(client.get(f"{path}&limit=1")) == ["m2"]
    client.get(f"/delete-consumer/{group}/one")


def test_auto_commit_commits_what_the_call_before_gave(client: httpx.Client, topic: str) -> None:
    group, auto = f"g-{topic}", {"Kafka-Enable-Auto-Commit": "true", "Kafka-Auto-Offset-Reset": "earliest"}
    path = f"/consume/{group}/one/{topic}?limit=2&timeout={PATIENCE_MS}"

    def committed() -> Any:
        answer = client.post(f"/committed/{group}/one", json={"topic": topic, "partition": 0})
        return answer.json()[0]["offset"]

    assert values(client.get(path, headers=auto)) == ["m0", "m1"]
    assert committed() is None
    assert values(client.get(path, headers=auto)) == ["m2", "m3"]
    assert committed() == 2
    client.get(f"/delete-consumer/{group}/one")


def test_offset_reset_latest_begins_at_the_end(client: httpx.Client, topic: str) -> None:
    latest = {"Kafka-Auto-Offset-Reset": "latest"}
    assert values(client.get(f"/consume/g-{topic}/one/{topic}?timeout=3000", headers=latest)) == []
    client.post(f"/produce/{topic}", json={"value": "new"})
    body = {"topics": [topic], "timeout": PATIENCE_MS}
    assert values(client.post(f"/consume/g-{topic}/one", json=body, headers=latest)) == ["new"]
    client.get(f"/delete-consumer/g-{topic}/one")


def test_another_offset_reset_than_the_instance_has_is_refused(client: httpx.Client, topic: str) -> None:
    path, header = f"/consume/g-{topic}/one/{topic}?timeout=200", "Kafka-Auto-Offset-Reset"
    place = {"topic": topic, "partition": 0}
    assert client.get(f"/committed/g-{topic}/one", params=place).json() == [{**place, "offset": None}]
    assert values(client.get(path, headers={header: "latest"})) == []  # asking for what is committed settled nothing
    for other in ("earliest", "none"):
        refused = client.get(path, headers={header: other})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:tidemark:problem:offset-reset-differs")
        assert f"'latest'; '{other}' was asked for" in refused.json()["detail"]
    for headers in ({}, {header: "latest"}):
        assert values(client.get(path, headers=headers)) == []
    client.get(f"/delete-consumer/g-{topic}/one")


def test_groups_are_shown_with_their_lag_and_can_be_deleted(client: httpx.Client, topic: str) -> None:
    group = f"g-{topic}"
    client.get(f"/consume/{group}/one/{topic}?limit=4&timeout={PATIENCE_MS}")
    client.post(f"/commit/{group}/one")
    described = client.get(f"/admin/groups/{group}").json()
    assert (described["state"], described["lag"]) == ("stable", 6)
    assert described["members"][0]["client"] == "one"
    assert client.delete(f"/admin/groups/{group}").status_code == 409  # it has a member
    client.get(f"/delete-consumer/{group}/one")
    assert client.delete(f"/admin/groups/{group}").status_code == 200
    assert client.get(f"/admin/groups/{group}").status_code == 404
    assert group not in [one["group"] for one in client.get("/admin/groups").json()]


def test_a_group_is_rewound_by_rest(client: httpx.Client, topic: str) -> None:
    group = f"g-{topic}"
    path, read = f"/admin/groups/{group}/rewind", f"/consume/{group}/one/{topic}?timeout={PATIENCE_MS}"

    def committed() -> Any:
        return client.post(f"/committed/{group}/none", json={"topic": topic, "partition": 0}).json()[0]["offset"]

    assert len(values(client.get(f"{read}&limit=10"))) == 10
    client.post(f"/commit/{group}/one")
    refused = client.post(path, json={"to": "beginning", "execute": True})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:tidemark:problem:refused-by-kafka")
    assert "1 member" in refused.json()["detail"]
    client.get(f"/delete-consumer/{group}/one")
    move = {"topic": topic, "partition": 0, "committed": 10, "new": 0}
    assert client.post(path, json={"to": "beginning"}).json() == {"group": group, "executed": False, "moves": [move]}
    assert committed() == 10
    for wanted, offset in (
        ({"to": "beginning"}, 0),
        ({"to": "2001-09-09T01:46:44Z"}, 4),
        ({"to": 1_000_000_006_000, "topics": [topic]}, 6),
        ({"offsets": [{"topic": topic, "partition": 0, "offset": 7}]}, 7),
        ({"to": "end"}, 10),
        ({"offsets": [{"topic": topic, "partition": 0, "offset": 8}]}, 8),
    ):
        assert client.post(path, json={**wanted, "execute": True}).status_code == 200, wanted
        assert committed() == offset, wanted
    assert values(client.get(read)) == ["m8", "m9"]
    client.get(f"/delete-consumer/{group}/one")
    beyond = {"offsets": [{"topic": topic, "partition": 0, "offset": 11}]}
    for wrong, status in (({}, 422), ({"to": "soon"}, 400), ({"to": "end", **beyond}, 422), (beyond, 409)):
        assert client.post(path, json=wrong).status_code == status, wrong
    assert client.post("/admin/groups/nosuch/rewind", json={"to": "end"}).status_code == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/fetch", None, 400, "invalid-parameter"),
        ("POST", "/fetch", {"topic": "TOPIC", "partition": 0, "offset": 11}, 416, "offset-out-of-range"),
        ("POST", "/fetch", {"topic": "TOPIC", "partition": 5, "offset": 0}, 404, "unknown-partition"),
        ("POST", "/fetch", {"topic": "none", "partition": 0, "offset": 0}, 404, "unknown-topic"),
        ("POST", "/fetch", {"topic": "TOPIC", "partition": "x", "offset": 0}, 400, "invalid-parameter"),
        ("POST", "/fetch", [{"topic": "TOPIC", "partition": 0, "offset": 0}] * 2, 400, "invalid-parameter"),
        ("POST", "/fetch", [], 400, "invalid-body"),
        ("POST", "/fetch", 5, 400, "invalid-parameter"),
        ("GET", "/fetch?topic=TOPIC&partition=0&offset=0&limit=0", None, 400, "invalid-parameter"),
        ("GET", "/fetch?topic=TOPIC&partition=0&offset=0&timeout=x", None, 400, "invalid-parameter"),
        ("GET", "/offsets/yesterday?topic=TOPIC&partition=0", None, 400, "invalid-parameter"),
        ("GET", "/consume/g/i/none", None, 404, "unknown-topic"),
        ("GET", "/consume/g%20g/i/TOPIC", None, 400, "invalid-parameter"),
        ("GET", "/consume/g/i", None, 400, "invalid-parameter"),
        ("POST", "/commit/g/none", None, 404, "unknown-consumer"),
        ("GET", "/delete-consumer/g/none", None, 404, "unknown-consumer"),
        ("GET", "/admin/groups/none", None, 404, "unknown-group"),
    ],
)
def test_wrong_questions_get_an_answer_that_says_so(
    client: httpx.Client, topic: str, method: str, path: str, body: Any, status: int, kind: str
) -> None:
    if isinstance(body, dict):
        body = {name: topic if value == "TOPIC" else value for name, value in body.items()}
    elif isinstance(body, list):
        body = [{**one, "topic": topic} for one in body]
    answer = client.request(method, path.replace("TOPIC", topic), json=body)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:tidemark:problem:{kind}")


def test_requests_that_wait_for_records_hold_up_nobody_else(stack: Any, client: httpx.Client, topic: str) -> None:
    """/ready, topics and administration answer while as many fetches wait as may; one more is told to come again."""
    at_end = {"topic": topic, "partition": 0, "offset": 10, "timeout": 60_000}
    limits = httpx.Limits(max_connections=MAX_FETCHES + 1)
    with (
        httpx.Client(base_url=stack.collector, auth=client.auth, timeout=90, limits=limits) as crowd,
        ThreadPoolExecutor(MAX_FETCHES + 1) as threads,
    ):
        waiting = {threads.submit(crowd.post, "/fetch", json=at_end) for _ in range(MAX_FETCHES + 1)}
        ended = wait_until(
            "the one fetch that is refused", lambda: [fetch for fetch in waiting if fetch.done()], deadline_s=50
        )
        waiting -= set(ended)
        answers = [client.get(path) for path in ("/ready", "/topics", f"/admin/topics/{topic}", "/admin/groups")]
        dead = client.get("/dead/web")
        read = client.get(f"/consume/g-{topic}/one/{topic}?limit=1&timeout={PATIENCE_MS}")
        assert not any(fetch.done() for fetch in waiting), "a fetch ended: this shows nothing"
        client.post(f"/produce/{topic}", json={"value": "new", "partition": 0})
        assert [values(fetch.result()) for fetch in waiting] == [["new"]] * MAX_FETCHES
    (refused,) = [fetch.result() for fetch in ended]
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["type"] == "urn:tidemark:problem:too-many-requests"
    assert [answer.status_code for answer in answers] == [200] * 4
    assert (dead.status_code, dead.headers["retry-after"]) == (429, "1")  # it reads from Kafka too
    assert values(read) == ["m0"]
    client.get(f"/delete-consumer/g-{topic}/one")


def test_a_consumer_is_deleted_when_those_who_wait_for_it_have_their_answer(
    stack: Any, client: httpx.Client, topic: str
) -> None:
    group, latest = f"g-{topic}", {"Kafka-Auto-Offset-Reset": "latest"}
    path, place = f"/consume/{group}/one/{topic}", {"topic": topic, "partition": 0, "offset": 2}
    assert values(client.get(f"{path}?timeout=100", headers=latest)) == []
    with (
        httpx.Client(base_url=stack.collector, auth=client.auth, timeout=60) as crowd,
        ThreadPoolExecutor(5) as threads,
    ):
        first = threads.submit(crowd.get, f"{path}?timeout=10000", headers=latest)
        others = [
            threads.submit(crowd.get, f"{path}?timeout=100", headers=latest),
            threads.submit(crowd.post, f"/commit/{group}/one", json=place),
            threads.submit(crowd.post, f"/committed/{group}/one", json=place),
        ]
        deleted = threads.submit(crowd.delete, f"/delete-consumer/{group}/one")
        assert not first.done(), "nobody had to wait: this shows nothing"
        answers = [each.result() for each in (first, *others, deleted)]
    # A request that came behind the deletion made a new instance, or found none to commit with.
    assert {answer.status_code for answer in answers} <= {200, 404}, [answer.text for answer in answers]
    assert deleted.result().status_code == 200
    client.get(f"/delete-consumer/{group}/one")


@pytest.mark.parametrize("header", ["Kafka-Auto-Offset-Reset", "Kafka-Enable-Auto-Commit"])
def test_a_header_with_a_wrong_value_is_named(client: httpx.Client, topic: str, header: str) -> None:
    answer = client.get(f"/consume/g-{topic}/one/{topic}", headers={header: "maybe"})
    assert answer.status_code == 400
    assert header in answer.json()["detail"]
