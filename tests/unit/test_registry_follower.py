"""The thread that reads the topic of the schema registry learns of what goes wrong where its records are folded."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Message

from master_dataset.registry.records import Record
from master_dataset.registry.state import State
from master_dataset.registry.topic import SchemasTopic


class Broken(State):
    """A state that cannot take a record."""

    def apply(self, record: Record) -> None:
        raise ValueError(f"{record} cannot be folded")


def test_record_that_cannot_be_folded_ends_the_read_instead_of_stopping_it() -> None:
    message = Message(topic="_schemas", partition=0, offset=3, key=b'{"keytype":"NOOP","magic":0}', value=None)

    async def read() -> None:
        topic = SchemasTopic({}, None)  # type: ignore[arg-type]  # it is never asked
        await asyncio.to_thread(topic._hand_over, asyncio.get_running_loop(), Broken(), [message])

    with pytest.raises(ValueError, match="cannot be folded"):
        asyncio.run(read())
