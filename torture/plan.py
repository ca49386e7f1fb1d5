"""Which faults come when: settled by the seed before the first of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torture.fault import KINDS, Fault

IN_RECOVERY = 0.2
"""How often the next fault does not wait until the last one is recovered from."""


class Planned(NamedTuple):
    """One shot that is to come. `seed` is for the chances that the fault itself takes."""

    fault: Fault
    seed: str
    waits: bool
    """Whether recovery is waited for before the next one."""


def plan(faults: Sequence[Fault], shots: int, seed: int) -> list[Planned]:
    """So many shots: all faults in turn where there are enough, else one of each kind and then the cheap ones more.

    One of each kind comes first: a programme whose time is over early has tried most of them.
    """
    chance = random.Random(f"faults {seed}")  # noqa: S311  # which fault comes when
    chosen = _kinds_first(_in_turn(faults, shots, chance) if shots >= len(faults) else _some(faults, shots, chance))
    last = len(chosen) - 1
    return [
        Planned(fault, f"{seed} {place}", waits=place == last or chance.random() >= IN_RECOVERY)
        for place, fault in enumerate(chosen)
    ]


def _kinds_first(chosen: Sequence[Fault]) -> list[Fault]:
    """The same, the first of each kind before all others."""
    kinds = [each.kind for each in chosen]
    firsts = {kinds.index(kind) for kind in kinds}
    return [
        *(each for place, each in enumerate(chosen) if place in firsts),
        *(each for place, each in enumerate(chosen) if place not in firsts),
    ]


def _in_turn(faults: Sequence[Fault], shots: int, chance: random.Random) -> list[Fault]:
    chosen: list[Fault] = []
    while len(chosen) < shots:
        chosen += chance.sample(faults, len(faults))
    return chosen[:shots]


def _some(faults: Sequence[Fault], shots: int, chance: random.Random) -> list[Fault]:
    chosen = [_cheap(found, chance) for kind in KINDS if (found := [each for each in faults if each.kind == kind])]
    left = [each for each in faults if each not in chosen]
    while left and len(chosen) < shots:
        next_one = _cheap(left, chance)
        left.remove(next_one)
        chosen.append(next_one)
    chance.shuffle(chosen)
    return chosen[:shots]


def _cheap(faults: Sequence[Fault], chance: random.Random) -> Fault:
    (found,) = chance.choices(faults, weights=[each.weight / each.cost_s**2 for each in faults])
    return found


def usable(faults: Iterable[Fault], kinds: Sequence[str]) -> tuple[list[Fault], dict[str, str]]:
    """The faults of these kinds (none named: of all) that this machine can have, and why not the others."""
    wanted = [fault for fault in faults if not kinds or fault.kind in kinds]
    left_out = {fault.name: why for fault in wanted if (why := fault.missing())}
    return [fault for fault in wanted if fault.name not in left_out], left_out
