"""The real stack: what goes into Kafka and Redis comes back, nothing but loopback listens, homes stand side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from infra.clients.kafka import kafka_python_config
from infra.clients.redis import redis_client
from infra.home import Home
from tests.conftest import Stack, start_stack, stop_stack

RECORDS = 10_000
PARTITIONS = 3


def create_topic(stack: Stack, topic: str, partitions: int = 1) -> None:
    admin = KafkaAdminClient(**kafka_python_config(stack.settings, stack.kafka))
    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])
    admin.close()


def send(stack: Stack, topic: str, values: list[bytes]) -> list[tuple[int, int]]:
    """Partition and offset of each value, as the broker acknowledged them."""
    producer = KafkaProducer(**kafka_python_config(stack.settings, stack.kafka), acks="all", linger_ms=5)
    try:
        waiting = [producer.send(topic, key=b"%d" % (number % 97), value=value) for number, value in enumerate(values)]
        acknowledged = [future.get(timeout=60) for future in waiting]
    finally:
        producer.close()
    return [(each.partition, each.offset) for each in acknowledged]


def read_all(stack: Stack, topic: str) -> dict[tuple[int, int], bytes]:
    """Everything in the topic, by partition and offset."""
    consumer = KafkaConsumer(
        **kafka_python_config(stack.settings, stack.kafka),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    try:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: dict[tuple[int, int], bytes] = {}
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(timeout_ms=1000).values():
                found |= {(record.partition, record.offset): record.value for record in records}
        return found
    finally:
        consumer.close()


def test_ten_thousand_records_go_through_kafka_and_back(bare_stack: Stack) -> None:
    create_topic(bare_stack, "round_trip", PARTITIONS)
    values = [f"record {number} äöü ".encode() + bytes([number % 256]) for number in range(RECORDS)]
    acknowledged = send(bare_stack, "round_trip", values)
    found = read_all(bare_stack, "round_trip")
    assert found == dict(zip(acknowledged, values, strict=True))
    assert len(found) == RECORDS
    for partition in range(PARTITIONS):
        offsets = sorted(offset for at, offset in found if at == partition)
        assert offsets == list(range(len(offsets)))
        assert offsets


def test_misspelt_topic_is_an_error_not_a_new_topic(bare_stack: Stack) -> None:
    producer = KafkaProducer(**kafka_python_config(bare_stack.settings, bare_stack.kafka), max_block_ms=1500)
    try:
        with pytest.raises(KafkaError):
            producer.send("no_such_topic", b"x").get(timeout=10)
    finally:
        producer.close()
    admin = KafkaAdminClient(**kafka_python_config(bare_stack.settings, bare_stack.kafka))
    assert "no_such_topic" not in admin.list_topics()
    admin.close()


def test_redis_keeps_what_it_is_given_and_never_evicts(bare_stack: Stack) -> None:
    with redis_client(bare_stack.settings, bare_stack.redis) as client:
        client.set("stack:key", b"\x00\xff")
        assert client.get("stack:key") == b"\x00\xff"
        persistence: Any = client.info("persistence")
        memory: Any = client.info("memory")
    assert persistence["aof_enabled"] == 1
    assert "appendfsync everysec\n" in (Home(bare_stack.settings.home).redis / "redis.conf").read_text()
    assert memory["maxmemory_policy"] == "noeviction"
    assert memory["maxmemory"] == bare_stack.settings.redis_max_memory_mb * 2**20


def test_every_acknowledged_message_is_flushed(bare_stack: Stack) -> None:
    properties = (Home(bare_stack.settings.home).kafka / "server.properties").read_text()
    assert "log.flush.interval.messages=1\n" in properties


@pytest.mark.parametrize("name", ["kafka", "redis"])
def test_only_loopback_is_listened_on(bare_stack: Stack, name: str) -> None:
    process = psutil.Process(bare_stack.service(name)["pid"])
    listening = [each.laddr for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    assert listening
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_everything_of_a_home_lives_in_its_folder(bare_stack: Stack) -> None:
    """Also where its name has letters that a properties file cannot hold as they are."""
    home = Home(bare_stack.settings.home)
    assert (home.kafka / "data" / "meta.properties").is_file()
    assert list(home.redis.glob("append*"))
    assert [path.name for path in home.root.parent.iterdir()] == [home.root.name]


def test_services_run_under_the_supervisor(bare_stack: Stack) -> None:
    status = bare_stack.status()
    assert status["ready"]
    assert status["pid"] != os.getpid()
    for name in ("kafka", "redis"):
        assert psutil.Process(bare_stack.service(name)["pid"]).ppid() == status["pid"]


@pytest.fixture
def two_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Stack]]:
    """Two homes, brought up at the same moment, in the poorest of locales."""
    monkeypatch.setenv("LC_ALL", "C")
    homes = [tmp_path / "öne", tmp_path / "twö"]
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(start_stack, home, collector_enabled=False) for home in homes]
    started = [each.result() for each in waiting if not each.exception()]
    yield started
    with ThreadPoolExecutor() as pool:
        list(pool.map(stop_stack, started))
    assert all(each.exception() is None for each in waiting)


def test_two_homes_started_together_run_side_by_side(two_stacks: list[Stack]) -> None:
    one, two = two_stacks
    assert one.kafka != two.kafka
    assert one.redis != two.redis
    for number, stack in enumerate(two_stacks):
        create_topic(stack, "same_name")
        send(stack, "same_name", [b"of home %d" % number])
        with redis_client(stack.settings, stack.redis) as client:
            client.set("same_name", b"of home %d" % number)
    for number, stack in enumerate(two_stacks):
        assert list(read_all(stack, "same_name").values()) == [b"of home %d" % number]
        with redis_client(stack.settings, stack.redis) as client:
            assert client.get("same_name") == b"of home %d" % number
