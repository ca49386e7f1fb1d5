"""The lease: one process at a time works on the batch data of a source.

It only saves work. Nothing that readers see depends on it: of two runs that work at once, on two machines say, the
publish log takes one (`publish_log.append`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import infra.lease
from hand_off.batch_folder import BatchFolder
from hand_off.errors import LeaseHeld
from infra.lease import PosixLeases

NAME = "lease"
TTL_S = 60.0
"""How long others would wait for a holder that is no longer heard of. On one machine the system frees it at once."""


@contextmanager
def lease(folder: BatchFolder, doing: str) -> Iterator[None]:
    """Hold the lease, or raise LeaseHeld at once. It ends with the process, however that ends."""
    leases = _leases(folder)
    try:
        held = leases.acquire(NAME, TTL_S, doing=doing)
    except infra.lease.LeaseHeld as refused:
        raise LeaseHeld(
            f"Source {folder.source!r} is worked on by {refused.holder or 'another process'}. "
            "Try again when that has finished."
        ) from None
    try:
        yield
    finally:
        leases.release(held)


class Work(NamedTuple):
    """What is done under a lease, and since when (seconds since 1970)."""

    doing: str
    since: float


def work(folder: BatchFolder) -> Work | None:
    """What is being done here now, for people who look on. Never takes the lease, not even for a moment: that would
    turn away whoever wants to work. Where the system does not tell who holds a file, nothing is said.
    """
    holder = _leases(folder).holder(NAME)
    return None if holder is None else Work(holder.doing, holder.since)


def _leases(folder: BatchFolder) -> PosixLeases:
    return PosixLeases(folder.root)
