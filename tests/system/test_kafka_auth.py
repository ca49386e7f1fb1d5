"""Our own broker with `kafka_auth`: who has no password reads and writes nothing, and users have only their topics."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from infra.clients.kafka import check_connection, kafka_login, kafka_python_config, librdkafka_config
from infra.clients.kafka_admin import connect_admin
from infra.clients.kafka_users import KafkaUserError, KafkaUsers
from infra.home import Home, read_json
from infra.settings import child_environment, load_settings
from infra.stack.ports import LOOPBACK
from tests.conftest import Stack, start_stack, stop_stack, wait_until

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
BEFORE = "before"
"""A topic from before `kafka_auth`."""
SOON = {"message.timeout.ms": 3000}
"""For what is refused: a client that cannot sign in tries again and again."""
EVENT = {
    "event_id": "1", "event_time": "2026-03-01T01:10:00Z", "user_id": "u", "name": "page_view",
    "properties": {"url": "/", "ms": 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A home that was up without passwords, as 0.1.0 runs it, and then with them."""
    home = tmp_path_factory.mktemp("guarded") / "home"
    plain = start_stack(home, collector_enabled=False)
    try:
        config = librdkafka_config(plain.settings, plain.kafka)
        create(config, BEFORE)
        assert send(config, BEFORE, b"kept") is None
    finally:
        stop_stack(plain)
    stack = start_stack(home, kafka_auth=True)._replace(secret=plain.secret)  # the first key is from then
    yield stack
    stop_stack(stack)


def create(config: dict[str, Any], *topics: str) -> None:
    admin = AdminClient(config)
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(30)


def send(config: dict[str, Any], topic: str, value: bytes) -> str | None:
    """None once it is acknowledged; else why not."""
    return deliver(Producer({"message.timeout.ms": 15_000, **config, "acks": "all"}), topic, value)


def deliver(producer: Producer, topic: str, value: bytes) -> str | None:
    """The same on a connection that may be open already."""
    said: list[str | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: said.append(error.name() if error else None))
    producer.flush(30)
    return said[0] if said else "no answer"


def has_its_password_refused(config: dict[str, Any]) -> bool:
    """Whether the broker refuses the sign-in itself, whatever the user might do after it."""
    errors: list[KafkaError] = []
    client = AdminClient({**config, "error_cb": errors.append})
    with suppress(KafkaException):
        client.list_topics(timeout=5)
    client.poll(0)
    return KafkaError._AUTHENTICATION in [error.code() for error in errors]


def first_value(config: dict[str, Any], topic: str, group: str = "unused") -> bytes | None:
    consumer = Consumer({**config, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(15)
        if message is not None and message.error():
            raise KafkaException(message.error())
        return message.value() if message is not None else None
    finally:
        consumer.close()


def value_or_refusal(config: dict[str, Any], topic: str, group: str) -> bytes | str | None:
    """What it gets. Where a topic is refused librdkafka says so, or only waits."""
    try:
        return first_value(config, topic, group)
    except KafkaException:
        return "refused"


def stranger(stack: Stack) -> dict[str, Any]:
    return {"bootstrap.servers": stack.kafka, "security.protocol": "PLAINTEXT", "log_level": 0}


def guesser(stack: Stack, user: str, password: str = "guess") -> dict[str, Any]:  # noqa: S107  a wrong one
    mechanism = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
    return {**stranger(stack), **mechanism, "sasl.username": user, "sasl.password": password}


def test_what_was_written_before_is_kept_and_our_own_clients_read_it(guarded: Stack) -> None:
    assert first_value(librdkafka_config(guarded.settings, guarded.kafka), BEFORE) == b"kept"
    admin = connect_admin(guarded.settings, guarded.kafka, 15, 15)
    assert BEFORE in admin.list_topics()
    admin.close()
    assert kafka_python_config(guarded.settings, guarded.kafka)["security_protocol"] == "SASL_PLAINTEXT"


@pytest.mark.parametrize("who", ["nobody", "tidemark", "setup"])
def test_a_stranger_sees_and_writes_nothing(guarded: Stack, who: str) -> None:
    config = stranger(guarded) if who == "nobody" else guesser(guarded, who)
    with pytest.raises(KafkaException):
        AdminClient(config).list_topics(timeout=3)
    assert send(config | SOON, BEFORE, b"forged") is not None


def test_the_controller_asks_too(guarded: Stack) -> None:
    port = (read_json(Home(guarded.settings.home).ports_file) or {})["kafka_controller_port"]
    assert check_connection(f"{LOOPBACK}:{port}", 5) is None, "it listens"
    with pytest.raises(KafkaException):
        AdminClient({**stranger(guarded), "bootstrap.servers": f"{LOOPBACK}:{port}"}).list_topics(timeout=3)


def test_events_go_through_the_collector_into_the_guarded_broker(guarded: Stack) -> None:
    with guarded.client() as client:
        answer = client.post("/events/web", json=EVENT)
    assert answer.status_code == 200, answer.text
    assert answer.json()[0]["offset"] == 0


def test_a_user_has_its_topics_and_no_others(guarded: Stack) -> None:
    own = librdkafka_config(guarded.settings, guarded.kafka)
    create(own, "orders.eu", "orders.us", "payroll")
    users = KafkaUsers(own)
    password = users.add("shop", produce=["orders.*"], consume=["orders.eu"])
    shop = guesser(guarded, "shop", password)
    wait_until("the broker to know the user", lambda: send(shop, "orders.eu", b"1") is None)
    assert send(shop, "orders.us", b"2") is None
    assert send(shop, "payroll", b"3") == "TOPIC_AUTHORIZATION_FAILED"
    assert first_value(shop, "orders.eu", "shop-reports") == b"1"
    assert value_or_refusal(shop, BEFORE, "shop-reports") in ("refused", None), "not the value"
    assert ("shop", ["orders.*"], ["orders.eu"]) in users.read()
    with pytest.raises(KafkaUserError, match="already"):
        users.add("shop", ["payroll"], [])


def test_a_removed_user_is_shut_out_and_nobody_else_is(guarded: Stack) -> None:
    """Also after a restart, where Kafka would lose all others if the credential itself were deleted: in the order of
    Java's hash maps, "tablet" comes before every other user here.
    """
    own = librdkafka_config(guarded.settings, guarded.kafka)
    create(own, "tills")
    users = KafkaUsers(own)
    tablet = guesser(guarded, "tablet", users.add("tablet", ["tills"], ["tills"]))
    branch = guesser(guarded, "branch", users.add("branch", ["tills"], ["tills"]))
    wait_until("the broker to know both", lambda: send(tablet, "tills", b"1") is None is send(branch, "tills", b"2"))
    connected = Producer({**tablet, "acks": "all", "message.timeout.ms": 15_000})
    assert deliver(connected, "tills", b"3") is None

    assert tidemark(guarded, "kafka-users", "remove", "tablet") == {"removed": "tablet"}
    wait_until("its password to be refused", lambda: has_its_password_refused(tablet))
    assert not has_its_password_refused(branch)
    wait_until(
        "its open connection to have no rights",
        lambda: deliver(connected, "tills", b"4") == "TOPIC_AUTHORIZATION_FAILED",
    )
    wait_until("the list", lambda: "tablet" not in [user["name"] for user in tidemark(guarded, "kafka-users", "list")])
    with pytest.raises(KafkaUserError, match="There is no user 'tablet'"):
        users.remove("tablet")

    restarted = tidemark(guarded, "restart", "kafka")
    assert restarted, "it is ready again"
    wait_until("our services to connect", lambda: sends_an_event(guarded))
    assert first_value(own, BEFORE) == b"kept"
    assert send(branch, "tills", b"5") is None
    assert has_its_password_refused(tablet)

    again = guesser(guarded, "tablet", users.add("tablet", [BEFORE], []))
    wait_until("the user to be known again", lambda: send(again, BEFORE, b"6") is None)
    assert send(again, "tills", b"7") == "TOPIC_AUTHORIZATION_FAILED", "it has its new rights only"
    assert has_its_password_refused(tablet), "the first password is not valid again"


@pytest.mark.parametrize("name", ["tidemark", "controller", "setup", "nobody"])
def test_what_is_no_user_of_ours_cannot_be_removed(guarded: Stack, name: str) -> None:
    with pytest.raises(KafkaUserError, match="There is no user" if name == "nobody" else "cannot be removed"):
        KafkaUsers(librdkafka_config(guarded.settings, guarded.kafka)).remove(name)


def sends_an_event(stack: Stack) -> bool:
    with stack.client() as client:
        return client.post("/events/web", json=EVENT).status_code == 200


def tidemark(stack: Stack, *arguments: str) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run(
        [TIDEMARK, *arguments, "--output", "json"],
        env=child_environment(stack.settings), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_password_is_seen_nowhere(guarded: Stack) -> None:
    home = Home(guarded.settings.home)
    secret = kafka_login(guarded.settings).password
    assert secret
    assert stat.S_IMODE(home.kafka_secret.stat().st_mode) == 0o600
    assert stat.S_IMODE((home.kafka / "server.properties").stat().st_mode) == 0o600
    commands = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if secret in command]
    assert secret not in json.dumps(guarded.status())
    logs = b"".join(path.read_bytes() for path in home.logs.iterdir())
    assert secret.encode() not in logs


def test_after_a_restart_only_scram_is_left(guarded: Stack) -> None:
    """The user `setup`, who made ours at the first start, is gone."""
    stop_stack(guarded)
    start_stack(guarded.settings.home, kafka_auth=True)
    properties = (Home(guarded.settings.home).kafka / "server.properties").read_text()
    assert "setup" not in properties
    assert first_value(librdkafka_config(guarded.settings, guarded.kafka), BEFORE) == b"kept"


def test_users_are_made_only_where_the_broker_asks(tmp_path: Path) -> None:
    from tidemark.commands.kafka_users import _users

    assert not load_settings(home=tmp_path).kafka_auth
    with pytest.raises(KafkaUserError, match="kafka_auth is false"):
        _users()
