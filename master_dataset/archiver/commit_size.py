"""How much goes into one commit: a micro-batch of too many bytes is archived in several commits.

Kafka tells offsets, not bytes, so the size of what comes is judged by what the offsets of the commit before held. Not
every offset is a record: a compacted topic and aborted transactions leave holes.
"""

from __future__ import annotations

from math import ceil

from master_dataset.cut import Cut, count_between, ranges
from master_dataset.table.proofs import Proof

FIRST_RECORDS = 1_000
"""So many are taken on trust, before anything is known of their size."""
TRUST = 100
"""A mean of n offsets speaks for the next n * TRUST: three small ones say little about a backlog."""


def next_end(start: Cut, end: Cut, max_bytes: float, last: Proof) -> dict[int, int]:
    """Where the next commit ends, on the way from `start` to `end`, if `last` is the proof of the one before.

    It takes an equal share of every partition, and the shares of all commits on the way are equal, so that the last
    one is no crumb:

        next_end({0: 0}, {0: 250}, 1_000, Proof("append", end={0: 50}, rows=50, raw_bytes=500))  ->  {0: 84}
    """
    size = count_between(start, end)
    known = count_between(last.start, last.end)
    limit: float = max(FIRST_RECORDS, TRUST * known)
    if last.raw_bytes:
        limit = min(limit, max_bytes * known / last.raw_bytes)
    commits = ceil(size / max(1.0, limit)) or 1
    return {**start, **{each.partition: each.start + ceil(each.size / commits) for each in ranges(start, end)}}
