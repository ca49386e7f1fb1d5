"""Processes that take turns as the writer of the schema registry: a write is tried until it gets through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from master_dataset.registry import topic as module
from master_dataset.registry.errors import RegistryError
from master_dataset.registry.records import NOOP
from master_dataset.registry.state import State
from master_dataset.registry.topic import Decision, Fenced, SchemasTopic


class Others:
    """Other processes that fence a writer so many times."""

    def __init__(self, fences: int) -> None:
        self.left = fences

    def send(self, _producer: Any, _encoded: Any) -> int:
        self.left -= 1
        if self.left >= 0:
            raise Fenced("another process is the writer")
        return 0


def write(monkeypatch: pytest.MonkeyPatch, fences: int) -> Any:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "_open_producer", lambda _config: object())
    monkeypatch.setattr(module, "_send", Others(fences).send)

    async def ask() -> Any:
        topic = SchemasTopic({}, None)  # type: ignore[arg-type]  # it is never asked
        topic.problem, topic._position = None, 1
        return await topic.write(decide)

    def decide(_state: State) -> Decision:
        return Decision([NOOP], "written")

    return asyncio.run(ask())


def test_write_gets_through_however_often_others_took_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert write(monkeypatch, 50) == "written"


def test_write_that_others_fence_for_too_long_is_given_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKEOVER_S", -1.0)
    with pytest.raises(RegistryError, match="Other processes kept writing to the registry"):
        write(monkeypatch, 1)
