"""The numbers by which keys are ranked, stored in order beside the states of a bucket to find the first keys fast.

A writer writes them in the same step as the states. Redis stores them as doubles, and a reader takes from them only
which keys can come first; values of an answer always come from the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from views.aggregates.counting import adds_up
from views.view import View

MAX_RANKS = 4
"""How many answers of a view are ranked, the first by name. To rank by another one, readers read all states."""
MAX_NUMBER = 2**62
"""Larger numbers are stored as this one. A reader that finds it reads all states."""


def ranked(view: View) -> tuple[str, ...]:
    """The answers by which the keys of a view are ranked: counts, and sums of whole numbers."""
    if not view.keys:
        return ()
    return tuple(name for name in sorted(view.algebras) if adds_up(view.algebras[name]))[:MAX_RANKS]


def numbers(names: tuple[str, ...], states: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of a group, in the order of the names."""
    return tuple(max(min(states[name], MAX_NUMBER), -MAX_NUMBER) for name in names)
