"""The network between two parts: cut, half-open, slow, trickling, reset in the middle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torture.errors import TortureError
from torture.fault import RUN_S, Fault, Strike
from torture.installation import Installation
from torture.links import PAIRS
from torture.proxy import Condition, ProxyMode
from torture.runs import go_on, run_under_way
from torture.wait import wait_for

GOES_BY_S = 15.0
"""Some pairs do not talk all the time."""
LASTING_S = {
    ProxyMode.CUT: 4.0,
    ProxyMode.HALF_OPEN: 8.0,
    ProxyMode.DELAY: 5.0,
    ProxyMode.TRICKLE: 6.0,
    ProxyMode.RESET: 4.0,
}
HURT_PAIRS = tuple(pair for pair in PAIRS if pair != ("batch", "kafka"))
"""A run never talks to Kafka: the link is for a second archiver or speed layer."""
BEFORE_REDIS = ("run.after_views", "run.after_publish")
"""Failpoints of a run right before it talks to Redis: to compare, and to hand off."""


def condition_by(mode: ProxyMode, chance: random.Random) -> Condition:
    """The condition of a link for a mode, with random values."""
    return Condition(
        mode,
        delay_s=chance.choice((0.05, 0.3, 1.5)),
        bytes_at_once=chance.choice((1, 20, 100)),
        pause_s=chance.choice((0.001, 0.01)),
        reset_after_bytes=chance.choice((1, 50, 700, 5_000)),
    )


@contextmanager
def strike_between(
    pair: tuple[str, str], mode: ProxyMode, installation: Installation, chance: random.Random
) -> Iterator[None]:
    """Break the link of a pair. A batch run is stopped right before it talks, so that it meets the break."""
    proxy = installation.proxies.get(pair)
    if proxy is None:
        raise TortureError(f"Nothing stands between {pair[0]} and {pair[1]}: give the installation this link.")
    condition = condition_by(mode, chance)
    if pair[0] != "batch":
        if not proxy.connections:
            raise TortureError(f"nobody ever went by the link between {pair[0]} and {pair[1]}")
        with proxy.during(condition):
            yield
            wait_for(f"something to go by the link while it is {mode}", lambda: proxy.hurt, GOES_BY_S)
        return
    before = proxy.connections
    with run_under_way(installation, chance.choice(BEFORE_REDIS)) as run, proxy.during(condition):
        if proxy.connections == before:
            raise TortureError("the run did not go by its link")
        go_on(run)
        yield


def _strike(pair: tuple[str, str], mode: ProxyMode) -> Strike:
    return partial(strike_between, pair, mode)


FAULTS = [
    Fault(
        f"{mode} between {client} and {server}",
        "network",
        _strike((client, server), mode),
        LASTING_S[mode],
        cost_s=RUN_S if client == "batch" else 8,
        of=(client,),
    )
    for client, server in HURT_PAIRS
    for mode in LASTING_S
]
