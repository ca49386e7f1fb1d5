"""The executable specification of the hand-off: its invariants hold, and it catches rules that are broken."""

from __future__ import annotations

import pytest

from hand_off.model import MUTATIONS, SCENARIOS, InvariantBroken, Model, Scenario, run_all

SMALL = {scenario.name: scenario for scenario in SCENARIOS}
"""Explored in a second or two each. `python -m hand_off.model` explores all of them."""


@pytest.mark.parametrize(
    "name", ["hand-off, lost replies", "takeover", "adopt, new views", "overtake", "rebase", "switch and flush"]
)
def test_invariants_hold_in_every_reachable_state(name: str) -> None:
    assert Model(SMALL[name]).explore() > 1_000


@pytest.mark.parametrize(
    ("mutation", "scenario", "invariant"),
    [
        ("off_by_one_cut", "hand-off, lost replies", "I1"),
        ("no_gen_check", "hand-off, lost replies", "I1"),
        ("retire_too_early", "hand-off, lost replies", "I6"),
        ("adopt_published", "adopt, new views", "I6"),
        ("adopt_new_views", "adopt, new views", "I1"),
        ("adopt_keeps_run", "adopt, new views", "I1"),
        ("takeover_no_epoch_bump", "takeover", "I2"),
        ("draft_takeover_seen_ids", "takeover", "I1"),
        ("rebase_at_master", "rebase", "I8"),
        ("rebase_no_floor", "rebase", "I1"),
        ("overtake_back", "overtake", "I2"),
        ("overtake_seen_ids", "overtake", "I1"),
        ("overtake_keeps_gens", "overtake", "I1"),
        ("append_unconditional", "two runs, new views", "I3"),
        ("switch_keeps_seen_ids", "switch, records become invalid", "I1"),
        ("switch_opens", "switch and flush", "I1"),
        ("switch_judged_before", "switch and flush", "I1"),
        ("switch_old_reading", "switch and flush", "I1"),
    ],
)
def test_broken_rule_is_caught(mutation: str, scenario: str, invariant: str) -> None:
    with pytest.raises(InvariantBroken, match=f"^{invariant}") as caught:
        Model(SMALL[scenario], mutation).explore()
    assert caught.value.trace


def test_scenario_without_events_is_explored_too() -> None:
    nothing = Scenario("nothing", ((), ()), SMALL["takeover"].catalogs, takeovers=1, overtakes=1, losses=1)
    assert Model(nothing).explore()


@pytest.mark.soak
def test_invariants_hold_in_all_scenarios() -> None:
    states, violation, scenario = run_all(None, verbose=True)
    assert violation is None, f"{scenario}: {violation} after {violation.trace}"
    assert states > 100_000


@pytest.mark.soak
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mutation_is_caught(mutation: str) -> None:
    _, violation, _ = run_all(mutation, verbose=False)
    assert violation is not None
