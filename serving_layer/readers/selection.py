"""What a reader is asked for: a range of time, and which keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Test = Callable[[Any], bool]
"""Of one value of a key."""


class Period(NamedTuple):
    """A half-open range of time, in seconds since 1970."""

    start: int
    end: int


@dataclass(frozen=True)
class KeySelection:
    """The keys that pass all filters. A reader looks up `keys`, or scans those with `prefix` and tests `matches`."""

    keys: tuple[bytes, ...] | None
    """All of them, in the order of their bytes, where filters name each key and they are not too many; else None."""
    prefix: bytes
    """What the bytes of all of them begin with; empty where that is unknown."""
    tests: tuple[tuple[int, Test], ...] = field(default=(), compare=False)
    """By index of the key, for keys that are filtered."""

    def matches(self, key: Sequence[Any]) -> bool:
        """Whether a key, as its values in the declared order, passes all filters."""
        return all(test(key[index]) for index, test in self.tests)
