"""The declarations and the Kafka of the settings, for every command that talks to Kafka."""

from __future__ import annotations

from typing import Any, NamedTuple

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings, load_settings
from infra.stack.addresses import addresses
from views.declarations import Declarations, declared_by


class KafkaConnection(NamedTuple):
    """What a command that talks to Kafka needs. `kafka` configures clients of librdkafka."""

    settings: Settings
    declarations: Declarations
    kafka: dict[str, Any]

    @property
    def admin(self) -> KafkaAdmin:
        """A client for topics and offsets."""
        return KafkaAdmin(self.settings, addresses(self.settings).kafka)


def connect() -> KafkaConnection:
    """Read the settings of whoever runs the command."""
    settings = load_settings()
    return KafkaConnection(settings, declared_by(settings), librdkafka_config(settings, addresses(settings).kafka))
