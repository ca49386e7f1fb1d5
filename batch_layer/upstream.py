"""What comes before the master dataset, as a run that waits for it sees it: Kafka's records and the archiver."""

from __future__ import annotations

import time
from typing import NamedTuple

from infra.errors import InfraError
from infra.process_status import MAX_AGE_S, read_status, status_path
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.cut import Cut
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.positions import Positions, logical_positions, read_positions
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from views.source import Source

TIMEOUT_S = 5.0


class Refusal(NamedTuple):
    """Why the archiver does not archive a source now."""

    reason: str
    is_temporary: bool
    """Whether its next attempt, within seconds, may succeed without anybody's help."""


def refusal(settings: Settings, source: str) -> Refusal | None:
    """The archiver's refusal of a source in this home; None where it archives it, or does not run here."""
    status = read_status(status_path(settings, "archiver"))
    if status is None or time.time() - status.at > MAX_AGE_S:
        return None
    if status.error:
        return Refusal(status.error, status.is_temporary)
    found = status.sources.get(source, {})
    return Refusal(str(found["refused"]), bool(found.get("is_temporary"))) if found.get("refused") else None


def has_records(settings: Settings, source: Source) -> bool:
    """Whether Kafka holds records of a source; False also where it does not answer."""
    found = _positions(settings, source)
    return found is not None and any(found.latest[partition] > first for partition, first in found.earliest.items())


def kafka_end(settings: Settings, source: Source) -> Cut:
    """Where Kafka ends now, in logical offsets; empty where it does not answer."""
    found = _positions(settings, source)
    return {} if found is None else found.latest


def _positions(settings: Settings, source: Source) -> Positions | None:
    where = addresses(settings).kafka
    if where.endswith(":0"):  # no broker was ever started on this home
        return None
    from kafka.errors import KafkaError

    held = coverage.of(table_path(settings, source.name))
    try:
        return logical_positions(read_positions(settings, where, source, TIMEOUT_S), held.offset_base)
    except (MasterDatasetError, InfraError, KafkaError, OSError):
        return None
