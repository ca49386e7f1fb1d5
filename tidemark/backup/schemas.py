"""The schema registry of a home in a backup: the records of `_schemas`, which nothing but Kafka holds."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from infra.backup_store import BackupWriter
from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.errors import InfraError
from infra.home import Home
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.topics import existing_topics
from master_dataset.registry.saved_records import RawRecord, read_topic, restored_file, to_lines
from master_dataset.registry.topic import SCHEMAS_TOPIC

KAFKA_S = 10.0


class _Read(NamedTuple):
    """What Kafka has of the registry, and why that is nothing."""

    records: list[RawRecord]
    reason: str = ""


def add_schemas(settings: Settings, writer: BackupWriter) -> list[str]:
    """Add the records of the registry, and say where they could not be read.

    Where Kafka has none, those of a restore that are not in it yet are taken; else those of the backup before.
    """
    if not settings.registry_enabled:
        return []
    restored = restored_file(settings)
    name = f"home/{restored.relative_to(settings.home).as_posix()}"
    found = _read(settings)
    if found.records:
        with tempfile.TemporaryDirectory(prefix="tidemark-backup-") as scratch:
            path = Path(scratch, restored.name)
            path.write_bytes(to_lines(found.records))
            writer.add(name, path)
    elif restored.is_file():
        writer.add(name, restored)
    elif writer.take_over(name):
        return [f"The schemas of the registry are those of the backup before: {found.reason or 'Kafka has none.'}"]
    elif found.reason:
        return [f"The schemas of the registry are not in this backup: {found.reason}"]
    return []


def _read(settings: Settings) -> _Read:
    home = Home(settings.home)
    if not settings.kafka_bootstrap and not home.is_locked():
        is_new = not any(home.kafka.rglob("meta.properties"))
        return _Read([], "" if is_new else "Kafka does not run. Make a backup while Tidemark runs.")
    bootstrap = addresses(settings).kafka
    try:
        with closing(KafkaAdmin(settings, bootstrap, KAFKA_S)) as admin:
            if SCHEMAS_TOPIC not in existing_topics(admin):
                return _Read([])
        return _Read(read_topic(librdkafka_config(settings, bootstrap)))
    except (MasterDatasetError, InfraError) as error:
        return _Read([], str(error))
