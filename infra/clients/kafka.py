"""How every Kafka client of ours connects: one place that turns settings into kafka-python arguments."""

from __future__ import annotations

import socket
from typing import Any

from infra.settings import Settings


def kafka_config(settings: Settings, bootstrap: str) -> dict[str, Any]:
    """Connection arguments for kafka-python's producer, consumer and admin client."""
    config: dict[str, Any] = {
        "bootstrap_servers": bootstrap.split(","),
        "security_protocol": settings.kafka_security_protocol,
    }
    if settings.kafka_security_protocol.endswith("SSL") and settings.kafka_ca_file:
        config["ssl_cafile"] = str(settings.kafka_ca_file)
    if settings.kafka_security_protocol.startswith("SASL") and settings.kafka_password:
        config |= {
            "sasl_mechanism": settings.kafka_sasl_mechanism,
            "sasl_plain_username": settings.kafka_username,
            "sasl_plain_password": settings.kafka_password.get_secret_value(),
        }
    return config


def check_kafka(settings: Settings, bootstrap: str, timeout_ms: int = 3000) -> str | None:
    """None when the brokers answer a metadata request; else what they did instead."""
    if unreachable := _unreachable(bootstrap, timeout_ms / 1000):
        return unreachable
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    try:
        admin = KafkaAdminClient(
            **kafka_config(settings, bootstrap),
            request_timeout_ms=timeout_ms,
            bootstrap_timeout_ms=timeout_ms,
        )
    except (KafkaError, OSError, ValueError) as error:
        return f"no answer from {bootstrap}: {error}{_password_hint(settings)}"
    try:
        brokers = admin.describe_cluster()["brokers"]
    except (KafkaError, OSError) as error:
        return f"{bootstrap} does not answer a metadata request: {error}"
    finally:
        admin.close()
    return None if brokers else f"{bootstrap} knows no broker yet"


def _unreachable(bootstrap: str, timeout_s: float) -> str | None:
    """None when one of the brokers accepts a connection. Asked first, because it is cheap and its answer is plain."""
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


def _password_hint(settings: Settings) -> str:
    """kafka-python calls a wrong password "unable to bootstrap"."""
    if settings.kafka_security_protocol.startswith("SASL"):
        return f". Is the password of {settings.kafka_username!r} right (kafka_password)?"
    return ""
