"""What the settings declare, and the Kafka that they name: where every command that talks to it begins."""

from __future__ import annotations

from typing import Any, NamedTuple

from infra.settings import Settings, load_settings
from infra.stack.addresses import addresses
from master_dataset.kafka.topics import librdkafka_config
from views.declarations import Declarations, declared_by


class Connected(NamedTuple):
    """What a command that talks to Kafka needs. `kafka` is for clients of librdkafka."""

    settings: Settings
    declarations: Declarations
    kafka: dict[str, Any]


def connect() -> Connected:
    """By the settings of whoever runs the command."""
    settings = load_settings()
    return Connected(settings, declared_by(settings), librdkafka_config(settings, addresses(settings).kafka))
