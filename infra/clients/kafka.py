"""How Kafka clients connect: the settings' address and login, in the form that each client takes.

Three clients share one login. kafka-python carries the control plane (`infra.clients.kafka_admin`), confluent-kafka,
which is librdkafka, produces and consumes records, and Spark reads with the Java client.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from infra.home import Home
from infra.secret_files import read_secret
from infra.settings import Settings

OWN_USER = "tidemark"
"""Of our services, in our own broker. Its password is in the home (`Home.kafka_secret`)."""
OWN_MECHANISM = "SCRAM-SHA-512"
FETCH_WAIT_MS = "10"
"""How long a broker may delay its reply to a consumer at the end of a partition. Spark asks for the end offsets over
the same connection right after a fetch and waits behind it: by default half a second, each time."""


class KafkaLogin(NamedTuple):
    """How to sign in, taken from the settings; each member is None where the protocol has no use for it."""

    protocol: str
    ca_file: str | None
    mechanism: str | None
    username: str | None
    password: str | None


def kafka_login(settings: Settings) -> KafkaLogin:
    """The login that the settings give: a certificate authority for SSL, a user and password for SASL.

    For our own broker with `kafka_auth`: our user, with the password of the home.
    """
    if settings.kafka_auth and not settings.kafka_bootstrap:
        own_password = read_secret(Home(settings.home).kafka_secret)
        if own_password is not None:  # else it was never started since kafka_auth was set
            return KafkaLogin("SASL_PLAINTEXT", None, OWN_MECHANISM, OWN_USER, own_password)
    protocol, password = settings.kafka_security_protocol, settings.kafka_password
    ca_file = str(settings.kafka_ca_file) if protocol.endswith("SSL") and settings.kafka_ca_file else None
    if not protocol.startswith("SASL") or password is None:
        return KafkaLogin(protocol, ca_file, None, None, None)
    secret = password.get_secret_value()
    return KafkaLogin(protocol, ca_file, settings.kafka_sasl_mechanism, settings.kafka_username, secret)


def kafka_python_config(settings: Settings, bootstrap: str) -> dict[str, Any]:
    """Arguments of kafka-python's clients."""
    login = kafka_login(settings)
    config: dict[str, Any] = {"bootstrap_servers": bootstrap.split(","), "security_protocol": login.protocol}
    if login.ca_file:
        config["ssl_cafile"] = login.ca_file
    if login.password is not None:
        config |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": login.username,
            "sasl_plain_password": login.password,
        }
    return config


def librdkafka_config(settings: Settings, bootstrap: str) -> dict[str, Any]:
    """Configuration of confluent-kafka's producers and consumers."""
    login = kafka_login(settings)
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": login.protocol,
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 3,
    }
    if login.ca_file:
        config["ssl.ca.location"] = login.ca_file
    if login.password is not None:
        config |= {
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.username,
            "sasl.password": login.password,
        }
    return config


def spark_kafka_options(settings: Settings, bootstrap: str) -> dict[str, str]:
    """Options of Spark's Kafka source. Records of an aborted transaction are never read."""
    login = kafka_login(settings)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.security.protocol": login.protocol,
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
    }
    if login.password is not None:
        module = "plain.PlainLoginModule" if login.mechanism == "PLAIN" else "scram.ScramLoginModule"
        user, password = _jaas(login.username or ""), _jaas(login.password)
        options |= {
            "kafka.sasl.mechanism": str(login.mechanism),
            "kafka.sasl.jaas.config": (
                f"org.apache.kafka.common.security.{module} required username={user} password={password};"
            ),
        }
    if login.ca_file:
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": login.ca_file}
    return options


def check_connection(bootstrap: str, timeout_s: float) -> str | None:
    """None where one of the brokers accepts a TCP connection; else the reason of each. Cheap, and its text is plain."""
    errors = []
    for broker in bootstrap.split(","):
        host, _, port = broker.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except OSError as error:
            errors.append(f"{broker.strip()}: {error.strerror or error}")
        else:
            return None
    return f"no answer from {', '.join(errors)}"


def _jaas(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
