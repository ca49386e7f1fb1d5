"""Registrations whose outcome Kafka does not tell: an error that says so, and the same id for a repetition."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.rest.problems import Problem
from master_dataset.registry import topic as module
from master_dataset.registry.records import NOOP, SchemaVersion
from master_dataset.registry.registry import Registry, Submitted
from master_dataset.registry.schemas import Schema
from master_dataset.registry.topic import Decision, SchemasTopic
from tests.conftest import Stack

SUBJECT = f"s-{uuid4().hex}-value"
SCHEMA = Schema(json.dumps({"type": "record", "name": f"R{uuid4().hex}", "fields": []}))


class Forgetful(Producer):
    """Commits like any other, and at times does not say where it put a record."""

    is_silent = False

    def produce(self, *arguments: Any, **more: Any) -> None:
        if self.is_silent:
            more.pop("on_delivery")
        super().produce(*arguments, **more)


def test_a_registration_without_a_report_is_sent_again_and_has_one_id(
    bare_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Producer", Forgetful)
    config = librdkafka_config(bare_stack.settings, bare_stack.kafka)
    registry = Registry(SchemasTopic(config, KafkaAdmin(bare_stack.settings, bare_stack.kafka)))

    async def register() -> SchemaVersion:
        return await registry.register(SUBJECT, Submitted(SCHEMA), normalize=False)

    async def register_again() -> None:
        following = asyncio.create_task(registry.topic.follow())
        while registry.topic.problem is not None:
            await asyncio.sleep(0.05)
        await registry.change(lambda _state: Decision([NOOP], None))  # it is the writer now
        with monkeypatch.context() as patched:
            patched.setattr(Forgetful, "is_silent", True)
            patched.setattr(module, "REPORT_S", 0.0)
            with pytest.raises(Problem, match="Whether anything was changed is not known") as unknown:
                await register()
        assert (unknown.value.status, unknown.value.kind) == (503, "outcome-unknown")
        first = await register()
        assert await register() == first
        assert registry.state.versions_of(SUBJECT) == [first]
        following.cancel()

    asyncio.run(register_again())
