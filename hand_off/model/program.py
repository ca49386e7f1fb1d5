"""The model as a program: explore the scenarios, whole or with a rule broken."""

from __future__ import annotations

import argparse
import time

from hand_off.model.exploration import InvariantBroken, Model
from hand_off.model.mutations import MUTATIONS
from hand_off.model.scenarios import EXTRA, SCENARIOS


def run_all(mutation: str | None, verbose: bool, full: bool = False) -> tuple[int, InvariantBroken | None, str]:
    """Explore the scenarios up to the first violation."""
    total = 0
    for sc in [s._replace(lean=False) for s in SCENARIOS + EXTRA] if full else SCENARIOS:
        t0 = time.time()
        try:
            n = Model(sc, mutation).explore()
        except InvariantBroken as v:
            return total + v.states, v, sc.name
        total += n
        if verbose:
            print(f"{sc.name:42s} {n:9,d} states {time.time() - t0:6.1f} s", flush=True)
    return total, None, ""


def main() -> int:
    """Explore, and print what was found."""
    ap = argparse.ArgumentParser(prog="python -m hand_off.model", description=__doc__)
    ap.add_argument("--mutate", metavar="NAME", help="a mutation, or 'all'")
    ap.add_argument("--full", action="store_true", help="no reduction, more scenarios")
    ap.add_argument("--list", action="store_true")
    args = ap.parse_args()
    if args.list:
        for name, text in MUTATIONS.items():
            print(f"{name:24s} {text}")
        return 0
    if args.mutate is None:
        total, bad, where = run_all(None, True, args.full)
        if bad is None:
            print(f"{total:,d} states, all invariants hold")
            return 0
        print(f"VIOLATION in '{where}': {bad}", *bad.trace, sep="\n  ")
        return 1
    names = list(MUTATIONS) if args.mutate == "all" else [args.mutate]
    missed = 0
    for name in names:
        if name not in MUTATIONS:
            ap.error(f"unknown mutation {name}; see --list")
        total, bad, where = run_all(name, len(names) == 1)
        missed += bad is None
        print(
            f"{name:24s} "
            + (
                f"caught: {bad} [{where}; {len(bad.trace)} steps, {total:,d} states]"
                if bad
                else f"NOT CAUGHT after {total:,d} states"
            ),
            flush=True,
        )
        if bad and len(names) == 1:
            print(*bad.trace, sep="\n", end="\n")
    return 1 if missed else 0
