"""Answers that were presented lately, by the very bytes of the states that they were made of, in bounded memory.

The same bytes always give the same answers, whichever run, generation or cut they were read at. So nothing in here ever
becomes wrong, and nothing has to be told when a run is published.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

OVERHEAD = 1_000
"""About what an entry takes beside the bytes of its states."""


class Presentation(NamedTuple):
    """The answers of some states: those that are shown, and all that a condition looks at. Not to be changed."""

    shown: dict[str, Any]
    all: dict[str, Any]


class PresentationCache:
    """Keeps what was asked for lately. Threads share it: at worst two of them present the same states.

    New entries go into one half. When that is full, it becomes the old half, and what the old half had is forgotten but
    for what was asked for since.
    """

    def __init__(self, most_mb: float) -> None:
        self._room = most_mb * 1_000_000 / 2
        self._new: dict[Hashable, Presentation] = {}
        self._old: dict[Hashable, Presentation] = {}
        self._size = 0.0

    def get(self, how: str, packed: Sequence[bytes]) -> Presentation | None:
        """What these states were presented as; `how` names the view and what was asked of it."""
        key = (how, *packed)
        found = self._new.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._put(key, found, packed)
        return found

    def put(self, how: str, packed: Sequence[bytes], made: Presentation) -> None:
        """Keep it. What would fill half of the room alone is not kept."""
        self._put((how, *packed), made, packed)

    def _put(self, key: Hashable, made: Presentation, packed: Sequence[bytes]) -> None:
        size = sum(map(len, packed)) + OVERHEAD
        if size > self._room:
            return
        if self._size + size > self._room:
            self._old, self._new, self._size = self._new, {}, 0.0
        self._new[key] = made
        self._size += size
