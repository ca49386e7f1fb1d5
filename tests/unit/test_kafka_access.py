"""Our own broker with `kafka_auth`: its configuration, and how our processes sign in."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.clients.kafka import kafka_login, librdkafka_config, spark_kafka_options
from infra.clients.kafka_users import RESERVED, KafkaUserError, KafkaUsers
from infra.home import Home
from infra.secret_files import ensure_secret
from infra.settings import Settings, child_environment, load_settings
from infra.stack.addresses import with_addresses
from infra.stack.kafka_access import BrokerAccess
from infra.stack.kafka_broker import _server_properties

PORTS = {"kafka_port": 9092, "kafka_controller_port": 9192}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = load_settings(home=tmp_path / "home", kafka_port=9092, kafka_auth=True)
    home = Home(settings.home)
    home.prepare()
    ensure_secret(home.kafka_secret)
    return settings


def formatted(home: Home, cluster: str) -> None:
    (home.kafka / "data").mkdir(exist_ok=True)
    (home.kafka / "data" / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id=1\n")


def properties(home: Home) -> dict[str, str]:
    text = _server_properties(home, PORTS, BrokerAccess(home))
    return dict(line.split("=", 1) for line in text.splitlines())


def test_every_client_of_ours_signs_in_with_the_password_of_the_home(settings: Settings) -> None:
    password = Home(settings.home).kafka_secret.read_text().strip()
    assert kafka_login(settings) == ("SASL_PLAINTEXT", None, "SCRAM-SHA-512", "tidemark", password)
    assert librdkafka_config(settings, "127.0.0.1:9092")["sasl.password"] == password
    assert password in spark_kafka_options(settings, "127.0.0.1:9092")["kafka.sasl.jaas.config"]


def test_a_process_that_gets_the_address_gets_the_login_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = with_addresses(settings)
    assert given.kafka_bootstrap == "127.0.0.1:9092"
    assert kafka_login(given) == kafka_login(settings)
    for name, value in child_environment(given).items():
        monkeypatch.setenv(name, value)
    assert kafka_login(load_settings()) == kafka_login(settings)


def test_a_cluster_never_gets_the_password_of_the_home(settings: Settings) -> None:
    cluster = settings.model_copy(update={"kafka_bootstrap": "one.example:9092"})
    assert kafka_login(cluster).password is None
    assert kafka_login(with_addresses(cluster)).password is None


def test_a_broker_without_auth_is_asked_without_a_login(settings: Settings) -> None:
    open_to_all = settings.model_copy(update={"kafka_auth": False})
    assert kafka_login(open_to_all).protocol == "PLAINTEXT"
    assert with_addresses(open_to_all).kafka_password is None


def test_nothing_of_the_guarded_broker_is_open(settings: Settings) -> None:
    home = Home(settings.home)
    formatted(home, "one")
    found = properties(home)
    assert found["listener.security.protocol.map"] == "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"
    assert found["authorizer.class.name"].endswith("StandardAuthorizer")
    assert found["allow.everyone.if.no.acl.found"] == "false"
    assert "PLAINTEXT://" not in found["listeners"]


def test_no_user_can_have_the_name_of_a_super_user(settings: Settings) -> None:
    formatted(Home(settings.home), "one")
    supers = properties(Home(settings.home))["super.users"].replace("User:", "").split(";")
    assert set(supers) == set(RESERVED)


def test_the_user_that_makes_ours_exists_until_it_has_done_so(settings: Settings) -> None:
    home = Home(settings.home)
    formatted(home, "one")
    first, second = properties(home), properties(home)
    assert "User:setup" in first["super.users"]
    plain = "listener.name.client.plain.sasl.jaas.config"
    assert first[plain] != second[plain], "another password at each start"
    access = BrokerAccess(home)
    access._record.write_text(access._recorded())  # as it is after it was made
    assert "setup" not in str(properties(home))
    formatted(home, "two")  # the broker lost its data, and its users with them
    assert "User:setup" in properties(home)["super.users"]
    formatted(home, "one")
    home.kafka_secret.unlink()  # a new password, which the broker does not know yet
    assert "User:setup" in properties(home)["super.users"]


@pytest.mark.parametrize(
    ("name", "produce", "consume", "said"),
    [
        ("", ["web"], [], "is no name for a user"),
        ("a b", ["web"], [], "is no name for a user"),
        ("User:x", ["web"], [], "is no name for a user"),
        ("controller", ["web"], [], "a user of the broker itself"),
        ("setup", ["web"], [], "a user of the broker itself"),
        ("tidemark", ["web"], [], "a user of the broker itself"),
        ("shop", [], [], "at least one topic"),
        ("shop", ["we b"], [], "is no topic"),
        ("shop", [], ["*web"], "is no topic"),
    ],
)
def test_users_that_cannot_be_are_refused_before_kafka_is_asked(
    name: str, produce: list[str], consume: list[str], said: str
) -> None:
    with pytest.raises(KafkaUserError, match=said):
        KafkaUsers({"bootstrap.servers": "127.0.0.1:1"}).add(name, produce, consume)
