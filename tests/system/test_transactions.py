"""Transactions by REST: what readers see and when, how they end, and programs killed between reading and writing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.clients.kafka import librdkafka_config
from infra.rest.access_keys import add_key
from master_dataset.collector.kafka_rest.transactional_producer import State, TransactionalProducer
from master_dataset.collector.kafka_rest.transactions import Transactions
from tests.conftest import Stack, wait_until

pytestmark = pytest.mark.usefixtures("collector_alone")

PATIENCE_MS = 20_000
PIPELINE = Path(__file__).with_name("rest_pipeline.py")


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx.Client]:
    with stack.client(timeout_s=60) as made:
        yield made


@pytest.fixture
def topic(client: httpx.Client) -> str:
    return new_topic(client)


def new_topic(client: httpx.Client, partitions: int = 1) -> str:
    name = f"tx-{uuid.uuid4().hex[:12]}"
    assert client.post("/admin/topics", json={"name": name, "partitions": partitions}).status_code == 201
    return name


def begin(client: httpx.Client, **given: Any) -> str:
    answer = client.post("/transactions", json=given)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["transaction"])


def put(client: httpx.Client, transaction: str, topic: str, *values: str) -> httpx.Response:
    return client.post(f"/transactions/{transaction}/produce/{topic}", json=[{"value": value} for value in values])


def end(client: httpx.Client, transaction: str, how: str) -> str:
    answer = client.post(f"/transactions/{transaction}/{how}")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["state"])


def visible(client: httpx.Client, topic: str, count: int = 0, **given: Any) -> list[str]:
    """The values that a reader sees; it waits for the first, if there should be some."""
    at = {"topic": topic, "partition": 0, "offset": 0, "timeout": PATIENCE_MS if count else 300, **given}
    answer = client.get("/fetch", params=at)
    assert answer.status_code == 200, answer.text
    return [record["value"] for record in answer.json()]


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["type"]).rpartition(":")[2]


def test_records_are_seen_when_they_are_committed_and_all_at_once(client: httpx.Client, topic: str) -> None:
    transaction = begin(client)
    placed = put(client, transaction, topic, "a", "b").json()
    assert [(each["partition"], each["offset"]) for each in placed] == [(0, 0), (0, 1)]
    assert put(client, transaction, topic, "c").status_code == 200
    assert visible(client, topic) == []
    assert visible(client, topic, 3, isolation="read_uncommitted") == ["a", "b", "c"]
    at = {"topic": topic, "partition": 0}
    ends = {
        isolation: client.get("/offsets/latest", params={**at, "isolation": isolation}).json()[0]["offset"]
        for isolation in ("read_committed", "read_uncommitted")
    }
    assert ends == {"read_committed": 0, "read_uncommitted": 3}
    assert end(client, transaction, "commit") == "committed"
    assert visible(client, topic, 3) == ["a", "b", "c"]
    assert end(client, transaction, "commit") == "committed", "a client that lost the reply asks again"
    assert problem(client.post(f"/transactions/{transaction}/abort")) == (409, "transaction-ended")
    assert problem(put(client, transaction, topic, "d")) == (409, "transaction-ended")


def test_records_of_an_aborted_transaction_are_never_seen(client: httpx.Client, topic: str) -> None:
    transaction = begin(client)
    put(client, transaction, topic, "a")
    assert end(client, transaction, "abort") == end(client, transaction, "abort") == "aborted"
    assert problem(client.post(f"/transactions/{transaction}/commit")) == (409, "transaction-ended")
    client.post(f"/produce/{topic}", json={"value": "after"})
    assert visible(client, topic, 1) == ["after"]
    assert visible(client, topic, 2, isolation="read_uncommitted") == ["a", "after"]


def test_a_consumer_reads_what_it_was_made_for(client: httpx.Client, topic: str) -> None:
    transaction, group = begin(client), f"g-{uuid.uuid4().hex[:8]}"
    put(client, transaction, topic, "open")
    path = f"/consume/{group}/dirty/{topic}?timeout={PATIENCE_MS}"
    assert [each["value"] for each in client.get(f"{path}&isolation=read_uncommitted").json()] == ["open"]
    assert problem(client.get(f"{path}&isolation=read_committed")) == (409, "isolation-differs")
    assert client.get(f"{path}&isolation=dirty").status_code == 400
    end(client, transaction, "abort")
    client.get(f"/delete-consumer/{group}/dirty")


def test_a_transaction_of_a_client_that_went_away_times_out(client: httpx.Client, topic: str) -> None:
    transaction = begin(client, timeout=400)
    put(client, transaction, topic, "a")
    state = f"/transactions/{transaction}"
    wait_until("the transaction to time out", lambda: client.get(state).json()["state"] == "timed out")
    assert problem(client.post(f"{state}/commit")) == (409, "transaction-ended")
    client.post(f"/produce/{topic}", json={"value": "after"})
    assert visible(client, topic, 1) == ["after"]
    for wrong in (0, 10**9, "soon"):
        assert client.post("/transactions", json={"timeout": wrong}).status_code == 400


def test_what_cannot_be_aborted_keeps_no_other_transaction_open(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw must not end the only task that ends transactions."""
    abort = TransactionalProducer.abort
    failures = [RuntimeError("nobody foresaw it")]

    def fail_once(self: TransactionalProducer) -> None:
        if failures:
            raise failures.pop()
        abort(self)

    monkeypatch.setattr(TransactionalProducer, "abort", fail_once)

    async def sweep() -> None:
        transactions = Transactions(librdkafka_config(stack.settings, stack.kafka), 2, 60, 30)
        begun = [await transactions.begin("somebody", None, 0) for _ in range(2)]
        sweeping = asyncio.create_task(transactions.sweep())
        while any(transactions.state_of("somebody", each.id) is State.OPEN for each in begun):
            assert not sweeping.done(), sweeping.exception()
            await asyncio.sleep(0.05)
        states = {transactions.state_of("somebody", each.id) for each in begun}
        assert states == {State.TIMED_OUT}
        later = await transactions.begin("somebody", None, 0)
        while transactions.state_of("somebody", later.id) is State.OPEN:
            assert not sweeping.done(), sweeping.exception()
            await asyncio.sleep(0.05)
        sweeping.cancel()

    asyncio.run(sweep())


def test_who_begins_again_under_the_same_name_ends_what_was_open(client: httpx.Client, topic: str) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    first = begin(client, name=name)
    put(client, first, topic, "lost")
    second = begin(client, name=name)
    assert client.get(f"/transactions/{first}").json()["state"] == "replaced"
    assert problem(put(client, first, topic, "late")) == (409, "transaction-ended")
    put(client, second, topic, "kept")
    assert end(client, second, "commit") == "committed"
    assert visible(client, topic, 1) == ["kept"]


def test_a_refused_record_leaves_only_the_way_back(client: httpx.Client, topic: str) -> None:
    transaction = begin(client)
    put(client, transaction, topic, "a")
    for body, status in (([{"value": "x", "partition": 7}], 404), ([{"valu": 1}], 422)):
        answer = client.post(f"/transactions/{transaction}/produce/{topic}", json=body)
        assert answer.status_code == status, "it was refused before anything was sent"
    compacted = new_topic(client)
    assert client.patch(f"/admin/topics/{compacted}", json={"compacted": True}).status_code == 200
    refused = put(client, transaction, compacted, "no key")  # Kafka itself refuses it
    assert problem(refused) == (409, "transaction-failed")
    assert "error" in refused.json()["results"][0]
    assert problem(client.post(f"/transactions/{transaction}/commit")) == (409, "transaction-ended")
    assert end(client, transaction, "abort") == "aborted"
    assert visible(client, topic) == []


def test_a_transaction_belongs_to_the_key_that_began_it(stack: Stack, client: httpx.Client, topic: str) -> None:
    transaction = begin(client)
    secret = add_key(stack.settings.home, f"tx-{uuid.uuid4().hex[:8]}", ["produce", "consume"])
    with httpx.Client(base_url=stack.collector, headers={"Authorization": f"Bearer {secret}"}) as other:
        for path in ("commit", "abort", f"produce/{topic}"):
            answer = other.post(f"/transactions/{transaction}/{path}", json={"value": 1})
            assert problem(answer) == (404, "unknown-transaction")
    assert problem(client.post(f"/transactions/{transaction}/produce/tidemark.alerts", json={"value": 1}))[0] == 403
    end(client, transaction, "abort")


def begin_all(client: httpx.Client, limit: int, name: str = "") -> list[str]:
    """So many open transactions; none of them stays open where another client still has one, until it has timed out."""
    begun: list[str] = []
    while len(begun) < limit:
        answer = client.post("/transactions", json={"name": f"{name}-{len(begun)}"} if name else {})
        if answer.status_code == 429:
            for transaction in begun:
                end(client, transaction, "abort")
            return []
        assert answer.status_code == 201, answer.text
        begun.append(str(answer.json()["transaction"]))
    return begun


def test_so_many_transactions_are_open_at_most(stack: Stack, client: httpx.Client) -> None:
    begun = wait_until("all to be free", lambda: begin_all(client, stack.settings.collector_max_transactions), 120)
    assert problem(client.post("/transactions")) == (429, "too-many-transactions")
    for transaction in begun:
        end(client, transaction, "abort")
    end(client, begin(client), "abort")


def test_transactions_that_begin_at_once_do_not_end_each_other(stack: Stack, client: httpx.Client, topic: str) -> None:
    """First those of names: the collector then keeps no producer that one without a name could take."""
    limit = stack.settings.collector_max_transactions
    named = wait_until("all to be free", lambda: begin_all(client, limit, f"n-{uuid.uuid4().hex[:8]}"), 120)
    for transaction in named:
        end(client, transaction, "abort")
    with ThreadPoolExecutor(8) as threads:
        begun = list(threads.map(lambda _: begin(client), range(8)))
    for number, transaction in enumerate(begun):
        assert put(client, transaction, topic, str(number)).status_code == 200
    assert {end(client, transaction, "commit") for transaction in begun} == {"committed"}
    assert sorted(visible(client, topic, 8)) == [str(number) for number in range(8)]


def test_offsets_are_committed_with_the_transaction_and_only_then(client: httpx.Client, topic: str) -> None:
    client.post(f"/produce/{topic}", json=[{"value": "a"}, {"value": "b"}])
    group, at = f"g-{uuid.uuid4().hex[:8]}", {"topic": topic, "partition": 0}

    def committed() -> Any:
        return client.post(f"/committed/{group}/none", json=at).json()[0]["offset"]

    for how, expected in (("abort", None), ("commit", 1)):
        transaction = begin(client)
        sent = client.post(
            f"/transactions/{transaction}/offsets", json={"group": group, "offsets": [{**at, "offset": 1}]}
        )
        assert sent.status_code == 200, sent.text
        end(client, transaction, how)
        assert wait_until("the offset", lambda expected=expected: committed() == expected)
    for wrong in ({}, {"group": group}, {"group": group, "offsets": [{"topic": topic}]}):
        transaction = begin(client)
        assert client.post(f"/transactions/{transaction}/offsets", json=wrong).status_code == 400
        end(client, transaction, "abort")


# ---- several instances in one group --------------------------------------------


def consume(client: httpx.Client, group: str, name: str, topic: str, *, limit: int = 100) -> list[Any]:
    answer = client.post(f"/consume/{group}/{name}/{topic}?timeout=500&limit={limit}")
    assert answer.status_code == 200, answer.text
    return list(answer.json())


def held_by(client: httpx.Client, group: str, name: str) -> set[int]:
    """The partitions that an instance has now."""
    groups = {each["name"]: each["instances"] for each in client.get("/consumers").json()}
    (instance,) = [each for each in groups[group] if each["name"] == name]
    return {number for topic in instance["topics"] for number in topic["partitions"]}


def committed_in(client: httpx.Client, group: str, topic: str, partitions: int) -> dict[int, int | None]:
    asked = [{"topic": topic, "partition": number} for number in range(partitions)]
    return {each["partition"]: each["offset"] for each in client.post(f"/committed/{group}/x", json=asked).json()}


@pytest.fixture
def shared(client: httpx.Client) -> Iterator[tuple[str, str]]:
    """A group, and a topic of two partitions with 50 records in each."""
    topic, group = new_topic(client, 2), f"g-{uuid.uuid4().hex[:8]}"
    messages = [{"value": f"r{number}", "partition": number % 2} for number in range(100)]
    assert client.post(f"/produce/{topic}", json=messages).status_code == 200
    yield group, topic
    for name in ("a", "b"):
        client.post(f"/delete-consumer/{group}/{name}")


def read_all(client: httpx.Client, group: str, name: str, topic: str, count: int) -> None:
    """Until an instance was given so many records."""
    found: list[Any] = []

    def has_all() -> bool:
        found.extend(consume(client, group, name, topic))
        return len(found) >= count

    wait_until(f"{count} records", has_all)


def join(stack: Stack, client: httpx.Client, group: str, topic: str) -> int:
    """Let a second instance join, and wait until each has one partition: the one that it got.

    Kafka shares the partitions again while both ask for records.
    """

    def is_shared() -> bool:
        with stack.client(timeout_s=60) as other, ThreadPoolExecutor(2) as threads:
            asked = threads.submit(consume, other, group, "b", topic, limit=1)
            while not asked.done():
                consume(client, group, "a", topic, limit=1)
            asked.result()
        return len(held_by(client, group, "a")) == len(held_by(client, group, "b")) == 1

    wait_until("the partitions to be shared", is_shared)
    (moved,) = held_by(client, group, "b")
    return moved


def test_a_transaction_does_not_commit_what_its_instance_read_and_lost(
    stack: Stack, client: httpx.Client, shared: tuple[str, str]
) -> None:
    """Else the partition would go back to where it was lost, and its records would be read twice."""
    group, topic = shared
    read_all(client, group, "a", topic, 100)
    moved = join(stack, client, group, topic)
    at = {"topic": topic, "partition": moved}
    assert client.post(f"/commit/{group}/b", json={**at, "offset": 33}).status_code == 200
    transaction = begin(client)
    put(client, transaction, new_topic(client), "made of what was lost")
    refused = client.post(f"/transactions/{transaction}/offsets", json={"group": group, "instance": "a"})
    assert problem(refused) == (409, "partitions-lost")
    assert f"{topic}/{moved}" in refused.json()["detail"]
    assert problem(client.post(f"/transactions/{transaction}/commit")) == (409, "transaction-ended")
    end(client, transaction, "abort")
    named = begin(client)
    explicit = {"group": group, "instance": "a", "offsets": [{**at, "offset": 50}]}
    assert problem(client.post(f"/transactions/{named}/offsets", json=explicit)) == (409, "partitions-lost")
    end(client, named, "abort")
    assert committed_in(client, group, topic, 2) == {moved: 33, 1 - moved: None}


def test_a_commit_does_not_commit_what_its_instance_read_and_lost(
    stack: Stack, client: httpx.Client, shared: tuple[str, str]
) -> None:
    """Nor where the partition came back meanwhile."""
    group, topic = shared
    read_all(client, group, "a", topic, 100)
    moved = join(stack, client, group, topic)
    client.post(f"/commit/{group}/b", json={"topic": topic, "partition": moved, "offset": 33})
    client.post(f"/delete-consumer/{group}/b")

    def is_back() -> bool:
        consume(client, group, "a", topic, limit=1)
        return held_by(client, group, "a") == {0, 1}

    wait_until("both to be back", is_back)
    assert problem(client.post(f"/commit/{group}/a")) == (409, "partitions-lost")
    assert committed_in(client, group, topic, 2) == {moved: 33, 1 - moved: None}
    found = consume(client, group, "a", topic)
    assert min((each["offset"] for each in found if each["partition"] == moved), default=33) >= 33
    committed = {each["partition"]: each["offset"] for each in client.post(f"/commit/{group}/a").json()}
    assert committed
    assert committed.get(moved, 33) >= 33


def test_what_a_committed_transaction_carried_is_not_sent_again(
    stack: Stack, client: httpx.Client, shared: tuple[str, str]
) -> None:
    group, topic = shared
    read_all(client, group, "a", topic, 100)
    body = {"group": group, "instance": "a"}
    for how, expected in (("abort", 2), ("commit", 2), ("commit", 0)):
        transaction = begin(client)
        assert len(client.post(f"/transactions/{transaction}/offsets", json=body).json()) == expected
        end(client, transaction, how)
    join(stack, client, group, topic)
    transaction = begin(client)
    assert client.post(f"/transactions/{transaction}/offsets", json=body).json() == []
    end(client, transaction, "commit")
    assert client.post(f"/commit/{group}/a").json() == []
    assert committed_in(client, group, topic, 2) == {0: 50, 1: 50}


# ---- programs that are killed between reading and writing ---------------------

RECORDS = 40
KILLS = 3


@pytest.mark.parametrize("order", ["at-most-once", "at-least-once", "exactly-once"])
def test_a_program_killed_at_the_worst_moment_loses_or_repeats_what_its_order_says(
    stack: Stack, client: httpx.Client, order: str
) -> None:
    """Each life of the program is killed with a batch in its hands. Counted: what is missing, and what is twice."""
    source, target, group = new_topic(client, 2), new_topic(client), f"g-{uuid.uuid4().hex[:8]}"
    values = [f"r{number}" for number in range(RECORDS)]
    messages = [{"value": value, "partition": number % 2} for number, value in enumerate(values)]
    assert client.post(f"/produce/{source}", json=messages).status_code == 200
    in_hand: Counter[str] = Counter()
    for die_at in [*[1 + life % 2 for life in range(KILLS)], 0]:
        arguments = (stack.collector, stack.secret, order, source, target, group, "only", str(die_at))
        ended = subprocess.run(
            [sys.executable, PIPELINE, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        assert ended.returncode == (-9 if die_at else 0), ended.stderr
        in_hand.update(json.loads(ended.stdout) if ended.stdout else [])
    assert in_hand, "it was killed with records in its hands"
    wanted = RECORDS + in_hand.total() * {"at-most-once": -1, "at-least-once": 1, "exactly-once": 0}[order]
    found = Counter(visible(client, target, wanted))
    lost, repeated = Counter(values) - found, found - Counter(values)
    expected: dict[str, tuple[Counter[str], Counter[str]]] = {
        "at-most-once": (in_hand, Counter()),
        "at-least-once": (Counter(), in_hand),
        "exactly-once": (Counter(), Counter()),
    }
    assert (lost, repeated) == expected[order]
    if order == "exactly-once":
        dirty = Counter(visible(client, target, wanted, isolation="read_uncommitted"))
        assert dirty - Counter(values) == in_hand, "what was in hand was written, and is not read"


SHARED_RECORDS = 160


def test_two_instances_of_a_group_that_are_killed_lose_and_repeat_nothing(stack: Stack, client: httpx.Client) -> None:
    """Each death and each life moves partitions between the two, also those of which the other has records in hand."""
    source, target, group = new_topic(client, 2), new_topic(client), f"g-{uuid.uuid4().hex[:8]}"
    values = [f"r{number}" for number in range(SHARED_RECORDS)]
    messages = [{"value": value, "partition": number % 2} for number, value in enumerate(values)]
    assert client.post(f"/produce/{source}", json=messages).status_code == 200

    def live(name: str) -> Counter[str]:
        in_hand: Counter[str] = Counter()
        for die_at in [*[1 + life % 2 for life in range(KILLS)], 0]:
            arguments = (stack.collector, stack.secret, "exactly-once", source, target, group, name, str(die_at))
            ended = subprocess.run(
                [sys.executable, PIPELINE, *arguments], capture_output=True, text=True, timeout=300, check=False
            )
            assert ended.returncode in (0, -9), ended.stderr
            in_hand.update(json.loads(ended.stdout) if ended.returncode else [])
        return in_hand

    with ThreadPoolExecutor(2) as threads:
        in_hand = sum(threads.map(live, ("a", "b")), Counter[str]())
    assert in_hand, "they were killed with records in their hands"
    found = Counter(visible(client, target, SHARED_RECORDS, limit=10_000))
    assert (Counter(values) - found, found - Counter(values)) == (Counter(), Counter())
    for name in ("a", "b"):
        client.post(f"/delete-consumer/{group}/{name}")
