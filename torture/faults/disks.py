"""A full disk, for each data folder in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torture import disks
from torture.errors import TortureError
from torture.fault import RUN_S, Fault, Strike
from torture.installation import Installation
from torture.runs import go_on, run_under_way
from torture.wait import wait_for

BEFORE_WRITING = ("run.after_number", "run.after_duplicates", "run.after_data")
"""Failpoints of a run right before it writes."""
FAILS_S = 20.0


@contextmanager
def strike_full(folder: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Fill the disk of a folder. The disk of the batch views is filled while a run writes there."""
    if installation.disks is None:
        raise TortureError("The installation has no disks of its own: make it with has_disks=True.")
    if folder != "batch":
        with installation.disks.full(folder):
            yield
        return
    with run_under_way(installation, chance.choice(BEFORE_WRITING), "--full") as run:
        with installation.disks.full(folder):
            go_on(run)
            yield
            wait_for("the run to meet the full disk", lambda: run.poll() is not None, FAILS_S)
        if run.returncode == 0:
            raise TortureError("the run succeeded: it did not meet the full disk")


def _strike(folder: str) -> Strike:
    return partial(strike_full, folder)


FAULTS = [
    Fault(
        f"disk full: {'home' if folder == disks.ROOT else folder}",
        "disk",
        _strike(folder),
        lasting_s=8,
        recovery_s=150,
        cost_s=RUN_S if folder == "batch" else 12,
        is_core=folder in ("master", "kafka"),
        missing=disks.missing,
    )
    for folder in disks.FOLDERS
]
