"""A cut: for each partition the next offset, half-open. What is below it is in, the rest is not yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

Cut = Mapping[int, int]
"""partition -> next offset; an absent partition counts as 0."""


class OffsetRange(NamedTuple):
    """Offsets of one partition, from `start` up to but not including `end_exclusive`."""

    partition: int
    start: int
    end_exclusive: int

    def __str__(self) -> str:
        return f"partition {self.partition}: {self.start}..{self.end_exclusive - 1}"

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.end_exclusive - self.start


def is_below(left: Cut, right: Cut) -> bool:
    """Whether left <= right on every partition."""
    return all(offset <= right.get(partition, 0) for partition, offset in left.items())


def join(left: Cut, right: Cut) -> dict[int, int]:
    """The larger offset of each partition."""
    return {p: max(left.get(p, 0), right.get(p, 0)) for p in sorted({*left, *right})}


def ranges(start: Cut, end: Cut) -> Iterator[OffsetRange]:
    """What lies between two cuts, partition by partition; partitions where that is nothing are left out."""
    for partition in sorted(end):
        if end[partition] > start.get(partition, 0):
            yield OffsetRange(partition, start.get(partition, 0), end[partition])


def count_between(start: Cut, end: Cut) -> int:
    """How many offsets lie between two cuts."""
    return sum(each.size for each in ranges(start, end))


def cut_to_json(cut: Cut) -> dict[str, int]:
    """JSON has no integer keys: {0: 5} -> {"0": 5}."""
    return {str(partition): cut[partition] for partition in sorted(cut)}


def cut_from_json(value: Mapping[str, int]) -> dict[int, int]:
    """The inverse of `cut_to_json`."""
    return {int(partition): int(offset) for partition, offset in value.items()}
