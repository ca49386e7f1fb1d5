"""Forgery: another client of the broker writes dead letters that look like the archiver's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from infra.clients.kafka import librdkafka_config
from master_dataset.dead_letters.letters import ORIGIN, PREFIX
from master_dataset.kafka.record import KafkaRecord
from master_dataset.kafka.send import send_records
from torture.fault import Fault
from torture.faults.failpoints import strike_at
from torture.installation import Installation
from torture.poison import FORGED

FORGERIES = 50
FAR_AHEAD = 10**9
"""A commit that no table will have: who believed it would take everything before it for sent."""


@contextmanager
def strike_forged_letters(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Forge dead letters of a commit far ahead, and kill the archiver before it sends its own."""
    config = librdkafka_config(installation.settings, installation.addresses.kafka)
    send_records(config, [forged_letter(installation, chance) for _ in range(FORGERIES)])
    with strike_at("letters.before_send", installation, chance):
        yield


def forged_letter(installation: Installation, chance: random.Random) -> KafkaRecord:
    """A letter that is true to every header, and is about a record that was never sent."""
    source = installation.source
    values = {
        "source": source.name,
        "topic": source.topic,
        "partition": chance.randrange(source.partitions),
        "offset": FAR_AHEAD + chance.randrange(FAR_AHEAD),
        "timestamp": 1_772_323_200_000,
        "version": FAR_AHEAD,
        "reason": FORGED,
    }
    headers = tuple((f"{PREFIX}{name}", str(values[name]).encode()) for name in ORIGIN)
    return KafkaRecord(source.dead_topic, b"forged", headers=headers)


FAULTS = [Fault("forged dead letters", "topics", strike_forged_letters, cost_s=24)]
