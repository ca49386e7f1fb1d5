"""Which faults come when: settled by the seed before the first of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torture.fault import KINDS, Fault

IN_RECOVERY = 0.2
"""How often the next fault does not wait until the last one is recovered from."""


class PlannedShot(NamedTuple):
    """One shot that is to come. `seed` is for the chances that the fault itself takes."""

    fault: Fault
    seed: str
    waits: bool
    """Whether recovery is waited for before the next one."""


def plan(faults: Sequence[Fault], shots: int, seed: int, *, in_given_order: bool = False) -> list[PlannedShot]:
    """So many shots: all faults in turn where there are enough, else one of each kind, the core, and then cheap ones.

    They come in this order: a programme whose time is over early has tried what matters most. `in_given_order`: the
    first `shots` faults as they are given.
    """
    chance = random.Random(f"faults {seed}")  # noqa: S311  # which fault comes when
    chosen = list(faults[:shots]) if in_given_order else _chosen(faults, shots, chance)
    last = len(chosen) - 1
    return [
        PlannedShot(fault, f"{seed} {position}", waits=position == last or chance.random() >= IN_RECOVERY)
        for position, fault in enumerate(chosen)
    ]


def _chosen(faults: Sequence[Fault], shots: int, chance: random.Random) -> list[Fault]:
    return _in_order(_in_turn(faults, shots, chance) if shots >= len(faults) else _some(faults, shots, chance))


def _in_order(chosen: Sequence[Fault]) -> list[Fault]:
    """The same, the first of each kind before all others, and then the core."""
    kinds, known = [each.kind for each in chosen], set[str]()
    firsts = {kinds.index(kind) for kind in kinds}
    ranked: list[tuple[int, Fault]] = []
    for position, each in enumerate(chosen):
        is_core = each.is_core and each.name not in known
        known.add(each.name)
        ranked.append((0 if position in firsts else 1 if is_core else 2, each))
    return [each for _, each in sorted(ranked, key=lambda found: found[0])]


def _in_turn(faults: Sequence[Fault], shots: int, chance: random.Random) -> list[Fault]:
    chosen: list[Fault] = []
    while len(chosen) < shots:
        chosen += chance.sample(faults, len(faults))
    return chosen[:shots]


def _some(faults: Sequence[Fault], shots: int, chance: random.Random) -> list[Fault]:
    core = [each for each in faults if each.is_core]
    of_kinds = [[each for each in faults if each.kind == kind] for kind in KINDS]
    chosen = core + [_cheap(found, chance) for found in of_kinds if found and not any(each.is_core for each in found)]
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
    expected = [fault for fault in faults if not kinds or fault.kind in kinds]
    left_out = {fault.name: reason for fault in expected if (reason := fault.missing())}
    return [fault for fault in expected if fault.name not in left_out], left_out
