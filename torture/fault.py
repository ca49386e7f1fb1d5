"""A fault: what is done to a running installation, and how it is undone."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, get_args

from torture.installation import Installation

Kind = Literal[
    "kill", "pair", "failpoint", "pause", "network", "disk", "clock", "redis", "damage", "concurrency", "views",
    "topics", "overload", "slow", "power",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

RUN_S = 90.0
"""About how long a batch run takes under load, on two cores: what waits for one costs as much."""

Strike = Callable[[Installation, random.Random], AbstractContextManager[None]]
"""Entering injects the fault, leaving heals what does not heal by itself. Random choices come only from the given
source, so that the same seed does the same."""


@dataclass(frozen=True)
class Fault:
    """One way to hurt an installation.

    The programme enters `strike`, lets `lasting_s` pass, leaves it, and expects complete and right answers again
    within `recovery_s`.
    """

    name: str
    kind: Kind
    strike: Strike
    lasting_s: float = 0.0
    recovery_s: float = 240.0
    weight: float = 1.0
    """How often it is chosen, beside the others of its kind."""
    cost_s: float = 8.0
    """About how long it takes until all is well again: a short programme prefers what is cheap."""
    is_core: bool = False
    """Whether it strikes what everything hangs on: no programme, however short, does without it."""
    of: tuple[str, ...] = ()
    """The services that it is about: an installation may lack one."""
    missing: Callable[[], str] = lambda: ""
    """What this machine lacks for it (a program, a right); empty if nothing. Such a fault is left out, and named."""
