"""The network between two parts: cut, half-open, slow, trickling, reset in the middle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torture.errors import TortureError
from torture.fault import Fault, Strike
from torture.installation import Installation
from torture.links import PAIRS
from torture.proxy import Condition, Mode
from torture.runs import run_meanwhile

LASTING_S = {Mode.CUT: 4.0, Mode.HALF_OPEN: 8.0, Mode.DELAY: 5.0, Mode.TRICKLE: 6.0, Mode.RESET: 4.0}


def condition_by(mode: Mode, chance: random.Random) -> Condition:
    """How bad it is this time."""
    return Condition(
        mode,
        delay_s=chance.choice((0.05, 0.3, 1.5)),
        bytes_at_once=chance.choice((1, 100, 1400)),
        pause_s=chance.choice((0.001, 0.01)),
        reset_after_bytes=chance.choice((1, 50, 700, 20_000)),
    )


@contextmanager
def strike_between(
    pair: tuple[str, str], mode: Mode, installation: Installation, chance: random.Random
) -> Iterator[None]:
    """Spoil what is between a pair. Where one of them is a batch run, one is begun just before."""
    proxy = installation.proxies.get(pair)
    if proxy is None:
        raise TortureError(f"Nothing stands between {pair[0]} and {pair[1]}: give the installation this link.")
    condition = condition_by(mode, chance)
    if pair[0] != "batch":
        with proxy.during(condition):
            yield
        return
    with run_meanwhile(installation, is_long=True), proxy.during(condition):
        yield


def _strike(pair: tuple[str, str], mode: Mode) -> Strike:
    return partial(strike_between, pair, mode)


FAULTS = [
    Fault(f"{mode} between {client} and {server}", "network", _strike((client, server), mode), LASTING_S[mode])
    for client, server in PAIRS
    for mode in LASTING_S
]
