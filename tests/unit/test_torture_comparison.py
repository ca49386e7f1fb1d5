"""What the fault programme takes for a right answer: equal, or off by no more than the answer states."""

from __future__ import annotations

from typing import Any

import pytest

from torture.comparison import is_right
from views.aggregates import Average, Count, Max, Quantiles, StdDev, Sum, TopK
from views.derived import Ratio
from views.source import Source
from views.view import View

SOURCE = Source("trades", fields="event_id string, event_time timestamp, item string, gain double, cents int")
VIEW = View(
    "gains",
    source=SOURCE,
    grain="1h",
    answers={
        "trades": Count(),
        "cents": Sum("cents"),
        "gain": Sum("gain"),
        "mean": Average("gain"),
        "spread": StdDev("gain"),
        "most": Max("gain"),
        "parts": Quantiles("gain"),
        "items": TopK("item", k=2, room=10),
        "gain_each": Ratio("gain", "trades"),
        "cents_each": Ratio("cents", "trades"),
    },
)


def ranks(*found: tuple[str, int], off: int = 0) -> list[dict[str, Any]]:
    return [{"value": value, "count": count, **({"off_by_at_most": off} if off else {})} for value, count in found]


@pytest.mark.parametrize(
    ("name", "found", "expected", "is_fine"),
    [
        ("trades", 3, 3, True),
        ("trades", 4, 3, False),
        ("trades", None, 3, False),
        ("gain", 1e-7, 0.0, True),
        ("gain", 1e9 + 0.5, 1e9, True),
        ("gain", 5.1, 5.0, False),
        ("gain", None, 5.0, False),
        ("mean", 1e-7, 0.0, True),
        ("spread", 1e-7, 0.0, True),
        ("spread", None, None, True),
        ("gain_each", 1e-7, 0.0, True),
        ("most", 1e-7, 0.0, False),
        ("parts", {"p50": 1e-7}, {"p50": 0.0}, False),
        ("cents_each", 1e-7, 0.0, False),
        ("items", ranks(("a", 9), ("b", 7), off=2), ranks(("a", 8), ("b", 7), off=1), True),
        ("items", ranks(("a", 9), ("b", 7), off=2), ranks(("a", 8), ("c", 6), off=1), True),
        ("items", ranks(("a", 90), ("b", 7), off=2), ranks(("a", 8), ("b", 7), off=1), False),
        ("items", [], ranks(("a", 8), off=1), False),
        ("items", ranks(("a", 9)), ranks(("a", 9)), True),
        ("items", ranks(("a", 9)), ranks(("a", 8)), False),
        ("items", ranks(("a", 9), off=2), ranks(("a", 8)), False),
        ("items", ranks(("a", 9), off=2), ranks(("a", 9)), False),
        ("items", [], [], True),
    ],
)
def test_an_answer_may_be_off_by_what_it_states_and_an_exact_one_by_nothing(
    name: str, found: Any, expected: Any, is_fine: bool
) -> None:
    assert is_right(VIEW, name, found, expected) == is_fine
