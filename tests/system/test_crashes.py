"""kill -9 of each part of the real stack: it comes back, acknowledged data is still there, nothing is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from infra.clients.kafka import kafka_python_config
from infra.clients.redis import redis_client
from infra.home import Home, read_json, write_json
from infra.settings import load_settings
from infra.stack import up
from infra.stack.leftovers import is_same_process
from infra.stack.ports import LOOPBACK
from tests.conftest import Stack, start_stack, stop_stack, wait_until

TOPIC = "survivors"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Stack]:
    """A stack of Kafka and Redis with acknowledged data in both."""
    running = start_stack(tmp_path / "home", collector_enabled=False)
    write_data(running)
    yield running
    stop_stack(running)


def write_data(stack: Stack) -> None:
    config = kafka_python_config(stack.settings, stack.kafka)
    admin = KafkaAdminClient(**config)
    admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1)])
    admin.close()
    producer = KafkaProducer(**config, acks="all")
    for future in [producer.send(TOPIC, b"%d" % number) for number in range(500)]:
        future.get(timeout=30)
    producer.close()
    with redis_client(stack.settings, stack.redis) as client:
        client.mset({f"key:{number}": number for number in range(500)})


def assert_data(stack: Stack) -> None:
    consumer = KafkaConsumer(
        **kafka_python_config(stack.settings, stack.kafka), enable_auto_commit=False, auto_offset_reset="earliest"
    )
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    found: list[bytes] = []
    while consumer.position(partition) < consumer.end_offsets([partition])[partition]:
        for records in consumer.poll(timeout_ms=1000).values():
            found += [record.value for record in records]
    consumer.close()
    assert found == [b"%d" % number for number in range(500)]
    with redis_client(stack.settings, stack.redis) as client:
        assert client.mget([f"key:{number}" for number in range(500)]) == [b"%d" % number for number in range(500)]


def processes(status: dict[str, Any]) -> list[tuple[int, float]]:
    """The supervisor's and every service's process id and start time."""
    return [(each["pid"], each["created"]) for each in (status, *status["services"])]


def assert_gone(those: list[tuple[int, float]]) -> None:
    wait_until("all processes to be gone", lambda: not [each for each in those if is_same_process(*each)], 20)


def ready_again(stack: Stack, name: str) -> dict[str, Any]:
    def restarted() -> dict[str, Any] | None:
        line = stack.service(name)
        return line if line["state"] == "ready" and line["restarts"] == 1 else None

    found: dict[str, Any] = wait_until(f"{name} to be restarted and ready", restarted)
    return found


def test_killed_kafka_and_redis_come_back_with_their_data(victim: Stack) -> None:
    for name, other in (("kafka", "redis"), ("redis", "kafka")):
        before, untouched = victim.service(name), victim.service(other)["pid"]
        os.kill(before["pid"], signal.SIGKILL)
        after = ready_again(victim, name)
        assert after["pid"] != before["pid"]
        assert after["address"] == before["address"]
        assert victim.service(other)["pid"] == untouched
    assert_data(victim)


def test_killed_supervisor_takes_everything_along_and_the_next_up_finds_the_data(victim: Stack) -> None:
    before = processes(victim.status())
    assert len(before) >= 3
    os.kill(before[0][0], signal.SIGKILL)
    # At once, while the dying Kafka may still hold its port: nobody waits before typing `tidemark up` again.
    again = start_stack(victim.settings.home, collector_enabled=False)
    assert_gone(before)
    assert (again.kafka, again.redis) == (victim.kafka, victim.redis)
    assert_data(again)


# ---- Redis alone, because it starts in a moment ------------------------------


@pytest.fixture
def redis_alone(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Settings of a stack without a broker of its own; whatever runs on it afterwards is stopped."""
    overrides = {"home": tmp_path / "home", "kafka_bootstrap": "127.0.0.1:1", "collector_enabled": False}
    yield overrides
    settings = load_settings(**overrides)
    if up.read_status(settings) is not None:
        up.stop(settings, lambda _status: None)


def test_killed_supervisor_leaves_nothing_running(redis_alone: dict[str, Any]) -> None:
    running = start_stack(**redis_alone)
    before = processes(running.status())
    os.kill(before[0][0], signal.SIGKILL)
    assert_gone(before)
    # A process is a zombie as soon as its first thread has ended; its last thread lets go of the lock.
    wait_until("the lock to be let go of", lambda: up.read_status(running.settings) is None, 30)
    assert not Home(running.settings.home).is_locked()


def test_leftover_that_holds_a_port_is_ended_by_the_next_up(redis_alone: dict[str, Any]) -> None:
    """Where no kernel holds the leash, a crash can leave a server running, on the very port that is needed."""
    home = Home(redis_alone["home"])
    home.prepare()
    code = (
        f"import socket, time; server = socket.create_server(({LOOPBACK!r}, 0)); "
        "print(server.getsockname()[1], flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as leftover:
        try:
            assert leftover.stdout
            write_json(home.ports_file, {"redis_port": int(leftover.stdout.readline())})
            created = psutil.Process(leftover.pid).create_time()
            old = {"name": "redis", "pid": leftover.pid, "created": created}
            write_json(home.status_file, {"pid": 2**22 + 1, "created": 0, "services": [old]})
            running = start_stack(**redis_alone)
            assert leftover.wait(10) == -signal.SIGKILL
            assert running.service("redis")["state"] == "ready"
        finally:
            leftover.kill()


def test_home_left_by_a_crash_at_any_point_comes_up(redis_alone: dict[str, Any]) -> None:
    """Stale status, stale lock file, half-written files, a process number that now is somebody else's."""
    home = Home(redis_alone["home"])
    home.prepare()
    stranger = {"name": "redis", "pid": os.getpid(), "created": 1.0}
    write_json(home.status_file, {"pid": os.getpid(), "created": 1.0, "ready": True, "services": [stranger]})
    (home.run / "supervisor.lock").write_text(str(os.getpid()))
    (home.run / "status.json.123.partial").write_text('{"pid": 1')
    (home.root / "ports.json.123.partial").touch()
    assert up.read_status(load_settings(**redis_alone)) is None
    assert start_stack(**redis_alone).service("redis")["state"] == "ready"


@pytest.mark.parametrize("damage", ["", "{", "[]"])
def test_damaged_status_and_ports_do_not_keep_a_home_down(redis_alone: dict[str, Any], damage: str) -> None:
    home = Home(redis_alone["home"])
    home.prepare()
    home.status_file.write_text(damage)
    home.ports_file.write_text(damage)
    assert start_stack(**redis_alone).service("redis")["state"] == "ready"


def test_running_stack_is_found_though_the_clock_was_set(redis_alone: dict[str, Any]) -> None:
    """Start times shift with the system's clock; the lock does not."""
    running = start_stack(**redis_alone)
    home = Home(running.settings.home)
    status = read_json(home.status_file)
    write_json(home.status_file, {**status, "created": status["created"] + 3600})
    assert up.read_status(running.settings) is not None
