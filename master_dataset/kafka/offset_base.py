"""Logical offsets: one increasing number per partition, whatever becomes of the topic in Kafka.

Logical offset = Kafka's offset + the base of its partition. Everything that Tidemark stores (rows, proofs, cuts, the
publish log, Redis) and everything that it says (acknowledgements, answers) has logical offsets. Only what reads Kafka
itself translates, with the functions below. The bases are 0 until `tidemark master rebase` records others in the master
table, for a topic that was made again or that lost its newest records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from master_dataset.cut import Cut, is_below, join


@dataclass(frozen=True)
class OffsetBase:
    """Which topic a table's records come from now, and how its offsets become logical ones.

    `begin` is the cut from which on they do. What Kafka may still hold below it is archived under other offsets.
    """

    topic_id: str = ""
    base: Cut = field(default_factory=dict)
    begin: Cut = field(default_factory=dict)

    @property
    def is_rebased(self) -> bool:
        """Whether the table was rebased at least once."""
        return bool(self.base)

    def is_of(self, topic_id: str) -> bool:
        """Whether a topic with this id is the one; a table that holds nothing yet takes any."""
        return self.topic_id in ("", topic_id)

    def logical_earliest(self, offsets: Cut) -> dict[int, int]:
        """Where Kafka's records begin that are read with this base, from where the topic begins."""
        found = to_logical(self.base, offsets)
        return {partition: max(offset, self.begin.get(partition, 0)) for partition, offset in found.items()}


def to_logical(base: Cut, offsets: Cut) -> dict[int, int]:
    """Kafka's offsets -> logical ones. A partition without a base has 0.

    base {0: 40}, offsets {0: 2, 1: 5} -> {0: 42, 1: 5}
    """
    return {partition: offset + base.get(partition, 0) for partition, offset in offsets.items()}


def to_kafka(base: Cut, cut: Cut) -> dict[int, int]:
    """The inverse of `to_logical`."""
    return {partition: offset - base.get(partition, 0) for partition, offset in cut.items()}


def next_base(topic_id: str, held: Cut, floor: Cut, begin: Mapping[int, int], skipped: Cut) -> OffsetBase:
    """The base from which on Kafka's offsets from `begin` follow everything that is or was known.

    `held` is the end of the table, `floor` what others have seen beyond it. `skipped` are how many offsets a partition
    lost besides: they count as if they had come, so that the loss is recorded.
    """
    known = join(held, floor)
    first = {p: known.get(p, 0) + skipped.get(p, 0) for p in sorted({*known, *begin})}
    return OffsetBase(topic_id, {p: first[p] - begin[p] for p in sorted(begin)}, first)


def is_above(new: OffsetBase, old: OffsetBase) -> bool:
    """Whether no logical offset of `new` can be one of `old` up to where `new` begins, and no base went back."""
    return is_below(old.begin, new.begin) and is_below(old.base, new.base)
