"""Recently presented answers by the bytes of their states, in bounded memory.

The same bytes always give the same answers, whichever run, generation or cut they were read at. So an entry never
becomes wrong, and publishing a run invalidates nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

OVERHEAD = 1_000
"""Approximate bytes of an entry beside its states."""


class Presentation(NamedTuple):
    """The answers of some states: those of the row, and all that `having` reads. Never modified."""

    shown: dict[str, Any]
    all: dict[str, Any]


class PresentationCache:
    """Threads share it: at worst two of them present the same states.

    New entries go into one half. When that is full, it becomes the old half, and the entries of the old half are
    dropped unless they were used since.
    """

    def __init__(self, max_mb: float) -> None:
        self._half_bytes = max_mb * 1_000_000 / 2
        self._new: dict[Hashable, Presentation] = {}
        self._old: dict[Hashable, Presentation] = {}
        self._size = 0.0

    def get(self, recipe: str, packed: Sequence[bytes]) -> Presentation | None:
        """What these states were presented as. `recipe` names the view, the answers and the quantiles."""
        key = (recipe, *packed)
        found = self._new.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._put(key, found, packed)
        return found

    def put(self, recipe: str, packed: Sequence[bytes], presented: Presentation) -> None:
        """Add an entry, unless it would fill half of the memory alone."""
        self._put((recipe, *packed), presented, packed)

    def _put(self, key: Hashable, presented: Presentation, packed: Sequence[bytes]) -> None:
        size = sum(map(len, packed)) + OVERHEAD
        if size > self._half_bytes:
            return
        if self._size + size > self._half_bytes:
            self._old, self._new, self._size = self._new, {}, 0.0
        self._new[key] = presented
        self._size += size
