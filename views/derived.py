"""Answers that are computed from other answers when they are presented: ratios and other arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Derived:
    """Arithmetic over the view's other answers: `Derived("errors / requests * 100")`; null where that has no value."""

    of: str


def Ratio(part: str, whole: str) -> Derived:
    """One answer divided by another; null where the other is 0. Never an average of averages: both are merged first."""
    return Derived(f"`{part}` / `{whole}`")
