"""What comes before the master dataset, as a run that waits for it sees it: Kafka's records and the archiver."""

from __future__ import annotations

import time

from infra.errors import InfraError
from infra.process_status import MAX_AGE_S, read_status, status_path
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.cut import Cut
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.positions import Positions, read_positions
from views.source import Source

TIMEOUT_S = 5.0


def refusal(settings: Settings, source: str) -> str:
    """Why the archiver of this home does not archive a source; empty where it does, or does not run here."""
    status = read_status(status_path(settings, "archiver"))
    if status is None or time.time() - status.at > MAX_AGE_S:
        return ""
    return status.error or str(status.sources.get(source, {}).get("refused") or "")


def has_records(settings: Settings, source: Source) -> bool:
    """Whether Kafka holds records of a source; False also where it does not answer."""
    found = _positions(settings, source)
    return found is not None and any(found.latest[partition] > first for partition, first in found.earliest.items())


def kafka_end(settings: Settings, source: Source) -> Cut:
    """Where Kafka ends now; empty where it does not answer."""
    found = _positions(settings, source)
    return {} if found is None else found.latest


def _positions(settings: Settings, source: Source) -> Positions | None:
    where = addresses(settings).kafka
    if where.endswith(":0"):  # no broker was ever started on this home
        return None
    from kafka.errors import KafkaError

    try:
        return read_positions(settings, where, source, TIMEOUT_S)
    except (MasterDatasetError, InfraError, KafkaError, OSError):
        return None
