"""Two ways of adding up the same events: what may differ between them, and by how much."""

from __future__ import annotations

from typing import Any

import pytest

from serving_layer.verification.from_scratch import are_same, is_same
from views.aggregates import Average, Count, DecayedRate, Sum
from views.equality import differing
from views.source import Source
from views.view import View

SOURCE = Source("trades", fields="event_id string, event_time timestamp, gain double")
VIEW = View(
    "gains", source=SOURCE, grain="1h", answers={"trades": Count(), "gain": Sum("gain"), "mean": Average("gain")}
)


def state(*gains: float) -> dict[str, Any]:
    found = {name: algebra.zero() for name, algebra in VIEW.algebras.items()}
    for gain in gains:
        found = {name: algebra.add(found[name], gain, None) for name, algebra in VIEW.algebras.items()}  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("left", "right", "names"),
    [
        ((0.1, 0.2, -0.3), (-0.3, 0.2, 0.1), []),
        ((1e6, 0.1, -1e6, -0.1), (1e6, -1e6, 0.1, -0.1), []),
        ((5.0, 5.0), (5.0, 5.1), ["gain", "mean"]),
        ((1e6, 1e6), (1e6, 1e6 + 1), ["gain", "mean"]),
        ((5.0,), (5.0, 0.0), ["mean", "trades"]),
    ],
)
def test_sums_that_cancel_out_are_the_same_and_others_are_not(
    left: tuple[float, ...], right: tuple[float, ...], names: list[str]
) -> None:
    assert differing(VIEW.algebras, state(*left), state(*right)) == names
    is_equal = is_same(sum(left), sum(right))
    assert is_equal == ("gain" not in names)


def test_large_pieces_that_cancel_out_leave_their_own_rounding() -> None:
    pieces = [state(1e15), state(0.3), state(-1e15)]
    left, right = state(1e15, 0.3, -1e15), state(1e15, -1e15, 0.3)
    assert differing(VIEW.algebras, left, right) == ["gain", "mean"]
    assert differing(VIEW.algebras, left, right, pieces) == []


def ranks(*found: tuple[str, int], off: int) -> list[dict[str, Any]]:
    return [{"value": value, "count": count, **({"off_by_at_most": off} if off else {})} for value, count in found]


@pytest.mark.parametrize(
    ("ours", "true", "is_equal"),
    [
        (ranks(("a", 10), ("b", 7), off=2), ranks(("a", 9), ("b", 7), off=1), True),
        (ranks(("a", 10), ("b", 7), off=2), ranks(("a", 9), ("c", 6), off=1), True),
        (ranks(("a", 10), ("b", 7), off=2), ranks(("a", 9), ("b", 7), off=0), True),
        (ranks(("a", 90), ("b", 7), off=2), ranks(("a", 9), ("b", 7), off=1), False),
        (ranks(("a", 9), ("b", 7), off=2), ranks(("a", 90), ("b", 7), off=1), False),
        (ranks(("a", 10), ("z", 9), off=1), ranks(("a", 10), ("b", 5), off=1), False),
        ([], ranks(("a", 10), off=1), False),
        (None, ranks(("a", 10), off=1), False),
    ],
)
def test_ranks_are_the_same_within_what_they_say_they_are_off(ours: Any, true: Any, is_equal: bool) -> None:
    assert is_same(ours, true) == is_equal


def test_only_sums_of_doubles_may_differ_in_their_last_digits() -> None:
    """One event more is little of a rate over a long half-life, and still wrong."""
    view = View("pace", SOURCE, {"rate": DecayedRate(half_life="365d"), "gain": Sum("gain")}, grain="1h")
    true = {"rate": 2.2e-8, "gain": 0.3}
    assert are_same(view, {"rate": 2.2e-8, "gain": 0.1 + 0.2}, true)
    assert not are_same(view, {"rate": 4.4e-8, "gain": 0.3}, true)
    assert not are_same(view, {"rate": 2.2e-8, "gain": 0.4}, true)
    assert not are_same(view, {"rate": 2.2e-8}, true)
