"""The collector's parts that need no broker: bodies, and what a consumer instance gives."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from starlette.requests import Request

from infra.rest.access import Access
from infra.rest.access_keys import add_key, remove_key
from infra.rest.problems import Problem
from infra.settings import load_settings
from infra.threads import Threads
from master_dataset.collector.bodies import (
    LARGE_BODY,
    beside_loop,
    charge_for_now,
    check_density,
    parse_body,
    parse_within,
)
from master_dataset.collector.context import Collector
from master_dataset.collector.events import read_events
from master_dataset.collector.kafka_rest.consumers import Consumers
from master_dataset.collector.kafka_rest.embedded_schemas import EmbeddedSchemas
from master_dataset.collector.kafka_rest.fetch import gather
from master_dataset.collector.kafka_rest.instance import Instance
from master_dataset.collector.kafka_rest.produce import read_records
from master_dataset.collector.kafka_rest.v3 import _replies
from master_dataset.collector.limits import BYTES_PER_PARSED, Budget, Limits
from master_dataset.collector.producer import _reason, _refused_alone
from master_dataset.errors import InvalidEvent
from views.declarations import load_declarations

# ---- bodies ------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
WORST_BYTES_PER_DELIMITER = 160
"""What a value takes at most, in any of the bodies below: measured, and rounded up."""
COPIES_OF_A_BODY = 5
"""What was received, what is written back to compare it, both without spaces, and their text."""
LIMITS = Limits(body=16_000_000, event=1_000_000, batch=10_000, buffer=128_000_000, body_timeout_s=30)


@pytest.mark.parametrize("body", [b'{"ip":"1.2.3.4.5.6.7.8.9.10","x":1.50}', b'{"ip": "1.2.3.4.5.6.7.8.9.10"}'])
def test_an_address_in_a_body_is_read_and_not_taken_for_a_number(body: bytes) -> None:
    assert parse_body(body)["ip"] == "1.2.3.4.5.6.7.8.9.10"
    assert [event["ip"] for event in read_events(body + b"\n" + body, "", LIMITS)[0]] == ["1.2.3.4.5.6.7.8.9.10"] * 2


def test_a_number_that_cannot_be_kept_is_the_clients_error() -> None:
    body = b'{"x":1e-99999999999999999999}'
    with pytest.raises(Problem) as refused:
        parse_body(body)
    assert refused.value.status == 400
    lines, _texts = read_events(b"{}\n" + body, "application/x-ndjson", LIMITS)
    assert (lines[0], type(lines[1]), lines[1].where) == ({}, InvalidEvent, "line 2")


def test_large_bodies_leave_the_event_loop_and_small_ones_do_not() -> None:
    async def used_threads() -> list[int]:
        threads = Threads("parse", 1)
        return [
            await beside_loop(threads, bytes(size), threading.get_ident) for size in (0, LARGE_BODY - 1, LARGE_BODY)
        ]

    small, below, large = asyncio.run(used_threads())
    assert small == below == threading.get_ident()
    assert large != threading.get_ident()


@pytest.mark.parametrize("unit", [b"{},", b"[],", b'{"a":1},', b'"",', b"1,"], ids=repr)
def test_a_body_that_would_grow_beyond_bounds_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch, unit: bytes
) -> None:
    body = b"[" + unit * (15_000_000 // len(unit)) + b"0]"
    monkeypatch.setattr("orjson.loads", lambda _: pytest.fail("it was parsed"))
    charge = Budget(LIMITS.buffer).charge()
    for refuse in (
        lambda: parse_within(body, LIMITS.of_body, charge),
        lambda: charge_for_now(body, LIMITS.of_body, charge),
        lambda: read_records(body, None, None, LIMITS, charge),
        lambda: parse_within(body[: LIMITS.of_small_body.size], LIMITS.of_small_body, charge),
    ):
        with pytest.raises(Problem) as refused:
            refuse()
        assert (refused.value.status, refused.value.kind) == (413, "too-many-values")


def test_a_full_body_of_as_many_wide_events_as_are_taken_is_not_too_dense() -> None:
    event = json.dumps({"event_id": "0123456789"} | {f"field_{number}": 1234.5 for number in range(80)}).encode() + b","
    check_density(b"[" + event * LIMITS.batch + b"{}]", LIMITS.of_body)


WORST_BODIES = """
import resource, sys
from contextlib import suppress
from infra.rest.problems import Problem
from master_dataset.collector.bodies import check_density, parse_within
from master_dataset.collector.limits import Budget, Limits

limits = Limits(body=16_000_000, event=1_000_000, batch=10_000, buffer=128_000_000, body_timeout_s=30)
unit = sys.argv[1].encode()
delimiters = check_density(unit, limits.of_body)
body = b"[" + unit * min(1_999_990 // delimiters, limits.body // len(unit) - 1) + b"0]"
assert check_density(body, limits.of_body) <= limits.body // 8
budget, held = Budget(limits.buffer), []
parse_within(b"{}", limits.of_body, budget.charge())  # everything is imported
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(int(sys.argv[2])):
    charge = budget.charge()
    with suppress(Problem):
        charge.add(len(body))
        held.append((charge, parse_within(body, limits.of_body, charge)))
print(len(held), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "unit",
    ['{"a":0},', '{"a":' * 60 + "0" + "}" * 60 + ",", "1e-999,"],
    ids=["objects", "nested", "decimals"],
)
def test_many_of_the_densest_bodies_that_are_taken_stay_within_bounds_together(unit: str) -> None:
    """Eight senders at once. Without a charge for what parsing makes of a body, each takes 100 to 300 MB."""
    done = subprocess.run(
        [sys.executable, "-c", WORST_BODIES, unit, "8"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    taken, kilobytes = map(int, done.stdout.split())
    assert 1 <= taken <= 2
    values = 2_000_000 * WORST_BYTES_PER_DELIMITER
    assert kilobytes * 1024 < taken * values + COPIES_OF_A_BODY * LIMITS.body


def test_what_parsing_takes_is_charged_and_given_back() -> None:
    budget = Budget(LIMITS.buffer)
    body = b"[" + b'{"a":0},' * 200_000 + b"{}]"
    with budget.charge() as share:
        share.add(len(body))
        charged = charge_for_now(body, LIMITS.of_body, share)
        assert charged == check_density(body, LIMITS.of_body) * BYTES_PER_PARSED
        assert budget.held == len(body) + charged
        share.give_back(charged)
        assert budget.held == len(body)
        assert charge_for_now(body[: LARGE_BODY - 1], LIMITS.of_body, share) == 0, "small ones are parsed one by one"
        with budget.charge() as other, suppress(Problem):
            other.add(1)
            parse_within(body, LIMITS.of_body, other)
            parse_within(body, LIMITS.of_body, other)
            parse_within(body, LIMITS.of_body, other)
            pytest.fail("the budget is exceeded")
        assert budget.held == len(body)
    assert budget.held == 0
    share.give_back(charged)
    assert budget.held == 0, "after its end, a request gives back nothing twice"


def test_a_large_body_that_is_allowed_gets_in_beside_others() -> None:
    budget = Budget(LIMITS.buffer)
    with budget.charge() as others, budget.charge() as share:
        others.add(LIMITS.buffer // 4)
        share.add(LIMITS.body)
        assert share.add_parsed(LIMITS.body // 8) == LIMITS.buffer // 2


def test_of_too_many_lines_only_one_too_many_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()

    def count(line: bytes) -> object:
        read["lines"] += 1
        return loads(line)

    loads = orjson.loads
    monkeypatch.setattr("orjson.loads", count)
    assert len(read_events(b"{}\n" * 600_000, "application/x-ndjson", LIMITS)[0]) == LIMITS.batch + 1
    assert read["lines"] == LIMITS.batch + 1


def test_what_threads_charge_together_stays_within_the_budget_and_is_given_back() -> None:
    budget = Budget(1000)
    most = [0]

    def work() -> None:
        for _ in range(2000):
            with budget.charge() as share, suppress(Problem):
                for _ in range(5):
                    share.add(100)
                    most[0] = max(most[0], budget.held)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < most[0] <= 1000
    assert budget.held == 0


def test_a_thread_that_is_left_behind_charges_nothing_once_its_request_ended() -> None:
    budget = Budget(1000)
    with budget.charge() as share:
        share.add(10)
    with pytest.raises(Problem):
        share.add(10)
    assert budget.held == 0


# ---- consumer instances ------------------------------------------------------

ERROR, PASSING = "error", "passing"


class Message:
    """A record, or an error, as confluent-kafka gives it."""

    def __init__(self, offset: int, error: KafkaError | None = None) -> None:
        self._offset, self._error = offset, error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> None:
        return None


class Broker:
    """Gives prepared batches, with a moment of nothing behind each; a number is the record with that offset."""

    def __init__(self, *batches: list[int | str]) -> None:
        self._batches = list(batches)
        self.committed: list[int] = []

    def subscribe(self, _topics: list[str], **_callbacks: Any) -> None: ...

    def memberid(self) -> str:
        return "member"

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("t", 0)]

    def consume(self, limit: int, _timeout_s: float) -> list[Message]:
        codes = {ERROR: KafkaError._MAX_POLL_EXCEEDED, PASSING: KafkaError._TRANSPORT}
        if not self._batches:
            return []
        if not self._batches[0]:
            self._batches.pop(0)
            return []
        batch, self._batches[0] = self._batches[0][:limit], self._batches[0][limit:]
        return [Message(one) if isinstance(one, int) else Message(-1, KafkaError(codes[one])) for one in batch]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        assert not asynchronous
        self.committed += [place.offset for place in offsets]
        return offsets


def consume(instance: Instance, *, auto_commit: bool = False) -> list[int] | str:
    """The offsets that one call gives, or that it failed."""
    try:
        found = instance.consume(("t",), 0, 10, auto_commit=auto_commit)
    except Problem:
        return ERROR
    return [record["offset"] for record in found]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[0, 1]], [[0, 1], []]),
        ([[0, ERROR, 1], [2]], [[0, 1], ERROR, [2]]),
        ([[ERROR, 0]], [[0], ERROR, []]),
        ([[ERROR], [0]], [ERROR, [0], []]),
        ([[0, ERROR, ERROR], [1, ERROR]], [[0], ERROR, [1], ERROR, []]),
        ([[PASSING, 0, PASSING], [1]], [[0], [1], []]),
    ],
)
def test_records_beside_an_error_are_given_and_the_error_next(
    batches: list[list[int | str]], expected: list[list[int] | str]
) -> None:
    instance = Instance("g", "i", "earliest", Broker(*batches))  # type: ignore[arg-type]
    assert [consume(instance) for _ in expected] == expected


def test_auto_commit_passes_no_record_that_was_not_given() -> None:
    broker = Broker([0, ERROR, 1], [2])
    instance = Instance("g", "i", "earliest", broker)  # type: ignore[arg-type]
    given: list[int] = []
    for _ in range(4):
        found = consume(instance, auto_commit=True)
        assert all(offset in (0, len(given)) or offset - 1 in given for offset in broker.committed)
        given += found if isinstance(found, list) else []
    assert (given, broker.committed) == ([0, 1, 2], [2, 3])


@pytest.mark.parametrize(
    ("max_bytes", "expected"), [(1, [[0], [1], [2], []]), (2, [[0, 1], [2], []]), (3, [[0, 1, 2], []])]
)
def test_an_answer_ends_once_it_is_large_and_the_rest_comes_next(max_bytes: int, expected: list[list[int]]) -> None:
    instance = Instance("g", "i", "earliest", Broker([0, 1, 2]), max_bytes)  # type: ignore[arg-type]  # a byte each
    assert [consume(instance) for _ in expected] == expected
    fetched = gather(Broker([0, 1, 2]), 1, 0.1, 10, max_bytes)  # type: ignore[arg-type]
    assert [record["offset"] for record in fetched] == expected[0]


class Joining(Broker):
    """Gives records before it says that the instance has partitions, as a fast broker does."""

    def assignment(self) -> list[TopicPartition]:
        return [] if self._batches else super().assignment()


def test_records_that_come_while_the_instance_joins_its_group_are_given() -> None:
    broker = Joining([], [PASSING], [0, 1], [2])
    instance = Instance("g", "i", "earliest", broker)  # type: ignore[arg-type]
    assert [consume(instance) for _ in range(3)] == [[0, 1], [2], []]


class Refusing(Broker):
    """Takes the offsets of partition 0 and refuses those of others, in one answer."""

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[Any]:
        super().commit(offsets=offsets, asynchronous=asynchronous)
        refusal = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
        return [
            SimpleNamespace(
                topic=p.topic, partition=p.partition, offset=p.offset, error=refusal if p.partition else None
            )
            for p in offsets
        ]


def test_an_offset_that_kafka_refused_is_not_called_committed_and_is_tried_again() -> None:
    instance = Instance("g", "i", "earliest", Refusing())  # type: ignore[arg-type]
    instance.uncommitted = {("t", 0): 5, ("t", 1): 7}
    with pytest.raises(Problem) as refused:
        instance.commit()
    assert refused.value.status == 502
    assert instance.uncommitted == {("t", 1): 7}


class Rebalancing(Broker):
    """Refuses all offsets, as while a group rebalances."""

    code = KafkaError.REBALANCE_IN_PROGRESS

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        raise KafkaException(KafkaError(self.code))


@pytest.mark.parametrize("code", ["REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"])
def test_a_commit_while_the_group_rebalances_is_a_conflict_and_keeps_nobody_from_reading(
    code: str,
) -> None:
    """Only who reads joins the group again: a call that commits first, and fails for that, would fail for ever."""
    broker = Rebalancing([0], [1])
    broker.code = getattr(KafkaError, code)
    instance = Instance("g", "i", "earliest", broker)  # type: ignore[arg-type]
    assert consume(instance, auto_commit=True) == [0]
    with pytest.raises(Problem) as refused:
        instance.commit()
    assert (refused.value.status, refused.value.kind) == (409, "group-rebalances")
    assert instance.uncommitted == {("t", 0): 1}
    assert consume(instance, auto_commit=True) == [1]
    instance.commit_held()  # as before an instance leaves


def test_a_request_that_waited_while_its_consumer_was_deleted_is_answered_so() -> None:
    async def crowd() -> Problem:
        consumers = Consumers({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, max_instances=1, idle_s=60)
        instance = consumers.get("g", "one")
        async with instance.lock:
            deleting = asyncio.create_task(consumers.delete("g", "one"))
            await asyncio.sleep(0)
            # As /commit does, which looks its topics up between finding the instance and waiting for it.
            waiting = asyncio.create_task(consumers.use(instance, instance.commit, [TopicPartition("t", 0, 1)]))
            await asyncio.sleep(0)
        await deleting
        with pytest.raises(Problem) as refused:
            await waiting
        assert consumers.get("g", "one") is not instance
        await consumers.close()
        return refused.value

    refused = asyncio.run(crowd())
    assert (refused.status, refused.kind) == (409, "consumer-deleted")


def test_an_instance_that_is_being_closed_still_counts() -> None:
    async def consume_and_delete() -> Problem:
        consumers = Consumers({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, max_instances=2, idle_s=60)
        first = consumers.get("g", "one")
        consumers.get("g", "two")
        async with first.lock:  # a request still uses it, so it cannot be closed yet
            deleting = asyncio.create_task(consumers.delete("g", "one"))
            await asyncio.sleep(0)
            with pytest.raises(Problem) as refused:
                consumers.get("g", "three")
        await deleting
        consumers.get("g", "three")
        await consumers.close()
        return refused.value

    refused = asyncio.run(consume_and_delete())
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    assert "collector_max_consumers), of which 1 are being closed" in refused.detail


# ---- records of a batch ------------------------------------------------------


def test_a_record_that_is_refused_in_a_batch_gets_the_text_that_it_gets_alone() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.messages": 3}
    producer = Producer({**config, "message.max.bytes": 2000, "error_cb": lambda _error: None})
    values = [b"small", b"x" * 5000, b"small", b"small", b"too many"]
    together: list[dict[str, Any]] = [{"value": value, "key": b"k"} for value in values]
    assert producer.produce_batch("t", together) == 3
    producer.purge()
    assert producer.flush(10) == 0
    alone: list[KafkaError | None] = []
    for value in values:
        try:
            producer.produce("t", value, b"k")
            alone.append(None)
        except (KafkaException, BufferError) as error:
            alone.append(_reason(error))
    producer.purge()
    assert producer.flush(10) == 0
    found = [_refused_alone(message["_error"]) if "_error" in message else None for message in together]
    assert [error and (error.code(), error.str()) for error in found] == [
        error and (error.code(), error.str()) for error in alone
    ]
    assert [error is None for error in found] == [True, False, True, True, False]


# ---- REST Proxy v3 -----------------------------------------------------------


def test_a_stream_whose_key_is_removed_ends_before_the_next_record(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, kafka_bootstrap="127.0.0.1:1")
    secret = add_key(tmp_path, "app", ["produce"], topics=["orders"])
    parts: dict[str, Any] = {
        "declarations": load_declarations(None), "access": Access(settings), "limits": LIMITS, "budget": Budget(10**6),
    }  # fmt: skip
    collector = Collector(**{each.name: parts.get(each.name) for each in fields(Collector)})
    sent = iter([True, True, False])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"value": 5}', "more_body": next(sent)}

    headers = [(b"authorization", f"Bearer {secret}".encode())]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)

    async def ask() -> list[int]:
        replies = _replies(collector, EmbeddedSchemas(collector, None), request, "c", "orders")
        codes = [orjson.loads(await anext(replies))["error_code"]]  # the record is wrong, and the stream goes on
        remove_key(tmp_path, "app")
        return codes + [orjson.loads(line)["error_code"] async for line in replies]

    assert asyncio.run(ask()) == [400, 401]
