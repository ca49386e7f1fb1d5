"""Recently presented answers by the digest of their states, in bounded memory.

The same bytes always give the same answers, whichever run, generation or cut they were read at. So an entry never
becomes wrong, and publishing a run invalidates nothing. The states themselves, some kilobytes each, are not held: of
two that differ, the digests of 128 bits are never the same in practice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

OVERHEAD = 350
"""Approximate bytes of an entry beside its answers."""
SLOT_BYTES, VALUE_BYTES = 40, 30
"""Of a name in a dictionary, and of a number."""
DIGEST_BYTES = 16


class Presentation(NamedTuple):
    """The answers of some states: those of the row, and all that `having` reads; often the same. Never modified."""

    shown: dict[str, Any]
    all: dict[str, Any]


class PresentationCache:
    """Threads share it: at worst two of them present the same states.

    New entries go into one half. When that is full, it becomes the old half, and the entries of the old half are
    dropped unless they were used since.
    """

    def __init__(self, max_mb: float) -> None:
        self._half_bytes = max_mb * 1_000_000 / 2
        self._new: dict[bytes, tuple[Presentation, int]] = {}
        self._old: dict[bytes, tuple[Presentation, int]] = {}
        self._size = 0.0

    def get(self, recipe: str, packed: Sequence[bytes]) -> Presentation | None:
        """What these states were presented as. `recipe` names the view, the answers and the quantiles."""
        key = _digest(recipe, packed)
        found = self._new.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._put(key, *found)
        return None if found is None else found[0]

    def put(self, recipe: str, packed: Sequence[bytes], presented: Presentation) -> None:
        """Add an entry, unless it would fill half of the memory alone."""
        more = 0 if presented.all is presented.shown else size_of(presented.all)
        self._put(_digest(recipe, packed), presented, OVERHEAD + size_of(presented.shown) + more)

    def _put(self, key: bytes, presented: Presentation, size: int) -> None:
        if size > self._half_bytes:
            return
        if self._size + size > self._half_bytes:
            self._old, self._new, self._size = self._new, {}, 0.0
        self._new[key] = presented, size
        self._size += size


def size_of(value: Any) -> int:
    """About how many bytes an answer takes: a number, a text, or many of them."""
    if isinstance(value, dict):
        return 2 * VALUE_BYTES + sum(SLOT_BYTES + size_of(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return 2 * VALUE_BYTES + sum(map(size_of, value))
    return 2 * VALUE_BYTES + len(value) if isinstance(value, (str, bytes)) else VALUE_BYTES


def _digest(recipe: str, packed: Sequence[bytes]) -> bytes:
    """With the length of each part, so that no two lists of parts are the same bytes."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (recipe.encode(), *packed):
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()
