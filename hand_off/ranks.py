"""The numbers by which keys are ranked: kept in order beside the states of a bucket, so that first keys are found soon.

A writer writes them in the same step as the states. Redis keeps them as doubles, and a reader takes from them only
which keys can come first: what an answer says is always taken from the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from views.aggregates.counting import adds_up
from views.view import View

MOST = 4
"""So many answers of a view are ranked, the first by name. To rank by another one, all states are looked at."""
BEYOND = 2**62
"""No number is noted as larger than this. A reader that meets such a one looks at all states."""


def ranked(view: View) -> tuple[str, ...]:
    """The answers by which the keys of a view are ranked: counts, and sums of whole numbers."""
    if not view.keys:
        return ()
    return tuple(name for name in sorted(view.algebras) if adds_up(view.algebras[name]))[:MOST]


def numbers(names: tuple[str, ...], states: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of a group, in the order of the names."""
    return tuple(max(min(states[name], BEYOND), -BEYOND) for name in names)
