"""A full disk, for each data folder in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torture import disks
from torture.errors import TortureError
from torture.fault import Fault, Strike
from torture.installation import Installation
from torture.runs import run_meanwhile


@contextmanager
def strike_full(folder: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Nothing more fits onto the disk of a folder. That of the batch views is filled while a run writes there."""
    del chance
    if installation.disks is None:
        raise TortureError("The installation has no disks of its own: make it with has_disks=True.")
    if folder != "batch":
        with installation.disks.full(folder):
            yield
        return
    with run_meanwhile(installation), installation.disks.full(folder):
        yield


def _strike(folder: str) -> Strike:
    return partial(strike_full, folder)


FAULTS = [
    Fault(
        f"disk full: {'home' if folder == disks.ROOT else folder}",
        "disk",
        _strike(folder),
        lasting_s=8,
        recovery_s=150,
        missing=disks.missing,
    )
    for folder in disks.FOLDERS
]
