"""The verdict over curves of simulated time: what may grow is declared, and everything else has to stay flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import NamedTuple


class Growth(StrEnum):
    """How a figure may depend on the number of nights."""

    FLAT = "flat"
    """The median of the last third is at most `factor` times that of the first, and `slack`."""
    BOUNDED = "bounded"
    """The highest value of the last third is at most the highest before it, and `slack`: for exact counts."""
    LINEAR = "linear"
    """At most `slope` a night over the last two thirds, by the medians of both: for what is kept by design."""


@dataclass(frozen=True)
class Declared:
    """What is declared of one curve."""

    growth: Growth
    why: str
    factor: float = 1.0
    slack: float = 0.0
    slope: float = 0.0


class Judged(NamedTuple):
    """A curve, and whether it is as declared."""

    name: str
    declared: Declared
    first: float
    """Of the first third: its median, or the highest value of the first two where the growth is bounded."""
    last: float
    slope: float
    """A night, between the medians of the second and the last third."""
    is_right: bool


def judge(curves: Mapping[str, Sequence[float]], declared: Mapping[str, Declared]) -> list[Judged]:
    """Hold each curve against what is declared of it; one of which nothing is declared is wrong."""
    unknown = sorted(set(curves) ^ set(declared))
    if unknown:
        raise ValueError(f"These curves are measured but not declared, or declared but not measured: {unknown}.")
    return [_judged(name, curves[name], each) for name, each in declared.items()]


def _judged(name: str, curve: Sequence[float], declared: Declared) -> Judged:
    if len(curve) < 3:
        raise ValueError(f"Curve {name!r} has {len(curve)} points; three are the least of which thirds can be made.")
    third = len(curve) // 3
    early, middle, late = curve[:third], curve[third : len(curve) - third], curve[len(curve) - third :]
    nights = (len(middle) + len(late)) / 2
    slope = (median(late) - median(middle)) / nights
    first, last = median(early), median(late)
    match declared.growth:
        case Growth.FLAT:
            is_right = last <= declared.factor * first + declared.slack
        case Growth.BOUNDED:
            first, last = max(*early, *middle), max(late)
            is_right = last <= first + declared.slack
        case Growth.LINEAR:
            is_right = slope <= declared.slope
    return Judged(name, declared, first, last, slope, is_right)
