"""Kafka clients: one login in every client's form, and an admin client that waits for brokers and leaves no thread."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator

import pytest
from kafka.errors import KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError
from pydantic import SecretStr

from infra.clients.kafka import kafka_python_config, librdkafka_config, spark_kafka_options
from infra.clients.kafka_admin import KafkaAdmin, check_kafka, connect_admin
from infra.settings import Settings, load_settings
from tests.conftest import wait_until

NOBODY = "127.0.0.1:1"


@pytest.fixture
def settings() -> Settings:
    return load_settings(
        kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism="SCRAM-SHA-512", kafka_username="ada",
        kafka_password=SecretStr('h"\\2'), kafka_ca_file="/ca.pem", kafka_bootstrap="a:1,b:2",
    )  # fmt: skip


@pytest.fixture
def mute_broker() -> Iterator[str]:
    """Accepts connections and says nothing, as a broker that refuses a password closes them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def kafka_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("kafka-io")}


def test_every_client_gets_the_same_login(settings: Settings) -> None:
    assert kafka_python_config(settings, "a:1,b:2") == {
        "bootstrap_servers": ["a:1", "b:2"], "security_protocol": "SASL_SSL", "ssl_cafile": "/ca.pem",
        "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "ada", "sasl_plain_password": 'h"\\2',
    }  # fmt: skip
    config = librdkafka_config(settings, "a:1,b:2")
    assert (config["bootstrap.servers"], config["security.protocol"]) == ("a:1,b:2", "SASL_SSL")
    assert (config["sasl.mechanism"], config["sasl.username"], config["sasl.password"], config["ssl.ca.location"]) == (
        "SCRAM-SHA-512", "ada", 'h"\\2', "/ca.pem",
    )  # fmt: skip
    options = spark_kafka_options(settings, "a:1,b:2")
    assert options["kafka.ssl.truststore.location"] == "/ca.pem"
    assert 'ScramLoginModule required username="ada" password="h\\"\\\\2";' in options["kafka.sasl.jaas.config"]


@pytest.mark.process
def test_a_broker_that_refuses_the_password_is_named_with_the_user(mute_broker: str) -> None:
    settings = load_settings(
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_username="ada",
        kafka_password=SecretStr("hunter2"),
        kafka_bootstrap=mute_broker,
    )
    before = kafka_threads()
    said = check_kafka(settings, mute_broker, timeout_s=0.3)
    assert said is not None
    assert mute_broker in said
    assert "password of 'ada' right (kafka_password)?" in said
    assert "hunter2" not in said
    assert kafka_threads() <= before


@pytest.mark.process
def test_a_client_that_could_not_connect_leaves_no_thread(mute_broker: str) -> None:
    before = kafka_threads()
    with pytest.raises(KafkaTimeoutError, match=mute_broker):
        connect_admin(load_settings(), mute_broker, connect_s=0.2, request_s=0.2)
    assert kafka_threads() <= before


def test_an_address_where_nobody_listens_is_named_after_the_timeout() -> None:
    admin = KafkaAdmin(load_settings(), NOBODY, timeout_s=0.2)
    with pytest.raises(KafkaTimeoutError, match=rf"no answer from {NOBODY}: Connection refused \(waited 0\.2 s\)"):
        admin.read(lambda client: client.describe_topics())


class Client:
    """As kafka-python's client: fails so often, and then answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0
        self.closed = threading.Event()

    def ask(self) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    def close(self) -> None:
        self.closed.set()


def connected(monkeypatch: pytest.MonkeyPatch, client: Client) -> KafkaAdmin:
    monkeypatch.setattr("infra.clients.kafka_admin.check_connection", lambda *_: None)
    monkeypatch.setattr("infra.clients.kafka_admin.connect_admin", lambda *_: client)
    return KafkaAdmin(load_settings(), NOBODY, timeout_s=5)


def test_a_question_is_asked_again_and_a_change_only_if_it_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(NodeNotReadyError(), KafkaTimeoutError())
    assert connected(monkeypatch, client).read(Client.ask) == "answer"  # type: ignore[arg-type]
    assert client.calls == 3
    client = Client(NodeNotReadyError())
    assert connected(monkeypatch, client).change(Client.ask) == "answer"  # type: ignore[arg-type]
    client = Client(KafkaTimeoutError("sent"))
    with pytest.raises(KafkaTimeoutError, match="sent"):
        connected(monkeypatch, client).change(Client.ask)  # type: ignore[arg-type]
    assert client.calls == 1


def test_a_client_is_closed_when_nobody_holds_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    admin = connected(monkeypatch, client)
    admin.read(Client.ask)  # type: ignore[arg-type]
    del admin
    gc.collect()
    wait_until("the client to be closed", client.closed.is_set)


def test_a_closed_client_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    with connected(monkeypatch, client) as admin:
        admin.read(Client.ask)  # type: ignore[arg-type]
    assert client.closed.is_set()
    assert admin.read(Client.ask) == "answer"  # type: ignore[arg-type]


def test_a_client_that_other_threads_use_is_closed_by_the_last_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread gives up after its timeout while another waits for a reply of the same client."""
    clients: list[Client] = []

    def connect(*_: object) -> Client:
        clients.append(Client())
        return clients[-1]

    admin = connected(monkeypatch, Client())
    monkeypatch.setattr("infra.clients.kafka_admin.connect_admin", connect)
    admin.timeout_s = 0.0
    asked, goes_on, replies = threading.Event(), threading.Event(), []

    def wait_for_reply(client: Client) -> str:
        asked.set()
        assert goes_on.wait(60)
        assert not client.closed.is_set(), "it was closed while a reply was due"
        return client.ask()

    waiting = threading.Thread(target=lambda: replies.append(admin.read(wait_for_reply)))  # type: ignore[arg-type]
    waiting.start()
    assert asked.wait(60)

    def give_up(_client: Client) -> str:
        raise RequestTimedOutError

    with pytest.raises(KafkaTimeoutError):
        admin.read(give_up)  # type: ignore[arg-type]
    assert not clients[0].closed.is_set()
    assert admin.read(Client.ask) == "answer"  # type: ignore[arg-type]
    assert len(clients) == 2, "the next call begins with the bootstrap addresses"
    goes_on.set()
    waiting.join()
    assert replies == ["answer"]
    assert [client.closed.is_set() for client in clients] == [True, False]
    admin.close()
    assert clients[1].closed.is_set()


def test_a_retry_has_only_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that begins shortly before the end of the call must not take a whole timeout more."""
    limits: list[float] = []

    def connect(_settings: object, _bootstrap: str, _connect_s: float, request_s: float) -> Client:
        limits.append(request_s)
        return Client(NodeNotReadyError()) if len(limits) < 3 else Client()

    admin = connected(monkeypatch, Client())
    monkeypatch.setattr("infra.clients.kafka_admin.connect_admin", connect)
    assert admin.read(Client.ask) == "answer"  # type: ignore[arg-type]
    assert limits[0] == admin.timeout_s
    assert len(limits) == 3
    assert admin.timeout_s > limits[1] > limits[2]
