"""The lease: one process at a time works on the batch data of a source.

It only saves work. Nothing that readers see depends on it: of two runs that work at once, on two machines say, the
publish log takes one (`publish_log.append`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hand_off.batch_folder import BatchFolder
from hand_off.errors import LeaseHeld
from infra.disk import make_folder
from infra.locks import LockHeld, hold
from infra.times import readable_utc


@contextmanager
def lease(folder: BatchFolder, doing: str) -> Iterator[None]:
    """Hold the lease, or raise LeaseHeld at once. It ends with the process, however that ends."""
    if not folder.root.is_dir():
        make_folder(folder.root)
    holder = json.dumps({"pid": os.getpid(), "since": time.time(), "doing": doing})
    try:
        with hold(folder.lease, wait_s=0, holder=holder):
            yield
    except LockHeld as held:
        raise LeaseHeld(
            f"Source {folder.source!r} is worked on by {_holder(held.holder)}. Try again when that has finished."
        ) from None


class Work(NamedTuple):
    """What is done under a lease, and since when (seconds since 1970)."""

    doing: str
    since: float


def work(folder: BatchFolder) -> Work | None:
    """What is being done here now, for people who look on. Never takes the lease, not even for a moment: that would
    turn away whoever wants to work. Where the system does not tell who holds a file, nothing is said.
    """
    try:
        held = Path("/proc/locks").read_text(encoding="ascii")
        if f":{folder.lease.stat().st_ino} " not in held:
            return None
        holder = json.loads(folder.lease.read_text(encoding="utf-8"))
        return Work(str(holder["doing"]), float(holder["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _holder(text: str) -> str:
    """Like `process 4711 (batch run) since 2026-11-16 03:15:00 UTC`."""
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} ({holder['doing']}) since {readable_utc(holder['since'])}"
    except (ValueError, KeyError, TypeError):
        return "another process"  # it holds the lease, and has not said yet who it is
