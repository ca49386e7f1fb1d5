"""The Lua scripts of the hand-off, each one atomic step in Redis, and what they reply."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hiredis

from hand_off.speed_views.layout import Layout

if TYPE_CHECKING:
    from redis import Redis

FOLDER = Path(__file__).parents[1] / "lua"
NAMES = (
    "start", "snapshot", "init", "load", "apply", "open", "adopt", "publish", "fence", "takeover", "overtake", "retire",
    "sweep", "heartbeat", "answer", "cells", "heads", "catch_up", "forget",
)  # fmt: skip


class Outcome(StrEnum):
    """The first word of a script's reply."""

    OK = "OK"
    ALREADY = "ALREADY"
    FENCED = "FENCED"
    RESTART = "RESTART"
    LOAD = "LOAD"
    RETRY = "RETRY"
    LOST = "LOST"
    REFUSED = "REFUSED"
    TOO_MANY = "TOO MANY"
    NO_META = "NO META"
    NO_GENERATION = "NO GENERATION"
    OLD = "OLD"
    BEHIND = "BEHIND"
    IN_USE = "IN USE"
    MOVED = "MOVED"


class Scripts:
    """The scripts for one source. Every change of its speed views is one call of one of them."""

    def __init__(self, client: Redis, layout: Layout) -> None:
        self.client, self.layout = client, layout
        self._scripts = {name: client.register_script(read_script(name)) for name in NAMES}
        at = layout
        self._state_keys = [at.epoch, at.meta, at.generations, at.seen, at.known]
        self._all_keys = [*self._state_keys, at.alive, at.looked, at.recent]

    def __getitem__(self, name: str) -> Any:
        return self._scripts[name]

    def call(self, name: str, *arguments: Any) -> Any:
        """Run a script that works on the keys of the source itself."""
        return self._scripts[name](keys=self._all_keys, args=arguments)

    def encoded(self, name: str, *arguments: Any) -> bytes:
        """The same call as Redis reads it, for a client that sends bytes. The script must be loaded already."""
        found: bytes = hiredis.pack_command(
            ("EVALSHA", self._scripts[name].sha, len(self._all_keys), *self._all_keys, *arguments)
        )
        return found

    def outcome(self, name: str, *arguments: Any) -> Outcome:
        """Run a script that replies with one word."""
        return _outcome(self.call(name, *arguments))

    def write_states(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Outcome:
        """Run a script that also writes or deletes states, whose keys follow those of the source."""
        return _outcome(self._scripts[name](keys=[*self._state_keys, *keys], args=arguments))


def read_script(name: str) -> str:
    """The text of a script."""
    return FOLDER.joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _outcome(reply: Any) -> Outcome:
    return Outcome(reply.decode() if isinstance(reply, bytes) else str(reply))
