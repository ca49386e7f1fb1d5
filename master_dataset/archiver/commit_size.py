"""The size of a commit: a micro-batch of too many bytes is archived in several commits.

Kafka reports offsets, not bytes, so the size of the next records is estimated from the offsets and bytes of the
previous commit. Not every offset is a record: a compacted topic and aborted transactions leave holes.
"""

from __future__ import annotations

from math import ceil

from master_dataset.cut import Cut, count_between, ranges
from master_dataset.table.proofs import Proof

FIRST_RECORDS = 1_000
"""How many records go into the first commit, before anything is known about their size."""
TRUST = 100
"""The mean of n offsets is trusted for the next n * TRUST: three small records say little about a backlog."""


def next_end(start: Cut, end: Cut, max_bytes: float, last: Proof) -> dict[int, int]:
    """Where the next commit ends, on the way from `start` to `end`, if `last` is the proof of the one before.

    It takes an equal share of every partition, and the shares of all commits on the way are equal, so that the last
    one is not tiny:

        next_end({0: 0}, {0: 250}, 1_000, Proof("append", end={0: 50}, rows=50, raw_bytes=500))  ->  {0: 84}
    """
    size = count_between(start, end)
    known = count_between(last.start, last.end)
    limit: float = max(FIRST_RECORDS, TRUST * known)
    if last.raw_bytes:
        limit = min(limit, max_bytes * known / last.raw_bytes)
    commits = ceil(size / max(1.0, limit)) or 1
    return {**start, **{each.partition: each.start + ceil(each.size / commits) for each in ranges(start, end)}}
